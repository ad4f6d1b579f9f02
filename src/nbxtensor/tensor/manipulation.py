"""The standard's functions that change a shape: views where strides allow, else one copy."""

from __future__ import annotations

from collections.abc import Sequence

from nbxtensor import shape as shapes
from nbxtensor.errors import ArgumentError, ShapeError
from nbxtensor.op import Spec
from nbxtensor.ops.layout.op import concat
from nbxtensor.tensor.tensor import Tensor

__all__ = [
    "broadcast_arrays",
    "broadcast_to",
    "expand_dims",
    "flip",
    "matrix_transpose",
    "moveaxis",
    "permute_dims",
    "repeat",
    "reshape",
    "roll",
    "split",
    "squeeze",
    "stack",
    "tile",
    "unstack",
]

Axes = int | Sequence[int]


def reshape(x: Tensor, /, shape: Axes) -> Tensor:
    """Return the elements of ``x`` in row-major order under ``shape`` (one extent may be -1); a view where possible."""
    return x.reshape(shape)


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Return the view of ``x`` whose axis i is axis ``axes[i]``."""
    return x.permute(axes)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Return the view of ``x`` with its last two axes exchanged."""
    return x.mT


def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """Return the view of ``x`` with an axis of extent 1 at ``axis``."""
    return x.unsqueeze(axis)


def squeeze(x: Tensor, /, axis: Axes) -> Tensor:
    """Return the view of ``x`` without the named axes, each of extent 1."""
    return x.squeeze(axis)


def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """Return the view of ``x`` with the axes ``source`` at ``destination``; the others keep their order."""
    sources = shapes.normalize_axes(source, x.ndim, op="moveaxis")
    targets = shapes.normalize_axes(destination, x.ndim, op="moveaxis")
    if len(sources) != len(targets):
        raise ArgumentError(f"moveaxis: as many destinations as sources. Got {source} and {destination}.")
    rest = iter(i for i in range(x.ndim) if i not in sources)
    placed = dict(zip(targets, sources, strict=True))
    return x.permute([placed[i] if i in placed else next(rest) for i in range(x.ndim)])


def broadcast_to(x: Tensor, /, shape: Sequence[int]) -> Tensor:
    """Return the view of ``x`` broadcast to ``shape``; repeated elements share their memory."""
    return x.expand(shape)


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return views of the arrays broadcast against each other."""
    shape = shapes.broadcast_shapes(*(a.shape for a in arrays))
    return [a.expand(shape) for a in arrays]


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Return the arrays, all of one shape, joined along a new axis."""
    if not arrays:
        raise ArgumentError("stack: one array or more. Got none.")
    if any(a.shape != arrays[0].shape for a in arrays):
        raise ShapeError(f"stack: arrays of one shape. Got {[a.shape for a in arrays]}.")
    place = shapes.normalize_axis(axis, arrays[0].ndim + 1, op="stack")
    return concat([a.unsqueeze(place) for a in arrays], axis=place)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the views of ``x`` at each place along ``axis``."""
    place = shapes.normalize_axis(axis, x.ndim, op="unstack")
    return tuple(x.select(place, i) for i in range(x.shape[place]))


def split(x: Tensor, size: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Return views that follow one another along ``axis``: of ``size`` (the last may be less), or of the sizes given.

    Raises:
        ArgumentError: Sizes below one, or that do not add up to the extent.
    """
    place = shapes.normalize_axis(axis, x.ndim, op="split")
    extent = x.shape[place]
    if isinstance(size, int):
        if size < 1:
            raise ArgumentError(f"split: sizes of one or more. Got {size}.")
        sizes = [min(size, extent - start) for start in range(0, extent, size)] or [0]
    else:
        sizes = list(size)
        if sum(sizes) != extent or min(sizes, default=0) < 0:
            raise ArgumentError(f"split: sizes that add up to the extent {extent}. Got {sizes}.")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(x.narrow(place, start, length) for start, length in zip(starts, sizes, strict=True))


def flip(x: Tensor, /, *, axis: Axes | None = None) -> Tensor:
    """Return ``x`` with the order of elements along the axes reversed (every axis for None)."""
    axes = shapes.normalize_axes(axis, x.ndim, op="flip")
    if not x.size:
        return x.copy()
    start = sum((x.shape[i] - 1) * x.strides[i] for i in axes)
    strides = tuple(-s if i in axes else s for i, s in enumerate(x.strides))
    return Tensor(x.storage, Spec(x.shape, x.dtype, strides), x.offset + start, x.device_or_none).copy()


def tile(x: Tensor, repetitions: Sequence[int], /) -> Tensor:
    """Return ``x`` repeated ``repetitions[i]`` times along axis i, as whole blocks."""
    if any(r < 0 for r in repetitions):
        raise ArgumentError(f"tile: zero repetitions or more. Got {tuple(repetitions)}.")
    ndim = max(x.ndim, len(repetitions))
    times = (1,) * (ndim - len(repetitions)) + tuple(repetitions)
    lifted = x.reshape((1,) * (ndim - x.ndim) + x.shape)
    paired = [n for r, e in zip(times, lifted.shape, strict=True) for n in (r, e)]
    ones = [n for e in lifted.shape for n in (1, e)]
    whole = lifted.reshape(ones).expand(paired)
    return whole.copy().reshape([r * e for r, e in zip(times, lifted.shape, strict=True)])


def repeat(x: Tensor, repeats: int, /, *, axis: int | None = None) -> Tensor:
    """Return ``x`` with every element repeated ``repeats`` times along ``axis`` (of the flattened array for None)."""
    if repeats < 0:
        raise ArgumentError(f"repeat: zero repeats or more. Got {repeats}.")
    if axis is None:
        return repeat(x.reshape(-1), repeats, axis=0)
    place = shapes.normalize_axis(axis, x.ndim, op="repeat")
    shape = (*x.shape[: place + 1], repeats, *x.shape[place + 1 :])
    merged = (*x.shape[:place], x.shape[place] * repeats, *x.shape[place + 1 :])
    return x.unsqueeze(place + 1).expand(shape).copy().reshape(merged)


def roll(x: Tensor, /, shift: Axes, *, axis: Axes | None = None) -> Tensor:
    """Return ``x`` with elements moved ``shift`` places on along ``axis``, those past the end entering at the start."""
    if axis is None:
        if not isinstance(shift, int):
            raise ArgumentError(f"roll: one shift where no axis is given. Got {shift}.")
        return roll(x.reshape(-1), shift, axis=0).reshape(x.shape)
    axes = shapes.normalize_axes(axis, x.ndim, op="roll")
    shifts = (shift,) * len(axes) if isinstance(shift, int) else tuple(shift)
    if len(shifts) != len(axes):
        raise ArgumentError(f"roll: one shift per axis. Got shifts {shifts} for axes {axes}.")
    result = x
    for place, by in zip(axes, shifts, strict=True):
        extent = result.shape[place]
        cut = -by % extent if extent else 0
        if cut:
            result = concat([result.narrow(place, cut, extent - cut), result.narrow(place, 0, cut)], axis=place)
    return result if result is not x else x.copy()
