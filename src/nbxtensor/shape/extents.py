"""What a shape alone says: its number of elements, its strides, what it broadcasts to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import SupportsIndex

from nbxtensor.errors import ShapeError
from nbxtensor.shape.axes import integer

__all__ = [
    "as_shape",
    "broadcast_shapes",
    "contiguous_strides",
    "extent_span",
    "infer_shape",
    "is_contiguous",
    "numel",
]

_MOST = 2**59 - 1  # elements: their bytes, up to 16 each, are counted in 63 bits, by kernels as by numpy


def as_shape(extents: int | Iterable[int], *, op: str = "shape") -> tuple[int, ...]:
    """Return ``extents`` (one int, or several) as a shape.

    Args:
        extents: Extents of at least 0, as ints or what ``operator.index`` takes, but for bools.
        op: The name that errors speak for.

    Raises:
        ShapeError: An extent is not an integer or is negative, or there are 2**59 elements or more (an extent of 0
            counted as 1).

    >>> as_shape(3), as_shape([2, 0])
    ((3,), (2, 0))
    """
    shape = as_integers(tuple(extents) if isinstance(extents, Iterable) else (extents,), op=op)
    if shape and min(shape) < 0:
        raise ShapeError(f"{op}: an extent is negative. Got {shape}. A tuple of ints of at least 0.")
    if (math.prod(shape) or math.prod(filter(None, shape))) > _MOST:
        raise ShapeError(
            f"{op}: the bytes of a shape are counted in 63 bits. Got {shape}. Fewer than 2**59 elements, an extent of "
            f"0 counted as 1."
        )
    return shape


def as_integers(given: tuple[SupportsIndex, ...], *, op: str) -> tuple[int, ...]:
    """Return extents as ints, whatever their sign.

    Raises:
        ShapeError: One is no integer.
    """
    try:
        return tuple(map(integer, given))
    except TypeError:
        raise ShapeError(f"{op}: extents are integers. Got {given!r}. A tuple of ints of at least 0.") from None


def numel(shape: tuple[int, ...]) -> int:
    """Return the number of elements of ``shape``; a shape without dimensions has one.

    Raises:
        ShapeError: An extent is negative.

    >>> numel((2, 3, 4)), numel(()), numel((2, 0))
    (24, 1, 0)
    """
    if shape and min(shape) < 0:
        raise ShapeError(f"numel: an extent is negative. Got {tuple(shape)}. Extents of at least 0.")
    return math.prod(shape)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of ``shape``, in elements; an empty dimension counts as one of extent 1.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Say whether ``strides`` lay the elements of ``shape`` out row-major without a gap.

    A dimension of extent 1 may carry any stride; a shape without elements is contiguous.

    Raises:
        ShapeError: ``shape`` and ``strides`` have different lengths.

    >>> is_contiguous((1, 32, 64, 1), (2048, 64, 1, 64))
    True
    """
    check_layout(shape, strides, op="is_contiguous")
    expected = 1
    dense = True
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 0:
            return True
        if extent != 1:
            dense = dense and stride == expected
            expected *= extent
    return dense


def extent_span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many elements of storage lie from the lowest to the highest element touched, both included.

    Raises:
        ShapeError: ``shape`` and ``strides`` have different lengths.

    >>> extent_span((2, 3), (10, 1)), extent_span((4, 5), (0, 0)), extent_span((0, 3), (3, 1))
    (13, 1, 0)
    """
    check_layout(shape, strides, op="extent_span")
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * abs(stride) for extent, stride in zip(shape, strides, strict=True))


def broadcast_shapes(*shapes: tuple[int, ...], op: str = "broadcast_shapes") -> tuple[int, ...]:
    """Return the shape that ``shapes`` broadcast to: aligned at the last axis, an extent of 1 stretches.

    Args:
        shapes: Any number of shapes.
        op: The name that errors speak for.

    Raises:
        ShapeError: Two extents of one axis differ and neither is 1.

    >>> broadcast_shapes((5, 3, 1), (4,))
    (5, 3, 4)
    """
    ndim = max(map(len, shapes), default=0)
    out = [1] * ndim
    for shape in shapes:
        for axis, extent in enumerate(shape, ndim - len(shape)):
            if extent == out[axis] or extent == 1:
                continue
            if out[axis] != 1:
                raise ShapeError(
                    f"{op}: extents of one axis broadcast. Got {', '.join(map(str, shapes))}: "
                    f"axis {axis - ndim} has {out[axis]} and {extent}. Equal extents, or 1."
                )
            out[axis] = extent
    return tuple(out)


def infer_shape(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``target`` with its extent of -1, if any, replaced so that it holds the elements of ``shape``.

    Raises:
        ShapeError: An extent is no integer or below -1, two are -1, or no extent fits.

    >>> infer_shape((2, 3, 4), (6, -1))
    (6, 4)
    """
    count = numel(shape)
    target = as_integers(target, op="reshape")
    unknown = target.count(-1)
    known = math.prod(extent for extent in target if extent != -1)
    if unknown > 1 or any(extent < -1 for extent in target):
        raise ShapeError(
            f"reshape: extents are at least 0, and at most one is -1. Got {target}. -1 takes what the others leave."
        )
    if unknown == 0 and known == count:
        return tuple(target)
    if unknown == 1 and known > 0 and count % known == 0:
        return tuple(count // known if extent == -1 else extent for extent in target)
    raise ShapeError(
        f"reshape: the number of elements stays. Got {target} for the {count} elements of {tuple(shape)}. "
        f"Extents with the product {count}, one of which may be -1 where the others decide it."
    )


def check_layout(shape: tuple[int, ...], strides: tuple[int, ...], *, op: str) -> None:
    """Refuse strides that are not one for each dimension.

    Raises:
        ShapeError: ``shape`` and ``strides`` have different lengths.
    """
    if len(shape) != len(strides):
        raise ShapeError(
            f"{op}: a shape has one stride for each dimension. Got {tuple(shape)} and strides "
            f"{tuple(strides)}. Tuples of one length."
        )
