"""Every elementwise op, on every element type that has it, against numpy."""

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from tests.backend.cpu.triton_launch import LEVELS, run

BLOCK = 64
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
RNG = np.random.default_rng(1)


@triton.jit
def _binary(out, a, b, OP: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < N
    x = tl.load(a + i, mask=m)
    y = tl.load(b + i, mask=m)
    tl.store(out + i, OP(x, y), mask=m)


@triton.jit
def _unary(out, a, OP: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < N
    tl.store(out + i, OP(tl.load(a + i, mask=m)), mask=m)


@triton.jit
def _scalar_binary(out, a, b, OP: tl.constexpr, N: tl.constexpr):
    for i in range(N):
        tl.store(out + i, OP(tl.load(a + i), tl.load(b + i)))


@triton.jit
def _scalar_unary(out, a, OP: tl.constexpr, N: tl.constexpr):
    for i in range(N):
        tl.store(out + i, OP(tl.load(a + i)))


@triton.jit
def _add(x, y):
    return x + y


@triton.jit
def _sub(x, y):
    return x - y


@triton.jit
def _mul(x, y):
    return x * y


@triton.jit
def _div(x, y):
    return x / y


@triton.jit
def _floordiv(x, y):
    return x // y


@triton.jit
def _mod(x, y):
    return x % y


@triton.jit
def _and(x, y):
    return x & y


@triton.jit
def _or(x, y):
    return x | y


@triton.jit
def _xor(x, y):
    return x ^ y


@triton.jit
def _shl(x, y):
    return x << (y & 7)


@triton.jit
def _shr(x, y):
    return x >> (y & 7)


@triton.jit
def _maximum(x, y):
    return tl.maximum(x, y)


@triton.jit
def _minimum(x, y):
    return tl.minimum(x, y)


@triton.jit
def _maximum_nan(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _minimum_nan(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _eq(x, y):
    return x == y


@triton.jit
def _ne(x, y):
    return x != y


@triton.jit
def _lt(x, y):
    return x < y


@triton.jit
def _le(x, y):
    return x <= y


@triton.jit
def _gt(x, y):
    return x > y


@triton.jit
def _ge(x, y):
    return x >= y


@triton.jit
def _where(x, y):
    return tl.where(x > y, x + y, x)


@triton.jit
def _div_rn(x, y):
    return tl.div_rn(x, y)


@triton.jit
def _fma(x, y):
    return tl.fma(x, y, x)


@triton.jit
def _umulhi(x, y):
    return tl.umulhi(x, y)


@triton.jit
def _clamp(x, y):
    return tl.clamp(x, y - 1.0, y)


@triton.jit
def _neg(x):
    return -x


@triton.jit
def _abs(x):
    return tl.abs(x)


@triton.jit
def _invert(x):
    return ~x


@triton.jit
def _exp(x):
    return tl.exp(x)


@triton.jit
def _sqrt_rn(x):
    return tl.sqrt_rn(x)


@triton.jit
def _floor(x):
    return tl.floor(x)


@triton.jit
def _ceil(x):
    return tl.ceil(x)


@triton.jit
def _erf(x):
    return tl.erf(x)


@triton.jit
def _isnan(x):
    return x != x  # noqa: PLR0124


def numbers(dtype, count):
    """Ordinary numbers with the edges of the type among them."""
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        edges = [info.min, info.max, 0, 1, info.max - 1, info.min + 1, 3, 7]
        drawn = RNG.integers(max(info.min, -100), min(info.max, 100), count)
        drawn[: len(edges)] = 0
        values = drawn.astype(kind)
        values[: len(edges)] = edges
        return RNG.permutation(values)
    edges = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-3]
    values = (RNG.standard_normal(count) * 4).astype(kind)
    values[: len(edges)] = np.array(edges).astype(kind)
    return RNG.permutation(values)


def same(got, want):
    """Equal bit for bit but for the sign and payload of NaN."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
        return
    numeric = np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), numeric)
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}")[~numeric], want.view(f"u{got.itemsize}")[~numeric])


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


def check(op, level, want, *inputs, out=None):
    """Run ``op`` on blocks with a tail and on scalars, and compare with ``want``."""
    count = inputs[0].size
    start = np.zeros(count, out or want.dtype)
    block, scalar = (_binary, _scalar_binary) if len(inputs) == 2 else (_unary, _scalar_unary)
    (got, *_) = run(block, level, start, *inputs, OP=op, N=count, BLOCK=triton.next_power_of_2(count))
    same(got, want)
    (got, *_) = run(scalar, level, start, *inputs, OP=op, N=count)
    same(got, want)


def rounded(values, dtype):
    return np.asarray(values).astype(dtype)


ARITHMETIC = {
    _add: np.add, _sub: np.subtract, _mul: np.multiply, _maximum: np.fmax, _minimum: np.fmin,
    _maximum_nan: np.maximum, _minimum_nan: np.minimum,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ARITHMETIC, ids=lambda op: op.__name__)
def test_float_arithmetic(op, dtype, level):
    x, y = numbers(dtype, 61), numbers(dtype, 61)
    with np.errstate(all="ignore"):
        if np.dtype(dtype).itemsize == 2:
            want = ARITHMETIC[op](x.astype(np.float32), y.astype(np.float32)).astype(dtype)
        else:
            want = ARITHMETIC[op](x, y)
    if "imum" in op.__name__:  # which zero comes out is not defined
        both = (x == 0) & (y == 0)
        x, y = np.where(both, np.ones_like(x), x), np.where(both, np.ones_like(x), y)
        want = np.where(both, np.ones_like(x), want)
    check(op, level, want, x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", [_div, _div_rn], ids=["div", "div_rn"])
def test_division(op, dtype, level):
    x, y = numbers(dtype, 61), numbers(dtype, 61)
    if op is _div_rn and dtype == np.float64:
        pytest.skip("tl.div_rn is of float32")
    with np.errstate(all="ignore"):
        check(op, level, x / y, x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_remainder(dtype, level):
    x, y = numbers(dtype, 61), numbers(dtype, 61)
    with np.errstate(all="ignore"):
        check(_mod, level, np.fmod(x, y), x, y)


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
@pytest.mark.parametrize("op", [_add, _sub, _mul, _and, _or, _xor, _maximum, _minimum], ids=lambda op: op.__name__)
def test_integer_arithmetic(op, dtype, level):
    functions = {
        _add: np.add, _sub: np.subtract, _mul: np.multiply, _and: np.bitwise_and, _or: np.bitwise_or,
        _xor: np.bitwise_xor, _maximum: np.maximum, _minimum: np.minimum,
    }  # fmt: skip
    x, y = numbers(dtype, 61), numbers(dtype, 61)
    with np.errstate(all="ignore"):
        check(op, level, functions[op](x, y), x, y)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
@pytest.mark.parametrize("op", [_shl, _shr], ids=["shl", "shr"])
def test_shifts(op, dtype, level):
    x, y = numbers(dtype, 61), numbers(dtype, 61)
    count = y & dtype(7)
    check(op, level, np.left_shift(x, count) if op is _shl else np.right_shift(x, count), x, y)


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
@pytest.mark.parametrize("op", [_floordiv, _mod], ids=["quotient", "remainder"])
def test_integer_division_truncates(op, dtype, level):
    x, y = numbers(dtype, 61), numbers(dtype, 61)
    y[y == 0] = 1
    if np.dtype(dtype).kind == "i":
        least = np.iinfo(dtype).min
        x[(x == least) & (y == -1)] = 5
        quotient = [
            int(a) // int(b) if (a >= 0) == (b > 0) else -(-int(a) // int(b)) for a, b in zip(x, y, strict=True)
        ]
        quotient = np.array(quotient, dtype)
    else:
        quotient = x // y
    want = quotient if op is _floordiv else (x - quotient * y).astype(dtype)
    check(op, level, want, x, y)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint32])
def test_integer_division_never_traps(dtype, level):
    x, y = numbers(dtype, 64), np.zeros(64, dtype)
    run(_binary, level, np.zeros(64, dtype), x, y, OP=_floordiv, N=64, BLOCK=64)
    run(_scalar_binary, level, np.zeros(64, dtype), x, y, OP=_mod, N=64)
    if np.dtype(dtype).kind == "i":
        x, y = np.full(64, np.iinfo(dtype).min, dtype), np.full(64, -1, dtype)
        run(_binary, level, np.zeros(64, dtype), x, y, OP=_floordiv, N=64, BLOCK=64)
        run(_scalar_binary, level, np.zeros(64, dtype), x, y, OP=_mod, N=64)


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64])
@pytest.mark.parametrize("op", [_eq, _ne, _lt, _le, _gt, _ge], ids=lambda op: op.__name__)
def test_comparisons(op, dtype, level):
    functions = {
        _eq: np.equal, _ne: np.not_equal, _lt: np.less, _le: np.less_equal, _gt: np.greater, _ge: np.greater_equal
    }  # fmt: skip
    x, y = numbers(dtype, 61), numbers(dtype, 61)
    y[::3] = x[::3]
    with np.errstate(all="ignore"):
        want = functions[op](x, y).astype(np.int8)
    check(op, level, want, x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8])
def test_where(dtype, level):
    x, y = numbers(dtype, 61), numbers(dtype, 61)
    with np.errstate(all="ignore"):
        total = (x.astype(np.float32) + y.astype(np.float32)).astype(dtype) if dtype == np.float16 else x + y
        check(_where, level, np.where(x > y, total, x), x, y)


def test_fma_rounds_once(level):
    x, y = numbers(np.float32, 61), numbers(np.float32, 61)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64) * y.astype(np.float64) + x.astype(np.float64)
        check(_fma, level, wide.astype(np.float32), x, y)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_umulhi(dtype, level):
    x, y = numbers(dtype, 61), numbers(dtype, 61)
    bits = 8 * np.dtype(dtype).itemsize
    want = np.array([(int(a) * int(b)) >> bits for a, b in zip(x, y, strict=True)], dtype)
    check(_umulhi, level, want, x, y)


def test_clamp(level):
    x, y = numbers(np.float32, 61), numbers(np.float32, 61)
    y[~np.isfinite(y)] = 2
    want = np.fmin(np.fmax(x, y - np.float32(1)), y)
    ((got, *_),) = [run(_binary, level, np.zeros(61, np.float32), x, y, OP=_clamp, N=61, BLOCK=64)]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [*FLOATS, *SIGNED])
@pytest.mark.parametrize("op", [_neg, _abs], ids=["neg", "abs"])
def test_sign(op, dtype, level):
    x = numbers(dtype, 61)
    with np.errstate(all="ignore"):
        want = np.negative(x) if op is _neg else np.abs(x)
        if op is _neg and triton.__version__ < "3.7" and np.dtype(dtype).kind not in "iu":
            want = np.where(x == 0, np.zeros_like(x), want)  # 0 - x there
        check(op, level, want, x)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16])
def test_invert(dtype, level):
    x = numbers(dtype, 61)
    check(_invert, level, ~x, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", [_floor, _ceil, _sqrt_rn, _isnan], ids=lambda op: op.__name__)
def test_exact_functions(op, dtype, level):
    x = numbers(dtype, 61)
    if op is _sqrt_rn and dtype == np.float64:
        pytest.skip("tl.sqrt_rn is of float32")
    with np.errstate(all="ignore"):
        functions = {_floor: np.floor, _ceil: np.ceil, _sqrt_rn: np.sqrt, _isnan: lambda v: np.isnan(v).astype(np.int8)}
        check(op, level, functions[op](x), x)


@pytest.mark.parametrize("op", [_exp, _erf], ids=["exp", "erf"])
def test_functions_are_reached(op, level):
    import math

    x = RNG.standard_normal(61).astype(np.float32)
    want = [math.exp(v) if op is _exp else math.erf(v) for v in x.astype(float)]
    (got, *_) = run(_unary, level, np.zeros(61, np.float32), x, OP=op, N=61, BLOCK=64)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    (scalar, *_) = run(_scalar_unary, level, np.zeros(61, np.float32), x, OP=op, N=61)
    np.testing.assert_array_equal(scalar, got)


@triton.jit
def _cast(out, a, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < N
    tl.store(out + i, tl.load(a + i, mask=m).to(out.dtype.element_ty), mask=m)


@pytest.mark.parametrize("target", [*FLOATS, np.int8, np.int32, np.int64, np.uint8, np.uint32])
@pytest.mark.parametrize("source", [*FLOATS, *SIGNED, *UNSIGNED])
def test_casts(source, target, level):
    x = numbers(source, 61)
    integer = np.dtype(target).kind in "iu"
    if integer and np.dtype(source).kind not in "iu":
        x = np.array([0, -0.0, 1.5, -1.5, 100.25, 3.999, -0.5 if np.iinfo(target).min else 0.5, 42] * 8)[:61].astype(
            source
        )
        if np.iinfo(target).min == 0:
            x = np.abs(x)
    with np.errstate(all="ignore"):
        want = (
            x.astype(np.float64).astype(target)
            if target is ml_dtypes.bfloat16 and source is np.float16
            else x.astype(target)
        )
        if target is ml_dtypes.bfloat16 and np.dtype(source).kind in "iu":
            want = np.array([bfloat_of(int(v)) for v in x], np.uint16).view(target)
        if target is np.float16 and np.dtype(source).kind in "iu":
            want = x.astype(np.float64).astype(np.float16)
    (got, *_) = run(_cast, level, np.zeros(61, target), x, N=61, BLOCK=64)
    same(got, want)


def bfloat_of(number):
    """The bits of an integer as bfloat16, rounded once to nearest even."""
    if number == 0:
        return 0
    sign, size = (0x8000, -number) if number < 0 else (0, number)
    exponent = size.bit_length() - 1
    shift = exponent - 7
    if shift > 0:
        low = size & ((1 << shift) - 1)
        size >>= shift
        half = 1 << (shift - 1)
        size += low > half or (low == half and size & 1)
    else:
        size <<= -shift
    return sign | (((exponent + 127) << 7) + (size - 128))


@triton.jit
def _bits(out, a, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i).to(out.dtype.element_ty, bitcast=True))


@pytest.mark.parametrize(
    ("source", "target"),
    [(np.float32, np.int32), (np.int64, np.float64), (np.float16, np.int16), (np.int16, ml_dtypes.bfloat16)],
)
def test_bitcasts(source, target, level):
    x = RNG.integers(0, 256, 64 * np.dtype(source).itemsize, dtype=np.uint8).view(source)
    (got, *_) = run(_bits, level, np.zeros(64, target), x, BLOCK=64)
    np.testing.assert_array_equal(got.view(np.uint8), x.view(np.uint8))


@triton.jit
def _towards_zero(out, a, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i).to(tl.float16, fp_downcast_rounding="rtz"))


def test_rounding_towards_zero(level):
    x = (RNG.standard_normal(64) * 10).astype(np.float32)
    (got, *_) = run(_towards_zero, level, np.zeros(64, np.float16), x, BLOCK=64)
    assert (np.abs(got.astype(np.float32)) <= np.abs(x)).all()
    nearest = x.astype(np.float16)
    assert (np.abs(got.view(np.int16).astype(int) - nearest.view(np.int16)) <= 1).all()
    assert (got != nearest).any()


@triton.jit
def _booleans(out, a, b, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(a + i) > 0
    y = tl.load(b + i) > 0
    tl.store(out + i, x & y)
    tl.store(out + BLOCK + i, x | y)
    tl.store(out + 2 * BLOCK + i, x ^ y)
    tl.store(out + 3 * BLOCK + i, x.to(tl.int32) + y.to(tl.int32))
    tl.store(out + 4 * BLOCK + i, tl.where(x, y.to(tl.float32), 2.0))


def test_booleans(level):
    a, b = RNG.standard_normal((2, 64)).astype(np.float32)
    (got, *_) = run(_booleans, level, np.zeros((5, 64), np.int8), a, b, BLOCK=64)
    x, y = a > 0, b > 0
    want = [x & y, x | y, x ^ y, x.astype(int) + y, np.where(x, y, 2)]
    np.testing.assert_array_equal(got, np.array(want, np.int8))
