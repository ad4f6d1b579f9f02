"""Exponentials, logarithms and what is made of them, of float32 vectors.

Every function takes and gives float32 values; scalars, AVX2 and AVX-512 give the same bits. Coefficients come from
tools/minimax.py, which says how; the interval of each fit stands beside it.
"""

from __future__ import annotations

from nbxtensor.backend.cpu import vector_math_double
from nbxtensor.backend.cpu.vector_math_value import Value, copysign, fma, has_x86, intrinsic, polynomial, select, x86

__all__ = [
    "acosh",
    "asinh",
    "atanh",
    "cbrt",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "power",
    "sinh",
    "tanh",
]

_LOG2E = 1.4426950408889634
_LN2 = 0.6931471805599453  # its float32 is 1.9e-9 off, less than any other near 1
_LN2_HIGH = 0.693145751953125  # ln 2 in 17 bits: its product with an exponent is exact
_LN2_LOW = 1.428606765330187e-06
_LOG10_2_HIGH = 0.301025390625  # log10(2) in 12 bits
_LOG10_2_LOW = 4.605038981195214e-06
_ROUND = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer, which then ends the bits of the sum
_ROUND_BITS = 0x4B400000
_ONE_BITS = 0x3F800000

# Fit: e**r, |r| <= ln2/2
_EXP = (
    1.0, 1.0, 0.4999999403953552, 0.1666652262210846, 0.04166819527745247, 0.008368643932044506, 0.0013830338139086962,
)  # fmt: skip
# Fit: 2**r, |r| <= 1/2
_EXP2 = (
    1.0, 0.6931471824645996, 0.24022649228572845, 0.055503588169813156, 0.00961835402995348, 0.0013391338288784027,
    0.00015359028475359082,
)  # fmt: skip
# Fit: (e**r - 1 - r) / r**2, |r| <= ln2/2
_EXPM1 = (0.5, 0.1666654795408249, 0.041666820645332336, 0.008366107009351254, 0.0013901201309636235)
# (1 - e**-r - r) / r**2, the same with alternating signs
_EXPM1_DOWN = tuple(-c if k % 2 == 0 else c for k, c in enumerate(_EXPM1))
# Fit: (log(1+f) - f) / f**2, -1/4 <= f <= 1/2
_LOG = (
    -0.5, 0.3333345055580139, -0.25000110268592834, 0.19990816712379456, -0.16647574305534363, 0.14482277631759644,
    -0.13164319097995758, 0.10437793284654617, -0.04468772932887077,
)  # fmt: skip
# Fit: log2(1+f) / f - 1, -1/4 <= f <= 1/2
_LOG2 = (
    0.4426950514316559, -0.7213475108146667, 0.4808981716632843, -0.36067429184913635, 0.2884685695171356,
    -0.24025844037532806, 0.20829375088214874, -0.18857142329216003, 0.15138037502765656, -0.06680278480052948,
)  # fmt: skip
# Fit: log10(1+f) / f - 1/2, -1/4 <= f <= 1/2
_LOG10 = (
    -0.06570551544427872, -0.21714723110198975, 0.14476485550403595, -0.1085742712020874, 0.08683548867702484,
    -0.07231394201517105, 0.06271323561668396, -0.056828003376722336, 0.04555311053991318, -0.019997810944914818,
)  # fmt: skip
# Fit: -log(1 - erf t) / t - 1, 0 <= t <= 3.93, weighted by what it does to erf t
_ERF = (
    0.12837916612625122, 0.6366195678710938, 0.10277629643678665, -0.019147776067256927, -0.000169613107573241,
    0.0016757999546825886, -0.0006374361109919846, 0.0001188825408462435, -9.390380910190288e-06,
)  # fmt: skip
# Fit: e**(t*t) * erfc t * (1 + 2t) in q = (t-2) / (t+2), 1/2 <= t <= 10.1
_ERFC = (
    1.2769783735275269, -0.09276381880044937, -0.16603033244609833, 0.16404989361763, -0.05421622097492218,
    -0.008012657053768635, 0.008676831610500813, 0.0011571316281333566, -0.0012873063096776605, -0.00022224351414479315,
)  # fmt: skip
# Fit: (tanh t - t) / t**3 in t**2, t <= 0.55
_TANH = (-0.3333294689655304, 0.1332072913646698, -0.05267200991511345, 0.01643787883222103)
# Fit: (sinh t - t) / t**3 in t**2, t <= 1
_SINH = (0.1666671633720398, 0.008330270648002625, 0.00020373339066281915)


