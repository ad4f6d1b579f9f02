"""The fewest axes that several layouts of one shape need together."""

from __future__ import annotations

from collections.abc import Sequence

from nbxtensor.shape.extents import check_layout

__all__ = ["collapse"]


def collapse(
    shape: tuple[int, ...], layouts: Sequence[tuple[int, ...]], *, order: int | None = None
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the extents and the strides of ``layouts`` with every axis dropped or merged that can be.

    An axis of extent 1 is dropped; two neighbours are merged where every layout steps over them as over one.

    Args:
        shape: The shape that all layouts have.
        layouts: Strides of each, in elements.
        order: Index of the layout whose largest strides come first; left out, the axes stay in their order.

    Raises:
        ShapeError: A layout has another number of axes than ``shape``.

    >>> collapse((4, 1, 3, 5), [(15, 0, 5, 1), (3, 1, 1, 0)])
    ((12, 5), ((5, 1), (1, 0)))
    """
    for strides in layouts:
        check_layout(shape, strides, op="collapse")
    axes = [axis for axis, extent in enumerate(shape) if extent != 1]
    if order is not None:
        axes.sort(key=lambda axis: -abs(layouts[order][axis]))
    extents: list[int] = []
    columns: list[tuple[int, ...]] = []  # one stride per layout, for each axis
    for axis in axes:
        column = tuple(strides[axis] for strides in layouts)
        if extents and all(outer == shape[axis] * inner for outer, inner in zip(columns[-1], column, strict=True)):
            extents[-1] *= shape[axis]
            columns[-1] = column
        else:
            extents.append(shape[axis])
            columns.append(column)
    return tuple(extents), tuple(tuple(column[i] for column in columns) for i in range(len(layouts)))
