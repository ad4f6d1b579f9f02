"""attention: scaled dot-product attention with masks, causality and grouped heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.errors import DtypeError, ShapeError
from nbxtensor.op import Array, Call, Case, Cost, Kernel, Launch, Number, Spec, declare

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["attention"]

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_WIDE = 2**31 - 2**16  # elements of one head from which offsets are 64 bits wide, the padding of the last block in mind


def _result(call: Call) -> Spec:
    q, k, v = call["q"], call["k"], call["v"]
    dtypes = {q.dtype, k.dtype, v.dtype}
    if len(dtypes) > 1 or q.dtype not in _DTYPES:
        raise DtypeError(f"attention: q, k and v of one dtype among {', '.join(_DTYPES)}. Got {sorted(dtypes)}.")
    fits = (
        q.ndim == k.ndim == v.ndim == 4
        and q.shape[0] == k.shape[0] == v.shape[0]
        and q.shape[3] == k.shape[3]
        and k.shape[1:3] == v.shape[1:3]
        and (k.shape[1] and not q.shape[1] % k.shape[1])
        and q.shape[3]
    )
    if not fits:
        raise ShapeError(
            "attention: q [batch, heads, queries, width], k [batch, groups, keys, width], v [batch, groups, keys, "
            "width_v], width at least 1, heads a multiple of groups. "
            f"Got shapes {q.shape}, {k.shape} and {v.shape}."
        )
    scores = (*q.shape[:3], k.shape[2])
    if "mask" in call.inputs:
        mask = call["mask"]
        if mask.dtype not in ("bool", *_DTYPES):
            raise DtypeError(
                f"attention: a mask of bool (True takes part) or of {', '.join(_DTYPES)} (added). Got {mask.dtype}."
            )
        if mask.ndim > 4 or shapes.broadcast_shapes(mask.shape, scores, op="attention") != scores:
            raise ShapeError(f"attention: a mask that broadcasts to {scores}. Got shape {mask.shape}.")
    return _in_order_of(q, Spec((*q.shape[:3], v.shape[3]), q.dtype))


def _in_order_of(q: Spec, result: Spec) -> Spec:
    """Return ``result`` with its axes in memory in the order of those of ``q``, densely.

    Heads that lie side by side in each token's row stay so, and joining them again is a view.
    """
    order = sorted(range(q.ndim), key=lambda axis: (-q.strides[axis], axis))
    if order[-1] != q.ndim - 1:
        return result
    packed = shapes.contiguous_strides(tuple(result.shape[axis] for axis in order))
    strides = tuple(packed[order.index(axis)] for axis in range(result.ndim))
    return Spec(result.shape, result.dtype, strides)


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


# (query rows, keys) to a block, the largest used, by kind of device: on a CPU both and the accumulator stay in the
# second-level cache; on a GPU they fit the shared memory of every card for widths up to 128.
_BLOCKS: Mapping[str, tuple[int, int]] = {"cpu": (256, 128)}
_GPU_BLOCKS = (64, 32)


def _launch(call: Call) -> tuple[Launch, ...]:
    q, k, v, out = call["q"], call["k"], call["v"], call.outputs[0]
    batch, heads, length_q, width = q.shape
    length_k, width_v = k.shape[2], v.shape[3]
    cpu = call.device.backend == "cpu"
    rows, keys = _BLOCKS.get(call.device.backend, _GPU_BLOCKS)
    least = 1 if cpu else 16
    bm, bn = max(least, min(rows, _power_of_two(length_q))), max(least, min(keys, _power_of_two(length_k)))
    bd, bv = max(least, _power_of_two(width)), max(least, _power_of_two(width_v))
    accumulator = "float64" if q.dtype == "float64" else "float32"
    scale = call.params["scale"]
    arguments: dict[str, Any] = {
        "out": call.output(),
        "q": call.input("q"),
        "k": call.input("k"),
        "v": call.input("v"),
        "heads": heads,
        "group": heads // k.shape[1],
        "length_q": length_q,
        "length_k": length_k,
        "width": width,
        "width_v": width_v,
        "scale": Number(1 / math.sqrt(width) if scale is None else float(scale), accumulator),
    }
    for name, spec in (("q", q), ("k", k), ("v", v), ("o", out)):
        places = (f"{name}_batch", f"{name}_head", f"{name}_row", f"{name}_col")
        arguments |= dict(zip(places, spec.strides, strict=True))
    places = ("m_batch", "m_head", "m_row", "m_col")
    constants: dict[str, Any] = {"MASK": "", "CAUSAL": bool(call.params["is_causal"])}
    if "mask" in call.inputs:
        mask = call["mask"]
        scores = (batch, heads, length_q, length_k)
        arguments["mask"] = call.input("mask")
        arguments |= dict(zip(places, shapes.broadcast_strides(mask.shape, mask.strides, scores)[1], strict=True))
        constants["MASK"] = "bool" if mask.dtype == "bool" else "float"
    else:
        constants |= {"mask": None, **dict.fromkeys(places, 0)}
    spans = [shapes.extent_span(s.shape[-2:], s.strides[-2:]) for s in (*call.inputs.values(), out)]
    constants |= {
        "COMPUTE": f"tl.{q.dtype}",
        "ACC": f"tl.{accumulator}",
        "WIDE": max(spans) >= _WIDE,
        "BM": bm,
        "BN": bn,
        "BD": bd,
        "BV": bv,
    }
    return (Launch("attention_kernel", (-(-length_q // bm), batch * heads), arguments, constants),)


def _serves(call: Call) -> bool:
    return max(call["q"].shape[3], call["v"].shape[3]) <= 512


def _cost(call: Call) -> Cost:
    """Two products per pair of query and key (half of the pairs where causal), four flops for its exponential."""
    q, k, v = call["q"], call["k"], call["v"]
    pairs = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    if call.params["is_causal"] and q.shape[2] == k.shape[2]:
        pairs = pairs * (q.shape[2] + 1) // (2 * max(q.shape[2], 1))
    return Cost(
        flops=pairs * (2 * q.shape[3] + 2 * v.shape[3] + 4),
        read=call.operand_nbytes,
        written=call.result_nbytes,
        matrix=q.dtype,
    )


def _reference(
    q: Array, k: Array, v: Array, mask: Array | None = None, *, is_causal: bool = False, scale: float | None = None
) -> Array:
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a, group, axis=1) for a in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + np.asarray(mask, np.float64)
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(top), 0.0, top))
    total = weights.sum(-1, keepdims=True)
    return np.asarray(weights / np.where(total == 0, 1.0, total) @ v)


def _qkv(
    q: tuple[int, ...],
    keys: int,
    groups: int | None = None,
    width_v: int | None = None,
    dtype: str = "float32",
    **more: Spec,
) -> dict[str, Spec]:
    batch, heads, _, width = q
    k = (batch, groups or heads, keys, width)
    v = (batch, groups or heads, keys, width_v or width)
    return {"q": Spec(q, dtype), "k": Spec(k, dtype), "v": Spec(v, dtype), **more}


def _by_token(batch: int, heads: int, length: int, width: int, dtype: str) -> Spec:
    """Return the layout of heads side by side in each token's row, as a projection leaves them."""
    return Spec((batch, heads, length, width), dtype, (length * heads * width, width, heads * width, 1))


