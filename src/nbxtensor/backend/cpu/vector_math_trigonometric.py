"""Trigonometric functions of float32 vectors and their inverses, exact in their reduction for every argument.

Scalars, AVX2 and AVX-512 give the same bits. Coefficients come from tools/minimax.py; the interval of each fit stands
beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nbxtensor.backend.cpu.vector_math_value import Value, copysign, fma, intrinsic, polynomial, select

__all__ = ["acos", "asin", "atan", "atan2", "cos", "sin", "tan"]

_ROUND = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer, which then ends the bits of the sum


@dataclass(frozen=True)
class _Period:
    """A number to reduce by: two float64 or three positive float32 that sum to it, and 255 bits of its inverse.

    A subtraction of zero times a positive number leaves -0 as it is.
    """

    value: float
    value_low: float
    parts: tuple[float, float, float]
    inverse: int


_PI = _Period(
    math.pi,
    1.2246467991473532e-16,
    (3.141592502593994, 1.5099578831723193e-07, 1.078060505991553e-14),
    18428883373056725475459024596439793651824491331936921676307065986443608256856,
)
_HALF_PI = _Period(
    math.pi / 2, _PI.value_low / 2, (_PI.parts[0] / 2, _PI.parts[1] / 2, _PI.parts[2] / 2), 2 * _PI.inverse
)
_FAR = 262144.0  # up to here the three parts reduce to within a float32's rounding

# Fit: (sin r - r) / r**3 in r**2, |r| <= pi/2 + 0.03
_SIN = (-0.16666658222675323, 0.00833303015679121, -0.00019806843192782253, 2.5994727366196457e-06)
# Fit: (tan r - r) / r**3 in r**2, |r| <= pi/4 + 0.005
_TAN = (
    0.33333349227905273, 0.13332656025886536, 0.05406240001320839, 0.02126365154981613, 0.01089472882449627,
    4.079104201082373e-06, 0.004422768484801054,
)  # fmt: skip
# Fit: (asin t - t) / t**3 in t**2, t <= 1/2
_ASIN = (0.16666752099990845, 0.074953094124794, 0.04546914994716644, 0.024184780195355415, 0.04215829819440842)
# Fit: (atan t - t) / t**3 in t**2, t <= 1
_ATAN = (
    -0.33333152532577515, 0.19993767142295837, -0.14211006462574005, 0.10665813088417053, -0.0755181685090065,
    0.04320733621716499, -0.016365252435207367, 0.002920048777014017,
)  # fmt: skip
_HALF_PI_FACTORS = (1.6832555532455444, 0.9331894516944885)  # two float32 whose product is pi/2 to 1.6e-14
_PI_FACTORS = (2.0 * _HALF_PI_FACTORS[0], _HALF_PI_FACTORS[1])


def sin(x: Value) -> Value:
    """Return the sine."""
    r, count = _reduced(x, _PI)
    return _sine(r, count)


def cos(x: Value) -> Value:
    """Return the cosine, as sin(x + pi/2)."""
    r, count = _reduced(x, _PI, shifted=True)
    return _sine(r, count)


def _sine(r: Value, count: Value) -> Value:
    """Return sin(r + count pi)."""
    t = abs(r)
    u = t * t
    size = fma(u * t, polynomial(u, _SIN), t)
    size = select(size > 1.0, 1.0, size)  # one step above 1 is within the rounding
    return copysign(size, ((count << 31) ^ r.bits()).as_float())  # the sign of r even where it is -0


def tan(x: Value) -> Value:
    """Return the tangent."""
    r, count = _reduced(x, _HALF_PI, wide=True)
    u = r * r
    t = fma(u * r, polynomial(u, _TAN), r)
    return select((count & 1).equals(0), t, -1.0 / t).converted("fptrunc", "float")


def _reduced(x: Value, period: _Period, *, shifted: bool = False, wide: bool = False) -> tuple[Value, Value]:
    """Return r and an integer n (i32; its lowest bit counts) with x = r + n period, |r| <= period/2 and a little.

    ``shifted`` reduces x + period/2 instead; ``wide`` gives r in float64: near a pole of the
    tangent the float32's rounding would count twice.
    """
    inverse = 1.0 / period.value
    if shifted:
        t = fma(x, inverse, 0.5) + _ROUND
        n = (t - _ROUND) - 0.5
    else:
        t = fma(x, inverse, _ROUND)
        n = t - _ROUND
    if wide:
        n, r = n.converted("fpext", "double"), x.converted("fpext", "double")
        parts = period.value, period.value_low
    else:
        parts, r = period.parts, x
    for part in parts:
        r = fma(n, -part, r)
    near = r, t.bits()
    far = abs(x) > _FAR
    texts = x.b.choose(
        _any(far),
        lambda: [v.text for v in _reduced_far(x, far, near, period, shifted=shifted)],
        lambda: [v.text for v in near],
        [v.type for v in near],
    )
    return r.with_text(texts[0]), near[1].with_text(texts[1])


def _any(condition: Value) -> str:
    if not condition.lanes:
        return condition.text
    whole = f"i{condition.lanes}"
    return condition.b.pure(
        f"icmp ne {whole} {condition.b.pure(f'bitcast {condition.type} {condition.text} to {whole}')}, 0"
    )


def _reduced_far(
    x: Value, far: Value, near: tuple[Value, Value], period: _Period, *, shifted: bool
) -> tuple[Value, Value]:
    """Return ``near`` with the lanes of ``far`` reduced exactly, one by one: the case is rare."""
    b = x.b

    def exactly(scalar: Value) -> tuple[Value, Value]:
        r, count = _reduced_exactly(scalar, period, shifted=shifted)
        return (r if near[0].element == "double" else r.converted("fptrunc", "float")), count

    if not x.lanes:
        # A value made here keeps everything that depends on it inside the branch.
        return exactly(x.with_text(b.op(f"freeze float {x.text}")))

    def lane(index: str, carried: list[str]) -> list[str]:
        def element(text: str, v: Value) -> Value:
            return Value(b, b.pure(f"extractelement {v.type} {text}, i64 {index}"), v.element, 0)

        def replaced(text: str, v: Value, e: Value) -> str:
            kept = select(element(far.text, far), e, element(text, v))
            return b.pure(f"insertelement {v.type} {text}, {v.element} {kept.text}, i64 {index}")

        exact = exactly(element(x.text, x))
        return [replaced(text, v, e) for text, v, e in zip(carried, near, exact, strict=True)]

    texts = b.loop("0", str(x.lanes), "1", lane, [(v.type, v.text) for v in near])
    return near[0].with_text(texts[0]), near[1].with_text(texts[1])


def _reduced_exactly(x: Value, period: _Period, *, shifted: bool) -> tuple[Value, Value]:
    """Return what :func:`_reduced` does, r in float64, for one scalar of at least 2**18, by way of integers.

    With x = m 2**k, the 128 bits of x / period that weigh from 1 downwards are those of m times a window of the
    inverse's bits: what lies above the window is even, what lies below is too small to matter.
    """
    b = x.b
    bits = x.bits()
    exponent = (bits >> 23) & 255
    m = ((bits & 0x7FFFFF) | 0x800000).converted("zext", "i128")
    shift = (278 - exponent).converted("zext", "i256")
    window = shift.with_text(b.pure(f"lshr i256 {period.inverse}, {shift.text}")).converted("trunc", "i128")
    turns = (m * window).shifted_down(64).converted("trunc", "i64")
    if shifted:
        turns = turns + (1 << 62)
    count = (turns + (1 << 62)).shifted_down(63).converted("trunc", "i32")
    fraction = (turns << 1).converted("sitofp", "double") * (period.value * 2.0**-64)
    fraction = select(exponent.equals(255), float("nan"), fraction)  # of an infinity
    if not shifted:  # |x| was reduced: the cosine is even, the others are odd
        fraction = select(x < 0.0, -fraction, fraction)
    return fraction, count


def asin(x: Value) -> Value:
    """Return the arc sine."""
    t, a = _arc(x)
    return copysign(select(t <= 0.5, a, fma(*_HALF_PI_FACTORS, a * -2.0)), x)


def acos(x: Value) -> Value:
    """Return the arc cosine."""
    t, a = _arc(x)
    quarter = fma(*_HALF_PI_FACTORS, -copysign(a, x))
    double = a + a
    half_turn = fma(*_PI_FACTORS, -double)
    return select(t <= 0.5, quarter, select(x < 0.0, half_turn, double))


def _arc(x: Value) -> tuple[Value, Value]:
    """Return t = |x| and asin t, or asin sqrt((1 - t) / 2) where t > 1/2: a half of acos t."""
    t = abs(x)
    near = t <= 0.5
    u = select(near, t * t, fma(t, -0.5, 0.5))
    base = select(near, t, intrinsic("sqrt", u))
    return t, fma(base * u, polynomial(u, _ASIN), base)


def atan(x: Value) -> Value:
    """Return the arc tangent."""
    t = abs(x)
    steep = t > 1.0
    a = _arc_tangent(select(steep, 1.0, t) / select(steep, t, 1.0))
    return copysign(select(steep, fma(*_HALF_PI_FACTORS, -a), a), x)


def _arc_tangent(t: Value) -> Value:
    u = t * t
    return fma(u * t, polynomial(u, _ATAN), t)


def atan2(y: Value, x: Value) -> Value:
    """Return the angle of the point (x, y), as C99 Annex F says."""
    a, c = abs(y), abs(x)
    steep = a > c
    small, large = select(steep, c, a), select(steep, a, c)
    diagonal = select(a.equals(0.0), x.like(0.0), 1.0)  # of two zeros, two infinities or two equal numbers
    ratio = select(a.equals(c), diagonal, small / large)
    angle = _arc_tangent(ratio)
    angle = select(steep, fma(*_HALF_PI_FACTORS, -angle), angle)
    back = fma(*_PI_FACTORS, -angle)
    return copysign(select(x.bits() < 0, back, angle), y)