def exp(x: Value) -> Value:
    """Return e**x."""
    if not has_x86(x):
        x = _within(x, -104.0, 89.0)
    t = fma(x, _LOG2E, _ROUND)
    n = t - _ROUND
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    return _scaled(r, n, t, _EXP, 0.35)


def exp2(x: Value) -> Value:
    """Return 2**x."""
    if not has_x86(x):
        x = _within(x, -151.0, 129.0)
    t = x + _ROUND
    n = t - _ROUND
    return _scaled(x - n, n, t, _EXP2, 0.5)


def _within(x: Value, low: float, high: float) -> Value:
    x = select(x < low, low, x)
    return select(x > high, high, x)


def _scaled(r: Value, n: Value, t: Value, coefficients: tuple[float, ...], bound: float) -> Value:
    """Return polynomial(r) * 2**n, where n is an integer and t = n + _ROUND."""
    if has_x86(r):
        # r is NaN for an infinite argument and large far out, where only its polynomial's sign matters: the range
        # instruction makes it a number within the bound. scalef takes any n, NaN too, and rounds a subnormal once.
        p = polynomial(x86("range", r, r.like(bound), immediate=2), coefficients)
        return x86("scalef", p, n)
    k = t.bits() - _ROUND_BITS
    half = k >> 1  # in two steps, as 2**n itself may overflow or be subnormal
    return polynomial(r, coefficients) * _power_of_two(half) * _power_of_two(k - half)


def _power_of_two(k: Value) -> Value:
    return ((k + 127) << 23).as_float()


def expm1(x: Value) -> Value:
    """Return e**x - 1."""
    y = _within(x, -18.0, 89.0)
    t = fma(y, _LOG2E, _ROUND)
    n = t - _ROUND
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, y))
    q = fma(r * r, polynomial(r, _EXPM1), r)
    half = ((t.bits() << 23) + (_ONE_BITS - (1 << 23))).as_float()  # 2**(n-1): 2**128 would overflow too early
    result = 2.0 * fma(half, q, half - 0.5)
    return copysign(select(n.equals(0.0), q, result), x)


def log(x: Value) -> Value:
    """Return the natural logarithm."""
    e, f = _split(x)
    return _finished(x, fma(e, _LN2, fma(f * f, polynomial(f, _LOG), f)))


def log2(x: Value) -> Value:
    """Return the logarithm to base 2."""
    e, f = _split(x)
    return _finished(x, fma(f, polynomial(f, _LOG2), f) + e)


def log10(x: Value) -> Value:
    """Return the logarithm to base 10."""
    e, f = _split(x)
    # The larger terms are added with one small error: e log10(2) and log10(1+f) may nearly cancel.
    large = fma(e, _LOG10_2_HIGH, f * 0.5)
    return _finished(x, large + fma(f, polynomial(f, _LOG10), e * _LOG10_2_LOW))


