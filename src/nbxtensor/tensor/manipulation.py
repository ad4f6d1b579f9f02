"""The standard's functions that change a shape: views where strides allow, else one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbxtensor import shape as shapes
from nbxtensor.errors import ArgumentError, ShapeError
from nbxtensor.op import Spec
from nbxtensor.ops.deferred import Deferred
from nbxtensor.tensor.tensor import Tensor

if TYPE_CHECKING:
    from nbxtensor.ops.layout import op as copies
else:
    copies = Deferred("nbxtensor.ops.layout.op")

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


def _check(op: str, *arrays: Tensor) -> None:
    for array in arrays:
        if not isinstance(array, Tensor):
            raise ArgumentError(f"{op}: a tensor. Got {type(array).__name__}. nbxtensor.asarray makes tensors.")


def _count(op: str, name: str, value: int) -> int:
    count = shapes.as_index(value, op=op, name=name)
    if count < 0:
        raise ArgumentError(f"{op}: {name} is zero or more. Got {count}.")
    return count


def reshape(x: Tensor, /, shape: Axes) -> Tensor:
    """Return the elements of ``x`` in row-major order under ``shape`` (one extent may be -1); a view where possible."""
    _check("reshape", x)
    return x.reshape(shape)


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Return the view of ``x`` whose axis i is axis ``axes[i]``."""
    _check("permute_dims", x)
    return x.permute(axes)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Return the view of ``x`` with its last two axes exchanged."""
    _check("matrix_transpose", x)
    return x.mT


def expand_dims(x: Tensor, /, axis: int = 0) -> Tensor:
    """Return the view of ``x`` with an axis of extent 1 at ``axis``."""
    _check("expand_dims", x)
    return x.unsqueeze(axis)


def squeeze(x: Tensor, /, axis: Axes) -> Tensor:
    """Return the view of ``x`` without the named axes, each of extent 1."""
    _check("squeeze", x)
    return x.squeeze(axis)


def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """Return the view of ``x`` with the axes ``source`` at ``destination``; the others keep their order."""
    _check("moveaxis", x)
    sources = shapes.normalize_axes(source, x.ndim, op="moveaxis")
    targets = shapes.normalize_axes(destination, x.ndim, op="moveaxis")
    if len(sources) != len(targets):
        raise ArgumentError(f"moveaxis: as many destinations as sources. Got {source} and {destination}.")
    rest = iter(i for i in range(x.ndim) if i not in sources)
    placed = dict(zip(targets, sources, strict=True))
    return x.permute([placed[i] if i in placed else next(rest) for i in range(x.ndim)])


def broadcast_to(x: Tensor, /, shape: Sequence[int]) -> Tensor:
    """Return the view of ``x`` broadcast to ``shape``; repeated elements share their memory."""
    _check("broadcast_to", x)
    return x.expand(shape)


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return views of the arrays broadcast against each other."""
    _check("broadcast_arrays", *arrays)
    shape = shapes.broadcast_shapes(*(a.shape for a in arrays), op="broadcast_arrays")
    return [a.expand(shape) for a in arrays]


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Return the arrays, all of one shape, joined along a new axis."""
    if not isinstance(arrays, (list, tuple)):
        raise ArgumentError(f"stack: a list or tuple of tensors. Got {type(arrays).__name__}.")
    _check("stack", *arrays)
    if not arrays:
        raise ArgumentError("stack: one array or more. Got none.")
    if any(a.shape != arrays[0].shape for a in arrays):
        raise ShapeError(f"stack: arrays of one shape. Got {[a.shape for a in arrays]}.")
    place = shapes.normalize_axis(axis, arrays[0].ndim + 1, op="stack")
    return copies.concat([a.unsqueeze(place) for a in arrays], axis=place)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the views of ``x`` at each place along ``axis``."""
    _check("unstack", x)
    place = shapes.normalize_axis(axis, x.ndim, op="unstack")
    return tuple(x.select(place, i) for i in range(x.shape[place]))


