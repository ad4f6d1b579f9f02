"""The device function of every pointwise op: one block of results from blocks of operands.

Operands come in the dtype the op computes in (float32 for the half formats); a function of several operands is given
all of them in one dtype, unless it says otherwise.
"""

import triton
import triton.language as tl

from nbxtensor.lang import math as lm

# ---- arithmetic


@triton.jit
def divided(x, y):
    """Quotient rounded to nearest."""
    if x.dtype == tl.float32:
        return tl.div_rn(x, y)
    else:
        return x / y


@triton.jit
def positive(x):
    return x


@triton.jit
def negative(x):
    if x.dtype.is_floating():
        return x * -1.0
    else:
        return 0 - x


@triton.jit
def abs(x):
    return tl.abs(x)


@triton.jit
def sign(x):
    if x.dtype.is_floating():
        return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, x))
    elif x.dtype.is_int_signed():
        return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
    else:
        return (x != 0).to(x.dtype)


@triton.jit
def square(x):
    return x * x


@triton.jit
def reciprocal(x):
    return divided(tl.where(x != x, x, 1.0), x)


@triton.jit
def add(x, y):
    if x.dtype == tl.int1:
        return x | y
    else:
        return x + y


@triton.jit
def subtract(x, y):
    return x - y


@triton.jit
def multiply(x, y):
    if x.dtype == tl.int1:
        return x & y
    else:
        return x * y


@triton.jit
def divide(x, y):
    return divided(x, y)


@triton.jit
def _safe_divisor(x, y):
    """The divisor, with 1 for the two divisions that trap: by zero, and of the lowest integer by -1."""
    if x.dtype.is_int_signed():
        return tl.where((y == 0) | ((y == -1) & (x == -x)), 1, y)
    else:
        return tl.where(y == 0, 1, y)


@triton.jit
def _exponent(x):
    """Exponent of a positive float64, subnormal ones too."""
    field = x.to(tl.int64, bitcast=True) >> 52
    scaled = (x * 18014398509481984.0).to(tl.int64, bitcast=True) >> 52  # 2^54
    return tl.where(field == 0, scaled - 54, field)


