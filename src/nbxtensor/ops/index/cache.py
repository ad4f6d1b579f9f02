"""cache_update: values written into a cache at a place that is data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import DtypeError, ShapeError
from nbxtensor.op import Array, Call, Case, Cost, Kernel, Launch, Pointer, Spec, declare
from nbxtensor.op.moving import PLACES, carrier, copy_launches, regions

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["cache_update"]

_WIDE = 2**31 - 2**16  # elements of the cache that are addressed in 32 bits


def _axis(call: Call) -> int:
    return shapes.normalize_axis(call.params["axis"], call["cache"].ndim, op="cache_update")


def _result(call: Call) -> Spec:
    cache, values, position, axis = call["cache"], call["values"], call["position"], _axis(call)
    if values.dtype != cache.dtype or bits(cache.dtype) < 8:
        raise DtypeError(
            f"cache_update: cache and values of one dtype of a byte or more. Got {cache.dtype} and {values.dtype}. "
            "astype converts."
        )
    alike = [n for i, n in enumerate(cache.shape) if i != axis] == [n for i, n in enumerate(values.shape) if i != axis]
    if values.ndim != cache.ndim or not alike or values.shape[axis] > cache.shape[axis]:
        raise ShapeError(
            f"cache_update: values differ from the cache along axis {axis} only, and are no longer there. "
            f"Got shapes {cache.shape} and {values.shape}."
        )
    if position.dtype not in ("int32", "int64"):
        raise DtypeError(f"cache_update: a position of int32 or int64. Got {position.dtype}.")
    if position.shape not in ((), (1,)) and (position.shape != cache.shape[:1] or axis == 0):
        raise ShapeError(
            f"cache_update: one position, or one for each entry of the cache's first axis, which is not the axis "
            f"written along. Got shape {position.shape} for a cache of shape {cache.shape} and axis {axis}."
        )
    return cache.packed()


def _launches(call: Call) -> tuple[Launch, ...]:
    """What the values do not cover is copied first, where the result lies in memory of its own."""
    values, y = call["values"], call.outputs[0]
    if not y.numel:
        return ()
    whole = () if 0 in call.in_place else tuple(copy_launches(call, "cache"))
    return (*whole, *_slice_launches(call)) if values.numel else whole


def _slice_launches(call: Call) -> list[Launch]:
    values, position, y, axis = call["values"], call["position"], call.outputs[0], _axis(call)
    dtype, parts = carrier("cache_update", values.dtype)
    shape = values.shape
    places = (position.strides[0] if position.numel > 1 else 0, *(0,) * (values.ndim - 1))
    layouts = [y.strides, values.strides]
    if parts > 1:
        shape, places = (*shape, parts), (*places, 0)
        layouts = [(*(s * parts for s in strides), 1) for strides in layouts]
    launches: list[Launch] = []
    for (to, start, at), (ys, xs, ps), sizes, constants, grid in regions(shape, [*layouts, places]):
        arguments: dict[str, Any] = {
            "y": Pointer("output", 0, dtype, to),
            "x": Pointer("input", "values", dtype, start),
            "position": call.input("position", at),
            "extent": y.shape[axis],
            "length": values.shape[axis],
            "y_axis": y.strides[axis] * parts,
            **sizes,
        }
        for name, strides in (("y", ys), ("x", xs), ("p", ps)):
            arguments |= {f"{name}{place}": stride for place, stride in zip(PLACES, strides, strict=True)}
        wide = constants["WIDE"] or shapes.extent_span(y.shape, y.strides) * parts >= _WIDE
        launches.append(Launch("slice_kernel", grid, arguments, {**constants, "WIDE": wide, "EACH": any(ps)}))
    return launches


def _cost(call: Call) -> Cost:
    """In place, the values alone are moved."""
    values, cache = call["values"].nbytes, call["cache"].nbytes
    whole = 0 if 0 in call.in_place else cache
    return Cost(flops=0, read=whole + values + call["position"].nbytes, written=whole + values)


def _reference(cache: Array, values: Array, position: Array, *, axis: int) -> Array:
    result = np.moveaxis(np.array(cache), axis, 0)
    given, start = np.moveaxis(values, axis, 0), np.clip(position.reshape(-1), 0, len(result) - values.shape[axis])
    if position.size == 1:
        result[start[0] : start[0] + len(given)] = given
    else:  # the batch comes after the axis now
        for index, first in enumerate(start):
            result[first : first + len(given), index] = given[:, index]
    return np.moveaxis(result, 0, axis)


def _case(
    cache: tuple[int, ...], values: tuple[int, ...], axis: int, dtype: str = "float32",
    position: Spec | None = None, strides: tuple[int, ...] = (), values_strides: tuple[int, ...] = (),
) -> Case:  # fmt: skip
    operands = {
        "cache": Spec(cache, dtype, strides),
        "values": Spec(values, dtype, values_strides),
        "position": position or Spec((), "int32"),
    }
    return Case(operands, {"axis": axis}, fill={"position": f"index:{cache[axis] + 3}"})


@declare(
    result=_result,
    reference=_reference,
    kernels=(Kernel("slice_kernel", _cost, _launches, in_place={0: "cache"}),),
    cases=(
        *(_case((1, 2, 16, 8), (1, 2, 1, 8), 2, d) for d in ("float32", "bfloat16", "float8_e4m3fn", "complex128")),
        _case((2, 3, 40, 16), (2, 3, 5, 16), 2, "float16", Spec((2,), "int32")),
        _case((3, 40, 2, 16), (3, 7, 2, 16), 1, "bfloat16", Spec((3,), "int64", (2,))),
        _case((2, 3, 40, 16), (2, 3, 7, 16), 2, values_strides=(7 * 48, 16, 48, 1)),
        _case((2, 3, 40, 16), (2, 3, 7, 16), 2, "float16", strides=(40 * 100, 20, 100, 1)),
        _case((2, 4, 16, 40), (2, 4, 16, 1), -1, position=Spec((1,), "int32")),
        _case((40,), (7,), 0, "int64"),
        _case((5, 9), (5, 9), 0, position=Spec((1,), "int64")),
        _case((2, 8, 3, 5, 4, 6), (2, 2, 3, 5, 4, 6), 1, position=Spec((2,), "int32")),
        _case((4, 9), (4, 1), 1, position=Spec((4,), "int32")),
        _case((4, 9), (4, 0), 1),
        _case((0, 9), (0, 1), 1),
        _case((1, 8, 4096, 128), (1, 8, 300, 128), 2, "bfloat16"),
    ),
)
def cache_update(cache: Tensor, values: Tensor, position: Tensor, *, axis: int) -> Tensor:
    """Return ``cache`` with ``values`` written along ``axis`` from ``position`` on.

    The position is data on the device, so that a recorded program advances. Where values would pass an end of the
    axis, they are written as far in as fits, as ``jax.lax.dynamic_update_slice`` does. A plan that no longer needs
    the old cache writes the values into it and moves nothing else.

    Args:
        cache: What is written to, any dtype of a byte or more.
        values: What is written: of the cache's dtype, and of its shape but along ``axis``, where it is no longer.
        position: int32 or int64: one (shape ``[]`` or ``[1]``), or one for each entry of the cache's first axis.
        axis: The axis that positions count along.

    Raises:
        DtypeError: Dtypes that differ or are narrower than a byte, or a position of another dtype.
        ShapeError: Shapes that do not fit.
        BoundsError: The axis is out of range.

    >>> import numpy as np
    >>> import nbxtensor as nbx
    >>> cache, row = nbx.zeros((4, 2), dtype="float32"), nbx.ones((1, 2), dtype="float32")
    >>> nbx.cache_update(cache, row, nbx.asarray(np.int32(2)), axis=0).numpy()[:, 0].tolist()
    [0.0, 0.0, 1.0, 0.0]
    """
    raise NotImplementedError
