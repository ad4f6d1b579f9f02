"""copy, concat and pad: the ops that move elements; flips, tiles and stacks are views of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.convert import convert
from nbxtensor.dtype.itemsize import bits, is_storage_only
from nbxtensor.dtype.itemsize import kind as dtype_kind
from nbxtensor.dtype.limits import iinfo
from nbxtensor.errors import ArgumentError, DtypeError, ShapeError, UnsupportedError
from nbxtensor.op import Array, Call, Case, Cost, Kernel, Launch, Number, Pointer, Spec, declare
from nbxtensor.op.moving import PLACES, copy_launches, regions

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["concat", "copy", "pad"]


def _cost(call: Call) -> Cost:
    return Cost(flops=0, read=call.operand_nbytes, written=call.result_nbytes)


# ---- copy


def _packed(call: Call) -> Spec:
    return call["x"].packed()


def _copy_launches(call: Call) -> tuple[Launch, ...]:
    return tuple(copy_launches(call, "x"))


def _copy_reference(x: Array) -> Array:
    return np.array(x)


_MOVED = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int8",
    "int32",
    "int64",
    "uint8",
    "bool",
    "complex64",
    "complex128",
)

_COPY_CASES = (
    *(Case({"x": Spec((5, 33), d, (1, 5))}) for d in _MOVED),
    *(Case({"x": Spec(s, "float32")}) for s in ((), (1,), (0, 3), (7, 1100))),
    Case({"x": Spec((3, 4, 5, 6), "float32", (1, 3, 12, 60))}),
    Case({"x": Spec((4, 3, 2, 5, 7), "float16", (7, 28, 420, 84, 1))}),
    Case({"x": Spec((2, 3, 2, 3, 2, 3, 2), "float32", (1, 2, 216, 6, 18, 36, 108))}),
    Case({"x": Spec((5, 6), "int16", (0, 1))}),
    Case({"x": Spec((5, 6), "float32", (-6, -1))}),
    Case({"x": Spec((2048, 1024), "float32", (1, 2048))}, bench=True),
)


@declare(
    result=_packed,
    reference=_copy_reference,
    kernels=(Kernel("copy_kernel", _cost, _copy_launches, strided=True),),
    cases=_COPY_CASES,
)
def copy(x: Tensor) -> Tensor:
    """Return the elements of ``x`` in fresh memory, row-major; any strides, negative and zero ones too."""
    raise NotImplementedError


# ---- concat


def _concat_axis(call: Call) -> int:
    parts = call.sequence("arrays")
    if not parts[0].ndim:
        raise ShapeError("concat: arrays of one axis or more. Got arrays without axes. stack takes them.")
    return shapes.normalize_axis(call.params["axis"], parts[0].ndim, op="concat")


def _concat_result(call: Call) -> Spec:
    parts = call.sequence("arrays")
    axis = _concat_axis(call)
    first = parts[0]
    for part in parts:
        rest = part.shape[:axis] + part.shape[axis + 1 :]
        if part.ndim != first.ndim or rest != first.shape[:axis] + first.shape[axis + 1 :]:
            raise ShapeError(
                f"concat: arrays that differ along axis {axis} only. Got shapes {[p.shape for p in parts]}."
            )
        if part.dtype != first.dtype:
            raise DtypeError(f"concat: arrays of one dtype. Got {[p.dtype for p in parts]}. astype converts.")
    total = sum(p.shape[axis] for p in parts)
    return Spec((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)


def _concat_parts(call: Call) -> Mapping[str, tuple[int, Spec]]:
    """Return where each array goes: (elements from the result's start, layout there)."""
    axis, out = _concat_axis(call), call.outputs[0]
    places: dict[str, tuple[int, Spec]] = {}
    start = 0
    for name, part in call.inputs.items():
        places[name] = (start * out.strides[axis], Spec(part.shape, part.dtype, out.strides))
        start += part.shape[axis]
    return places


def _concat_launches(call: Call) -> tuple[Launch, ...]:
    launches: list[Launch] = []
    for name, (offset, region) in _concat_parts(call).items():
        if region.numel:
            launches.extend(copy_launches(call, name, region, offset=offset))
    return tuple(launches)


def _concat_reference(arrays: Sequence[Array], axis: int = 0) -> Array:
    return np.concatenate(list(arrays), axis)


def _parts(*shapes_: tuple[int, ...], dtype: str = "float32") -> dict[str, Spec]:
    return {f"arrays.{i}": Spec(s, dtype) for i, s in enumerate(shapes_)}


@declare(
    result=_concat_result,
    reference=_concat_reference,
    kernels=(Kernel("copy_kernel", _cost, _concat_launches, parts=_concat_parts),),
    cases=(
        Case(_parts((3, 5), (4, 5), (1, 5))),
        Case(_parts((3, 5), (3, 2), (3, 0)), {"axis": 1}),
        Case(_parts((2, 3, 4), (2, 3, 4), dtype="float16"), {"axis": -1}),
        Case(_parts((2, 3, 4), (2, 5, 4), dtype="bool"), {"axis": 1}),
        Case(_parts((0,), (0,))),
        Case({"arrays.0": Spec((4, 3), "int64", (1, 4)), "arrays.1": Spec((2, 3), "int64", (0, 1))}),
    ),
)
def concat(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return the arrays joined along ``axis``; they agree in dtype and in every other extent."""
    raise NotImplementedError


# ---- pad


def _widths(call: Call) -> tuple[tuple[int, int], ...]:
    given, ndim = call.params["pad_width"], call["x"].ndim
    try:
        pairs = ((shapes.integer(given),) * 2,) * ndim if not isinstance(given, Sequence) else _pairs(given)
    except TypeError:
        pairs = None
    if pairs is None or len(pairs) != ndim or any(len(p) != 2 or min(p) < 0 for p in pairs):
        raise ArgumentError(f"pad: one (before, after) pair of counts per axis, or one count. Got {given!r}.")
    return tuple((a, b) for a, b in pairs)


def _pairs(given: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(shapes.integer, pair)) for pair in given)


def _check_fill(x: Spec, value: float) -> None:
    """Refuse a number that x's dtype would change by more than rounding."""
    if dtype_kind(x.dtype) == "float":
        return
    whole = isinstance(value, int)
    low, high = (0, 1) if x.dtype == "bool" else (iinfo(x.dtype).min, iinfo(x.dtype).max)
    if not whole or not low <= value <= high:
        raise ArgumentError(f"pad: {x.dtype} elements are padded with an int from {low} to {high}. Got {value!r}.")


def _pad_result(call: Call) -> Spec:
    x = call["x"]
    if call.params["mode"] != "constant":
        raise UnsupportedError(f"pad: mode 'constant'. Got {call.params['mode']!r}.")
    if dtype_kind(x.dtype) == "complex" or bits(x.dtype) < 8:
        raise DtypeError(f"pad: real elements of a byte or more. Got {x.dtype}.")
    _check_fill(x, call.params["constant_values"])
    return Spec(tuple(n + a + b for n, (a, b) in zip(x.shape, _widths(call), strict=True)), x.dtype)


def _pad_launches(call: Call) -> tuple[Launch, ...]:
    """The interior is copied; along each axis what lies before and after it is filled, each element once."""
    x, out, widths = call["x"], call.outputs[0], _widths(call)
    launches: list[Launch] = []
    if x.numel:
        inside = sum(a * s for (a, _), s in zip(widths, out.strides, strict=True))
        launches.extend(copy_launches(call, "x", Spec(x.shape, x.dtype, out.strides), offset=inside))
    for axis, (before, after) in enumerate(widths):
        shape = [*x.shape[:axis], 0, *out.shape[axis + 1 :]]
        corner = sum(widths[i][0] * out.strides[i] for i in range(axis))
        for width, start in ((before, 0), (after, before + x.shape[axis])):
            shape[axis] = width
            if shapes.numel(tuple(shape)):
                launches.extend(_fill_launches(call, tuple(shape), corner + start * out.strides[axis]))
    return tuple(launches)


def _fill_launches(call: Call, shape: tuple[int, ...], offset: int) -> Iterator[Launch]:
    out, value = call.outputs[0], call.params["constant_values"]
    dtype = {"bool": "int1"}.get(out.dtype, out.dtype)
    if is_storage_only(out.dtype):  # no kernel computes with it, so its code is what is written
        dtype = "uint8"
        number = Number(int(convert(np.asarray(float(value)), "float64", out.dtype)), "int64")
    elif dtype_kind(out.dtype) == "float":
        number = Number(float(value), "float64" if out.dtype == "float64" else "float32")
    else:
        number = Number(int(value), "uint64" if out.dtype == "uint64" else "int64")
    for (to,), (y,), sizes, constants, grid in regions(shape, [out.strides]):
        arguments = {
            "y": Pointer("output", 0, out.dtype if dtype == "int1" else dtype, offset + to),
            "value": number,
            **sizes,
            **{f"y{p}": s for p, s in zip(PLACES, y, strict=True)},
        }
        yield Launch("fill_kernel", grid, arguments, constants | {"DTYPE": f"tl.{dtype}"})


def _pad_reference(x: Array, pad_width: Any, *, mode: str = "constant", constant_values: float = 0) -> Array:
    return np.pad(x, pad_width, mode="constant", constant_values=constant_values)


@declare(
    result=_pad_result,
    reference=_pad_reference,
    kernels=(Kernel("fill_kernel", _cost, _pad_launches),),
    cases=(
        *(
            Case({"x": Spec((3, 5), d)}, {"pad_width": ((1, 2), (0, 3))})
            for d in ("float32", "float16", "bfloat16", "int64", "bool")
        ),
        Case({"x": Spec((4, 3, 5), "float32", (1, 4, 12))}, {"pad_width": 2, "constant_values": -1.5}),
        Case({"x": Spec((0, 3), "float32")}, {"pad_width": ((1, 1), (1, 1)), "constant_values": 7.25}),
        Case({"x": Spec((6,), "int32")}, {"pad_width": ((0, 0),)}),
    ),
)
def pad(
    x: Tensor, pad_width: int | Sequence[Sequence[int]], *, mode: str = "constant", constant_values: float = 0
) -> Tensor:
    """Return ``x`` with ``pad_width[i] = (before, after)`` elements of a constant added along axis i.

    Raises:
        ArgumentError: Widths that are no counts, or a constant that integers or bools cannot hold.
        DtypeError: Complex elements, or elements narrower than a byte.
    """
    raise NotImplementedError