@triton.jit
def _power_of_two(e):
    """2^e as a float64, for 0 <= e < 1024."""
    return ((e + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _fmod64(x, y, STEPS: tl.constexpr):
    """Exact remainder of two float64, of the sign of x; every step removes 50 bits of the quotient."""
    x, y = tl.broadcast(x, y)
    rest = tl.abs(x)
    divisor = tl.abs(y)
    for _ in range(STEPS):
        e = tl.maximum(_exponent(rest) - _exponent(divisor) - 50, 0)
        half = e >> 1
        scaled = divisor * _power_of_two(half) * _power_of_two(e - half)
        quotient = tl.floor(rest / scaled)
        rest = tl.fma(-quotient, scaled, rest)
        rest = tl.where(rest < 0, rest + scaled, rest)
        rest = tl.where(rest >= scaled, rest - scaled, rest)
    defined = (tl.abs(x) < float("inf")) & (divisor > 0)
    rest = tl.where(divisor == float("inf"), tl.abs(x), rest)
    return copysign(tl.where(defined, rest, float("nan")), x)


@triton.jit
def fmod(x, y):
    if x.dtype == tl.float64:
        return _fmod64(x, y, 43)
    elif x.dtype.is_floating():
        return _fmod64(x.to(tl.float64), y.to(tl.float64), 6).to(x.dtype)
    else:
        return tl.where(y == 0, 0, x % _safe_divisor(x, y))


@triton.jit
def remainder(x, y):
    if x.dtype.is_floating():
        rest = fmod(x, y)
        return tl.where(rest == 0, copysign(rest, y), tl.where((rest < 0) != (y < 0), rest + y, rest))
    elif x.dtype.is_int_signed():
        rest = x % _safe_divisor(x, y)
        return tl.where(y == 0, 0, tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest))
    else:
        return tl.where(y == 0, 0, x % _safe_divisor(x, y))


@triton.jit
def floor_divide(x, y):
    if x.dtype == tl.float64:
        rest = fmod(x, y)
        quotient = (x - rest) / y
        quotient = tl.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1.0, quotient)
        exact = copysign(tl.floor(quotient + 0.5), x / y)
        plain = (tl.abs(x) == float("inf")) | (tl.abs(y) == float("inf")) | (y == 0)
        return tl.where(plain, tl.floor(x / y), exact)
    elif x.dtype.is_floating():
        return tl.floor(x.to(tl.float64) / y.to(tl.float64)).to(x.dtype)
    elif x.dtype.is_int_signed():
        divisor = _safe_divisor(x, y)
        quotient = x // divisor
        rest = x - quotient * divisor
        quotient = tl.where((rest != 0) & ((rest < 0) != (divisor < 0)), quotient - 1, quotient)
        return tl.where(y == 0, 0, quotient)
    else:
        return tl.where(y == 0, 0, x // _safe_divisor(x, y))


@triton.jit
def pow(x, y):
    if x.dtype.is_floating():
        return lm.pow(x, y)
    else:
        x, y = tl.broadcast(x, y)
        result = x * 0 + 1
        base = x
        exponent = y
        for _ in range(x.dtype.primitive_bitwidth):
            result = tl.where((exponent & 1) != 0, result * base, result)
            base = base * base
            exponent = exponent >> 1
        if x.dtype.is_int_signed():
            odd = (y & 1) != 0
            inverse = tl.where(x == 1, 1, tl.where(x == -1, tl.where(odd, -1, 1), 0)).to(x.dtype)
            result = tl.where(y < 0, inverse, result)
        return result


@triton.jit
def maximum(x, y):
    return tl.where((x > y) | (x != x), x, y)


@triton.jit
def minimum(x, y):
    return tl.where((x < y) | (x != x), x, y)


@triton.jit
def fmax(x, y):
    return tl.where((x > y) | (y != y), x, y)


@triton.jit
def fmin(x, y):
    return tl.where((x < y) | (y != y), x, y)


@triton.jit
def hypot(x, y):
    a = tl.abs(x)
    b = tl.abs(y)
    high = maximum(a, b)
    low = minimum(a, b)
    ratio = tl.where(high == 0, 0.0, divided(low, high))
    result = high * rooted(1.0 + ratio * ratio)
    return tl.where((a == float("inf")) | (b == float("inf")), float("inf"), result)


@triton.jit
def logaddexp(x, y):
    high = maximum(x, y)
    gap = tl.where(x == y, 0.0, -tl.abs(x - y))
    return high + lm.log1p(tl.exp(gap))


@triton.jit
def copysign(x, y):
    return tl.where(signbit(x) != signbit(y), negative(x), x)


@triton.jit
def nextafter(x, y):
    """Operands in their own dtype, half formats too."""
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        tiny = tl.where(y > 0, 1, -9223372036854775807).to(tl.int64).to(tl.float64, bitcast=True)
        step = tl.where((x < y) == (x > 0), bits + 1, bits - 1).to(tl.float64, bitcast=True)
    elif x.dtype == tl.float32:
        bits = x.to(tl.int32, bitcast=True)
        tiny = tl.where(y > 0, 1, -2147483647).to(tl.int32).to(tl.float32, bitcast=True)
        step = tl.where((x < y) == (x > 0), bits + 1, bits - 1).to(tl.float32, bitcast=True)
    else:
        bits = x.to(tl.int16, bitcast=True)
        tiny = tl.where(y > 0, 1, -32767).to(tl.int16).to(x.dtype, bitcast=True)
        step = tl.where((x < y) == (x > 0), bits + 1, bits - 1).to(tl.int16).to(x.dtype, bitcast=True)
    moved = tl.where(x == 0, tiny, step)
    same = (x == y) | (y != y)
    return tl.where(x != x, x, tl.where(same, y, moved))


# ---- elementary functions


@triton.jit
def rooted(x):
    """Square root rounded to nearest."""
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)


@triton.jit
def sqrt(x):
    return rooted(x)


