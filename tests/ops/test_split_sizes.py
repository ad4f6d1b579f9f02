"""Split sizes in force: no kernel asks for more workspace than its family may have, and results stay what they are."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ops import harness

import nbxtensor as nbx
from nbxtensor.backend import device_facts
from nbxtensor.op import Spec
from nbxtensor.ops.tiling_policy import set_tiling, tiling_table

TARGETS = (device_facts.target("nvidia", "h200"), nbx.device("cpu").target)
WORKING = [op for op in harness.declared_ops() if op.module.split(".")[-2] in ("matmul", "attention", "reduce")]
KEYS = Spec((1, 8, 65536, 64), "float16")
LARGE = {  # what is split where there is room: operands, parameters
    "matmul": ({"x": Spec((64, 65536), "float32"), "y": Spec((65536, 64), "float32")}, {}),
    "linear": ({"x": Spec((1, 65536), "bfloat16"), "weight": Spec((64, 65536), "bfloat16")}, {}),
    "attention": ({"q": Spec((1, 8, 1, 64), "float16"), "k": KEYS, "v": KEYS}, {}),
    "sum": ({"x": Spec((3, 1 << 22), "float32")}, {"axis": (1,)}),
    "var": ({"x": Spec((3, 1 << 22), "float32")}, {"axis": (1,)}),
}  # fmt: skip


@pytest.fixture
def sizes():
    """Puts one size in force for all families."""

    def put(nbytes):
        set_tiling({family: dict.fromkeys(sizes, nbytes) for family, sizes in tiling_table().items()})

    yield put
    set_tiling(None)


def workspace(op, operands, params, target):
    defaults = {n: p.default for n, p in op.signature.parameters.items() if p.default is not p.empty}
    call = op.call(operands, {n: v for n, v in {**defaults, **params}.items() if n not in operands}, target)
    return [sum(b.nbytes for b in kernel.cost(call).buffers) for kernel in harness.kernels(call)]


@pytest.mark.parametrize("nbytes", [1, 1000, 20_000])
@pytest.mark.parametrize("target", TARGETS, ids=["h200", "cpu"])
def test_no_call_has_more_workspace_than_its_family_may(sizes, target, nbytes):
    sizes(nbytes)
    for op in WORKING:
        for case in op.cases:
            call = harness.call_of(op, case, target)
            for kernel in harness.kernels(call):
                assert sum(b.nbytes for b in kernel.cost(call).buffers) <= nbytes, (op.name, case)


@pytest.mark.parametrize("name", LARGE)
def test_less_room_is_fewer_shares(sizes, name):
    op = next(op for op in WORKING if op.name == name)
    whole = max(workspace(op, *LARGE[name], TARGETS[0]))
    assert whole > 0
    sizes(whole // 2)
    assert 0 < max(workspace(op, *LARGE[name], TARGETS[0])) <= whole // 2
    sizes(1)
    assert max(workspace(op, *LARGE[name], TARGETS[0])) == 0


def test_ops_that_ran_before_are_prepared_anew(sizes):
    x = nbx.asarray(np.random.default_rng(0).standard_normal(1 << 20))
    allocator = nbx.device("cpu").allocator
    wanted = float(x.numpy().sum())

    def asked():
        before = allocator.requests
        assert nbx.sum(x).numpy().item() == pytest.approx(wanted, rel=1e-9)
        return allocator.requests - before

    assert asked() > 1  # the result, and totals of pieces
    sizes(1)
    assert asked() == 1
    set_tiling(None)
    assert asked() > 1