def _split(x: Value) -> tuple[Value, Value]:
    """Return (e, f) with x = (1 + f) * 2**e and -1/4 <= f < 1/2.

    With AVX-512 zero, infinities, NaN and negative numbers give what makes ``e + f`` their logarithm; elsewhere
    :func:`_finished` puts it in.
    """
    if has_x86(x):
        m = x86("getmant", x, immediate=0b1011)  # to [3/4, 3/2), NaN for a negative number
        return x86("getexp", x) - x86("getexp", m), m - 1.0
    tiny = x < 1.1754943508222875e-38
    bits = select(tiny, x * 8388608.0, x).bits()
    e = (bits - 0x3F400000) & -0x800000
    n = fma(e.converted("sitofp", "float"), 1.1920928955078125e-07, select(tiny, x.like(-23.0), 0.0))
    return n, (bits - e).as_float() - 1.0


def _finished(x: Value, result: Value) -> Value:
    if has_x86(x):
        return result
    result = select(x < float("inf"), result, x)  # NaN and infinity stay
    result = select(x < 0.0, float("nan"), result)
    return select(x.equals(0.0), float("-inf"), result)


def log1p(x: Value) -> Value:
    """Return log(1 + x)."""
    u = x + 1.0
    e = (u.bits() - 0x3F400000) & -0x800000
    # 1 + x = 2**n (1 + f): f without the error of the sum. 4 * 2**-n is normal for every n that occurs.
    scale = (0x40800000 - e).as_float()
    f = (x.bits() - e).as_float() + fma(scale, 0.25, -1.0)
    n = e.converted("sitofp", "float") * 1.1920928955078125e-07
    result = copysign(fma(n, _LN2, fma(f * f, polynomial(f, _LOG), f)), x)
    result = select(x < float("inf"), result, x)
    result = select(x < -1.0, float("nan"), result)
    return select(x.equals(-1.0), float("-inf"), result)


def tanh(x: Value) -> Value:
    """Return the hyperbolic tangent: a polynomial near 0, else 1 - 2 / (1 + e**2t)."""
    t = abs(x)
    u = t * t
    near = fma(u * t, polynomial(u, _TANH), t)
    y = select(t > 10.0, 10.0, t)
    m = fma(y, -2 * _LOG2E, _ROUND)
    r = fma(m - _ROUND, _LN2 / 2, y)
    p = polynomial(r, [c * (-2.0) ** k for k, c in enumerate(_EXP)])
    e = (p.bits() + (m.bits() << 23)).as_float()  # e**-2y
    far = fma(e / (e + 1.0), -2.0, 1.0)
    return copysign(select(t >= 0.55, far, near), x)


def erf(x: Value) -> Value:
    """Return the error function.

    With t = |x| and a = -log(1 - erf t), a polynomial, erf t = 1 - e**-a = 2**n q + (1 - 2**n), where
    q = 1 - e**-r and a = r - n ln 2. It loses nothing near 0, where n = 0, so that one formula serves all x.
    """
    t = abs(x)
    t = select(t > 4.0, 4.0, t)
    a = fma(t, polynomial(t, _ERF), t)
    m = fma(a, -_LOG2E, _ROUND)
    r = fma(m - _ROUND, _LN2, a)
    q = fma(r * r, polynomial(r, _EXPM1_DOWN), r)
    s = ((m.bits() << 23) + _ONE_BITS).as_float()
    return copysign(fma(s, q, 1.0 - s), x)


def erfc(x: Value) -> Value:
    """Return 1 - erf(x), with its relative accuracy kept where it is small."""
    t = select(x > 10.1, 10.1, x)
    square = t * t
    m = fma(square, -_LOG2E, _ROUND)
    n = m - _ROUND
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, -square))
    g = polynomial((t - 2.0) / (t + 2.0), _ERFC) / fma(t, 2.0, 1.0)
    p = g * polynomial(r, _EXP)
    p = fma(p, fma(-t, t, square), p)  # what rounding t*t left out
    half = (m.bits() - _ROUND_BITS) >> 1
    tail = p * _power_of_two(half) * _power_of_two((m.bits() - _ROUND_BITS) - half)
    return select(t > 0.5, tail, 1.0 - erf(t))


