"""Numpy references of the reductions, on floats in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbxtensor.op import Array

__all__ = ["arg", "extreme", "logsumexp", "nonzeros", "product", "total", "truth", "vector_norm"]

Axis = int | tuple[int, ...] | None


def _taken(dtype: str | None) -> Any:
    return None if dtype is None or dtype in ("float16", "bfloat16", "float32") else np.dtype(dtype)


def total(x: Array, *, axis: Axis = None, dtype: str | None = None, keepdims: bool = False) -> Array:
    """Return sums."""
    return np.asarray(np.sum(x, axis=axis, dtype=_taken(dtype), keepdims=keepdims))


def product(x: Array, *, axis: Axis = None, dtype: str | None = None, keepdims: bool = False) -> Array:
    """Return products."""
    return np.asarray(np.prod(x, axis=axis, dtype=_taken(dtype), keepdims=keepdims))


def spread(function: Any) -> Any:
    """Return ``np.var`` or ``np.std`` under the standard's name of the correction."""

    def evaluate(x: Array, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
        count = x.size // max(np.sum(x, axis=axis, keepdims=keepdims).size, 1)
        if count <= correction:
            return np.full(np.sum(x, axis=axis, keepdims=keepdims).shape, np.nan)
        return np.asarray(function(x.astype(np.float64), axis=axis, ddof=correction, keepdims=keepdims))

    return evaluate


def mean(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return means; of no element, NaN."""
    if not x.size:
        return np.full(np.sum(x, axis=axis, keepdims=keepdims).shape, np.nan)
    return np.asarray(np.mean(x.astype(np.float64), axis=axis, keepdims=keepdims))


def extreme(function: Any) -> Any:
    """Return ``np.max`` or ``np.min`` of the operand's dtype."""

    def evaluate(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        return np.asarray(function(x, axis=axis, keepdims=keepdims))

    return evaluate


def arg(function: Any) -> Any:
    """Return ``np.argmax`` or ``np.argmin``."""

    def evaluate(x: Array, *, axis: int | None = None, keepdims: bool = False) -> Array:
        return np.asarray(function(x, axis=axis, keepdims=keepdims))

    return evaluate


def truth(function: Any) -> Any:
    """Return ``np.any`` or ``np.all``."""

    def evaluate(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
        return np.asarray(function(x, axis=axis, keepdims=keepdims))

    return evaluate


def nonzeros(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return how many elements are not zero."""
    return np.asarray(np.count_nonzero(x, axis=axis, keepdims=keepdims)).astype(np.int64)


def vector_norm(x: Array, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:
    """Return norms of any order."""
    size = np.abs(x.astype(np.float64))
    if ord == 0:
        return np.asarray(np.sum(size != 0, axis=axis, keepdims=keepdims)).astype(np.float64)
    if np.isinf(ord):
        return np.asarray(
            (np.max if ord > 0 else np.min)(size, axis=axis, keepdims=keepdims, initial=0.0 if ord > 0 else np.inf)
        )
    return np.asarray(np.sum(size**ord, axis=axis, keepdims=keepdims) ** (1.0 / ord))


def logsumexp(x: Array, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return ``log(sum(exp(x)))`` without overflow on the way."""
    values = x.astype(np.float64)
    high = np.max(values, axis=axis, keepdims=True, initial=-np.inf)
    centre = np.where(np.isinf(high), 0.0, high)
    logs = np.log(np.sum(np.exp(values - centre), axis=axis, keepdims=True)) + centre
    return np.asarray(logs.reshape(np.sum(values, axis=axis, keepdims=keepdims).shape))
