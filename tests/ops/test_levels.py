"""Every op on the other CPU level than this machine's best: the same results from narrower vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.ops import harness

if TYPE_CHECKING:
    from nbxtensor.op import Op

OPS = harness.declared_ops()


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in OPS])
def test_a_case_of_every_op_on_avx2(op: Op, backend):
    target = replace(backend.target(0), arch="x86-64-v3", features=frozenset())
    cases = [(i, c) for i, c in enumerate(op.cases) if not c.bench]
    for index, case in cases[:: max(len(cases) // 2, 1)][:2]:
        call = harness.call_of(op, case, target)
        given = harness.operands(case, harness.case_seed(op, index))
        arrays = {name: laid.values for name, laid in given.items()}
        wanted = harness.reference(op, arrays, case.params)
        sizes = harness.reference(op, arrays, case.params, absolute=True)
        for kernel in harness.kernels(call):
            flops = kernel.cost(call).flops
            for spec, got, want, size in zip(
                call.outputs, harness.run(call, kernel, given, backend, bake=True), wanted, sizes, strict=True
            ):
                harness.compare(call, got, want, size, spec.dtype, flops=flops, rtol=case.rtol)
