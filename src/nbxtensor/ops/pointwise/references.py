"""Numpy references that numpy has no function for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from nbxtensor.op import Array

__all__ = [
    "addcdiv",
    "addcmul",
    "celu",
    "clip",
    "elu",
    "erf",
    "erfc",
    "floor_divide",
    "frac",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "lerp",
    "log_sigmoid",
    "logit",
    "masked_fill",
    "mish",
    "nan_to_num",
    "power",
    "reciprocal",
    "relu",
    "relu6",
    "round_to_even",
    "rsqrt",
    "selu",
    "shift_left",
    "shift_right",
    "sigmoid",
    "signbit",
    "silu",
    "softplus",
    "softsign",
    "threshold",
    "unchanged_integers",
]

Number = Array | float


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python floats applied to every element."""
    return cast("Callable[[Array], Array]", np.vectorize(function, otypes=[np.float64]))


erf: Callable[[Array], Array] = _each(math.erf)
erfc: Callable[[Array], Array] = _each(math.erfc)


def unchanged_integers(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return ``function`` for floats, the identity for integers and bools."""

    def rounded(x: Array) -> Array:
        return function(x) if x.dtype.kind == "f" else x

    return rounded


round_to_even: Callable[[Array], Array] = unchanged_integers(np.round)


def reciprocal(x: Array) -> Array:
    """Return ``1 / x``."""
    return np.divide(1.0, x)


def rsqrt(x: Array) -> Array:
    """Return ``1 / sqrt(x)``."""
    return np.divide(1.0, np.sqrt(x))


def floor_divide(x1: Number, x2: Number) -> Array:
    """Return the quotient rounded down; of floats with an infinity or zero, ``floor(x1 / x2)``."""
    a, b = np.broadcast_arrays(x1, x2)
    quotient = np.floor_divide(x1, x2)
    if quotient.dtype.kind != "f":
        return quotient
    plain = np.isinf(a) | np.isinf(b) | (b == 0)
    return np.where(plain, np.floor(np.divide(a, b)), quotient)


def power(x1: Number, x2: Number) -> Array:
    """Return ``x1`` to the power ``x2``; of integers, modulo the dtype, and for a negative exponent 1 / x1 cut to 0."""
    kind = np.result_type(x1, x2)
    if kind.kind == "f":
        return np.power(np.asarray(x1, kind), np.asarray(x2, kind))
    a, b = np.broadcast_arrays(np.asarray(x1, kind), np.asarray(x2, kind))
    negative = b < 0
    inverse = np.where(a == 1, 1, np.where((a == -1 if kind.kind == "i" else False), np.where(b & 1, -1, 1), 0))
    return np.where(negative, inverse, np.power(a, np.where(negative, 0, b))).astype(kind)


def shift_left(x1: Number, x2: Number) -> Array:
    """Return ``x1 << x2``, zero where nothing of x1 is left or the count is negative."""
    return np.left_shift(x1, x2)


def shift_right(x1: Number, x2: Number) -> Array:
    """Return ``x1 >> x2``, the sign where nothing else of x1 is left or the count is negative."""
    return np.right_shift(x1, x2)


def signbit(x: Array) -> Array:
    """Return whether the sign is set."""
    return np.signbit(x) if x.dtype.kind == "f" else np.less(x, 0)


def frac(x: Array) -> Array:
    """Return what ``trunc`` cuts off."""
    return x - np.trunc(x)


def clip(x: Array, low: Number | None = None, high: Number | None = None) -> Array:
    """Return ``x`` within bounds; NaN wins."""
    lifted = x if low is None else np.maximum(x, low)
    return lifted if high is None else np.minimum(lifted, high)


def lerp(start: Number, end: Number, weight: Number) -> Array:
    """Return ``start + weight * (end - start)``."""
    gap = np.subtract(end, start)
    return np.where(np.abs(weight) < 0.5, start + weight * gap, end - gap * (1.0 - np.asarray(weight)))


def addcmul(x: Number, x1: Number, x2: Number, value: float = 1) -> Array:
    """Return ``x + value * x1 * x2``."""
    return np.add(x, np.multiply(np.multiply(value, x1), x2))


def addcdiv(x: Number, x1: Number, x2: Number, value: float = 1) -> Array:
    """Return ``x + value * x1 / x2``."""
    return np.add(x, np.divide(np.multiply(value, x1), x2))


def masked_fill(x: Array, mask: Array, value: Number) -> Array:
    """Return ``x`` with ``value`` where ``mask`` is true."""
    return np.where(mask, np.asarray(value, np.result_type(x, value)), x)


def nan_to_num(x: Array, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Array:
    """Return ``x`` with numbers for NaN and infinities (the largest float64, for want of the operand's dtype)."""
    return np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def logit(x: Array, eps: float | None = None) -> Array:
    """Return the inverse of `sigmoid`."""
    inside = x if eps is None else np.clip(x, eps, 1.0 - eps)
    near = np.log1p((2.0 * inside - 1.0) / (1.0 - inside))
    return np.where(np.abs(inside - 0.5) < 0.25, near, np.log(inside) - np.log1p(-inside))


def relu(x: Array) -> Array:
    """Return ``max(x, 0)``."""
    return np.where(x < 0, np.zeros((), x.dtype), x)


def relu6(x: Array) -> Array:
    """Return ``min(max(x, 0), 6)``."""
    return np.minimum(relu(x), np.asarray(6, x.dtype))


def silu(x: Array) -> Array:
    """Return ``x * sigmoid(x)``."""
    return x * sigmoid(x)


def gelu(x: Array, approximate: str = "none") -> Array:
    """Return ``x`` times the normal distribution function of ``x``, or its tanh approximation."""
    if approximate == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return np.where(x == -np.inf, -0.0, 0.5 * x * erfc(-x / math.sqrt(2.0)))


def elu(x: Array, alpha: float = 1.0) -> Array:
    """Return ``x``, or ``alpha * (exp(x) - 1)`` for negative x."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def selu(x: Array) -> Array:
    """Return `elu` scaled to keep mean and variance."""
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


def celu(x: Array, alpha: float = 1.0) -> Array:
    """Return ``x``, or ``alpha * (exp(x / alpha) - 1)`` for negative x."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0) / alpha))


def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    """Return ``x``, scaled where negative."""
    return np.where(x > 0, x, x * negative_slope)


def _log1p_exp(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """Return ``log(1 + exp(beta * x)) / beta``, or ``x`` above the threshold."""
    return np.where(x * beta > threshold, x, _log1p_exp(x * beta) / beta)


def mish(x: Array) -> Array:
    """Return ``x * tanh(softplus(x))``."""
    return x * np.tanh(_log1p_exp(x))


def hardsigmoid(x: Array) -> Array:
    """Return ``relu6(x + 3) / 6``."""
    return relu6(x + 3.0) / 6.0


def hardswish(x: Array) -> Array:
    """Return ``x * hardsigmoid(x)``."""
    return x * relu6(x + 3.0) / 6.0


def log_sigmoid(x: Array) -> Array:
    """Return ``log(sigmoid(x))``."""
    return -_log1p_exp(-x)


def softsign(x: Array) -> Array:
    """Return ``x / (1 + |x|)``."""
    return x / (1.0 + np.abs(x))


def threshold(x: Array, threshold: float, value: float) -> Any:
    """Return ``x``, or ``value`` where x is not above the threshold."""
    return np.where(x <= threshold, np.asarray(value, np.result_type(x, value)), x)
