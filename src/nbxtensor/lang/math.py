"""Elementary functions that Triton lacks, for kernels: of float blocks, from Triton's core operations alone.

The half formats compute in float32 and float64 in itself. Everything but sigmoid, silu, gelu_erf and gelu_tanh is made
of operations that IEEE 754 rounds once, so that all devices give the same bits where the compiler fuses nothing by
itself (erfc, and the logarithms in float64, also take Triton's own erf and log). Zeros keep their signs; infinities,
NaN and subnormals are as in C99 Annex F.

Errors stay below 2 units in the last place in float32 but for acosh (2.2) and erfc (4.1), and below 3 in float64 but
for erfc (5); tests/lang/test_math.py holds them to it.
"""

import triton
import triton.language as tl

from nbxtensor.lang import coefficients as co
from nbxtensor.lang.floats import (
    bits,
    constant,
    copysign,
    from_bits,
    polynomial,
    power_of_two,
    quotient,
    root,
    rounded,
    scaled,
    wide,
)

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _reduced(x):
    """Return (r, n) with x = r + n ln 2, |r| <= ln2/2 and n an integer of the width of x."""
    n, k = rounded(x, _LOG2E)
    if x.dtype == tl.float64:
        r = tl.fma(n, constant(x, -1.9082149292705877e-10), tl.fma(n, constant(x, -0.6931471803691238), x))
    else:
        r = tl.fma(n, -1.428606765330187e-06, tl.fma(n, -0.693145751953125, x))
    return r, k


@triton.jit
def _exp(r):
    if r.dtype == tl.float64:
        return polynomial(r, co.EXP_64)
    else:
        return polynomial(r, co.EXP_32)


@triton.jit
def _with_exponent(p, n):
    """Return p * 2**n for a normal p and a normal result."""
    if p.dtype == tl.float64:
        return from_bits(bits(p) + (n << 52))
    else:
        return from_bits(bits(p) + (n << 23))


@triton.jit
def expm1(x):
    """Return e**x - 1, accurate near 0."""
    v = wide(x)
    HIGH: tl.constexpr = 710.0 if v.dtype == tl.float64 else 89.0
    LOW: tl.constexpr = -40.0 if v.dtype == tl.float64 else -18.0
    r, n = _reduced(tl.where(v > HIGH, HIGH, tl.where(v < LOW, LOW, v)))
    if v.dtype == tl.float64:
        q = tl.fma(r * r, polynomial(r, co.EXPM1_64), r)
    else:
        q = tl.fma(r * r, polynomial(r, co.EXPM1_32), r)
    half = power_of_two(n - 1)  # 2**n may overflow where the result does not
    result = 2.0 * tl.fma(half, q, half - 0.5)
    return copysign(tl.abs(tl.where(n == 0, q, result)), v).to(x.dtype)


@triton.jit
def _unscaled(u):
    """Return an integer e of the bits of an exponent such that u 2**-n, n of e, lies in [3/4, 3/2)."""
    return (bits(u) - 0x3F400000) & -0x800000


@triton.jit
def log1p(x):
    """Return log(1 + x), accurate near 0."""
    v = wide(x)
    if v.dtype == tl.float64:
        u = v + 1.0
        result = tl.log(u) + (v - (u - 1.0)) / u
        result = tl.where(tl.abs(v) < 1e-17, v, result)
    else:
        e = _unscaled(v + 1.0)
        # 1 + x = 2**n (1 + f): f without the error of the sum.
        f = from_bits(bits(v) - e) + tl.fma(from_bits(0x40800000 - e), 0.25, -1.0)
        n = e.to(tl.float32) * 1.1920928955078125e-07
        result = tl.fma(n, _LN2, tl.fma(f * f, polynomial(f, co.LOG_32), f))
        result = copysign(tl.abs(result), v)
    result = tl.where(v < float("inf"), result, v)
    result = tl.where(v < -1.0, float("nan"), result)
    return tl.where(v == -1.0, float("-inf"), result).to(x.dtype)


