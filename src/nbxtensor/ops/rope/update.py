"""rope_update: queries and keys turned, keys and values written to their caches, in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.errors import DtypeError, ShapeError
from nbxtensor.op import Array, Call, Case, Cost, Kernel, Launch, Spec, declare
from nbxtensor.op.moving import copy_launches
from nbxtensor.ops.rope.op import (
    ANGLE_FLOPS,
    DTYPES,
    FLOPS,
    RTOL,
    angles,
    blocks,
    check_frequencies,
    power_of_two,
    turned,
    warps,
)

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["rope_update"]

_WIDE = 2**31 - 2**16
_CACHES = {1: "k_cache", 2: "v_cache"}


def _result(call: Call) -> tuple[Spec, ...]:
    qkv, k, v, position = call["qkv"], call["k_cache"], call["v_cache"], call["position"]
    heads = call.params["heads"]
    dtypes = {spec.dtype for spec in (qkv, k, v)}
    if len(dtypes) > 1 or qkv.dtype not in DTYPES:
        raise DtypeError(f"rope_update: qkv and caches of one dtype among {', '.join(DTYPES)}. Got {sorted(dtypes)}.")
    fits = qkv.ndim == 3 and k.ndim == 4 and k.shape == v.shape and heads > 0 and qkv.shape[0] == k.shape[0]
    if not fits or qkv.shape[2] != (heads + 2 * k.shape[1]) * k.shape[3] or qkv.shape[1] > k.shape[2]:
        raise ShapeError(
            "rope_update: qkv [batch, tokens, (heads + 2 * groups) * width] and caches [batch, groups, length, width], "
            f"no more tokens than the length. Got shapes {qkv.shape}, {k.shape} and {v.shape}, {heads} heads."
        )
    check_frequencies(call, k.shape[3])
    if position.dtype not in ("int32", "int64") or position.shape not in ((), (1,), qkv.shape[:1]):
        raise ShapeError(
            "rope_update: an int32 or int64 position [], [1] or [batch]. "
            f"Got {position.dtype} of shape {position.shape}."
        )
    batch, tokens, width = qkv.shape[0], qkv.shape[1], k.shape[3]
    by_token = (tokens * heads * width, width, heads * width, 1)
    return Spec((batch, heads, tokens, width), qkv.dtype, by_token), k.packed(), v.packed()


def _launches(call: Call) -> tuple[Launch, ...]:
    """What the tokens do not cover is copied first, where a cache's result lies in memory of its own."""
    whole: list[Launch] = []
    for result, name in _CACHES.items():
        if result not in call.in_place and call[name].numel:
            whole.extend(copy_launches(call, name, result=result))
    return (*whole, _launch(call)) if call["qkv"].numel else tuple(whole)


