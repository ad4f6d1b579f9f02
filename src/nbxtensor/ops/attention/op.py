"""attention: scaled dot-product attention with masks, causality and grouped heads."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import DtypeError, ShapeError
from nbxtensor.op import Array, Buffer, Call, Case, Cost, Kernel, Launch, Number, Spec, declare
from nbxtensor.ops.attention.blocks import Blocks, decode_blocks, decode_splits, is_decode, prefill_blocks

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["attention"]

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_WIDEST = 512  # elements of a head: more would not stay in the registers of a program
_ACCEPTED = f"heads of at most {_WIDEST} elements"
_SOFTMAX = 20  # operations of a score: scaled, compared, raised, summed, rounded
_ROUNDS = 5  # of a block of keys: its load, products with queries, the largest, the sum, products with values
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
    if "kv_length" in call.inputs:
        _check_length(call)
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


def _check_length(call: Call) -> None:
    given = call["kv_length"]
    if given.dtype not in ("int32", "int64") or given.shape not in ((), (1,), call["q"].shape[:1]):
        raise ShapeError(
            "attention: a kv_length of int32 or int64, [], [1] or [batch]. "
            f"Got {given.dtype} of shape {given.shape} for a batch of {call['q'].shape[0]}."
        )


def _launch(call: Call) -> tuple[Launch, ...]:
    q, k = call["q"], call["k"]
    batch, heads, length_q, _ = q.shape
    blocks = prefill_blocks(call)
    accumulator = "float64" if q.dtype == "float64" else "float32"
    arguments, constants = _common(call, blocks, accumulator)
    tail = constants["CAUSAL"] or constants["LENGTH"] or k.shape[2] % blocks.keys != 0
    constants |= {"ACC": f"tl.{accumulator}", "SPLIT": blocks.gpu, "TAIL": tail or not blocks.gpu}
    constants |= {"BASE2": blocks.gpu and accumulator == "float32"}
    arguments |= {"heads": heads}
    places = ("m_batch", "m_head", "m_row", "m_col")
    if "mask" in call.inputs:
        mask = call["mask"]
        scores = (batch, heads, length_q, k.shape[2])
        arguments["mask"] = call.input("mask")
        arguments |= dict(zip(places, shapes.broadcast_strides(mask.shape, mask.strides, scores)[1], strict=True))
        constants["MASK"] = "bool" if mask.dtype == "bool" else "float"
    else:
        constants |= {"mask": None, "MASK": "", **dict.fromkeys(places, 0)}
    grid = (-(-length_q // blocks.rows), batch * heads)
    rounds = 1 + _ROUNDS * -(-k.shape[2] // blocks.keys)
    return (
        Launch("attention_kernel", grid, arguments, constants, blocks.warps, blocks.stages, rounds),
    )  # fmt: skip


def _common(call: Call, blocks: Blocks, accumulator: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the (arguments, constants) that both kernels take."""
    q, k, v, out = call["q"], call["k"], call["v"], call.outputs[0]
    width, width_v, scale = q.shape[3], v.shape[3], call.params["scale"]
    arguments: dict[str, Any] = {
        "out": call.output(),
        "q": call.input("q"),
        "k": call.input("k"),
        "v": call.input("v"),
        "group": q.shape[1] // k.shape[1],
        "length_q": q.shape[2],
        "length_k": k.shape[2],
        "width": width,
        "width_v": width_v,
        "scale": Number(1 / math.sqrt(width) if scale is None else float(scale), accumulator),
    }
    for name, spec in (("q", q), ("k", k), ("v", v), ("o", out)):
        places = (f"{name}_batch", f"{name}_head", f"{name}_row", f"{name}_col")
        arguments |= dict(zip(places, spec.strides, strict=True))
    spans = [shapes.extent_span(s.shape[-2:], s.strides[-2:]) for s in (*call.inputs.values(), out) if s.ndim > 1]
    constants: dict[str, Any] = {
        "CAUSAL": bool(call.params["is_causal"]),
        "LENGTH": "kv_length" in call.inputs,
        "PRECISION": blocks.precision,
        "COMPUTE": f"tl.{q.dtype}",
        "WIDE": max(spans) >= _WIDE,
        "WHOLE": width == blocks.width,
        "WHOLE_V": width_v == blocks.width_v,
        "BM": blocks.rows,
        "BN": blocks.keys,
        "BD": blocks.width,
        "BV": blocks.width_v,
    }
    if "kv_length" in call.inputs:
        length = call["kv_length"]
        arguments |= {"kv_length": call.input("kv_length"), "l_batch": length.strides[0] if length.numel > 1 else 0}
    else:
        constants |= {"kv_length": None, "l_batch": 0}
    return arguments, constants


