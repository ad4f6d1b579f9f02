"""rope: rotary position embeddings of one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.errors import DtypeError, ShapeError
from nbxtensor.op import Array, Call, Case, Cost, Kernel, Launch, Spec, declare

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["rope"]

DTYPES = ("float16", "bfloat16", "float32")
FLOPS = 6  # of a pair: four products, a sum, a difference
ANGLE_FLOPS = 24  # of a pair's cosine and sine
_WIDE = 2**31 - 2**16  # elements of one entry of the batch from which on offsets are 64 bits wide
_TILE = 1024  # pairs to a program's block, at most
_ROWS = 16


def power_of_two(n: int) -> int:
    """Return the smallest power of two of at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def check_frequencies(call: Call, width: int) -> None:
    """Raise unless the operand ``frequencies`` fits rows of ``width``."""
    given = call["frequencies"]
    if given.dtype not in ("int64", "float32"):
        raise DtypeError(
            f"{call.op.name}: frequencies of int64, as rope_frequencies makes them, or of float32, in radians. "
            f"Got {given.dtype}."
        )
    if given.ndim != 1 or not 0 < 2 * given.shape[0] <= width or not given.is_contiguous:
        raise ShapeError(
            f"{call.op.name}: a packed row of frequencies, one for each pair of a row's elements. "
            f"Got shape {given.shape} for rows of {width}."
        )


def in_order_of(x: Spec, shape: tuple[int, ...]) -> Spec:
    """Return ``shape`` with its axes in memory in the order of those of ``x``, densely, the last one innermost."""
    order = [*sorted(range(x.ndim - 1), key=lambda axis: (-x.strides[axis], axis)), x.ndim - 1]
    packed = shapes.contiguous_strides(tuple(shape[axis] for axis in order))
    return Spec(shape, x.dtype, tuple(packed[order.index(axis)] for axis in range(x.ndim)))


