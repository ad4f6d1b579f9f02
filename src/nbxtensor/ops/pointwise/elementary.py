"""Elementary functions: exponentials, logarithms, angles, the error function, rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbxtensor.op import Call, Case, Spec
from nbxtensor.ops.pointwise import references as ref
from nbxtensor.ops.pointwise.declaring import pointwise
from nbxtensor.ops.pointwise.rules import ACTIVATION, FLOAT, NUMBER

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "log",
    "log1p",
    "log2",
    "log10",
    "logit",
    "round",
    "sigmoid",
    "sin",
    "sinh",
    "tan",
    "tanh",
    "trunc",
]

_FROM_ONE = (Case({"x": Spec((10,), "uint8")}),)


def _logit(call: Call) -> str:
    return "logit" if call.params["eps"] is None else "logit_clamped"


@pointwise(FLOAT, np.exp, flops=12)
def exp(x: Tensor, /) -> Tensor:
    """Return ``e**x``."""
    raise NotImplementedError


@pointwise(FLOAT, np.exp2, flops=11)
def exp2(x: Tensor, /) -> Tensor:
    """Return ``2**x``."""
    raise NotImplementedError


@pointwise(FLOAT, np.expm1, flops=20)
def expm1(x: Tensor, /) -> Tensor:
    """Return ``exp(x) - 1``, exact near zero."""
    raise NotImplementedError


@pointwise(FLOAT, np.log, flops=14, fill="positive")
def log(x: Tensor, /) -> Tensor:
    """Return the natural logarithm; of a negative number, NaN."""
    raise NotImplementedError


@pointwise(FLOAT, np.log2, flops=15, fill="positive")
def log2(x: Tensor, /) -> Tensor:
    """Return the logarithm to base 2; of a negative number, NaN."""
    raise NotImplementedError


@pointwise(FLOAT, np.log10, flops=15, fill="positive")
def log10(x: Tensor, /) -> Tensor:
    """Return the logarithm to base 10; of a negative number, NaN."""
    raise NotImplementedError


@pointwise(FLOAT, np.log1p, flops=20, fill="positive")
def log1p(x: Tensor, /) -> Tensor:
    """Return ``log(1 + x)``, exact near zero."""
    raise NotImplementedError


@pointwise(FLOAT, np.sin, flops=20)
def sin(x: Tensor, /) -> Tensor:
    """Return the sine of an angle in radians."""
    raise NotImplementedError


@pointwise(FLOAT, np.cos, flops=20)
def cos(x: Tensor, /) -> Tensor:
    """Return the cosine of an angle in radians."""
    raise NotImplementedError


@pointwise(FLOAT, np.tan, flops=44)
def tan(x: Tensor, /) -> Tensor:
    """Return the tangent of an angle in radians."""
    raise NotImplementedError


@pointwise(FLOAT, np.arcsin, flops=20, fill="uniform")
def asin(x: Tensor, /) -> Tensor:
    """Return the angle in radians, from -pi/2 to pi/2, that has the sine ``x``."""
    raise NotImplementedError


@pointwise(FLOAT, np.arccos, flops=20, fill="uniform")
def acos(x: Tensor, /) -> Tensor:
    """Return the angle in radians, from 0 to pi, that has the cosine ``x``."""
    raise NotImplementedError


@pointwise(FLOAT, np.arctan, flops=20)
def atan(x: Tensor, /) -> Tensor:
    """Return the angle in radians, from -pi/2 to pi/2, that has the tangent ``x``."""
    raise NotImplementedError


@pointwise(FLOAT, np.sinh, flops=25)
def sinh(x: Tensor, /) -> Tensor:
    """Return the hyperbolic sine."""
    raise NotImplementedError


@pointwise(FLOAT, np.cosh, flops=20)
def cosh(x: Tensor, /) -> Tensor:
    """Return the hyperbolic cosine."""
    raise NotImplementedError


@pointwise(FLOAT, np.tanh, flops=20)
def tanh(x: Tensor, /) -> Tensor:
    """Return the hyperbolic tangent."""
    raise NotImplementedError


@pointwise(FLOAT, np.arcsinh, flops=25)
def asinh(x: Tensor, /) -> Tensor:
    """Return the inverse of `sinh`."""
    raise NotImplementedError


@pointwise(FLOAT, np.arccosh, flops=25, cases=_FROM_ONE, fill="positive")
def acosh(x: Tensor, /) -> Tensor:
    """Return the inverse of `cosh`, at least 0; of numbers below 1, NaN."""
    raise NotImplementedError


@pointwise(FLOAT, np.arctanh, flops=25, fill="uniform")
def atanh(x: Tensor, /) -> Tensor:
    """Return the inverse of `tanh`; outside -1 to 1, NaN."""
    raise NotImplementedError


@pointwise(FLOAT, ref.erf, flops=25)
def erf(x: Tensor, /) -> Tensor:
    """Return the error function, ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to x."""
    raise NotImplementedError


@pointwise(FLOAT, ref.erfc, flops=40)
def erfc(x: Tensor, /) -> Tensor:
    """Return ``1 - erf(x)``, exact where that is tiny."""
    raise NotImplementedError


@pointwise(FLOAT, ref.sigmoid, flops=17)
def sigmoid(x: Tensor, /) -> Tensor:
    """Return ``1 / (1 + exp(-x))``."""
    raise NotImplementedError


@pointwise(FLOAT, ref.logit, flops=40, function=_logit, fill="probability")
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """Return the inverse of `sigmoid`, of ``x`` clipped to ``eps`` and ``1 - eps`` where given; outside 0 to 1, NaN."""
    raise NotImplementedError


@pointwise(NUMBER, ref.unchanged_integers(np.floor))
def floor(x: Tensor, /) -> Tensor:
    """Return the largest integer that is not larger; integers stay."""
    raise NotImplementedError


@pointwise(NUMBER, ref.unchanged_integers(np.ceil))
def ceil(x: Tensor, /) -> Tensor:
    """Return the smallest integer that is not smaller; integers stay."""
    raise NotImplementedError


@pointwise(NUMBER, ref.unchanged_integers(np.trunc), flops=2)
def trunc(x: Tensor, /) -> Tensor:
    """Return the integer part; integers stay."""
    raise NotImplementedError


@pointwise(NUMBER, ref.round_to_even, flops=4)
def round(x: Tensor, /) -> Tensor:  # noqa: A001 - the standard's name
    """Return the nearest integer, of two equally near the even one; integers stay."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.frac, flops=3)
def frac(x: Tensor, /) -> Tensor:
    """Return what `trunc` cuts off, ``x - trunc(x)``."""
    raise NotImplementedError
