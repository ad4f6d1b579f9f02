"""Kernels that declare it write results with gaps between elements, and leave the gaps as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.ops import harness

from nbxtensor import shape as shapes
from nbxtensor.op import Spec

if TYPE_CHECKING:
    from nbxtensor.op import Op

_MOST = 4  # cases of an op that is not pointwise; of those one is enough, since one generator writes them all


def _eligible() -> list[object]:
    found = []
    for op in harness.declared_ops():
        if not any(kernel.strided for kernel in op.kernels):
            continue
        fit = [i for i, c in enumerate(op.cases) if not c.bench and _fits(op, i)]
        chosen = fit[len(op.name) % len(fit) :][:1] if op.pointwise is not None and fit else fit[:_MOST]
        found += [pytest.param(op, index, id=harness.case_id(op, index)) for index in chosen]
    return found


def _fits(op: Op, index: int) -> bool:
    outputs = harness.call_of(op, op.cases[index]).outputs
    return len(outputs) == 1 and outputs[0].ndim > 1 and outputs[0].numel > 0 and outputs[0].is_contiguous


@pytest.mark.parametrize(("op", "index"), _eligible())
def test_gaps_are_left(op: Op, index: int, backend):
    case = op.cases[index]
    plain = harness.call_of(op, case, backend.target(0))
    spec = plain.outputs[0]
    wide = shapes.contiguous_strides((*spec.shape[:-1], spec.shape[-1] + 3))
    call = replace(plain, outputs=(Spec(spec.shape, spec.dtype, wide),))
    given = harness.operands(case, harness.case_seed(op, index))
    arrays = {name: laid.values for name, laid in given.items()}
    (want,) = harness.reference(op, arrays, case.params)
    (size,) = harness.reference(op, arrays, case.params, absolute=True)
    for kernel in harness.kernels(plain):
        if kernel.strided:
            (got,) = harness.run(call, kernel, given, backend, bake=True)
            flops = kernel.cost(call).flops
            harness.compare(call, got, want, size, spec.dtype, flops=flops, rtol=case.rtol)