@triton.jit
def rsqrt(x):
    return tl.rsqrt(x)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def exp2(x):
    return tl.exp2(x)


@triton.jit
def expm1(x):
    return lm.expm1(x)


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def log2(x):
    return tl.log2(x)


@triton.jit
def log10(x):
    return lm.log10(x)


@triton.jit
def log1p(x):
    return lm.log1p(x)


@triton.jit
def sin(x):
    return tl.sin(x)


@triton.jit
def cos(x):
    return tl.cos(x)


@triton.jit
def tan(x):
    return divided(tl.sin(x), tl.cos(x))


@triton.jit
def asin(x):
    return lm.asin(x)


@triton.jit
def acos(x):
    return lm.acos(x)


@triton.jit
def atan(x):
    return lm.atan(x)


@triton.jit
def atan2(x, y):
    return lm.atan2(x, y)


@triton.jit
def sinh(x):
    return lm.sinh(x)


@triton.jit
def cosh(x):
    return lm.cosh(x)


@triton.jit
def tanh(x):
    return lm.tanh(x)


@triton.jit
def asinh(x):
    return lm.asinh(x)


@triton.jit
def acosh(x):
    return lm.acosh(x)


@triton.jit
def atanh(x):
    return lm.atanh(x)


@triton.jit
def erf(x):
    return tl.erf(x)


@triton.jit
def erfc(x):
    return lm.erfc(x)


@triton.jit
def sigmoid(x):
    return lm.sigmoid(x)


@triton.jit
def logit(x):
    near = lm.log1p(divided(2.0 * x - 1.0, 1.0 - x))
    far = tl.log(divided(x, 1.0 - x))
    return tl.where(tl.abs(x - 0.5) < 0.25, near, far)


@triton.jit
def logit_clamped(x, eps):
    return logit(clip(x, eps, 1.0 - eps))


# ---- rounding and tests


@triton.jit
def floor(x):
    if x.dtype.is_floating():
        return tl.floor(x)
    else:
        return x


@triton.jit
def ceil(x):
    if x.dtype.is_floating():
        return tl.ceil(x)
    else:
        return x


@triton.jit
def trunc(x):
    if x.dtype.is_floating():
        return tl.where(x < 0, tl.ceil(x), tl.floor(x))
    else:
        return x


@triton.jit
def round(x):
    if x.dtype.is_floating():
        size = tl.abs(x)
        limit = 4503599627370496.0 if x.dtype == tl.float64 else 8388608.0  # 2^52, 2^23: all larger are integers
        return tl.where(size < limit, copysign((size + limit) - limit, x), x)
    else:
        return x


@triton.jit
def frac(x):
    return x - trunc(x)


@triton.jit
def isnan(x):
    return x != x


@triton.jit
def isinf(x):
    if x.dtype.is_floating():
        return tl.abs(x) == float("inf")
    else:
        return x != x


@triton.jit
def isfinite(x):
    if x.dtype.is_floating():
        return tl.abs(x) < float("inf")
    else:
        return x == x


@triton.jit
def signbit(x):
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    elif x.dtype.is_floating():
        return x.to(tl.float32).to(tl.int32, bitcast=True) < 0
    else:
        return x < 0


@triton.jit
def _largest(x):
    """The largest finite value of x's dtype; zero for an integer."""
    if x.dtype == tl.float16:
        return tl.full((), 65504.0, tl.float16)
    elif x.dtype == tl.bfloat16:
        return tl.full((), 3.3895313892515355e38, tl.bfloat16)
    elif x.dtype == tl.float32:
        return tl.full((), 3.4028234663852886e38, tl.float32)
    elif x.dtype == tl.float64:
        return tl.full((), 1.7976931348623157e308, tl.float64)
    else:
        return tl.full((), 0, tl.int32)


@triton.jit
def _finite(x, nan, posinf, neginf):
    finite = tl.where(x == float("inf"), posinf, tl.where(x == float("-inf"), neginf, x))
    return tl.where(x != x, nan, finite)


