"""Reductions and scans: every axis, combination and element type, with masks that pad a block."""

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backend.cpu.triton_launch import LEVELS, compiled, pointer, run

RNG = np.random.default_rng(3)


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _mul(a, b):
    return a * b


@triton.jit
def _maxi(a, b):
    return tl.maximum(a, b)


@triton.jit
def _mini(a, b):
    return tl.minimum(a, b)


@triton.jit
def _max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _and(a, b):
    return a & b


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _xor(a, b):
    return a ^ b


@triton.jit
def _reduced(v, AXIS: tl.constexpr, COMBINE: tl.constexpr):
    if COMBINE == "add":
        r = tl.reduce(v, AXIS, _add)
    elif COMBINE == "mul":
        r = tl.reduce(v, AXIS, _mul)
    elif COMBINE == "max":
        r = tl.reduce(v, AXIS, _maxi)
    elif COMBINE == "min":
        r = tl.reduce(v, AXIS, _mini)
    elif COMBINE == "max_nan":
        r = tl.reduce(v, AXIS, _max_nan)
    elif COMBINE == "and":
        r = tl.reduce(v, AXIS, _and)
    elif COMBINE == "or":
        r = tl.reduce(v, AXIS, _or)
    else:
        r = tl.reduce(v, AXIS, _xor)
    return r


@triton.jit
def _scanned(v, AXIS: tl.constexpr, COMBINE: tl.constexpr, BACK: tl.constexpr):
    if COMBINE == "add":
        r = tl.associative_scan(v, AXIS, _add, reverse=BACK)
    elif COMBINE == "mul":
        r = tl.associative_scan(v, AXIS, _mul, reverse=BACK)
    else:
        r = tl.associative_scan(v, AXIS, _maxi, reverse=BACK)
    return r


@triton.jit
def _reduce_2d(out, x, R: tl.constexpr, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, AXIS: tl.constexpr,
               OTHER: tl.constexpr, COMBINE: tl.constexpr):  # fmt: skip
    r = tl.arange(0, BR)
    c = tl.arange(0, BC)
    v = tl.load(x + r[:, None] * C + c[None, :], mask=(r[:, None] < R) & (c[None, :] < C), other=OTHER)
    if AXIS == 0:
        tl.store(out + c, _reduced(v, 0, COMBINE), mask=c < C)
    else:
        tl.store(out + r, _reduced(v, 1, COMBINE), mask=r < R)


@triton.jit
def _reduce_1d(out, x, n, BLOCK: tl.constexpr, OTHER: tl.constexpr, COMBINE: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out, _reduced(tl.load(x + i, mask=i < n, other=OTHER), 0, COMBINE))


FUNCTIONS = {"add": np.add, "mul": np.multiply, "max": np.fmax, "min": np.fmin, "max_nan": np.maximum,
             "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}  # fmt: skip
FLOATING = {"add": 0.0, "mul": 1.0, "max": float("-inf"), "min": float("inf"), "max_nan": float("-inf")}
INTEGER = {"add": 0, "mul": 1, "and": -1, "or": 0, "xor": 0}


def drawn(shape, dtype):
    if np.dtype(dtype).kind in "iu":
        return RNG.integers(0, 50, shape).astype(dtype)
    return (RNG.integers(-8, 8, shape) / 4).astype(dtype)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(LEVELS),
    st.sampled_from([(1, 1), (1, 300), (3, 5), (16, 16), (17, 33), (40, 2), (2, 40), (100, 70), (64, 128), (5, 512)]),
    st.integers(0, 1),
    st.sampled_from(list(FLOATING)),
    st.sampled_from([np.float32, np.float64, np.float16]),
)
def test_float_reductions(level, shape, axis, combine, dtype):
    x = drawn(shape, dtype)
    if combine == "mul":
        x = np.where(RNG.random(shape) < 0.9, np.ones_like(x), np.full_like(x, 2))
        x[np.cumsum(x > 1, axis=axis) > 8] = 1
    r, c = shape
    block = {"BR": triton.next_power_of_2(r), "BC": triton.next_power_of_2(c)}
    out = np.zeros(shape[1 - axis], dtype)
    out, _ = run(_reduce_2d, level, out, x, R=r, C=c, AXIS=axis, OTHER=FLOATING[combine], COMBINE=combine, **block)
    want = FUNCTIONS[combine].reduce(x.astype(np.float64), axis=axis)
    np.testing.assert_array_equal(out, want.astype(dtype))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("combine", INTEGER)