@triton.jit
def log10(x):
    """Return the logarithm to base 10."""
    v = wide(x)
    if v.dtype == tl.float64:
        y = tl.log(v)
        high = y * constant(y, 0.4342944819032518)
        low = tl.fma(y, constant(y, 0.4342944819032518), -high)
        result = high + tl.fma(y, constant(y, 1.098319650216767e-17), low)
        result = tl.where(tl.abs(y) < float("inf"), result, y)
    else:
        tiny = v < 1.1754943508222875e-38
        u = tl.where(tiny, v * 8388608.0, v)
        e = _unscaled(u)
        f = from_bits(bits(u) - e) - 1.0
        n = tl.fma(e.to(tl.float32), 1.1920928955078125e-07, tl.where(tiny, -23.0, 0.0))
        large = tl.fma(n, 0.301025390625, f * 0.5)  # the first 12 bits of log10 2
        result = large + tl.fma(f, polynomial(f, co.LOG10_32), n * 4.605038981195214e-06)
        result = tl.where(v < float("inf"), result, v)
        result = tl.where(v < 0.0, float("nan"), result)
        result = tl.where(v == 0.0, float("-inf"), result)
    return result.to(x.dtype)


@triton.jit
def tanh(x):
    """Return the hyperbolic tangent."""
    v = wide(x)
    t = tl.abs(v)
    u = t * t
    FAR: tl.constexpr = 20.0 if v.dtype == tl.float64 else 10.0
    if v.dtype == tl.float64:
        near = tl.fma(u * t, polynomial(u, co.TANH_64), t)
    else:
        near = tl.fma(u * t, polynomial(u, co.TANH_32), t)
    r, n = _reduced(-2.0 * tl.where(t > FAR, FAR, t))
    e = _with_exponent(_exp(r), n)
    far = tl.fma(quotient(e, e + 1.0), constant(v, -2.0), constant(v, 1.0))
    return copysign(tl.abs(tl.where(t >= 0.55, far, near)), v).to(x.dtype)


@triton.jit
def _half_exp(t):
    """Return e**t / 2 for t >= 0, infinite only where it must be."""
    FAR: tl.constexpr = 710.5 if t.dtype == tl.float64 else 90.0
    r, n = _reduced(tl.where(t > FAR, FAR, t))
    result = 2.0 * _with_exponent(_exp(r), n - 2)
    return tl.where(t > FAR, float("inf"), tl.where(t == t, result, t))


@triton.jit
def sinh(x):
    """Return the hyperbolic sine."""
    v = wide(x)
    t = tl.abs(v)
    u = t * t
    if v.dtype == tl.float64:
        near = tl.fma(u * t, polynomial(u, co.SINH_64), t)
    else:
        near = tl.fma(u * t, polynomial(u, co.SINH_32), t)
    h = _half_exp(t)
    return copysign(tl.where(t < 1.0, near, h - quotient(constant(h, 0.25), h)), v).to(x.dtype)


@triton.jit
def cosh(x):
    """Return the hyperbolic cosine."""
    h = _half_exp(tl.abs(wide(x)))
    return (h + quotient(constant(h, 0.25), h)).to(x.dtype)


@triton.jit
def _log_of_sum(z, t, big):
    """Return log(1 + z), or log(2t) where t is big."""
    return log1p(tl.where(big, t, z)) + tl.where(big, constant(t, _LN2), constant(t, 0.0))


@triton.jit
def asinh(x):
    """Return the inverse hyperbolic sine."""
    v = wide(x)
    t = tl.abs(v)
    big = t > 1.152921504606847e18  # 2**60: t + 1 is t, and t * t does not overflow below
    u = t * t
    z = t + quotient(u, 1.0 + root(1.0 + u))
    return copysign(_log_of_sum(z, t, big), v).to(x.dtype)


@triton.jit
def acosh(x):
    """Return the inverse hyperbolic cosine."""
    v = wide(x)
    t = v - 1.0
    z = t + root(t * (v + 1.0))
    result = _log_of_sum(z, v, v > 1.152921504606847e18)
    return tl.where(v < 1.0, float("nan"), result).to(x.dtype)


@triton.jit
def atanh(x):
    """Return the inverse hyperbolic tangent."""
    v = wide(x)
    t = tl.abs(v)
    return copysign(0.5 * log1p(quotient(2.0 * t, 1.0 - t)), v).to(x.dtype)


@triton.jit
def _from_right_angle(a):
    """Return pi/2 - a."""
    if a.dtype == tl.float64:
        return 1.5707963267948966 - (a - 6.123233995736766e-17)
    else:
        return tl.fma(1.6832555532455444, 0.9331894516944885, -a)  # the product is pi/2 to 1.6e-14


@triton.jit
def _from_straight_angle(a):
    """Return pi - a."""
    if a.dtype == tl.float64:
        return 3.141592653589793 - (a - 1.2246467991473532e-16)
    else:
        return tl.fma(2.0 * 1.6832555532455444, 0.9331894516944885, -a)


