"""Loads, stores, masks and ops that move elements, over shapes with tails, strides and every axis order."""

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.backend.cpu.triton_launch import LEVELS, run

RNG = np.random.default_rng(2)
KINDS = [np.int8, np.float16, ml_dtypes.bfloat16, np.int32, np.float32, np.float64, np.int64]


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


def drawn(shape, dtype=np.float32):
    return RNG.integers(-99, 99, shape).astype(dtype)


@triton.jit
def _copy(out, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out + i, tl.load(x + i, mask=m), mask=m)


@triton.jit
def _copy_static(out, x, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < N
    tl.store(out + i, tl.load(x + i, mask=m), mask=m)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LEVELS), st.integers(1, 300), st.sampled_from([1, 4, 16, 32, 128]), st.sampled_from(KINDS))
@example("x86-64-v3", 33, 32, np.float32)
def test_copy_of_any_length(level, n, block, dtype):
    x = drawn(n, dtype)
    grid = (-(-n // block),)
    (out, _) = run(_copy, level, np.zeros(n, dtype), x, n, grid=grid, BLOCK=block)
    np.testing.assert_array_equal(out, x)
    if n < 40:
        (out, _) = run(_copy_static, level, np.zeros(n, dtype), x, grid=grid, N=n, BLOCK=block)
        np.testing.assert_array_equal(out, x)


@triton.jit
def _copy_2d(out, x, rows, columns, row, BR: tl.constexpr, BC: tl.constexpr):
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    m = (r[:, None] < rows) & (c[None, :] < columns)
    at = r[:, None] * row + c[None, :]
    tl.store(out + at, tl.load(x + at, mask=m, other=0), mask=m)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(LEVELS), st.integers(1, 40), st.integers(1, 70), st.integers(0, 3),
    st.sampled_from([(1, 64), (16, 16), (32, 4), (4, 32), (8, 1)]),
)  # fmt: skip
def test_copy_of_any_rectangle(level, rows, columns, extra, block):
    x = drawn((rows, columns + extra))
    grid = (-(-rows // block[0]), -(-columns // block[1]))
    start = np.full_like(x, 7)
    (out, _) = run(_copy_2d, level, start, x, rows, columns, columns + extra, grid=grid, BR=block[0], BC=block[1])
    want = start.copy()
    want[:, :columns] = x[:, :columns]
    np.testing.assert_array_equal(out, want)


@triton.jit
def _transpose(out, x, R: tl.constexpr, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, HOW: tl.constexpr):
    r = tl.arange(0, BR)
    c = tl.arange(0, BC)
    m = (r[:, None] < R) & (c[None, :] < C)
    v = tl.load(x + r[:, None] * C + c[None, :], mask=m, other=0)
    if HOW == 0:
        tl.store(out + r[:, None] + c[None, :] * R, v, mask=m)
    else:
        mt = (c[:, None] < C) & (r[None, :] < R)
        tl.store(out + c[:, None] * R + r[None, :], tl.trans(v), mask=mt)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("how", [0, 1])
@pytest.mark.parametrize("shape", [(16, 16), (32, 64), (5, 33), (64, 1), (1, 20), (100, 3)])
def test_transpose(shape, how, dtype, level):
    x = drawn(shape, dtype)
    block = {"BR": triton.next_power_of_2(shape[0]), "BC": triton.next_power_of_2(shape[1])}
    (out, _) = run(_transpose, level, np.zeros(shape[::-1], dtype), x, R=shape[0], C=shape[1], HOW=how, **block)
    np.testing.assert_array_equal(out, x.T)


@triton.jit
def _permute(
    out, x, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr
):
    i = tl.arange(0, A)[:, None, None] * (B * C) + tl.arange(0, B)[None, :, None] * C + tl.arange(0, C)[None, None, :]
    v = tl.permute(tl.load(x + i), (P, Q, R))
    tl.store(out + tl.arange(0, A * B * C), tl.reshape(v, (A * B * C,)))


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("shape", [(2, 4, 8), (16, 2, 32), (4, 32, 1)])
def test_permutations(shape, order, level):
    x = drawn(shape)
    constants = dict(zip("ABCPQR", (*shape, *order), strict=True))
    (out, _) = run(_permute, level, np.zeros(x.size, np.float32), x, **constants)
    np.testing.assert_array_equal(out, x.transpose(order).reshape(-1))


@triton.jit
def _reshape(out, x, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    v = tl.load(x + tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :])
    v = tl.reshape(v, (C, D))
    tl.store(out + tl.arange(0, C)[:, None] * D + tl.arange(0, D)[None, :], v + tl.arange(0, D)[None, :])


@pytest.mark.parametrize(
    "shapes", [(4, 64, 64, 4), (64, 4, 8, 32), (1, 256, 16, 16), (16, 16, 256, 1), (32, 8, 2, 128)]
)
def test_reshape(shapes, level):
    a, b, c, d = shapes
    x = drawn((a, b))
    (out, _) = run(_reshape, level, np.zeros((c, d), np.float32), x, A=a, B=b, C=c, D=d)
    np.testing.assert_array_equal(out, x.reshape(c, d) + np.arange(d, dtype=np.float32))


@triton.jit
def _joined(out, x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.join(tl.load(x + i), tl.load(y + i))
    a, b = tl.split(v * 2)
    tl.store(out + i, a - b)
    tl.store(out + N + tl.arange(0, 2 * N), tl.interleave(a, b))
    tl.store(out + 3 * N + tl.arange(0, 2 * N), tl.cat(a, b, can_reorder=False))


@pytest.mark.skipif(triton.__version__ < "3.7", reason="tl.cat without reordering came with Triton 3.7")
@pytest.mark.parametrize("n", [1, 4, 16, 64])
def test_join_split_and_cat(n, level):
    x, y = drawn((2, n))
    (out, *_) = run(_joined, level, np.zeros(5 * n, np.float32), x, y, N=n)
    want = [2 * x - 2 * y, np.stack([2 * x, 2 * y], 1).reshape(-1), 2 * x, 2 * y]
    np.testing.assert_array_equal(out, np.concatenate(want))


@triton.jit
def _interleaved(out, x, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, 2 * N))
    even, odd = tl.split(tl.reshape(v, (N, 2)))
    tl.store(out + tl.arange(0, 2 * N), tl.interleave(-odd, even))


@pytest.mark.parametrize("n", [1, 8, 64])
def test_pairs_rotate(n, level):
    x = drawn(2 * n)
    (out, _) = run(_interleaved, level, np.zeros(2 * n, np.float32), x, N=n)
    np.testing.assert_array_equal(out, np.stack([-x[1::2], x[::2]], 1).reshape(-1))


@triton.jit
def _strided(out, x, step, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < N
    tl.store(out + i * 2, tl.load(x + i * step, mask=m) + tl.load(x + (N - 1 - i) * step, mask=m), mask=m)


@pytest.mark.parametrize("n", [1, 15, 16, 50])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_strides_forward_and_backward(n, step, level):
    x = drawn(n * 3)
    (out, _) = run(_strided, level, np.zeros(2 * n, np.float32), x, step, N=n, BLOCK=triton.next_power_of_2(n))
    picked = x[: n * step : step]
    np.testing.assert_array_equal(out[::2], picked + picked[::-1])
    assert (out[1::2] == 0).all()


@triton.jit
def _reversed(out, x, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < N
    v = tl.load(x + (N - 1 - i), mask=m, other=5.0)
    tl.store(out - i + (N - 1), v + 1, mask=m)
    tl.store(out + N + i, tl.load(x + (N - 1) - i, mask=m), mask=m)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 7, 16, 40, 64])
def test_backward_runs_of_addresses(n, dtype, level):
    x = drawn(n, dtype)
    (out, _) = run(_reversed, level, np.zeros(2 * n, dtype), x, N=n, BLOCK=triton.next_power_of_2(n))
    np.testing.assert_array_equal(out, np.concatenate([x + dtype(1), x[::-1]]))


@triton.jit
def _indirect(out, x, index, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < N
    j = tl.load(index + i, mask=m, other=0)
    tl.store(out + j, tl.load(x + j, mask=m), mask=m)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.int16])
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("n", [3, 64])
def test_indices_from_memory(n, dtype, kind, level):
    x, index = drawn(n, dtype), RNG.permutation(n).astype(kind)
    (out, *_) = run(_indirect, level, np.zeros(n, dtype), x, index, N=n, BLOCK=triton.next_power_of_2(n))
    np.testing.assert_array_equal(out, x)


@triton.jit
def _divided(out, x, n, A: tl.constexpr, B: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    row = i // B
    column = i % B
    tl.store(out + i, tl.load(x + column * A + row, mask=m), mask=m)


@pytest.mark.parametrize("shape", [(4, 64), (3, 7), (100, 16), (5, 256)])
def test_index_arithmetic_with_division(shape, level):
    a, b = shape
    x = drawn((b, a))
    (out, _) = run(_divided, level, np.zeros((a, b), np.float32), x, a * b, grid=(-(-a * b // 64),), A=a, B=b, BLOCK=64)
    np.testing.assert_array_equal(out, x.T)


@triton.jit
def _broadcast(out, row, column, scalar, R: tl.constexpr, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    r = tl.arange(0, BR)
    c = tl.arange(0, BC)
    m = (r[:, None] < R) & (c[None, :] < C)
    a = tl.load(row + c, mask=c < C, other=0.0)
    b = tl.load(column + r, mask=r < R, other=0.0)
    v = a[None, :] * 2 + b[:, None] + tl.load(scalar) + (r[:, None] * c[None, :]).to(tl.float32)
    tl.store(out + r[:, None] * C + c[None, :], v, mask=m)


@pytest.mark.parametrize("shape", [(1, 1), (3, 20), (16, 16), (33, 5), (8, 100)])
def test_broadcasts(shape, level):
    r, c = shape
    row, column, scalar = drawn(c), drawn(r), drawn(1)
    block = {"BR": triton.next_power_of_2(r), "BC": triton.next_power_of_2(c)}
    (out, *_) = run(_broadcast, level, np.zeros(shape, np.float32), row, column, scalar, R=r, C=c, **block)
    want = row * 2 + column[:, None] + scalar + np.arange(r)[:, None] * np.arange(c)
    np.testing.assert_array_equal(out, want.astype(np.float32))


@triton.jit
def _masks(out, x, low, high, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=(i >= low) & (i < high), other=-1.0)
    tl.store(out + i, v, mask=i <= N - 1)
    w = tl.load(x + i, mask=(i < low) | (i >= high), other=-2.0)
    tl.store(out + N + i, w, mask=(i < N) & (i % 2 == 0))
    tl.store(out + 2 * N + i, v, mask=(i < N) & (low < high))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(LEVELS), st.integers(0, 70), st.integers(0, 70), st.sampled_from([20, 33, 64]))
def test_masks_of_every_form(level, low, high, n):
    x = drawn(64)
    out, _ = run(_masks, level, np.full(3 * n, 9, np.float32), x, low, high, N=n, BLOCK=64)
    i = np.arange(64)
    first = np.where((i >= low) & (i < high), x, -1)
    second = np.where((i < low) | (i >= high), x, -2)
    np.testing.assert_array_equal(out[:n], first[:n])
    np.testing.assert_array_equal(out[n : 2 * n], np.where(i % 2 == 0, second, 9)[:n])
    np.testing.assert_array_equal(out[2 * n :], first[:n] if low < high else np.full(n, 9))


@triton.jit
def _uniform(out, x, flag, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    same = tl.load(x + i * 0 + 3)
    maybe = tl.load(x + i * 0 + 1, mask=i < 5, other=8.0)
    whole = tl.load(x + i, mask=flag > 0, other=4.0)
    tl.store(out + i, same + maybe + whole)
    tl.store(out + BLOCK + i * 0, tl.full((BLOCK,), 6.0, tl.float32))
    tl.store(out + BLOCK + 1, tl.load(x + 2, mask=flag > 0, other=3.0), mask=flag < 5)


@pytest.mark.parametrize("flag", [0, 1, 9])
def test_addresses_that_all_lanes_share(flag, level):
    x = drawn(64)
    out, _ = run(_uniform, level, np.zeros(66, np.float32), x, flag, BLOCK=64)
    i = np.arange(64)
    want = x[3] + np.where(i < 5, x[1], 8) + (x if flag else 4)
    np.testing.assert_array_equal(out[:64], want)
    assert out[64] == 6
    assert out[65] == ((x[2] if flag else 3) if flag < 5 else 0)


@triton.jit
def _constants(out, out64, outh):
    i = tl.arange(0, 16)
    tl.store(out + i, tl.full((16,), float("inf"), tl.float32))
    tl.store(out + 16 + i, tl.full((16,), 0.1, tl.float32))
    tl.store(out + 32 + i, tl.full((16,), float("nan"), tl.float32))
    tl.store(out64 + i, tl.full((16,), 0.1, tl.float64))
    tl.store(outh + i, tl.full((16,), 0.1, tl.float16))
    tl.store(out + 48, 1e-40)


def test_constants(level):
    out, wide, half = run(_constants, level, np.zeros(49, np.float32), np.zeros(16), np.zeros(16, np.float16))
    np.testing.assert_array_equal(out[:16], np.inf)
    np.testing.assert_array_equal(out[16:32], np.float32(0.1))
    assert np.isnan(out[32:48]).all()
    assert out[48] == np.float32(1e-40)
    np.testing.assert_array_equal(half, np.float16(0.1))
    assert (wide == 0.1).all() or (wide == np.float32(0.1)).all()


@triton.jit
def _grid(out, BLOCK: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    gx, gy = tl.num_programs(0), tl.num_programs(1)
    tl.store(out + (z * gy + y) * gx + x, x * 10000 + y * 100 + z)


@pytest.mark.parametrize("grid", [(1,), (7,), (3, 5), (4, 3, 2), (1, 1, 6)])
def test_program_ids_and_ranges_of_them(grid, level):
    gx, gy, gz = (*grid, 1, 1)[:3]
    total = gx * gy * gz
    cuts = sorted({total // 3, total // 2, max(total - 1, 0)})
    (out,) = run(_grid, level, np.zeros((gz, gy, gx), np.int32), grid=grid, cuts=cuts, BLOCK=1)
    z, y, x = np.indices((gz, gy, gx))
    np.testing.assert_array_equal(out, x * 10000 + y * 100 + z)


@triton.jit
def _pointers(out, table, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    p = tl.load(table + i).to(tl.pointer_type(tl.float32))
    tl.store(out + i, tl.load(p))
    q = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(out + BLOCK + i, tl.load(q + i))


def test_addresses_from_memory(level):
    x = drawn(32)
    table = x.ctypes.data + 4 * RNG.permutation(16).astype(np.int64)
    table[0] = x.ctypes.data
    out, _ = run(_pointers, level, np.zeros(32, np.float32), table, BLOCK=16)
    np.testing.assert_array_equal(out[:16], x[(table - x.ctypes.data) // 4])
    np.testing.assert_array_equal(out[16:], x[:16])


@triton.jit
def _shifted_in_place(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + 1 + i, tl.load(x + i))
    v = tl.load(x + i)
    tl.store(x + i, tl.load(x + N - i) + v)


@pytest.mark.parametrize("n", [4, 16, 64, 256])
def test_blocks_are_read_before_they_are_written(n, level):
    x = drawn(n + 1)
    (got,) = run(_shifted_in_place, level, x, N=n)
    want = x.copy()
    want[1:] = x[:n]
    want[:n] = want[n:0:-1] + want[:n]
    np.testing.assert_array_equal(got, want)


@triton.jit
def _two_outputs(a, b, x, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < N
    v = tl.load(x + i, mask=m, other=0.0)
    w = tl.load(a + i, mask=m, other=0.0)
    tl.store(a + i, v + w, mask=m)
    tl.store(b + i, v * w, mask=m)


@pytest.mark.parametrize("n", [5, 64, 200])
def test_a_load_keeps_its_value_over_a_store(n, level):
    a, x = drawn((2, n))
    got, product, _ = run(_two_outputs, level, a, np.zeros(n, np.float32), x, N=n, BLOCK=256)
    np.testing.assert_array_equal(got, a + x)
    np.testing.assert_array_equal(product, a * x)


@triton.jit
def _histogram(out, x, N: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < N, other=BINS)
    tl.store(out + tl.arange(0, BINS), tl.histogram(v, BINS))


def test_histogram(level):
    x = RNG.integers(0, 16, 50).astype(np.int32)
    out, _ = run(_histogram, level, np.zeros(16, np.int32), x, N=50, BLOCK=64, BINS=16)
    np.testing.assert_array_equal(out, np.bincount(x, minlength=16))


@triton.jit
def _gather(out, x, index, R: tl.constexpr, C: tl.constexpr, K: tl.constexpr, AXIS: tl.constexpr):
    v = tl.load(x + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])
    A: tl.constexpr = K if AXIS == 0 else R
    B: tl.constexpr = C if AXIS == 0 else K
    at = tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    tl.store(out + at, tl.gather(v * 2, tl.load(index + at), axis=AXIS))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("sizes", [(4, 8, 2), (16, 32, 64), (32, 2, 16)])
def test_gather(sizes, axis, level):
    r, c, k = sizes
    x = drawn((r, c))
    shape = (k, c) if axis == 0 else (r, k)
    index = RNG.integers(0, (r, c)[axis], shape).astype(np.int32)
    out, *_ = run(_gather, level, np.zeros(shape, np.float32), x, index, R=r, C=c, K=k, AXIS=axis)
    np.testing.assert_array_equal(out, np.take_along_axis(2 * x, index, axis))


@triton.jit
def _sorted(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.sort(tl.load(x + i)))
    tl.store(out + N + i, tl.flip(tl.load(x + i), 0))


@pytest.mark.parametrize("n", [2, 16, 64])
def test_sort_and_flip(n, level):
    x = drawn(n)
    out, _ = run(_sorted, level, np.zeros(2 * n, np.float32), x, N=n)
    np.testing.assert_array_equal(out, np.concatenate([np.sort(x), x[::-1]]))


@triton.jit
def _random(out, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.randint(seed, i))


def test_integer_arithmetic_wraps_in_hashes(level):
    """Philox4x32-10, whose products pass 32 bits, against a plain one."""
    (out,) = run(_random, level, np.zeros(128, np.int32), 12345, grid=(2,), BLOCK=64)

    def philox(counter, key):
        c, k = [counter, 0, 0, 0], [key, 0]
        for _ in range(10):
            p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        return c[0]

    np.testing.assert_array_equal(out.view(np.uint32), [philox(i, 12345) for i in range(128)])