@pytest.mark.parametrize("axis", [0, 1])
def test_integer_reductions(axis, combine, dtype, level):
    shape = (20, 37)
    x = RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, endpoint=True).astype(dtype)
    out = np.zeros(shape[1 - axis], dtype)
    out, _ = run(
        _reduce_2d, level, out, x, R=20, C=37, BR=32, BC=64, AXIS=axis, OTHER=INTEGER[combine], COMBINE=combine
    )
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, FUNCTIONS[combine].reduce(x, axis=axis, dtype=dtype))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LEVELS), st.integers(0, 260), st.sampled_from([1, 2, 8, 64, 256]), st.sampled_from(list(FLOATING))
)
def test_reductions_whose_length_is_known_late(level, n, block, combine):
    n = min(n, block)
    x = np.ones(block, np.float32)
    x[:n] = drawn(n, np.float32)
    if combine == "mul":
        x[:n] = np.where(np.arange(n) % 3, 1, -1)
    x[n:] = np.nan  # must not be read as numbers
    (out, _) = run(
        _reduce_1d, level, np.zeros(1, np.float32), x, n, BLOCK=block, OTHER=FLOATING[combine], COMBINE=combine
    )
    identity = np.float32(FLOATING[combine])
    with np.errstate(all="ignore"):
        want = FUNCTIONS[combine].reduce(x[:n].astype(np.float64), initial=identity)
    np.testing.assert_array_equal(out, [np.float32(want)])


@pytest.mark.parametrize("n", [1, 5, 16, 100])
def test_padding_that_matters_is_counted(n, level):
    """``other`` is not what the combination leaves alone: all of the block takes part."""
    x = drawn(n, np.float32)
    block = 128
    out, _ = run(_reduce_1d, level, np.zeros(1, np.float32), x, n, BLOCK=block, OTHER=0.5, COMBINE="add")
    np.testing.assert_array_equal(out, [x.sum() + 0.5 * (block - n)])
    out, _ = run(_reduce_1d, level, np.zeros(1, np.float32), x, n, BLOCK=block, OTHER=1.25, COMBINE="max")
    np.testing.assert_array_equal(out, [max(x.max(), 1.25)])


@pytest.mark.parametrize("combine", ["max", "max_nan"])
@pytest.mark.parametrize("n", [1, 16, 100, 128])
def test_nan_in_maxima(n, combine, level):
    x = drawn(n, np.float32)
    x[n // 2] = np.nan
    out, _ = run(_reduce_1d, level, np.zeros(1, np.float32), x, n, BLOCK=128, OTHER=float("-inf"), COMBINE=combine)
    want = np.nan if combine == "max_nan" else (np.fmax.reduce(x) if n > 1 else -np.inf)
    np.testing.assert_array_equal(out, [np.float32(want)])


@triton.jit
def _arg(out, index, x, R: tl.constexpr, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, AXIS: tl.constexpr,
         LEFT: tl.constexpr):  # fmt: skip
    r = tl.arange(0, BR)
    c = tl.arange(0, BC)
    m = (r[:, None] < R) & (c[None, :] < C)
    v = tl.load(x + r[:, None] * C + c[None, :], mask=m, other=float("-inf"))
    value, where = tl.max(v, AXIS, return_indices=True, return_indices_tie_break_left=LEFT)
    if AXIS == 0:
        tl.store(out + c, value, mask=c < C)
        tl.store(index + c, where, mask=c < C)
    else:
        tl.store(out + r, value, mask=r < R)
        tl.store(index + r, where, mask=r < R)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 1), (4, 100), (33, 17), (64, 64), (2, 600)])
def test_where_the_maximum_is(shape, axis, left, level):
    x = RNG.permutation(shape[0] * shape[1]).reshape(shape).astype(np.float32)
    if left:
        x = np.floor(x / 7)
    r, c = shape
    count = shape[1 - axis]
    block = {"BR": triton.next_power_of_2(r), "BC": triton.next_power_of_2(c)}
    out, index, _ = run(
        _arg, level, np.zeros(count, np.float32), np.zeros(count, np.int32), x, R=r, C=c, AXIS=axis, LEFT=left, **block
    )
    np.testing.assert_array_equal(out, x.max(axis))
    np.testing.assert_array_equal(index, x.argmax(axis))


@triton.jit
def _merge(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    share = tl.where(n == 0, 0.0, n_b / n)
    delta = mean_b - mean_a
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def _welford(out, x, R: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    r = tl.arange(0, R)
    m = (i < N)[None, :] & (r[:, None] >= 0)
    v = tl.load(x + r[:, None] * N + i[None, :], mask=m, other=0.0)
    mean, m2, n = tl.reduce((v, tl.zeros_like(v), m.to(tl.float32)), 1, _merge)
    tl.store(out + r, mean)
    tl.store(out + R + r, m2 / n)


@pytest.mark.parametrize("n", [1, 7, 64, 200])
def test_three_blocks_reduced_together(n, level):
    x = RNG.standard_normal((4, n)).astype(np.float32)
    out, _ = run(_welford, level, np.zeros((2, 4), np.float32), x, R=4, N=n, BLOCK=triton.next_power_of_2(n))
    np.testing.assert_allclose(out[0], x.mean(1), atol=1e-5)
    np.testing.assert_allclose(out[1], x.astype(float).var(1), atol=1e-5)


@triton.jit
def _reduce_3d(out, x, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr):
    i = tl.arange(0, A)[:, None, None] * (B * C) + tl.arange(0, B)[None, :, None] * C + tl.arange(0, C)[None, None, :]
    s = tl.sum(tl.load(x + i), AXIS)
    P: tl.constexpr = B if AXIS == 0 else A
    Q: tl.constexpr = B if AXIS == 2 else C
    tl.store(out + tl.arange(0, P)[:, None] * Q + tl.arange(0, Q)[None, :], s)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(2, 4, 8), (4, 16, 32), (32, 2, 4), (64, 4, 1), (1, 8, 64)])
