"""Every case of every declared op: its result rule and cost, and its kernels on the CPU, against the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.ops import harness
from tests.ops.declared import allocated, audited

from nbxtensor.dtype.itemsize import kind
from nbxtensor.run import device

if TYPE_CHECKING:
    from nbxtensor.op import Op

OPS = harness.declared_ops()
CASES = [
    pytest.param(op, index, id=harness.case_id(op, index))
    for op in OPS
    for index, case in enumerate(op.cases)
    if not case.bench
]


@pytest.mark.parametrize(("op", "index"), CASES)
def test_case(op: Op, index: int, backend):
    case = op.cases[index]
    target = backend.target(0)
    call = harness.call_of(op, case, target)
    given = harness.operands(case, harness.case_seed(op, index))
    arrays = {name: laid.values for name, laid in given.items()}
    wanted = harness.reference(op, arrays, case.params)
    sizes = harness.reference(op, arrays, case.params, absolute=True)

    assert len(call.outputs) == len(wanted)
    for spec, want in zip(call.outputs, wanted, strict=True):
        assert want.shape == spec.shape
        if kind(spec.dtype) in ("int", "uint", "bool"):
            assert want.dtype == harness.value_dtype(spec.dtype)
        else:
            assert want.dtype.kind == ("c" if kind(spec.dtype) == "complex" else "f")

    served = list(harness.kernels(call))
    assert served, f"no kernel of {op.name} serves {target.arch}"
    for kernel in served:
        cost = kernel.cost(call)
        workspace = sum(buffer.nbytes for buffer in cost.buffers)
        copied = call.operand_nbytes if kernel.in_place else 0
        assert call.result_nbytes <= cost.written <= call.result_nbytes + workspace + copied
        assert cost.flops >= 0
        least, most = cost.moved
        assert cost.again <= cost.read
        assert call.result_nbytes <= least <= cost.read + cost.written <= most
        assert least <= call.operand_nbytes + call.result_nbytes + 2 * (workspace + copied)
        assert all(0 <= b.first <= b.last < max(len(kernel.launch(call)), 1) for b in cost.buffers)
        for made in (call, harness.in_place(call, kernel)) if kernel.in_place else (call,):
            results = harness.run(made, kernel, given, backend, bake=index % 2 == 1)
            for spec, got, want, size in zip(call.outputs, results, wanted, sizes, strict=True):
                harness.compare(call, got, want, size, spec.dtype, flops=cost.flops, rtol=case.rtol)
    where = device(backend.name)
    if index % 2 or where.name == "cpu":  # elsewhere, where the kernels are those that ran above
        audited(call, given, where)
    if not index % 2:
        allocated(call, given, where)


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in OPS])
def test_declaration(op: Op):
    assert op.doc, f"{op.name} has no docstring"
    assert [c for c in op.cases if not c.bench], f"{op.name} has no case"
    assert op.kernels, f"{op.name} has no kernel"
    assert len({k.name for k in op.kernels}) == len(op.kernels)
