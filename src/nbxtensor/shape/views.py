"""Views: another shape over the same storage, or the answer that a copy is needed first."""

from __future__ import annotations

from nbxtensor.errors import ArgumentError, BoundsError, ShapeError
from nbxtensor.shape.axes import as_index, normalize_axes, normalize_axis
from nbxtensor.shape.extents import as_integers, check_layout, contiguous_strides, numel

__all__ = ["broadcast_strides", "expand", "narrow", "permute", "select", "view_strides"]

Layout = tuple[tuple[int, ...], tuple[int, ...]]


def view_strides(shape: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...]) -> list[int] | None:
    """Return the strides that show the elements of a layout, in order, as ``target``; None means copy first.

    The rule is that of ATen's ``computeStride``: neighbouring dimensions that are contiguous with each other
    may be merged, and a merged run may be split at will. `infer_shape` resolves an extent of -1 beforehand.

    Raises:
        ShapeError: ``target`` has another number of elements or a negative extent.

    >>> view_strides((2, 3, 4), (12, 4, 1), (6, 4))
    [4, 1]
    >>> view_strides((4, 3), (1, 4), (12,)) is None
    True
    """
    check_layout(shape, strides, op="view")
    count = numel(shape)
    if numel(target) != count:
        raise ShapeError(
            f"view: the number of elements stays. Got {tuple(target)} for the {count} elements of "
            f"{tuple(shape)}. Extents with the product {count}."
        )
    if count == 0:
        return list(strides) if tuple(shape) == tuple(target) else list(contiguous_strides(target))
    runs = _merged_runs(shape, strides)
    out = [1] * len(target)
    length, stride = runs.pop() if runs else (1, 1)
    filled = 1  # elements of the current run that the target dimensions so far take
    for axis in range(len(target) - 1, -1, -1):
        if target[axis] != 1 and filled == length:
            length, stride = runs.pop()
            filled = 1
        out[axis] = filled * stride
        filled *= target[axis]
        if length % filled:
            return None
    return out


def _merged_runs(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the runs (elements, stride) of a layout, outermost first; extents of 1 belong to none."""
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    return runs


def broadcast_strides(shape: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...]) -> Layout:
    """Return ``target`` and the strides that stretch a layout to it without a copy.

    A stretched or added dimension has stride 0; a dimension that keeps its extent keeps its stride.

    Raises:
        ShapeError: ``shape`` does not broadcast to ``target``.

    >>> broadcast_strides((3, 1), (1, 1), (2, 3, 4))
    ((2, 3, 4), (0, 1, 0))
    """
    check_layout(shape, strides, op="broadcast")
    added = len(target) - len(shape)
    out = [0] * max(added, 0)
    fits = added >= 0
    for extent, stride, wanted in zip(shape, strides, target[max(added, 0) :], strict=fits):
        fits = fits and extent in (wanted, 1)
        out.append(stride if extent == wanted else 0)
    if not fits:
        raise ShapeError(
            f"broadcast: the shape does not stretch to the target. Got {tuple(shape)} and target "
            f"{tuple(target)}. Extents equal to the target's last ones, or 1."
        )
    return tuple(target), tuple(out)


def expand(shape: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...]) -> Layout:
    """Return the layout stretched to ``target``, where an extent of -1 keeps the dimension's own.

    Raises:
        ShapeError: ``shape`` does not broadcast to ``target``, an extent is no integer, or an added dimension is
            given -1.

    >>> expand((3, 1), (1, 1), (2, -1, 4))
    ((2, 3, 4), (0, 1, 0))
    """
    target = as_integers(target, op="expand")
    added = len(target) - len(shape)
    if any(extent < (-1 if axis >= added else 0) for axis, extent in enumerate(target)):
        raise ShapeError(
            f"expand: -1 keeps the extent of a dimension that is there. Got {tuple(shape)} and target "
            f"{tuple(target)}. Extents of at least 0, and -1 for dimensions of the shape."
        )
    resolved = tuple(shape[axis - added] if extent == -1 else extent for axis, extent in enumerate(target))
    return broadcast_strides(shape, strides, resolved)


def permute(shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...]) -> Layout:
    """Return the layout with its dimensions in the order of ``axes``.

    Raises:
        ArgumentError: ``axes`` is not a permutation of the dimensions (`BoundsError` for one out of range).

    >>> permute((2, 3, 4), (12, 4, 1), (2, 0, -2))
    ((4, 2, 3), (1, 12, 4))
    """
    check_layout(shape, strides, op="permute")
    order = normalize_axes(axes, len(shape), op="permute")
    if len(order) != len(shape):
        raise ArgumentError(
            f"permute: every dimension is named once. Got axes {tuple(axes)} for {len(shape)} dimensions. "
            f"A permutation of {tuple(range(len(shape)))}."
        )
    return tuple(shape[axis] for axis in order), tuple(strides[axis] for axis in order)


def narrow(
    shape: tuple[int, ...], strides: tuple[int, ...], axis: int, start: int, length: int
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return shape, strides and offset (in elements) of ``length`` entries of ``axis`` from ``start``.

    Raises:
        BoundsError: ``axis`` is out of range, or the entries are not all inside the dimension.
        ArgumentError: ``axis``, ``start`` or ``length`` is no integer.

    >>> narrow((4, 6), (6, 1), 1, 2, 3)
    ((4, 3), (6, 1), 2)
    """
    check_layout(shape, strides, op="narrow")
    axis = normalize_axis(axis, len(shape), op="narrow")
    start, length = as_index(start, op="narrow", name="start"), as_index(length, op="narrow", name="length")
    extent = shape[axis]
    if length < 0 or not 0 <= start <= extent - length:
        raise BoundsError(
            f"narrow: the entries lie inside the dimension. Got start {start} and length {length} for extent "
            f"{extent} of axis {axis}. A start and a length of at least 0, together at most {extent}."
        )
    return (*shape[:axis], length, *shape[axis + 1 :]), tuple(strides), start * strides[axis]


def select(
    shape: tuple[int, ...], strides: tuple[int, ...], axis: int, index: int
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return shape, strides and offset (in elements) of the entry ``index`` of ``axis``, which it drops.

    Raises:
        BoundsError: ``axis`` or ``index`` is out of range; a negative index counts from the end.
        ArgumentError: ``axis`` or ``index`` is no integer.

    >>> select((4, 6), (6, 1), 0, -1)
    ((6,), (1,), 18)
    """
    check_layout(shape, strides, op="select")
    axis, index = normalize_axis(axis, len(shape), op="select"), as_index(index, op="select", name="index")
    extent = shape[axis]
    if not -extent <= index < extent:
        accepted = f"Indices from {-extent} to {extent - 1} are accepted" if extent else "An empty dimension has none"
        raise BoundsError(
            f"select: the index is outside the dimension. Got index {index} for extent {extent} of axis "
            f"{axis}. {accepted}."
        )
    offset = (index + extent if index < 0 else index) * strides[axis]
    return (*shape[:axis], *shape[axis + 1 :]), (*strides[:axis], *strides[axis + 1 :]), offset