_WIDTHS = (16, 32, 40, 64, 80, 96, 127, 128, 129, 192, 256)

# Half formats round each weight to the operands' dtype before the second product: an error of one rounding of every
# addend, at most that of the largest value, which may exceed the largest result a few times.
_HALF = {"float16": 4 * 2.0**-11, "bfloat16": 4 * 2.0**-8}

_CASES = (
    *(Case(_qkv((1, 2, 33, d), 47)) for d in _WIDTHS),
    *(Case(_qkv((2, 2, 21, 32), 21, dtype=d), {"is_causal": True}, rtol=_HALF.get(d)) for d in _DTYPES),
    Case(_qkv((1, 4, 70, 64), 300, 2)),
    Case(_qkv((1, 8, 5, 64), 133, 1, 48, "bfloat16"), {"scale": 0.37}, rtol=_HALF["bfloat16"]),
    Case(_qkv((1, 2, 130, 32), 130), {"is_causal": True}),
    Case(_qkv((1, 2, 40, 16), 150), {"is_causal": True}),
    Case(_qkv((2, 3, 9, 8), 40, mask=Spec((2, 1, 1, 40), "bool"))),
    Case(_qkv((2, 3, 9, 8), 40, mask=Spec((9, 40), "float32"))),
    Case(_qkv((1, 1, 9, 8), 17, mask=Spec((9, 1), "bool"))),
    Case(_qkv((1, 2, 1, 64), 1000, dtype="float16"), rtol=_HALF["float16"]),
    Case(_qkv((1, 2, 600, 32), 600), {"is_causal": True}),
    Case(_qkv((1, 1, 3, 8), 0)),
    Case({n: _by_token(2, 4, 24, 16, "float32") for n in "qkv"}),
    Case(_qkv((1, 12, 512, 64), 512), bench=True),
)


@declare(
    result=_result,
    reference=_reference,
    kernels=(Kernel("attention_kernel", _cost, _launch, accepts=_serves),),
    cases=_CASES,
)
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """Return ``softmax(scale * q @ k^T + mask) @ v`` for every head, without the scores ever leaving the kernel.

    q is ``[batch, heads, queries, width]``, k and v are ``[batch, groups, keys, width]``; each group of keys serves
    ``heads / groups`` neighbouring heads. A bool mask says which pairs take part, a float mask is added; it
    broadcasts to ``[batch, heads, queries, keys]``. ``is_causal`` lets query i see keys 0 to i. ``scale`` is
    ``1 / sqrt(width)`` where left out. The result lies in memory in the order of q's axes. A query that sees no key
    gives zeros. Sums are kept in float32.
    """
    raise NotImplementedError
