"""numpy's way to compute an op, into memory allocated before."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.peers import Asked
from bench.race import Contender

Run = Callable[[], np.ndarray]


def contenders(asked: Asked) -> list[Contender]:
    """Return numpy's contender, or none where numpy has no way that is worth timing."""
    if asked.op in _MADE:
        run = _MADE[asked.op](asked)
    elif isinstance(getattr(np, asked.op, None), np.ufunc) and not asked.params:
        run = _pointwise(getattr(np, asked.op), asked)
    elif asked.op in _REDUCTIONS and not set(asked.params) - {"axis"}:
        run = _reduction(_REDUCTIONS[asked.op], asked)
    else:
        return []
    return [] if run is None else [Contender("numpy", run, np.asarray, "out=")]


_REDUCTIONS = {n: getattr(np, n) for n in ("sum", "mean", "prod", "min", "max", "argmin", "argmax", "any", "all")}


def _pointwise(function: np.ufunc, asked: Asked) -> Run:
    given = tuple(asked.arrays.values())
    out = np.empty_like(function(*given))
    return lambda: function(*given, out=out)


def _reduction(function: Callable[..., Any], asked: Asked) -> Run:
    x = asked.arrays["x"]
    out = np.empty_like(function(x, **asked.params))
    return lambda: function(x, **asked.params, out=out)


def _softmax(asked: Asked) -> Run:
    x, axis = asked.arrays["x"], asked.params.get("axis", -1)
    out = np.empty_like(x)

    def run() -> np.ndarray:
        np.subtract(x, x.max(axis, keepdims=True), out=out)
        np.exp(out, out=out)
        return np.divide(out, out.sum(axis, keepdims=True), out=out)

    return run


def _log_softmax(asked: Asked) -> Run:
    x, axis = asked.arrays["x"], asked.params.get("axis", -1)
    out, powers = np.empty_like(x), np.empty_like(x)

    def run() -> np.ndarray:
        np.subtract(x, x.max(axis, keepdims=True), out=out)
        np.exp(out, out=powers)
        return np.subtract(out, np.log(powers.sum(axis, keepdims=True)), out=out)

    return run


def _layer_norm(asked: Asked) -> Run:
    x, weight, bias = asked.arrays["x"], asked.arrays.get("weight"), asked.arrays.get("bias")
    eps = np.float32(asked.params.get("eps", 1e-5))
    out, squares = np.empty_like(x), np.empty_like(x)

    def run() -> np.ndarray:
        np.subtract(x, x.mean(-1, keepdims=True), out=out)
        np.multiply(out, out, out=squares)
        np.multiply(out, 1 / np.sqrt(squares.mean(-1, keepdims=True) + eps), out=out)
        if weight is not None:
            np.multiply(out, weight, out=out)
        return out if bias is None else np.add(out, bias, out=out)

    return run


def _rms_norm(asked: Asked) -> Run:
    x, weight = asked.arrays["x"], asked.arrays.get("weight")
    eps = np.float32(asked.params.get("eps") or np.finfo(np.float32).eps)
    out = np.empty_like(x)

    def run() -> np.ndarray:
        np.multiply(x, x, out=out)
        np.multiply(x, 1 / np.sqrt(out.mean(-1, keepdims=True) + eps), out=out)
        return out if weight is None else np.multiply(out, weight, out=out)

    return run


def _silu(asked: Asked) -> Run:
    x = asked.arrays["x"]
    out = np.empty_like(x)

    def run() -> np.ndarray:
        np.negative(x, out=out)
        np.exp(out, out=out)
        np.add(out, np.float32(1), out=out)
        return np.divide(x, out, out=out)

    return run


def _gelu(asked: Asked) -> Run | None:
    if asked.params.get("approximate") != "tanh":
        return None  # numpy has no error function
    x = asked.arrays["x"]
    out = np.empty_like(x)

    def run() -> np.ndarray:
        np.multiply(x, x, out=out)
        np.multiply(out, np.float32(0.044715), out=out)
        np.add(out, np.float32(1), out=out)
        np.multiply(out, x, out=out)
        np.multiply(out, np.float32(math.sqrt(2 / math.pi)), out=out)
        np.tanh(out, out=out)
        np.add(out, np.float32(1), out=out)
        np.multiply(out, x, out=out)
        return np.multiply(out, np.float32(0.5), out=out)

    return run


def _matmul(asked: Asked) -> Run:
    x, y = asked.arrays["x"], asked.arrays["y"]
    out = np.matmul(x, y)
    return lambda: np.matmul(x, y, out=out)


def _linear(asked: Asked) -> Run:
    x, weight, bias = asked.arrays["x"], asked.arrays["weight"].T, asked.arrays.get("bias")
    out = np.matmul(x, weight)

    def run() -> np.ndarray:
        np.matmul(x, weight, out=out)
        return out if bias is None else np.add(out, bias, out=out)

    return run


def _attention(asked: Asked) -> Run | None:
    if asked.params or "mask" in asked.arrays:
        return None
    q, k, v = asked.arrays["q"], asked.arrays["k"], asked.arrays["v"]
    scores = np.empty((*q.shape[:3], k.shape[2]), q.dtype)
    out = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
    scale = np.float32(1 / math.sqrt(q.shape[3]))

    def run() -> np.ndarray:
        np.matmul(q, np.swapaxes(k, -1, -2), out=scores)
        np.multiply(scores, scale, out=scores)
        np.subtract(scores, scores.max(-1, keepdims=True), out=scores)
        np.exp(scores, out=scores)
        np.divide(scores, scores.sum(-1, keepdims=True), out=scores)
        return np.matmul(scores, v, out=out)

    return run


def _copy(asked: Asked) -> Run:
    x = asked.arrays["x"]
    out = np.empty(x.shape, x.dtype)

    def run() -> np.ndarray:
        np.copyto(out, x)
        return out

    return run


_MADE: dict[str, Callable[[Asked], Run | None]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "silu": _silu,
    "gelu": _gelu,
    "matmul": _matmul,
    "linear": _linear,
    "attention": _attention,
    "copy": _copy,
}
