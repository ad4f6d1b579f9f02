"""torch's way to compute an op: with ``out=`` where it has it, else into memory that malloc keeps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from bench.peers import Asked
from bench.race import Contender

Run = Callable[[], torch.Tensor]
_KEPT = "no out= that is native: memory kept by malloc"


def contenders(asked: Asked) -> list[Contender]:
    """Return torch's contender, or none where torch has no such function."""
    torch.set_grad_enabled(False)
    note = "out="
    if asked.op in _MADE:
        run = _MADE[asked.op](asked)
        note = _KEPT if asked.op in _NO_OUT else note
    elif asked.op in _REDUCTIONS and not set(asked.params) - {"axis", "correction"}:
        run = _reduction(_REDUCTIONS[asked.op], asked)
    elif not asked.params and callable(getattr(torch, asked.op, None)):
        run = _pointwise(getattr(torch, asked.op), asked)
    else:
        return []
    return [] if run is None else [Contender("torch", run, lambda value: value.numpy(), note)]


def _given(asked: Asked, *names: str) -> tuple[torch.Tensor | None, ...]:
    """Return the operands called ``names`` over the arrays' memory; None for one that is absent."""
    return tuple(torch.from_numpy(asked.arrays[n]) if n in asked.arrays else None for n in names)


def _like(value: torch.Tensor) -> torch.Tensor:
    """Return packed memory for a result like ``value``, taken as numpy takes it."""
    return torch.from_numpy(np.empty(tuple(value.shape), value.numpy().dtype))


_REDUCTIONS = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "prod": torch.prod,
    "any": torch.any,
    "all": torch.all,
    "logsumexp": torch.logsumexp,
    "vector_norm": torch.linalg.vector_norm,
    "var": torch.var,
    "std": torch.std,
}


def _pointwise(function: Callable[..., torch.Tensor], asked: Asked) -> Run | None:
    given = _given(asked, *asked.arrays)
    try:
        out = _like(function(*given))
        function(*given, out=out)
    except TypeError:
        return None
    return lambda: function(*given, out=out)


def _reduction(function: Callable[..., torch.Tensor], asked: Asked) -> Run:
    (x,) = _given(asked, "x")
    named = {"dim": asked.params.get("axis", -1)}
    if function in (torch.var, torch.std):
        named["correction"] = asked.params.get("correction", 0)
    out = _like(function(x, **named))
    return lambda: function(x, **named, out=out)


def _softmax(asked: Asked) -> Run:
    (x,) = _given(asked, "x")
    out, axis = _like(x), asked.params.get("axis", -1)
    return lambda: torch.softmax(x, axis, out=out)


def _log_softmax(asked: Asked) -> Run:
    (x,) = _given(asked, "x")
    out, axis = _like(x), asked.params.get("axis", -1)
    return lambda: torch.log_softmax(x, axis, out=out)


def _layer_norm(asked: Asked) -> Run:
    x, weight, bias = _given(asked, "x", "weight", "bias")
    eps = asked.params.get("eps", 1e-5)
    return lambda: torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _rms_norm(asked: Asked) -> Run:
    x, weight = _given(asked, "x", "weight")
    eps = asked.params.get("eps")
    return lambda: torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def _silu(asked: Asked) -> Run:
    (x,) = _given(asked, "x")
    out = _like(x)
    return lambda: torch.ops.aten.silu.out(x, out=out)


def _gelu(asked: Asked) -> Run:
    (x,) = _given(asked, "x")
    out, approximate = _like(x), asked.params.get("approximate", "none")
    return lambda: torch.ops.aten.gelu.out(x, approximate=approximate, out=out)


def _matmul(asked: Asked) -> Run:
    x, y = _given(asked, "x", "y")
    out = _like(torch.matmul(x, y))
    return lambda: torch.matmul(x, y, out=out)


def _linear(asked: Asked) -> Run:
    x, weight, bias = _given(asked, "x", "weight", "bias")
    if bias is None or x.ndim != 2:
        return lambda: torch.nn.functional.linear(x, weight, bias)
    out = _like(torch.addmm(bias, x, weight.t()))
    return lambda: torch.addmm(bias, x, weight.t(), out=out)


def _attention(asked: Asked) -> Run | None:
    if "mask" in asked.arrays:
        return None
    q, k, v = _given(asked, "q", "k", "v")
    grouped = q.shape[1] != k.shape[1]
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **asked.params, enable_gqa=grouped)


def _copy(asked: Asked) -> Run:
    (x,) = _given(asked, "x")
    out = _like(x)
    return lambda: out.copy_(x)


_NO_OUT = ("layer_norm", "rms_norm", "attention")
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