@triton.jit
def _arc(t):
    """Return asin t for 0 <= t <= 1/2, else asin sqrt((1 - t) / 2): a half of acos t."""
    near = t <= 0.5
    u = tl.where(near, t * t, tl.fma(t, constant(t, -0.5), constant(t, 0.5)))
    base = tl.where(near, t, root(u))
    if t.dtype == tl.float64:
        return tl.fma(base * u, polynomial(u, co.ASIN_64), base)
    else:
        return tl.fma(base * u, polynomial(u, co.ASIN_32), base)


@triton.jit
def asin(x):
    """Return the arc sine."""
    v = wide(x)
    t = tl.abs(v)
    a = _arc(t)
    return copysign(tl.abs(tl.where(t <= 0.5, a, _from_right_angle(a + a))), v).to(x.dtype)


@triton.jit
def acos(x):
    """Return the arc cosine."""
    v = wide(x)
    t = tl.abs(v)
    a = _arc(t)
    double = a + a
    far = tl.where(v < 0.0, _from_straight_angle(double), double)
    return tl.where(t <= 0.5, _from_right_angle(copysign(a, v)), far).to(x.dtype)


@triton.jit
def _angle(y, x):
    """Return atan(y / x) for y >= 0 and x >= 0."""
    steep = y > x
    small = tl.where(steep, x, y)
    large = tl.where(steep, y, x)
    equal = y == x  # two zeros, two infinities or two equal numbers
    if x.dtype == tl.float64:
        middle = small > 0.41421356237309503 * large
        below = (small - large) / (small + large)
        ratio = tl.where(equal, 0.0, tl.where(middle, below, small / large))
        u = ratio * ratio
        angle = tl.fma(u * ratio, polynomial(u, co.ATAN_64), ratio)
        diagonal = (middle | equal) & (large > 0.0)
        angle = tl.where(diagonal, 0.7853981633974483 + (angle + 3.061616997868383e-17), angle)
    else:
        ratio = tl.where(equal, tl.where(y == 0.0, 0.0, 1.0), quotient(small, large))
        u = ratio * ratio
        angle = tl.fma(u * ratio, polynomial(u, co.ATAN_32), ratio)
    return tl.where(steep, _from_right_angle(angle), angle)


@triton.jit
def atan(x):
    """Return the arc tangent."""
    v = wide(x)
    t = tl.abs(v)
    return copysign(tl.abs(_angle(t, tl.full(t.shape, 1.0, t.dtype))), v).to(x.dtype)


@triton.jit
def atan2(y, x):
    """Return the angle of the point (x, y), operands of one dtype."""
    y, x = tl.broadcast(y, x)
    v = wide(y)
    w = wide(x)
    angle = _angle(tl.abs(v), tl.abs(w))
    return copysign(tl.abs(tl.where(bits(w) < 0, _from_straight_angle(angle), angle)), v).to(y.dtype)


@triton.jit
def erfc(x):
    """Return 1 - erf(x), with its relative accuracy kept where it is small."""
    v = wide(x)
    FAR: tl.constexpr = 27.3 if v.dtype == tl.float64 else 10.1
    CENTRE: tl.constexpr = 4.0 if v.dtype == tl.float64 else 2.0
    t = tl.where(v > FAR, FAR, v)
    s = t * t
    r, n = _reduced(-s)
    q = quotient(t - CENTRE, t + CENTRE)
    if v.dtype == tl.float64:
        g = polynomial(q, co.ERFC_64)
    else:
        g = polynomial(q, co.ERFC_32)
    p = quotient(g, tl.fma(t, constant(t, 2.0), constant(t, 1.0))) * _exp(r)
    p = tl.fma(p, tl.fma(-t, t, s), p)  # what rounding t * t left out
    return tl.where(t > 0.5, scaled(p, n), 1.0 - tl.erf(t)).to(x.dtype)