@triton.jit
def nan_to_num(x, nan):
    return nan_to_num_below(x, nan, _largest(x))


@triton.jit
def nan_to_num_below(x, nan, posinf):
    if x.dtype.is_floating():
        return _finite(x, nan, posinf, -_largest(x))
    else:
        return x


@triton.jit
def nan_to_num_above(x, nan, neginf):
    if x.dtype.is_floating():
        return _finite(x, nan, _largest(x), neginf)
    else:
        return x


@triton.jit
def nan_to_num_between(x, nan, posinf, neginf):
    if x.dtype.is_floating():
        return _finite(x, nan, posinf, neginf)
    else:
        return x


# ---- comparisons, logic, bits


@triton.jit
def equal(x, y):
    return x == y


@triton.jit
def not_equal(x, y):
    return x != y


@triton.jit
def less(x, y):
    return x < y


@triton.jit
def less_equal(x, y):
    return x <= y


@triton.jit
def greater(x, y):
    return x > y


@triton.jit
def greater_equal(x, y):
    return x >= y


@triton.jit
def logical_not(x):
    return x == 0


@triton.jit
def logical_and(x, y):
    return (x != 0) & (y != 0)


@triton.jit
def logical_or(x, y):
    return (x != 0) | (y != 0)


@triton.jit
def logical_xor(x, y):
    return (x != 0) != (y != 0)


@triton.jit
def bitwise_invert(x):
    if x.dtype == tl.int1:
        return x == 0
    else:
        return ~x


@triton.jit
def bitwise_and(x, y):
    return x & y


@triton.jit
def bitwise_or(x, y):
    return x | y


@triton.jit
def bitwise_xor(x, y):
    return x ^ y


@triton.jit
def _in_width(x, y):
    """Whether a shift by y leaves anything of x."""
    return (y >= 0) & (y < x.dtype.primitive_bitwidth)


@triton.jit
def bitwise_left_shift(x, y):
    fits = _in_width(x, y)
    return tl.where(fits, x << tl.where(fits, y, 0), 0)


@triton.jit
def bitwise_right_shift(x, y):
    count = tl.where(_in_width(x, y), y, x.dtype.primitive_bitwidth - 1)
    if x.dtype.is_int_signed():
        return x >> count
    else:
        return tl.where(_in_width(x, y), x >> count, 0)


# ---- selection


@triton.jit
def where(condition, x, y):
    """The condition is a bool; x and y share a dtype."""
    return tl.where(condition, x, y)


@triton.jit
def clip(x, low, high):
    return minimum(maximum(x, low), high)


@triton.jit
def clip_min(x, low):
    return maximum(x, low)


@triton.jit
def clip_max(x, high):
    return minimum(x, high)


@triton.jit
def lerp(start, end, weight):
    gap = end - start
    return tl.where(tl.abs(weight) < 0.5, start + weight * gap, end - gap * (1.0 - weight))


@triton.jit
def addcmul(x, first, second, value):
    return x + value * first * second


@triton.jit
def addcdiv(x, first, second, value):
    return x + divided(value * first, second)


@triton.jit
def masked_fill(x, mask, value):
    """The mask is a bool; x and value share a dtype."""
    return tl.where(mask, value, x)


# ---- activations


@triton.jit
def relu(x):
    return tl.where(x < 0, 0, x).to(x.dtype)


@triton.jit
def relu6(x):
    return tl.where(x > 6, 6, relu(x)).to(x.dtype)


@triton.jit
def silu(x):
    return lm.silu(x)