def split(x: Tensor, size: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Return views that follow one another along ``axis``: of ``size`` (the last may be less), or of the sizes given.

    Raises:
        ArgumentError: Sizes below one, no ints, or that do not add up to the extent.
    """
    _check("split", x)
    place = shapes.normalize_axis(axis, x.ndim, op="split")
    extent = x.shape[place]
    if not isinstance(size, Sequence):
        step = shapes.as_index(size, op="split", name="size")
        if step < 1:
            raise ArgumentError(f"split: sizes of one or more. Got {size}.")
        sizes = [min(step, extent - start) for start in range(0, extent, step)] or [0]
    else:
        sizes = [shapes.as_index(n, op="split", name="size") for n in size]
        if sum(sizes) != extent or min(sizes, default=0) < 0:
            raise ArgumentError(f"split: sizes that add up to the extent {extent}. Got {sizes}.")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(x.narrow(place, start, length) for start, length in zip(starts, sizes, strict=True))


def flip(x: Tensor, /, *, axis: Axes | None = None) -> Tensor:
    """Return ``x`` with the order of elements along the axes reversed (every axis for None)."""
    _check("flip", x)
    axes = shapes.normalize_axes(axis, x.ndim, op="flip")
    if not x.size:
        return x.copy()
    start = sum((x.shape[i] - 1) * x.strides[i] for i in axes)
    strides = tuple(-s if i in axes else s for i, s in enumerate(x.strides))
    return Tensor(x.storage, Spec(x.shape, x.dtype, strides), x.offset + start, x.device_or_none).copy()


def tile(x: Tensor, repetitions: Axes, /) -> Tensor:
    """Return ``x`` repeated ``repetitions[i]`` times along axis i (one int: along the last), as whole blocks."""
    _check("tile", x)
    given = repetitions if isinstance(repetitions, Sequence) else (repetitions,)
    counts = tuple(_count("tile", "a number of repetitions", n) for n in given)
    ndim = max(x.ndim, len(counts))
    times = (1,) * (ndim - len(counts)) + counts
    lifted = x.reshape((1,) * (ndim - x.ndim) + x.shape)
    paired = [n for r, e in zip(times, lifted.shape, strict=True) for n in (r, e)]
    ones = [n for e in lifted.shape for n in (1, e)]
    whole = lifted.reshape(ones).expand(paired)
    return whole.copy().reshape([r * e for r, e in zip(times, lifted.shape, strict=True)])


def repeat(x: Tensor, repeats: int, /, *, axis: int | None = None) -> Tensor:
    """Return ``x`` with every element repeated ``repeats`` times along ``axis`` (of the flattened array for None)."""
    _check("repeat", x)
    count = _count("repeat", "the number of repeats", repeats)
    if axis is None:
        return repeat(x.reshape(-1), count, axis=0)
    place = shapes.normalize_axis(axis, x.ndim, op="repeat")
    shape = (*x.shape[: place + 1], count, *x.shape[place + 1 :])
    merged = (*x.shape[:place], x.shape[place] * count, *x.shape[place + 1 :])
    return x.unsqueeze(place + 1).expand(shape).copy().reshape(merged)


def roll(x: Tensor, /, shift: Axes, *, axis: Axes | None = None) -> Tensor:
    """Return ``x`` with elements moved ``shift`` places on along ``axis``, those past the end entering at the start."""
    _check("roll", x)
    if axis is None:
        if isinstance(shift, Sequence):
            raise ArgumentError(f"roll: one shift where no axis is given. Got {shift}.")
        return roll(x.reshape(-1), shift, axis=0).reshape(x.shape)
    axes = shapes.normalize_axes(axis, x.ndim, op="roll")
    given = shift if isinstance(shift, Sequence) else (shift,) * len(axes)
    shifts = tuple(shapes.as_index(n, op="roll", name="shift") for n in given)
    if len(shifts) != len(axes):
        raise ArgumentError(f"roll: one shift per axis. Got shifts {shifts} for axes {axes}.")
    result = x
    for place, by in zip(axes, shifts, strict=True):
        extent = result.shape[place]
        cut = -by % extent if extent else 0
        if cut:
            result = copies.concat([result.narrow(place, cut, extent - cut), result.narrow(place, 0, cut)], axis=place)
    return result if result is not x else x.copy()