def test_reductions_of_three_axes(shape, axis, level):
    x = drawn(shape, np.float32)
    want = x.sum(axis)
    a, b, c = shape
    out, _ = run(_reduce_3d, level, np.zeros(want.shape, np.float32), x, A=a, B=b, C=c, AXIS=axis)
    np.testing.assert_array_equal(out, want)


@triton.jit
def _variance(out, x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x + i, mask=m, other=0.0)
    mean = tl.sum(v, 0) / n
    centred = tl.where(m, v - mean, 0.0)
    tl.store(out, tl.sum(centred * centred, 0) / n)
    shifted = v - mean
    tl.store(out + 1, tl.sum(shifted * shifted, 0))


@pytest.mark.parametrize("n", [1, 16, 50, 63])
def test_padding_behind_arithmetic(n, level):
    x = RNG.standard_normal(n).astype(np.float32)
    out, _ = run(_variance, level, np.zeros(2, np.float32), x, n, BLOCK=64)
    wide = x.astype(float)
    np.testing.assert_allclose(out[0], wide.var(), rtol=1e-5, atol=1e-7)
    whole = ((wide - wide.mean()) ** 2).sum() + (64 - n) * wide.mean() ** 2
    np.testing.assert_allclose(out[1], whole, rtol=1e-4, atol=1e-5)


@triton.jit
def _softmax(out, x, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    m = i < N
    v = tl.load(x + row * N + i, mask=m, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * N + i, e / tl.sum(e, 0), mask=m)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(LEVELS), st.integers(1, 600))
def test_softmax_rows(level, n):
    x = RNG.standard_normal((3, n)).astype(np.float32) * 5
    x[1, : n // 2] = -np.inf
    out, _ = run(_softmax, level, np.zeros_like(x), x, grid=(3,), N=n, BLOCK=triton.next_power_of_2(n))
    wide = np.exp(x.astype(float) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, wide / wide.sum(1, keepdims=True), rtol=1e-5, atol=1e-30)


def test_result_does_not_depend_on_how_programs_are_shared_out(level):
    x = RNG.standard_normal((8, 300)).astype(np.float32)
    constants = {"N": 300, "BLOCK": 512}
    kernel = compiled(_softmax, {"out": pointer(x), "x": pointer(x)}, constants, level)
    whole, _ = kernel.launch(np.zeros_like(x), x, grid=(8,))
    parts, _ = kernel.launch(np.zeros_like(x), x, grid=(8,), cuts=(1, 5, 5, 7))
    np.testing.assert_array_equal(whole, parts)


@triton.jit
def _scan(out, x, R: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr, BACK: tl.constexpr, COMBINE: tl.constexpr):
    i = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out + i, _scanned(tl.load(x + i), AXIS, COMBINE, BACK))


@pytest.mark.parametrize("combine", ["add", "max", "mul"])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 1), (1, 64), (64, 1), (4, 16), (32, 2), (2, 256), (8, 64)])
def test_scans(shape, axis, back, combine, level):
    x = drawn(shape, np.float32)
    if combine == "mul":
        x = np.where(x > 0, 1, -1).astype(np.float32)
    r, c = shape
    out, _ = run(_scan, level, np.zeros_like(x), x, R=r, C=c, AXIS=axis, BACK=back, COMBINE=combine)
    ordered = np.flip(x, axis) if back else x
    want = FUNCTIONS[combine].accumulate(ordered, axis=axis)
    np.testing.assert_array_equal(out, np.flip(want, axis) if back else want)


@triton.jit
def _line(a1, b1, a2, b2):
    return a2 * a1, a2 * b1 + b2


@triton.jit
def _recurrence(out, a, b, N: tl.constexpr):
    i = tl.arange(0, N)
    _, y = tl.associative_scan((tl.load(a + i), tl.load(b + i)), 0, _line)
    tl.store(out + i, y)


@pytest.mark.parametrize("n", [1, 2, 16, 128])
def test_scan_of_two_blocks_keeps_their_order(n, level):
    a, b = RNG.choice([0.5, 1.0, -1.0], n).astype(np.float32), drawn(n, np.float32)
    out, *_ = run(_recurrence, level, np.zeros(n, np.float32), a, b, N=n)
    want, y = [], 0.0
    for p, q in zip(a, b, strict=True):
        y = float(p) * y + float(q)
        want.append(y)
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float16, ml_dtypes.bfloat16])
def test_scans_of_other_elements(dtype, level):
    x = RNG.integers(0, 3, (2, 32)).astype(dtype)
    out, _ = run(_scan, level, np.zeros_like(x), x, R=2, C=32, AXIS=1, BACK=False, COMBINE="add")
    np.testing.assert_array_equal(out.astype(int), np.cumsum(x.astype(int), 1))