@triton.jit
def gelu_erf(x):
    """max(x, 0) - |x| 2^a, where 2^a = erfc(|x| / sqrt(2)) / 2.

    In float32 a is a polynomial that puts the result off by at most 2^-26 |x| (fitted for |x| <= 5.8; beyond, what it
    stands for is below that, and it falls, so that -inf gives 0).
    """
    if x.dtype == tl.float64:
        return lm.gelu_erf(x)
    else:
        size = tl.abs(x)
        s = tl.where(size > 20.0, 20.0, size)
        a = tl.fma(s, -2.843953097908525e-06, 3.9485141314798966e-05)
        a = tl.fma(a, s, -0.000186686753295362)
        a = tl.fma(a, s, -0.00013572265743277967)
        a = tl.fma(a, s, 0.007061847485601902)
        a = tl.fma(a, s, -0.05249509960412979)
        a = tl.fma(a, s, -0.45920854806900024)
        a = tl.fma(a, s, -1.1511051654815674)
        a = tl.fma(a, s, -1.0)
        return tl.fma(s * -1.0, tl.exp2(a), relu(x))


@triton.jit
def gelu_tanh(x):
    return lm.gelu_tanh(x)


@triton.jit
def elu(x, alpha):
    return tl.where(x > 0, x, alpha * lm.expm1(x))


@triton.jit
def selu(x):
    return 1.0507009873554805 * tl.where(x > 0, x, 1.6732632423543772 * lm.expm1(x))


@triton.jit
def celu(x, alpha):
    return tl.where(x > 0, x, alpha * lm.expm1(divided(x, alpha)))


@triton.jit
def leaky_relu(x, negative_slope):
    return tl.where(x > 0, x, x * negative_slope)


@triton.jit
def _log_of_sum(x):
    """log(1 + exp(x)) without overflow on the way."""
    return relu(x) + lm.log1p(tl.exp(-tl.abs(x)))


@triton.jit
def softplus(x, beta, threshold):
    scaled = x * beta
    smooth = divided(_log_of_sum(scaled), beta)
    return tl.where(scaled > threshold, x, smooth)


@triton.jit
def mish(x):
    return x * lm.tanh(_log_of_sum(x))


@triton.jit
def hardtanh(x, low, high):
    return clip(x, low, high)


@triton.jit
def hardsigmoid(x):
    return relu6(x + 3.0) * 0.16666666666666666


@triton.jit
def hardswish(x):
    return x * relu6(x + 3.0) * 0.16666666666666666


@triton.jit
def log_sigmoid(x):
    return -_log_of_sum(-x)


@triton.jit
def softsign(x):
    return divided(x, 1.0 + tl.abs(x))


@triton.jit
def threshold(x, threshold, value):
    return tl.where(x <= threshold, value, x)


# ---- casts of floats to integers: saturating, NaN to zero


@triton.jit
def _saturated(x, LOW: tl.constexpr, HIGH: tl.constexpr, MIN: tl.constexpr, MAX: tl.constexpr, DTYPE: tl.constexpr):
    """x as an integer of MIN to MAX; LOW is MIN and HIGH is MAX + 1 as floats, exact in any format."""
    inside = (x > LOW) & (x < HIGH)
    whole = tl.where(inside, x, 0.0).to(DTYPE)
    return tl.where(x >= HIGH, MAX, tl.where(x <= LOW, MIN, whole)).to(DTYPE)


@triton.jit
def to_int8(x):
    return _saturated(x, -128.0, 128.0, -128, 127, tl.int8)


@triton.jit
def to_int16(x):
    return _saturated(x, -32768.0, 32768.0, -32768, 32767, tl.int16)


@triton.jit
def to_int32(x):
    return _saturated(x, -2147483648.0, 2147483648.0, -2147483648, 2147483647, tl.int32)


@triton.jit
def to_int64(x):
    return _saturated(
        x, -9223372036854775808.0, 9223372036854775808.0, -9223372036854775808, 9223372036854775807, tl.int64
    )


@triton.jit
def to_uint8(x):
    return _saturated(x, 0.0, 256.0, 0, 255, tl.uint8)


@triton.jit
def to_uint16(x):
    return _saturated(x, 0.0, 65536.0, 0, 65535, tl.uint16)


@triton.jit
def to_uint32(x):
    return _saturated(x, 0.0, 4294967296.0, 0, 4294967295, tl.uint32)


@triton.jit
def to_uint64(x):
    return _saturated(x, 0.0, 18446744073709551616.0, 0, 18446744073709551615, tl.uint64)
