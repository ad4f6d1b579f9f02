"""Matrix products of blocks: operands in place, masked, transposed, computed; carried sums and what follows them."""

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.backend.cpu.triton_launch import LEVELS, run

from nbxtensor.backend.cpu import levels

RNG = np.random.default_rng(5)
SUMS = {"float32": np.float32, "float64": np.float64, "float16": np.float32, "bfloat16": np.float32, "int8": np.int32}
BEYOND = frozenset({"avx512bf16", "avx512vnni"}) & levels.features()
KINDS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8]


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


def drawn(shape, dtype=np.float32):
    """Small numbers, whose products and sums are exact in every type."""
    return RNG.integers(-4, 5, shape).astype(dtype)


@triton.jit
def _dot(out, a, b, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
         BK: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):  # fmt: skip
    m = tl.arange(0, BM)
    n = tl.arange(0, BN)
    k = tl.arange(0, BK)
    x = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0)
    if LEFT == 1:  # transposed in memory
        x = tl.trans(tl.load(a + k[:, None] * M + m[None, :], mask=(k[:, None] < K) & (m[None, :] < M), other=0))
    elif LEFT == 2:
        x = x + x
    if RIGHT == 0:
        y = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0)
    elif RIGHT == 1:
        y = tl.trans(tl.load(b + n[:, None] * K + k[None, :], mask=(n[:, None] < N) & (k[None, :] < K), other=0))
    else:
        y = tl.load(b + n[None, :] * K + k[:, None], mask=(n[None, :] < N) & (k[:, None] < K), other=0)
    z = tl.dot(x, y, input_precision="ieee")
    tl.store(out + m[:, None] * N + n[None, :], z, mask=(m[:, None] < M) & (n[None, :] < N))


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(LEVELS), st.sampled_from(KINDS), st.tuples(*[st.sampled_from([1, 3, 8, 16, 17, 33, 64])] * 3),
    st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 2]), st.booleans(),
)  # fmt: skip
@example("x86-64-v4", np.int8, (16, 16, 64), 0, 0, True)
def test_products(level, dtype, sizes, left, right, beyond):
    m, n, k = sizes
    features = BEYOND if beyond and level == "x86-64-v4" else frozenset()
    a, b = drawn((m, k), dtype), drawn((k, n), dtype)
    total = SUMS[np.dtype(dtype).name]
    block = {f"B{name}": max(16, triton.next_power_of_2(size)) for name, size in zip("MNK", sizes, strict=True)}
    stored_a = np.ascontiguousarray(a.T) if left == 1 else a
    stored_b = np.ascontiguousarray(b.T) if right else b
    out, *_ = run(
        _dot, level, np.full((m, n), 7, total), stored_a, stored_b,
        M=m, N=n, K=k, LEFT=left, RIGHT=right, features=features, **block,
    )  # fmt: skip
    want = a.astype(np.float64) @ b.astype(np.float64) * (2 if left == 2 else 1)
    np.testing.assert_array_equal(out, want.astype(total))


