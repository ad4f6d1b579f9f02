"""Exponentials and logarithms of float64 vectors, and the math library's functions lane by lane."""

from __future__ import annotations

from nbxtensor.backend.cpu.vector_math_value import Value, fma, has_x86, intrinsic, polynomial, select, x86

__all__ = ["exp", "exp2", "library", "log", "rsqrt"]

_LOG2E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238  # ln 2 in 33 bits: its product with an exponent is exact
_LN2_LOW = 1.9082149292705877e-10
_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to an integer, which then ends the bits of the sum
_ROUND_BITS = 0x4338000000000000

# Fit: e**r, |r| <= ln2/2 (tools/minimax.py, as the next)
_EXP = (
    1.0, 1.0, 0.5000000000000011, 0.16666666666666474, 0.04166666666652995, 0.00833333333347615, 0.0013888888943828243,
    0.00019841269622975383, 2.4801492144013905e-05, 2.7557389590672e-06, 2.763090380592697e-07, 2.5090129660088153e-08,
)  # fmt: skip
# Fit: log((1+s) / (1-s)) / s - 2 in s**2, -1/7 <= s <= 1/5
_LOG = (
    0.0, 0.6666666666666666, 0.40000000000003766, 0.28571428570438817, 0.22222222328740215, 0.18181813103640526,
    0.1538468095718135, 0.13336631335792756, 0.1162135129450174, 0.12582462468379957,
)  # fmt: skip


def exp(x: Value) -> Value:
    """Return e**x."""
    if not has_x86(x):
        x = select(x < -746.0, -746.0, x)
        x = select(x > 710.0, 710.0, x)
    t = fma(x, _LOG2E, _ROUND)
    n = t - _ROUND
    return _scaled(fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x)), n, t)


def exp2(x: Value) -> Value:
    """Return 2**x."""
    if not has_x86(x):
        x = select(x < -1076.0, -1076.0, x)
        x = select(x > 1025.0, 1025.0, x)
    t = x + _ROUND
    n = t - _ROUND
    return _scaled((x - n) * 0.6931471805599453, n, t)


def _scaled(r: Value, n: Value, t: Value) -> Value:
    if has_x86(r):  # see the float32 functions
        return x86("scalef", polynomial(x86("range", r, r.like(0.35), immediate=2), _EXP), n)
    k = t.bits() - _ROUND_BITS
    half = k >> 1
    return polynomial(r, _EXP) * _power_of_two(half) * _power_of_two(k - half)


def _power_of_two(k: Value) -> Value:
    return ((k + 1023) << 52).as_float()


def log(x: Value) -> Value:
    """Return the natural logarithm."""
    if has_x86(x):
        m = x86("getmant", x, immediate=0b1011)
        e = x86("getexp", x) - x86("getexp", m)
    else:
        tiny = x < 2.2250738585072014e-308
        bits = select(tiny, x * 4503599627370496.0, x).bits()
        high = (bits - 0x3FE8000000000000) & -0x10000000000000
        m = (bits - high).as_float()
        e = (high >> 52).converted("sitofp", "double") - select(tiny, x.like(52.0), 0.0)
    f = m - 1.0
    s = f / (f + 2.0)
    half_square = f * f * 0.5
    tail = fma(s, half_square + polynomial(s * s, _LOG), e * _LN2_LOW)
    result = fma(e, _LN2_HIGH, f - (half_square - tail))
    if has_x86(x):
        return result
    result = select(x < float("inf"), result, x)
    result = select(x < 0.0, float("nan"), result)
    return select(x.equals(0.0), float("-inf"), result)


def rsqrt(x: Value) -> Value:
    """Return 1 / sqrt(x) of either width, each step rounded."""
    return 1.0 / intrinsic("sqrt", x)


def library(name: str, *arguments: Value) -> Value:
    """Return the C math library's function ``name`` of float64 values, called once per lane."""
    first = arguments[0]
    if not first.lanes:
        return first.with_text(first.b.call("double", name, [("double", v.text) for v in arguments], pure=True))
    result = "poison"
    for lane in range(first.lanes):
        scalars = [("double", v.b.pure(f"extractelement {v.type} {v.text}, i64 {lane}")) for v in arguments]
        element = first.b.call("double", name, scalars, pure=True)
        result = first.b.pure(f"insertelement {first.type} {result}, double {element}, i64 {lane}")
    return first.with_text(result)