def _half_exp(t: Value) -> Value:
    """Return e**t / 2 for t >= 0, infinite only where it must be."""
    y = select(t > 90.0, 90.0, t)
    m = fma(y, _LOG2E, _ROUND)
    n = m - _ROUND
    p = polynomial(fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, y)), _EXP)
    quarter = (p.bits() + ((m.bits() << 23) - (2 << 23))).as_float()
    return select(t.is_nan(), t, quarter * 2.0)


def sinh(x: Value) -> Value:
    """Return the hyperbolic sine."""
    t = abs(x)
    u = t * t
    h = _half_exp(t)
    near = fma(u * t, polynomial(u, _SINH), t)
    return copysign(select(t < 1.0, near, h - 0.25 / h), x)


def cosh(x: Value) -> Value:
    """Return the hyperbolic cosine."""
    h = _half_exp(abs(x))
    return h + 0.25 / h


def cbrt(x: Value) -> Value:
    """Return the cube root."""
    t = abs(x)
    tiny, huge = t < 1.1754943508222875e-38, t > 8.507059173023462e37
    y = t * select(tiny, t.like(16777216.0), select(huge, t.like(0.125), 1.0))
    third = y.bits().converted("sitofp", "float") * (1.0 / 3.0)
    g = (third.converted("fptosi", "i32") + 0x2A514067).as_float()  # within 4 % for normal numbers
    for _ in range(2):  # Halley's rule
        difference = fma(g * g, g, -y)
        g = fma(g, -difference / fma(difference, 2.0, y * 3.0), g)
    root = g * select(tiny, t.like(0.00390625), select(huge, t.like(2.0), 1.0))
    finite = (t > 0.0) & (t < float("inf"))
    return copysign(select(finite, root, t), x)


def asinh(x: Value) -> Value:
    """Return the inverse hyperbolic sine, by way of a float64 logarithm."""
    t = abs(x).converted("fpext", "double")
    u = t * t
    far = vector_math_double.log(t + intrinsic("sqrt", u + 1.0))
    near = fma(u * t, -1.0 / 6.0, t)
    return copysign(select(t < 1e-3, near, far).converted("fptrunc", "float"), x)


def acosh(x: Value) -> Value:
    """Return the inverse hyperbolic cosine, by way of a float64 logarithm."""
    t = x.converted("fpext", "double")
    result = vector_math_double.log(t + intrinsic("sqrt", fma(t, t, -1.0))).converted("fptrunc", "float")
    return select(x < 1.0, float("nan"), result)


def atanh(x: Value) -> Value:
    """Return the inverse hyperbolic tangent, by way of a float64 logarithm."""
    t = abs(x).converted("fpext", "double")
    far = 0.5 * vector_math_double.log((1.0 + t) / (1.0 - t))
    near = fma(t * t * t, 1.0 / 3.0, t)
    return copysign(select(t < 1e-3, near, far).converted("fptrunc", "float"), x)


def power(x: Value, y: Value) -> Value:
    """Return x**y as C99 Annex F says, by way of float64."""
    exponent = y.converted("fpext", "double")
    size = vector_math_double.exp(exponent * vector_math_double.log(abs(x).converted("fpext", "double")))
    result = size.converted("fptrunc", "float")
    half = y * 0.5
    whole = intrinsic("floor", y).equals(y)
    odd = whole & (intrinsic("floor", half).compare("une", half))
    # -0 and negative numbers: odd powers keep the sign, powers that are no integers have none.
    result = select(odd, copysign(result, x), result)
    outside = (x < 0.0) & (x > float("-inf")) & (whole ^ True)
    result = select(outside, float("nan"), result)
    # Where the logarithm or the product is not a number though the power is: 1**y and x**0 are 1, (-1)**inf too.
    one = x.equals(1.0) | y.equals(0.0) | (x.equals(-1.0) & abs(y).equals(float("inf")))
    return select(one, 1.0, result)