@triton.jit
def _matmul(out, a, b, bias, M, N, K, row_a, row_b, row_c, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    pa = a + m[:, None] * row_a + k[None, :]
    pb = b + k[:, None] * row_b + n[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        x = tl.load(pa, mask=(m[:, None] < M) & (k[None, :] < K - start), other=0.0)
        y = tl.load(pb, mask=(k[:, None] < K - start) & (n[None, :] < N), other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
        pa += BK
        pb += BK * row_b
    total += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    total = tl.where(total > 0, total, total * 0.5)
    tl.store(
        out + m[:, None] * row_c + n[None, :], total.to(out.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N)
    )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(LEVELS), st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]), st.integers(1, 80),
    st.integers(1, 80), st.integers(1, 80), st.sampled_from([(32, 32, 32), (64, 64, 16), (16, 64, 64)]),
)  # fmt: skip
@example("x86-64-v4", np.float32, 64, 64, 64, (32, 32, 32))
@example("x86-64-v4", np.float32, 1, 64, 64, (16, 64, 64))
def test_matmul_with_a_loop_and_an_epilogue(level, dtype, m, n, k, block):
    a, b, bias = drawn((m, k + 3), dtype), drawn((k, n + 5), dtype), drawn(n)
    grid = (-(-m // block[0]), -(-n // block[1]))
    constants = dict(zip(("BM", "BN", "BK"), block, strict=True))
    out, *_ = run(_matmul, level, np.zeros((m, n), dtype), a, b, bias, m, n, k, k + 3, n + 5, n, grid=grid, **constants)
    want = a[:, :k].astype(np.float64) @ b[:, :n].astype(np.float64) + bias
    np.testing.assert_array_equal(out, np.where(want > 0, want, want * 0.5).astype(dtype))


@triton.jit
def _batched(out, a, b, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TURN: tl.constexpr):
    h = tl.arange(0, B)[:, None, None]
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    x = tl.load(a + h * (M * K) + m[None, :, None] * K + k[None, None, :])
    if TURN:
        y = tl.permute(tl.load(b + h * (K * N) + n[None, :, None] * K + k[None, None, :]), (0, 2, 1))
    else:
        y = tl.load(b + h * (K * N) + k[None, :, None] * N + n[None, None, :])
    tl.store(out + h * (M * N) + m[None, :, None] * N + n[None, None, :], tl.dot(x, y, input_precision="ieee"))


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("sizes", [(1, 16, 16, 16), (4, 16, 32, 64), (2, 64, 16, 16)])
def test_batches(sizes, turn, level):
    batch, m, n, k = sizes
    a, b = drawn((batch, m, k)), drawn((batch, k, n))
    stored = np.ascontiguousarray(b.transpose(0, 2, 1)) if turn else b
    out, *_ = run(_batched, level, np.zeros((batch, m, n), np.float32), a, stored, B=batch, M=m, N=n, K=k, TURN=turn)
    np.testing.assert_array_equal(out, a @ b)


@triton.jit
def _attention(out, q, k, v, T, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    n = tl.arange(0, BN)
    rows = m[:, None] * D + d[None, :]
    x = tl.load(q + rows, mask=m[:, None] < T, other=0.0) * scale
    best = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, T, BN):
        inside = start + n < T
        y = tl.load(k + (start + n)[None, :] * D + d[:, None], mask=inside[None, :], other=0.0)
        s = tl.dot(x, y, input_precision="ieee")
        seen = inside[None, :] & (m[:, None] >= 0)
        if CAUSAL:
            seen = seen & (start + n[None, :] <= m[:, None])
        s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(best, tl.max(s, 1))
        alpha = tl.exp(best - new)
        p = tl.exp(s - new[:, None])
        total = total * alpha + tl.sum(p, 1)
        z = tl.load(v + (start + n)[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(p, z, acc * alpha[:, None], input_precision="ieee")
        best = new
    tl.store(out + rows, acc / total[:, None], mask=m[:, None] < T)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("t", "d"), [(16, 16), (100, 64), (33, 32), (128, 128)])
def test_attention_with_running_sums(t, d, causal, level):
    q, k, v = RNG.standard_normal((3, t, d)).astype(np.float32)
    scale = d**-0.5
    out, *_ = run(
        _attention, level, np.zeros_like(q), q, k, v, t, scale, grid=(-(-t // 32),), BM=32, BN=32, D=d, CAUSAL=causal
    )
    s = q.astype(float) @ k.astype(float).T * scale
    if causal:
        s = np.where(np.tri(t, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    np.testing.assert_allclose(out, p @ v.astype(float) / p.sum(1, keepdims=True), atol=2e-6)


@triton.jit
def _halves(out, a, b, S: tl.constexpr):
    at = tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :]
    x = tl.load(a + at)
    y = tl.load(b + at)
    total = tl.zeros((S, S), tl.float16)
    for _ in range(3):
        total = tl.dot(x, y, total, out_dtype=tl.float16)
    tl.store(out + at, total)


def test_sums_kept_as_halves(level):
    a, b = drawn((16, 16), np.float16), drawn((16, 16), np.float16)
    out, *_ = run(_halves, level, np.zeros_like(a), a, b, S=16)
    np.testing.assert_array_equal(out, 3 * (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16))


@triton.jit
def _chain(out, a, b, n, S: tl.constexpr):
    at = tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :]
    x = tl.load(a + at)
    y = tl.load(b + at)
    for _ in range(n):
        x = tl.dot(x, y, input_precision="ieee") + tl.dot(y, x, x, input_precision="ieee")
    tl.store(out + at, x)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_products_of_products(n, level):
    a, b = drawn((16, 16)), drawn((16, 16))
    out, *_ = run(_chain, level, np.zeros_like(a), a, b, n, S=16)
    want = a
    for _ in range(n):
        want = want @ b + (b @ want + want)
    np.testing.assert_array_equal(out, want)


@triton.jit
def _read_later(out, a, b, n, S: tl.constexpr):
    """The carried sums are read again after the product that replaces them."""
    at = tl.arange(0, S)[:, None] * S + tl.arange(0, S)[None, :]
    x = tl.load(a + at)
    y = tl.load(b + at)
    total = x
    for _ in range(n):
        new = tl.dot(x, y, total, input_precision="ieee")
        tl.store(out + at, new - total)
        total = new
    tl.store(out + S * S + at, total)


def test_sums_that_are_read_after_the_product(level):
    a, b = drawn((16, 16)), drawn((16, 16))
    out, *_ = run(_read_later, level, np.zeros((2, 16, 16), np.float32), a, b, 3, S=16)
    np.testing.assert_array_equal(out, [a @ b, a + 3 * (a @ b)])


@triton.jit
def _few_rows(out, a, b, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
    y = tl.load(b + k[:, None] * N + n[None, :], mask=n[None, :] < N, other=0.0)
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(x, y), mask=(m[:, None] < M) & (n[None, :] < N))


@pytest.mark.parametrize("m", [1, 2, 5, 16])
@pytest.mark.parametrize("n", [100, 128])
def test_few_rows(m, n, level):
    a, b = drawn((m, 64)), drawn((64, n))
    out, *_ = run(_few_rows, level, np.zeros((m, n), np.float32), a, b, grid=(2,), M=m, N=n, K=64, BM=16, BN=64)
    np.testing.assert_array_equal(out, a @ b)
