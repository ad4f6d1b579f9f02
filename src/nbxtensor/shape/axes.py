"""Axes and slice bounds: negative ones counted from the end, wrong ones refused by name."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np

from nbxtensor.errors import ArgumentError, BoundsError

__all__ = ["as_index", "integer", "normalize_axes", "normalize_axis", "slice_bounds"]


def integer(value: SupportsIndex) -> int:
    """Return ``value`` (an int, or what ``operator.index`` takes) as an int.

    Raises:
        TypeError: It is no integer; a bool is none.
    """
    if isinstance(value, (bool, np.bool_)):
        raise TypeError("a bool is no integer")
    return operator.index(value)


def as_index(value: SupportsIndex, *, op: str, name: str) -> int:
    """Return ``value`` (an int, or what ``operator.index`` takes) as an int.

    Args:
        value: An axis, an index, an extent or a count.
        op: The name that errors speak for.
        name: What ``value`` is.

    Raises:
        ArgumentError: It is no integer; a bool is none.
    """
    try:
        return integer(value)
    except TypeError:
        raise ArgumentError(
            f"{op}: {name} is an integer. Got {value!r}. An int, not a {type(value).__name__}."
        ) from None


def normalize_axis(axis: int, ndim: int, *, op: str = "normalize_axis") -> int:
    """Return ``axis`` counted from the first dimension.

    Args:
        axis: An axis from ``-ndim`` to ``ndim - 1``.
        ndim: The number of dimensions.
        op: The name that errors speak for.

    Raises:
        BoundsError: ``axis`` is outside the range (a shape without dimensions has no axis).
        ArgumentError: ``axis`` is no integer.

    >>> normalize_axis(-1, 3)
    2
    """
    index = as_index(axis, op=op, name="axis")
    if -ndim <= index < ndim:
        return index + ndim if index < 0 else index
    accepted = f"Axes from {-ndim} to {ndim - 1} are accepted" if ndim else "A shape without dimensions has no axis"
    raise BoundsError(f"{op}: the axis is outside the shape. Got axis {index} for {ndim} dimensions. {accepted}.")


def normalize_axes(axes: int | Iterable[int] | None, ndim: int, *, op: str = "normalize_axes") -> tuple[int, ...]:
    """Return ``axes`` counted from the first dimension, in the order given; None means every axis.

    Args:
        axes: One axis, several distinct axes, or None.
        ndim: The number of dimensions.
        op: The name that errors speak for.

    Raises:
        BoundsError: An axis is outside the range.
        ArgumentError: An axis is named twice, or is no integer.

    >>> normalize_axes((-1, 0), 3)
    (2, 0)
    >>> normalize_axes(None, 2)
    (0, 1)
    """
    if axes is None:
        return tuple(range(ndim))
    if not isinstance(axes, Iterable):
        return (normalize_axis(axes, ndim, op=op),)
    given = tuple(axes)
    found = tuple(normalize_axis(axis, ndim, op=op) for axis in given)
    if len(set(found)) != len(found):
        raise ArgumentError(f"{op}: an axis is named twice. Got axes {given} for {ndim} dimensions. Distinct axes.")
    return found


def slice_bounds(start: int | None, stop: int | None, extent: int) -> tuple[int, int]:
    """Return the bounds of ``start:stop`` in a dimension of ``extent``, clamped as numpy clamps them.

    The result satisfies ``0 <= start <= stop <= extent``; negative bounds count from the end.

    Raises:
        ArgumentError: A bound is no integer.

    >>> slice_bounds(50, 80, 60)
    (50, 60)
    >>> slice_bounds(-3, None, 10)
    (7, 10)
    >>> slice_bounds(8, 2, 10)
    (8, 8)
    """
    try:
        first, last, _ = slice(*(None if end is None else integer(end) for end in (start, stop))).indices(extent)
    except TypeError:
        raise ArgumentError(f"slice: bounds are integers. Got {start!r} and {stop!r}. Ints, or None.") from None
    return first, max(first, last)