@triton.jit
def _log2(x):
    """Return the logarithm of x > 0 to base 2 as the sum of two numbers: to almost twice the type's digits."""
    if x.dtype == tl.float64:
        tiny = x < 2.2250738585072014e-308
        u = tl.where(tiny, x * 4503599627370496.0, x)
        e = (bits(u) - 0x3FE8000000000000) & -0x10000000000000
        n = (e >> 52).to(tl.float64) - tl.where(tiny, 52.0, 0.0)
    else:
        tiny = x < 1.1754943508222875e-38
        u = tl.where(tiny, x * 8388608.0, x)
        e = _unscaled(u)
        n = (e >> 23).to(tl.float32) - tl.where(tiny, 23.0, 0.0)
    f = from_bits(bits(u) - e) - 1.0
    # s = f / (2 + f) in two numbers, and z = s * s
    d = f + 2.0
    d_low = f - (d - 2.0)
    s = quotient(f, d)
    s_low = quotient(tl.fma(-s, d_low, tl.fma(-s, d, f)), d)
    z = s * s
    z_low = tl.fma(s + s, s_low, tl.fma(s, s, -z))
    if x.dtype == tl.float64:
        tail = z * polynomial(z, co.POW_64)
        C1: tl.constexpr = 2.8853900817779268
        C1_LOW: tl.constexpr = 4.0710547481862066e-17
        C3: tl.constexpr = 0.9617966939259756
        C3_LOW: tl.constexpr = 5.0577616648125907e-17
    else:
        tail = z * polynomial(z, co.POW_32)
        C1: tl.constexpr = 2.885390043258667
        C1_LOW: tl.constexpr = 3.851926067000022e-08
        C3: tl.constexpr = 0.9617967009544373
        C3_LOW: tl.constexpr = -7.028461812552678e-09
    # log2 = n + s (C1 + z (C3 + tail)), each bracket in two numbers
    c = tail + constant(z, C3)
    c_low = (tail - (c - constant(z, C3))) + constant(z, C3_LOW)
    w = z * c
    w_low = tl.fma(z, c_low, tl.fma(z_low, c, tl.fma(z, c, -w)))
    v = w + constant(z, C1)
    v_low = (w - (v - constant(z, C1))) + (w_low + constant(z, C1_LOW))
    part = s * v
    part_low = tl.fma(s, v_low, tl.fma(s_low, v, tl.fma(s, v, -part)))
    high = n + part
    return high, (part - (high - n)) + part_low


@triton.jit
def pow(x, y):
    """Return x**y, operands of one dtype."""
    x, y = tl.broadcast(x, y)
    v = wide(x)
    w = wide(y)
    size = tl.abs(v)
    high, low = _log2(size)
    high = tl.where(size == 0.0, float("-inf"), tl.where(size < float("inf"), high, size))
    p = w * high
    LIMIT: tl.constexpr = 1100.0 if v.dtype == tl.float64 else 160.0
    inside = tl.abs(p) < LIMIT
    n, k = rounded(tl.where(inside, p, 0.0), 1.0)
    r = tl.fma(w, low, tl.fma(w, high, -n))
    if v.dtype == tl.float64:
        result = polynomial(r, co.EXP2_64)
    else:
        result = polynomial(r, co.EXP2_32)
    result = scaled(result, k)
    result = tl.where(inside, result, tl.where(p > 0.0, float("inf"), tl.where(p < 0.0, 0.0, p)))
    half = w * 0.5
    whole = tl.floor(w) == w
    odd = whole & (tl.floor(half) != half)
    result = tl.where(odd, copysign(result, v), result)
    result = tl.where((v < 0.0) & (v > float("-inf")) & (whole == 0), float("nan"), result)
    one = (v == 1.0) | (w == 0.0) | ((v == -1.0) & (tl.abs(w) == float("inf")))
    return tl.where(one, 1.0, result).to(x.dtype)


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + e**-x), as accurate as the device's own exp; 0 where e**-x overflows."""
    v = wide(x)
    return (1.0 / (1.0 + tl.exp(-v))).to(x.dtype)


@triton.jit
def silu(x):
    """Return x / (1 + e**-x), as accurate as the device's own exp."""
    v = wide(x)
    return (v / (1.0 + tl.exp(-v))).to(x.dtype)


@triton.jit
def gelu_erf(x):
    """Return x times the normal distribution function of x, as accurate as the device's own erf."""
    v = wide(x)
    half = 0.5 * v
    return tl.fma(half, tl.erf(v * constant(v, 0.7071067811865476)), half).to(x.dtype)


@triton.jit
def gelu_tanh(x):
    """Return x (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))) / 2, as accurate as the device's own exp2."""
    v = wide(x)
    # The same as x / (1 + e**-2u); -2 sqrt(2/pi) log2(e), and that times 0.044715
    u = v * tl.fma(v * v, constant(v, -0.1029432395800235), constant(v, -2.3022081981443248))
    return (v / (1.0 + tl.exp2(u))).to(x.dtype)
