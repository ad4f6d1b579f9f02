"""Moving elements between two layouts of one shape: the launches of `nbxtensor.lang.moving.copy_kernel`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import UnsupportedError
from nbxtensor.op.launch import Call, Launch, Pointer
from nbxtensor.op.spec import Spec
from nbxtensor.shape.collapse import collapse

__all__ = ["PLACES", "carrier", "copy_launches", "regions"]

_OUTER = 4  # outer axes that a kernel walks beside the inner one
_BLOCK = 1024  # elements of the inner axis to a program, at most
_SIDE = 32  # of a square tile, where source and result are contiguous along different axes: both keep their lines
_WIDE = 2**31 - 2**16  # elements that are addressed in 32 bits, the padding of the last tile too
PLACES = ("0", "1", "2", "3", "_inner")  # what a kernel calls its axes

# Elements are moved as integers of their width, so that every bit pattern arrives as it was; a complex one as two.
_CARRIERS = {8: "uint8", 16: "int16", 32: "int32", 64: "int64"}


def carrier(op: str, dtype: str) -> tuple[str, int]:
    """Return (dtype a kernel moves elements of ``dtype`` in, how many of them make one element)."""
    width = bits(dtype)
    if width < 8:
        raise UnsupportedError(f"{op}: elements of a byte or more. Got {dtype}.")
    return (_CARRIERS[width], 1) if width in _CARRIERS else (_CARRIERS[64], width // 64)


def regions(
    shape: tuple[int, ...], layouts: list[tuple[int, ...]]
) -> Iterator[tuple[list[int], list[tuple[int, ...]], dict[str, int], dict[str, Any], tuple[int, int]]]:
    """Yield (offset and five strides per layout, sizes, constants, grid) of each launch that walks the region.

    The first layout orders the axes. Axes past those a kernel walks are walked by launches.
    """
    extents, walked = collapse(shape, layouts, order=0)
    crossed = _crossing(walked)
    if crossed is not None:  # its neighbours lie together in the source: make it the axis beside the inner one
        order = [*(i for i in range(len(extents) - 1) if i != crossed), crossed, len(extents) - 1]
        extents = tuple(extents[i] for i in order)
        walked = tuple(tuple(w[i] for i in order) for w in walked)
    beyond = max(len(extents) - _OUTER - 1, 0)
    lead = (1,) * (_OUTER + 1 - len(extents))
    n0, n1, n2, n3, inner = (*lead, *extents[beyond:])
    strides = [(0,) * len(lead) + w[beyond:] for w in walked]
    rows = n0 * n1 * n2 * n3
    block = min(_BLOCK if crossed is None else _SIDE, 1 << (inner - 1).bit_length())
    per_program = max(1, min(_BLOCK // block, 1 << (rows - 1).bit_length()))
    wide = any(shapes.extent_span(extents, w) >= _WIDE for w in walked)
    constants = {"WIDE": wide, "ROWS": per_program, "BLOCK": block}
    for index in np.ndindex(*extents[:beyond]):
        offsets = [sum(i * s for i, s in zip(index, w[:beyond], strict=True)) for w in walked]
        sizes = {"n1": n1, "n2": n2, "n3": n3, "rows": rows, "inner": inner}
        yield offsets, strides, sizes, constants, (-(-rows // per_program), -(-inner // block))


def _crossing(walked: tuple[tuple[int, ...], ...]) -> int | None:
    """Return the axis along which the source is contiguous, where that is not the inner one; None otherwise."""
    if len(walked) < 2 or not walked[1] or abs(walked[1][-1]) <= 1:
        return None
    return next((i for i, stride in enumerate(walked[1]) if abs(stride) == 1), None)


def copy_launches(
    call: Call, source: str, region: Spec | None = None, *, result: int = 0, offset: int = 0
) -> Iterator[Launch]:
    """Yield the launches of ``copy_kernel`` that copy operand ``source`` into a result.

    The op's kernel module imports the kernel from `nbxtensor.lang.moving`.

    Args:
        call: The call.
        source: Name of the operand.
        region: Layout of the elements in the result, of the operand's shape; left out, the whole result.
        result: Index of the result.
        offset: Elements from the result's start to the region's.
    """
    spec, region = call[source], region or call.outputs[result]
    dtype, parts = carrier(call.op.name, spec.dtype)
    shape, layouts = spec.shape, [region.strides, spec.strides]
    if parts > 1:
        shape = (*shape, parts)
        layouts = [(*(s * parts for s in strides), 1) for strides in layouts]
    for (to, start), (y, x), sizes, constants, grid in regions(shape, layouts):
        arguments = {
            "y": Pointer("output", result, dtype, offset * parts + to),
            "x": Pointer("input", source, dtype, start),
            **sizes,
            **{f"y{p}": s for p, s in zip(PLACES, y, strict=True)},
            **{f"x{p}": s for p, s in zip(PLACES, x, strict=True)},
        }
        yield Launch("copy_kernel", grid, arguments, constants)