def _decode_launch(call: Call) -> tuple[Launch, ...]:
    groups = call["k"].shape[1]
    batch, heads, length_q, _ = call["q"].shape
    blocks, splits = decode_blocks(call), decode_splits(call)
    arguments, constants = _common(call, blocks, "float32")
    arguments |= {"groups": groups}
    constants |= {"SPLITS": splits}
    rounds = 2 + _ROUNDS * -(-call["k"].shape[2] // (blocks.keys * splits))  # and the queries, and the length
    options: dict[str, Any] = {"warps": blocks.warps, "stages": blocks.stages, "rounds": rounds}
    grid = (splits, batch * groups)
    if splits == 1:
        constants |= {"parts": None, "weights": None}
        return (Launch("decode_kernel", grid, arguments, constants, **options),)
    between = {"parts": call.workspace("parts", "float32"), "weights": call.workspace("weights", "float32")}
    places = ("out", "group", "length_q", "width_v", "o_batch", "o_head", "o_row", "o_col")
    finish: dict[str, Any] = {name: arguments[name] for name in places} | between | {"heads": heads}
    del arguments["out"]  # the shares leave their results in workspace
    constants |= {"out": None}
    return (
        Launch("decode_kernel", grid, arguments | between, constants, **options),
        Launch(
            "combine_kernel", (length_q, batch * heads), finish, {"SPLITS": splits, "BV": blocks.width_v},
            warps=max(1, min(4, splits * blocks.width_v // 1024)), rounds=3,
        ),
    )  # fmt: skip


def _decode_cost(call: Call) -> Cost:
    """As of the other kernel; where the keys are split, each share's result is written, and read again."""
    splits, each = decode_splits(call), call["q"].numel // call["q"].shape[3]
    nbytes = {"parts": 4 * splits * each * call["v"].shape[3], "weights": 4 * splits * each} if splits > 1 else {}
    plain, between = _cost(call), sum(nbytes.values())
    buffers = tuple(Buffer(name, size, 0, 1) for name, size in nbytes.items())
    return replace(plain, read=plain.read + between, written=plain.written + between, buffers=buffers)


def _serves(call: Call) -> bool:
    fits = max(call["q"].shape[3], call["v"].shape[3]) <= _WIDEST
    return fits and not is_decode(call)


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
        beside=pairs * _SOFTMAX,
    )


def _blocks_cost(call: Call) -> Cost:
    """As above; each block of queries of a head asks for all keys and values of its group."""
    q, k, v = call["q"], call["k"], call["v"]
    blocks = -(-q.shape[2] // prefill_blocks(call).rows) * q.shape[0] * q.shape[1]
    loaded = blocks * k.shape[2] * (k.shape[3] + v.shape[3]) * bits(k.dtype) // 8
    beside = call.operand_nbytes - k.nbytes - v.nbytes
    return replace(_cost(call), issued=loaded + beside + call.result_nbytes)


def _reference(
    q: Array, k: Array, v: Array, mask: Array | None = None, kv_length: Array | None = None, *,
    is_causal: bool = False, scale: float | None = None,
) -> Array:  # fmt: skip
    q, k, v = (np.asarray(a, np.float64) for a in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a, group, axis=1) for a in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + np.asarray(mask, np.float64)
    keys, rows = np.arange(scores.shape[3]), np.arange(scores.shape[2])[:, None]
    if kv_length is not None:
        length = np.clip(np.broadcast_to(kv_length.reshape(-1), q.shape[:1]), 0, len(keys))[:, None, None, None]
        scores = np.where(keys < length, scores, -np.inf)
        rows = rows + length - len(rows)
    if is_causal:
        scores = np.where(keys <= rows, scores, -np.inf)
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
    *(
        Case(
            _qkv((2, 4, n, 32), 150, 2, dtype=d, kv_length=Spec(length, "int32")),
            {"is_causal": c},
            fill={"kv_length": "index:152"},
            rtol=_HALF.get(d),
        )
        for n, d, length in ((1, "float32", ()), (3, "bfloat16", (2,)), (40, "float16", (2,)), (200, "float32", (1,)))
        for c in (False, True)
    ),
    Case(
        _qkv((1, 8, 1, 64), 5000, 2, 40, "float16", kv_length=Spec((), "int64")),
        {"is_causal": True},
        fill={"kv_length": "index:5000"},
        rtol=_HALF["float16"],
    ),
    Case(_qkv((1, 32, 2, 80), 3000, 8, dtype="bfloat16"), rtol=_HALF["bfloat16"]),
    Case(_qkv((1, 2, 5, 16), 40), {"is_causal": True}),
    Case(_qkv((40, 8, 1, 16), 70, 8), {"scale": 0.3}),
    Case(_qkv((1, 12, 512, 64), 512), bench=True),
)


@declare(
    result=_result,
    reference=_reference,
    kernels=(
        Kernel("attention_kernel", _blocks_cost, _launch, accepts=_serves, strided=True, accepted=_ACCEPTED),
        Kernel("decode_kernel", _decode_cost, _decode_launch, accepts=is_decode, accepted=_ACCEPTED),
    ),
    cases=_CASES,
)
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, kv_length: Tensor | None = None, *,
    is_causal: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Return ``softmax(scale * q @ k^T + mask) @ v`` for every head, without the scores ever leaving the kernel.

    Sums are kept in float32. A query that sees no key gives zeros. The result lies in memory in the order of q's axes.

    Args:
        q: ``[batch, heads, queries, width]`` of float16, bfloat16, float32 or float64.
        k: ``[batch, groups, keys, width]``; each group of keys serves ``heads / groups`` neighbouring heads.
        v: ``[batch, groups, keys, width_v]``.
        mask: bool (which pairs take part) or float (what is added); it broadcasts to
            ``[batch, heads, queries, keys]``.
        kv_length: int32 or int64 ``[]``, ``[1]`` or ``[batch]``: how many keys there are; those past it take no part.
            It is data on the device, so that a recorded program serves a cache that fills up; the time taken follows
            it, not the extent of the cache.
        is_causal: Query i sees keys 0 to i; with ``kv_length``, whose last keys are then those of the queries, keys 0
            to ``kv_length - queries + i``.
        scale: ``1 / sqrt(width)`` where left out.

    Raises:
        DtypeError: Operands of other dtypes, or of several.
        ShapeError: Shapes that do not fit.
    """
    raise NotImplementedError