def _launch(call: Call) -> Launch:
    qkv, position, groups, width = call["qkv"], call["position"], call["k_cache"].shape[1], call["k_cache"].shape[3]
    batch, tokens, _ = qkv.shape
    heads, pairs = call.params["heads"], call["frequencies"].shape[0]
    arguments: dict[str, Any] = {
        "q": call.output(0), "k": call.output(1), "v": call.output(2), "x": call.input("qkv"),
        "position": call.input("position"), "frequencies": call.input("frequencies"),
        "heads": heads, "groups": groups, "tokens": tokens, "length": call["k_cache"].shape[2],
        "pairs": pairs, "width": width, "x_batch": qkv.strides[0], "x_row": qkv.strides[1], "x_col": qkv.strides[2],
        "p_batch": position.strides[0] if position.numel > 1 else 0,
    }  # fmt: skip
    for name, spec in zip("qkv", call.outputs, strict=True):
        places = (f"{name}_batch", f"{name}_head", f"{name}_row", f"{name}_col")
        arguments |= dict(zip(places, spec.strides, strict=True))
    spans = [shapes.extent_span(s.shape[1:], s.strides[1:]) for s in (qkv, *call.outputs)]
    constants: dict[str, Any] = {
        "TURNS": call["frequencies"].dtype == "int64",
        "INTERLEAVED": call.params["interleaved"],
        "WIDE": max(spans) >= _WIDE,
        "SLOTS": 4 if tokens > 1 else 1,
        "BW": power_of_two(width),
        **blocks(tokens, pairs, width),
    }
    grid = (-(-tokens // constants["ROWS"]), -(-(heads + 2 * groups) // constants["SLOTS"]), batch)
    return Launch("rope_update_kernel", grid, arguments, constants, warps=warps(constants))


def _cost(call: Call) -> Cost:
    """In place, a cache is written only where the tokens go."""
    qkv = call["qkv"]
    whole = sum(call[name].nbytes for result, name in _CACHES.items() if result not in call.in_place)
    turning = qkv.shape[0] * qkv.shape[1] * (call.params["heads"] + call["k_cache"].shape[1])
    flops = turning * call["frequencies"].shape[0] * (FLOPS + ANGLE_FLOPS)
    return Cost(flops, whole + qkv.nbytes + call["position"].nbytes + call["frequencies"].nbytes, whole + qkv.nbytes)


def _reference(
    qkv: Array, k_cache: Array, v_cache: Array, position: Array, frequencies: Array, *,
    heads: int, interleaved: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    (batch, tokens, _), (_, groups, length, width) = qkv.shape, k_cache.shape
    rows = qkv.reshape(batch, tokens, heads + 2 * groups, width).transpose(0, 2, 1, 3)
    places = np.broadcast_to(position.reshape(-1), (batch,))
    angle = angles(places[:, None] + np.arange(tokens), frequencies)[:, None]
    k, v = np.array(k_cache), np.array(v_cache)
    keys = turned(rows[:, heads : heads + groups], angle, interleaved=interleaved)
    for index, start in enumerate(np.clip(places, 0, length - tokens)):
        k[index, :, start : start + tokens] = keys[index]
        v[index, :, start : start + tokens] = rows[index, heads + groups :]
    return turned(rows[:, :heads], angle, interleaved=interleaved), k, v


def _case(
    batch: int, tokens: int, heads: int, cache: tuple[int, int, int], dtype: str = "float32",
    position: tuple[int, ...] = (), pairs: int = 0, *, radians: bool = False, interleaved: bool = False, gap: int = 0,
) -> Case:  # fmt: skip
    groups, length, width = cache
    row = (heads + 2 * groups) * width
    operands = {
        "qkv": Spec((batch, tokens, row), dtype, (tokens * (row + gap), row + gap, 1)),
        "k_cache": Spec((batch, *cache), dtype),
        "v_cache": Spec((batch, *cache), dtype),
        "position": Spec(position, "int32"),
        "frequencies": Spec((pairs or width // 2,), "float32" if radians else "int64"),
    }
    fill = {"position": f"index:{length + 2}", "frequencies": "normal" if radians else ""}
    return Case(operands, {"heads": heads, "interleaved": interleaved}, fill=fill, rtol=RTOL[dtype])


@declare(
    result=_result,
    reference=_reference,
    kernels=(Kernel("rope_update_kernel", _cost, _launches, in_place=_CACHES),),
    cases=(
        *(_case(1, 1, 4, (2, 16, 32), d) for d in DTYPES),
        _case(2, 5, 3, (1, 24, 20), pairs=6, interleaved=True),
        _case(3, 1, 4, (4, 9, 64), "bfloat16", (3,), radians=True),
        _case(2, 37, 8, (2, 40, 64), "float16", (1,), gap=16),
        _case(1, 9, 2, (1, 9, 16), radians=True, interleaved=True),
        _case(1, 0, 2, (1, 9, 16)),
    ),
)
def rope_update(
    qkv: Tensor, k_cache: Tensor, v_cache: Tensor, position: Tensor, frequencies: Tensor, *,
    heads: int, interleaved: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the turned queries, and the caches with the turned keys and the values of new tokens written in.

    The same as `rope` of the queries and of the keys, and `cache_update` of keys and values, in one launch. A plan that
    no longer needs the old caches writes into them and moves nothing else.

    Args:
        qkv: ``[batch, tokens, (heads + 2 * groups) * width]``: in each token's row the queries of all heads, then the
            keys, then the values of all groups, of float16, bfloat16 or float32.
        k_cache: ``[batch, groups, length, width]``, turned keys.
        v_cache: The same of values.
        position: Of the first token, int32 or int64 ``[]``, ``[1]`` or ``[batch]``; the others follow. Tokens that
            would pass the end of a cache are written as far in as fits.
        frequencies: As for `rope`.
        heads: Number of query heads.
        interleaved: As for `rope`.

    Returns:
        The queries ``[batch, heads, tokens, width]``, side by side in memory in each token's row, and both caches.

    Raises:
        DtypeError: Operands of other dtypes.
        ShapeError: Shapes that do not fit.
    """
    raise NotImplementedError