def blocks(tokens: int, pairs: int, width: int) -> dict[str, int]:
    """Return the extents of a program's block: tokens, pairs, and what lies behind the pairs."""
    lanes = power_of_two(pairs)
    rows = max(1, min(_ROWS, power_of_two(tokens), _TILE // lanes))
    return {"ROWS": rows, "BP": lanes, "BT": power_of_two(width - 2 * pairs) if width > 2 * pairs else 0}


def warps(constants: dict[str, Any]) -> int:
    """Return the warps for a block: one for a row or two, so that all have something to do."""
    return max(1, min(4, constants["ROWS"] * constants["BP"] // 64))


def _result(call: Call) -> Spec:
    x, positions = call["x"], call["positions"]
    if x.dtype not in DTYPES:
        raise DtypeError(f"rope: x of {', '.join(DTYPES)}. Got {x.dtype}.")
    if x.ndim != 4:
        raise ShapeError(f"rope: x [batch, heads, tokens, width]. Got shape {x.shape}.")
    check_frequencies(call, x.shape[3])
    if positions.dtype not in ("int32", "int64"):
        raise DtypeError(f"rope: positions of int32 or int64. Got {positions.dtype}.")
    batch, tokens = ((1, 1, *positions.shape) if positions.ndim < 3 else (0, 0))[-2:]
    if batch not in (1, x.shape[0]) or tokens not in (1, x.shape[2]):
        raise ShapeError(
            "rope: positions [tokens] or [batch, tokens], or the first token's: [] or [batch, 1]. "
            f"Got shape {positions.shape} for x {x.shape}."
        )
    return in_order_of(x, x.shape)


def _launch(call: Call) -> tuple[Launch, ...]:
    x, out, positions = call["x"], call.outputs[0], call["positions"]
    if not x.numel:
        return ()
    batch, heads, tokens, width = x.shape
    pairs = call["frequencies"].shape[0]
    lead = 2 - positions.ndim
    counts, steps = (1,) * lead + positions.shape, (0,) * lead + positions.strides
    arguments: dict[str, Any] = {
        "out": call.output(), "x": call.input("x"),
        "positions": call.input("positions"), "frequencies": call.input("frequencies"),
        "heads": heads, "tokens": tokens, "pairs": pairs, "width": width,
        "p_batch": steps[0] if counts[0] > 1 else 0, "p_row": steps[1],
    }  # fmt: skip
    for name, spec in (("o", out), ("x", x)):
        places = (f"{name}_batch", f"{name}_head", f"{name}_row", f"{name}_col")
        arguments |= dict(zip(places, spec.strides, strict=True))
    spans = [shapes.extent_span(s.shape[1:], s.strides[1:]) for s in (x, out)]
    constants: dict[str, Any] = {
        "FOLLOW": counts[1] == 1,
        "TURNS": call["frequencies"].dtype == "int64",
        "INTERLEAVED": call.params["interleaved"],
        "WIDE": max(spans) >= _WIDE,
        "HEADS": 4 if tokens > 1 else 1,
        **blocks(tokens, pairs, width),
    }
    grid = (-(-tokens // constants["ROWS"]), -(-heads // constants["HEADS"]), batch)
    return (Launch("rope_kernel", grid, arguments, constants, warps=warps(constants)),)


def _cost(call: Call) -> Cost:
    """Six operations for a pair, and the cosine and the sine once for every position and some heads."""
    pairs = call["x"].numel // max(call["x"].shape[3], 1) * call["frequencies"].shape[0]
    return Cost((FLOPS + ANGLE_FLOPS) * pairs, call.operand_nbytes, call.result_nbytes)


def angles(positions: Array, frequencies: Array) -> Array:
    """Return the angle of every position and frequency in radians, whole turns left out where they are int64."""
    if frequencies.dtype.kind == "f":
        return np.asarray(positions.astype(np.float64)[..., None] * frequencies)
    with np.errstate(over="ignore"):
        wrapped = positions.astype(np.int64)[..., None] * frequencies
    return np.asarray(wrapped * (2 * np.pi / 2.0**64))


def turned(x: Array, angle: Array, *, interleaved: bool) -> Array:
    """Return ``x`` with each pair of the elements of its rows turned by an angle."""
    pairs = angle.shape[-1]
    first, second = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else _halves(pairs)
    result, cos, sin = np.array(x), np.cos(angle), np.sin(angle)
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., second] * cos + x[..., first] * sin
    return result


def _halves(pairs: int) -> tuple[slice, slice]:
    return slice(0, pairs), slice(pairs, 2 * pairs)


def _reference(x: Array, positions: Array, frequencies: Array, *, interleaved: bool = False) -> Array:
    places = positions.reshape((1,) * (2 - positions.ndim) + positions.shape)
    if places.shape[1] == 1:
        places = places + np.arange(x.shape[2])
    return turned(x, angles(places, frequencies)[:, None], interleaved=interleaved)


# A result is rounded once; cosine and sine are off by less than 1e-7, a few roundings of float32.
RTOL = {"float16": 2.0**-11 + 2.0**-20, "bfloat16": 2.0**-8 + 2.0**-20, "float32": 2.0**-21}


def _case(
    shape: tuple[int, ...], positions: tuple[int, ...], pairs: int, dtype: str = "float32",
    strides: tuple[int, ...] = (), *, radians: bool = False, interleaved: bool = False, index: str = "int32",
) -> Case:  # fmt: skip
    operands = {
        "x": Spec(shape, dtype, strides),
        "positions": Spec(positions, index),
        "frequencies": Spec((pairs,), "float32" if radians else "int64"),
    }
    fill = {"positions": f"index:{2**20}", "frequencies": "normal" if radians else ""}
    return Case(operands, {"interleaved": interleaved}, fill=fill, rtol=RTOL[dtype])


@declare(
    result=_result,
    reference=_reference,
    kernels=(Kernel("rope_kernel", _cost, _launch),),
    cases=(
        *(_case((2, 3, 21, 32), (21,), 16, d, interleaved=i) for d in DTYPES for i in (False, True)),
        _case((2, 5, 7, 64), (2, 7), 32, radians=True),
        _case((2, 5, 7, 64), (2, 1), 32, radians=True, interleaved=True),
        _case((1, 32, 1, 128), (), 64, "bfloat16"),
        _case((3, 2, 1, 64), (3, 1), 32, "float16", index="int64"),
        _case((1, 4, 9, 80), (9,), 10, "float16"),  # partial
        _case((1, 4, 9, 80), (1,), 20, interleaved=True),
        _case((1, 2, 3, 10), (3,), 3, radians=True),
        _case((2, 4, 24, 16), (24,), 8, strides=(24 * 200, 16, 200, 1)),  # heads within a wider row
        _case((2, 4, 5, 16), (5,), 8, "bfloat16", strides=(320, 80, 1, 5)),
        _case((1, 2, 0, 16), (0,), 8),
        _case((1, 3, 100, 128), (100,), 64, "bfloat16"),
        Case({"x": Spec((1, 32, 1024, 128), "bfloat16"), "positions": Spec((1024,), "int32"),
              "frequencies": Spec((64,), "int64")}, bench=True),
    ),
)  # fmt: skip
def rope(x: Tensor, positions: Tensor, frequencies: Tensor, *, interleaved: bool = False) -> Tensor:
    """Return ``x`` with pairs of elements of each row turned by the row's position times their frequency.

    Computed in float32, from angles that are exact to 2**-32 of a turn: at any position with frequencies of int64, at
    positions of 32 bits with those of float32.

    Args:
        x: ``[batch, heads, tokens, width]`` of float16, bfloat16 or float32. The result lies in memory in the order
            of its axes, so that heads side by side in a token's row stay so.
        positions: int32 or int64 ``[tokens]`` or ``[batch, tokens]``; or the first token's, whose followers count
            on: ``[]`` or ``[batch, 1]``.
        frequencies: One for each pair: int64, in 2**-64 of a turn per position, as `rope_frequencies` makes them; or
            float32, in radians per position. Twice as many elements of a row are turned, those behind them stay.
        interleaved: Whether a pair lies side by side (GPT-J, llama.cpp), or its elements half of what is turned apart
            (Hugging Face).

    Raises:
        DtypeError: Operands of other dtypes.
        ShapeError: Shapes that do not fit.

    >>> import numpy as np
    >>> import nbxtensor as nbx
    >>> x = nbx.asarray(np.array([0, 1], np.float32).reshape(1, 1, 1, 2))
    >>> quarter = nbx.asarray(np.array([2**62]))
    >>> nbx.rope(x, nbx.asarray(np.int32(1)), quarter).numpy().ravel().tolist()
    [-1.0, 0.0]
    """
    raise NotImplementedError
