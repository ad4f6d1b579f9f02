"""Arithmetic: sums, products, quotients, powers, extremes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbxtensor.op import Case, Spec
from nbxtensor.ops.pointwise import references as ref
from nbxtensor.ops.pointwise.declaring import pointwise
from nbxtensor.ops.pointwise.rules import FLOAT, FLOAT_BITS, NUMBER, REAL, SUMS

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = [
    "abs",
    "add",
    "addcdiv",
    "addcmul",
    "atan2",
    "copysign",
    "divide",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "hypot",
    "lerp",
    "logaddexp",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "positive",
    "pow",
    "reciprocal",
    "remainder",
    "rsqrt",
    "sign",
    "sqrt",
    "square",
    "subtract",
]

_BENCH = Case({"x1": Spec((2048, 4096), "float32"), "x2": Spec((2048, 4096), "float32")}, bench=True)
_MIXED = Case({"x1": Spec((3, 17), "int8"), "x2": Spec((17,), "uint8")})
_WEAK = Case({"x1": Spec((40,), "float16")}, {"x2": 0.1})
_LEFT = Case({"x2": Spec((40,), "float32")}, {"x1": 3})
_SIGNED = Case({"x1": Spec((9, 1), "int16"), "x2": Spec((9,), "int16")}, fill={"x1": "special", "x2": "special"})
_POWERS = Case({"x1": Spec((9, 33), "int32"), "x2": Spec((9, 1), "int32")})


@pointwise(REAL, np.abs)
def abs(x: Tensor, /) -> Tensor:  # noqa: A001 - the standard's name
    """Return the magnitude of each element; the lowest signed integer has none and stays."""
    raise NotImplementedError


@pointwise(NUMBER, np.negative)
def negative(x: Tensor, /) -> Tensor:
    """Return ``-x``; integers wrap."""
    raise NotImplementedError


@pointwise(NUMBER, np.positive)
def positive(x: Tensor, /) -> Tensor:
    """Return a copy of ``x``."""
    raise NotImplementedError


@pointwise(NUMBER, np.sign, flops=2)
def sign(x: Tensor, /) -> Tensor:
    """Return -1, 0 or 1 by the sign of each element; of NaN, NaN, and of a zero, that zero."""
    raise NotImplementedError


@pointwise(NUMBER, np.square)
def square(x: Tensor, /) -> Tensor:
    """Return ``x * x``."""
    raise NotImplementedError


@pointwise(FLOAT, np.sqrt, flops=4, fill="positive")
def sqrt(x: Tensor, /) -> Tensor:
    """Return the square root, rounded to nearest; of a negative number, NaN."""
    raise NotImplementedError


@pointwise(FLOAT, ref.rsqrt, flops=5, fill="positive")
def rsqrt(x: Tensor, /) -> Tensor:
    """Return ``1 / sqrt(x)``."""
    raise NotImplementedError


@pointwise(FLOAT, ref.reciprocal, flops=4)
def reciprocal(x: Tensor, /) -> Tensor:
    """Return ``1 / x``."""
    raise NotImplementedError


@pointwise(REAL, np.add, cases=(_MIXED, _WEAK, _BENCH))
def add(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return ``x1 + x2``; integers wrap, bools give ``x1 or x2``."""
    raise NotImplementedError


@pointwise(NUMBER, np.subtract, cases=(_MIXED, _LEFT))
def subtract(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return ``x1 - x2``; integers wrap."""
    raise NotImplementedError


@pointwise(REAL, np.multiply, cases=(_MIXED, _WEAK))
def multiply(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return ``x1 * x2``; integers wrap, bools give ``x1 and x2``."""
    raise NotImplementedError


@pointwise(FLOAT, np.divide, flops=4, cases=(_LEFT,))
def divide(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return ``x1 / x2``, rounded to nearest; integers are read as float32."""
    raise NotImplementedError


@pointwise(NUMBER, ref.floor_divide, flops=10, cases=(_SIGNED,))
def floor_divide(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the quotient rounded down; of an integer by zero 0, of an infinity or by a zero ``floor(x1 / x2)``."""
    raise NotImplementedError


@pointwise(NUMBER, np.remainder, flops=60, cases=(_SIGNED,))
def remainder(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the rest of `floor_divide`, exact and of the sign of ``x2``; an integer by zero gives 0."""
    raise NotImplementedError


@pointwise(NUMBER, np.fmod, flops=60, cases=(_SIGNED,))
def fmod(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the rest of the division cut towards zero, exact and of the sign of ``x1``; an integer by zero gives 0."""
    raise NotImplementedError


@pointwise(NUMBER, ref.power, flops=30, fill="positive", cases=(_POWERS, _LEFT))
def pow(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:  # noqa: A001 - the standard's name
    """Return ``x1`` to the power ``x2``; integers wrap, a negative exponent of one gives ``1 / x1`` cut to 0."""
    raise NotImplementedError


@pointwise(REAL, np.maximum)
def maximum(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the larger of two elements; NaN where either is NaN."""
    raise NotImplementedError


@pointwise(REAL, np.minimum)
def minimum(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the smaller of two elements; NaN where either is NaN."""
    raise NotImplementedError


@pointwise(REAL, np.fmax)
def fmax(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the larger of two elements, or the other one where one is NaN."""
    raise NotImplementedError


@pointwise(REAL, np.fmin)
def fmin(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the smaller of two elements, or the other one where one is NaN."""
    raise NotImplementedError


@pointwise(FLOAT, np.hypot, flops=14)
def hypot(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return ``sqrt(x1**2 + x2**2)`` without overflow on the way."""
    raise NotImplementedError


@pointwise(FLOAT, np.logaddexp, flops=30, rtol=SUMS)
def logaddexp(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return ``log(exp(x1) + exp(x2))`` without overflow on the way."""
    raise NotImplementedError


@pointwise(FLOAT, np.arctan2, flops=25)
def atan2(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the angle of the point (x2, x1) in radians, from -pi to pi."""
    raise NotImplementedError


@pointwise(FLOAT, np.copysign, flops=2)
def copysign(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the magnitude of ``x1`` with the sign of ``x2``."""
    raise NotImplementedError


@pointwise(FLOAT_BITS, np.nextafter, flops=4, rtol={"float16": 2.0**-10, "bfloat16": 2.0**-7})
def nextafter(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the float of the operands' dtype that follows ``x1`` towards ``x2``."""
    raise NotImplementedError


@pointwise(NUMBER, ref.addcmul, flops=3, rtol=SUMS)
def addcmul(x: Tensor | float, x1: Tensor | float, x2: Tensor | float, /, *, value: float = 1) -> Tensor:
    """Return ``x + value * x1 * x2``."""
    raise NotImplementedError


@pointwise(FLOAT, ref.addcdiv, flops=6, fill="positive", rtol=SUMS)
def addcdiv(x: Tensor | float, x1: Tensor | float, x2: Tensor | float, /, *, value: float = 1) -> Tensor:
    """Return ``x + value * x1 / x2``."""
    raise NotImplementedError


@pointwise(
    FLOAT,
    ref.lerp,
    flops=6,
    rtol=SUMS,
    cases=(
        Case({"start": Spec((9, 4), "float32"), "end": Spec((4,), "float32")}, {"weight": 0.75}, rtol=SUMS["float32"]),
    ),
)
def lerp(start: Tensor, end: Tensor | float, weight: Tensor | float, /) -> Tensor:
    """Return ``start + weight * (end - start)``, exact at weights 0 and 1."""
    raise NotImplementedError
