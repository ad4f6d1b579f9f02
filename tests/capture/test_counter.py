"""Random draws whose counter is state: every replay draws anew, and the draws are those of the generator."""

from __future__ import annotations

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.random import philox4x32

COUNT = 64
KEY = (0x243F6A88, 0x85A308D3)
LOW = 0xFFFFFFFF


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


def draw(state, x):
    """Philox4x32-10 written with pointwise ops on a counter of 64 bits, one block for each of ``COUNT`` places."""
    low, high = nbx.asarray(np.uint64(LOW)), nbx.asarray(np.uint64(32))
    factors = [nbx.asarray(np.uint64(m)) for m in (0xD2511F53, 0xCD9E8D57)]
    counter = state["counter"] + nbx.arange(COUNT, dtype="uint64")
    c = [counter & low, counter >> high, counter & nbx.asarray(np.uint64(0)), counter & nbx.asarray(np.uint64(0))]
    keys = list(KEY)
    for _ in range(10):
        first, second = c[0] * factors[0], c[2] * factors[1]
        k = [nbx.asarray(np.uint64(key)) for key in keys]
        c = [(second >> high) ^ c[1] ^ k[0], second & low, (first >> high) ^ c[3] ^ k[1], first & low]
        keys = [(keys[0] + 0x9E3779B9) & LOW, (keys[1] + 0xBB67AE85) & LOW]
    words = nbx.stack(c, axis=1)
    return words + x * nbx.asarray(np.uint64(0)), {"counter": state["counter"] + nbx.asarray(np.uint64(COUNT))}


def wanted(start):
    counters = np.zeros((COUNT, 4), np.uint32)
    values = np.arange(start, start + COUNT, dtype=np.uint64)
    counters[:, 0], counters[:, 1] = values & np.uint64(LOW), values >> np.uint64(32)
    return philox4x32(counters, KEY)


def test_a_counter_in_state_advances_in_every_replay(device):
    one = nbx.Spec((1,), "uint64")
    program = nbx.plan(nbx.trace(draw, one, state={"counter": nbx.Spec((), "uint64")}), device=device).load()
    recording = program.capture()
    x = np.zeros(1, np.uint64)
    start = 2**32 - 100  # the counter's second word changes on the way
    program.state["counter"] = np.uint64(start)
    kept = [recording(x) for _ in range(4)]
    for number, got in enumerate(kept):
        np.testing.assert_array_equal(got.numpy(), wanted(start + number * COUNT))
    assert program.state["counter"].item() == start + 4 * COUNT
