import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.op import Spec
from nbxtensor.run import measuring


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(measuring, "_RUNS", 2)
    monkeypatch.setattr(measuring, "_TURN_SECONDS", 1e-4)


def call(op, **operands):
    op = op.op
    defaults = {n: p.default for n, p in op.signature.parameters.items() if p.default is not p.empty}
    params = {n: v for n, v in defaults.items() if n not in operands}
    return op.call(operands, params, nbx.device("cpu").target)


def test_products_are_rated_by_dtype():
    rates = measuring.product_rates(nbx.device("cpu"), {"float32": 64, "float64": 32, "bfloat16": 32, "int8": 32})
    assert rates.keys() == {f"rates.matrix.{dtype}" for dtype in ("float32", "float64", "bfloat16", "int8")}
    assert all(type(rate) is int and rate > 0 for rate in rates.values())
    assert measuring.product_rates(nbx.device("cpu"), {}) == {}


@pytest.mark.parametrize("apart", [0, 1 << 16])
def test_a_call_is_timed_and_leaves_no_memory(apart):
    device = nbx.device("cpu")
    live = len(device.backend.memory(0)._blocks) if hasattr(device.backend.memory(0), "_blocks") else 0
    x = Spec((64, 32), "float32")
    assert measuring.call_seconds(device, call(nbx.softmax, x=x), apart=apart) > 0
    assert measuring.call_seconds(device, call(nbx.sum, x=Spec((3, 5), "int64"))) > 0
    measuring.call_once(device, call(nbx.softmax, x=x))
    after = len(device.backend.memory(0)._blocks) if hasattr(device.backend.memory(0), "_blocks") else 0
    assert after == live


def test_operands_lie_apart_and_are_filled():
    device = nbx.device("cpu")
    made = call(nbx.add, x1=Spec((100,), "float32"), x2=Spec((7, 100), "float32"))
    layout = measuring._Layout(device, made)
    assert layout.nbytes == 512 + 2 * 3072
    block = np.full(layout.nbytes + 512, 255, np.uint8)
    start = -(-block.ctypes.data // 512) * 512
    layout.fill(start)
    for bound in layout.bound(start):
        device.backend.launch(bound)
    values = block[start - block.ctypes.data :].view(np.float32)[: layout.nbytes // 4]
    x, y, z = values[:100], values[128 : 128 + 700].reshape(7, 100), values[896 : 896 + 700].reshape(7, 100)
    assert np.array_equal(z, x + y)
    assert abs(x).max() > 0
