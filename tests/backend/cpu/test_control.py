"""Loops, branches and early returns, and everything that they carry."""

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backend.cpu.triton_launch import LEVELS, run

RNG = np.random.default_rng(4)


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


def drawn(shape, dtype=np.float32):
    return RNG.integers(-9, 9, shape).astype(dtype)


@triton.jit
def _accumulate(out, x, n, row, BLOCK: tl.constexpr, STEP: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    p = x + i
    count = 0
    for k in range(1, n, STEP):
        total += tl.load(p)
        p += STEP * row
        count += k
    tl.store(out + i, total + count)
    tl.store(out + BLOCK + i, tl.load(p))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(LEVELS), st.integers(-2, 9), st.sampled_from([1, 2, 16, 64]), st.integers(1, 3))
def test_for_carries_blocks_pointers_and_scalars(level, n, block, step):
    x = drawn((13, block))
    out, _ = run(_accumulate, level, np.zeros(2 * block, np.float32), x, n, block, BLOCK=block, STEP=step)
    steps = range(1, n, step)
    rows = [k * step for k in range(len(steps))]
    np.testing.assert_array_equal(out[:block], x[rows].sum(0) + sum(steps))
    np.testing.assert_array_equal(out[block:], x[len(rows) * step])


@triton.jit
def _exchange(out, x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(x + BLOCK + i)
    c = tl.load(x + 2 * BLOCK + i)
    for _ in range(n):
        a, b, c = b, c + 1, a * 2
    tl.store(out + i, a)
    tl.store(out + BLOCK + i, b)
    tl.store(out + 2 * BLOCK + i, c)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("block", [1, 16, 128])
def test_blocks_change_places(n, block, level):
    x = drawn((3, block))
    out, _ = run(_exchange, level, np.zeros_like(x), x, n, BLOCK=block)
    a, b, c = x
    for _ in range(n):
        a, b, c = b, c + 1, a * 2
    np.testing.assert_array_equal(out, [a, b, c])


@triton.jit
def _turned(out, x, n, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    v = tl.load(x + at)
    for k in range(n):
        v = tl.trans(v) + k
    tl.store(out + at, v)


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("size", [2, 16, 32])
def test_a_carried_block_is_read_in_another_order(n, size, level):
    x = drawn((size, size))
    out, _ = run(_turned, level, np.zeros_like(x), x, n, SIZE=size)
    want = x
    for k in range(n):
        want = want.T + k
    np.testing.assert_array_equal(out, want)


@triton.jit
def _running(out, x, rows, C: tl.constexpr, R: tl.constexpr, BR: tl.constexpr):
    r = tl.arange(0, BR)
    c = tl.arange(0, C)
    best = tl.full((BR,), float("-inf"), tl.float32)
    total = tl.zeros((BR,), tl.float32)
    for k in range(0, rows, C):
        v = tl.load(x + r[:, None] * rows + k + c[None, :], mask=(r[:, None] < R) & (k + c[None, :] < rows),
                    other=float("-inf"))  # fmt: skip
        new = tl.maximum(best, tl.max(v, 1))
        total = total * tl.exp(best - new) + tl.sum(tl.exp(v - new[:, None]), 1)
        best = new
    tl.store(out + r, best + tl.log(total), mask=r < R)


@pytest.mark.parametrize("shape", [(3, 100), (16, 64), (20, 33)])
def test_online_logsumexp(shape, level):
    x = RNG.standard_normal(shape).astype(np.float32) * 3
    out = np.zeros(shape[0], np.float32)
    out, _ = run(_running, level, out, x, shape[1], C=32, R=shape[0], BR=triton.next_power_of_2(shape[0]))
    np.testing.assert_allclose(out, np.log(np.exp(x.astype(float)).sum(1)), rtol=1e-6)


@triton.jit
def _while(out, x, limit, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    p = x + i
    k = 0
    while tl.sum(total, 0) < limit:
        total += tl.load(p)
        p += BLOCK
        k += 1
        if k > 3:
            total *= 2
        else:
            total += 1
    tl.store(out + i, total + k)


@pytest.mark.parametrize("limit", [0.0, 1.0, 300.0, 1000.0])
@pytest.mark.parametrize("block", [2, 16, 64])
def test_while_and_if_carry_blocks(limit, block, level):
    x = np.abs(drawn((200, block))) + 1
    out, _ = run(_while, level, np.zeros(block, np.float32), x, limit, BLOCK=block)
    total, k = np.zeros(block, np.float32), 0
    while total.sum() < limit:
        total = total + x[k]
        k += 1
        total = total * 2 if k > 3 else total + 1
    np.testing.assert_array_equal(out, total + k)


@triton.jit
def _branches(out, x, a, b, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    p = x + i
    s = 1.0
    if a > 0:
        v = v * 2
        p += BLOCK
        if b > 0:
            s = 3.0
            tl.store(out + 2 * BLOCK + i, v)
    elif b > 0:
        s = 4.0
    tl.store(out + i, v * s)
    tl.store(out + BLOCK + i, tl.load(p))


@pytest.mark.parametrize("a", [0, 1])
@pytest.mark.parametrize("b", [0, 1])
@pytest.mark.parametrize("block", [1, 16, 64])
def test_if_gives_blocks_pointers_and_scalars(a, b, block, level):
    x = drawn((2, block))
    out, _ = run(_branches, level, np.zeros((3, block), np.float32), x, a, b, BLOCK=block)
    v = x[0] * 2 if a else x[0]
    scale = (3 if b else 1) if a else (4 if b else 1)
    np.testing.assert_array_equal(out[0], v * scale)
    np.testing.assert_array_equal(out[1], x[1] if a else x[0])
    np.testing.assert_array_equal(out[2], v if a and b else np.zeros(block))


@triton.jit
def _early(out, x, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    if row >= n:
        return
    v = tl.load(x + i)
    if m > 2:
        tl.store(out + row * BLOCK + i, v)
        return
    tl.store(out + row * BLOCK + i, -v)


@pytest.mark.parametrize("m", [2, 3])
def test_early_returns(m, level):
    x = drawn(16)
    out, _ = run(_early, level, np.zeros((6, 16), np.float32), x, 4, m, grid=(6,), BLOCK=16)
    want = np.zeros((6, 16))
    want[:4] = x if m > 2 else -x
    np.testing.assert_array_equal(out, want)


@triton.jit
def _nested(out, x, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    scale = tl.load(x + i) * 2.0
    for a in range(n):
        inner = tl.zeros((BLOCK,), tl.float32)
        for b in range(a, m):
            if (a + b) % 2 == 0:
                inner += tl.load(x + i + b) * scale
        total += inner * a
    tl.store(out + i, total)


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0), (4, 5), (5, 4)])
def test_nested_loops(n, m, level):
    x = drawn(16 + 8)
    out, _ = run(_nested, level, np.zeros(16, np.float32), x, n, m, BLOCK=16)
    want = np.zeros(16)
    for a in range(n):
        for b in range(a, m):
            if (a + b) % 2 == 0:
                want += x[b : b + 16] * (x[:16] * 2) * a
    np.testing.assert_array_equal(out, want)


@triton.jit
def _stores_in_a_loop(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    first = tl.load(x + i)
    for _ in range(n):
        v = tl.load(x + i)
        tl.store(x + i, v + first)
        tl.store(x + BLOCK + i, v)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_loads_before_a_loop_that_stores(n, level):
    x = drawn((2, 64))
    (got,) = run(_stores_in_a_loop, level, x, n, BLOCK=64)
    first = x[0].copy()
    want = x.copy()
    for _ in range(n):
        want[1] = want[0]
        want[0] = want[0] + first
    np.testing.assert_array_equal(got, want)


@triton.jit
def _counted(out, x, n: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, n, BLOCK):
        m = k + i < n
        total += tl.load(x + k + i, mask=m, other=0.0)
    index = i
    for k in tl.static_range(3):
        index += k
    for _ in range(2):
        index += 5
    tl.store(out + i, total + index)


@pytest.mark.parametrize("n", [1, 16, 40, 128])
def test_loops_over_a_known_length(n, level):
    x = drawn(n)
    out, _ = run(_counted, level, np.zeros(16, np.float32), x, n=n, BLOCK=16)
    padded = np.zeros(-(-n // 16) * 16)
    padded[:n] = x
    np.testing.assert_array_equal(out, padded.reshape(-1, 16).sum(0) + np.arange(16) + 13)
