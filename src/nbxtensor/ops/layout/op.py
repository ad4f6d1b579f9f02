"""copy, concat and pad: the ops that move elements; flips, tiles and stacks are views of these."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.convert import convert
from nbxtensor.dtype.itemsize import bits, is_storage_only
from nbxtensor.dtype.itemsize import kind as dtype_kind
from nbxtensor.dtype.limits import iinfo
from nbxtensor.errors import ArgumentError, DtypeError, ShapeError, UnsupportedError
from nbxtensor.op import Array, Call, Case, Cost, Kernel, Launch, Number, Pointer, Spec, declare
from nbxtensor.shape.collapse import collapse

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["concat", "copy", "pad"]

_OUTER = 4  # outer axes that a kernel walks beside the inner one
_BLOCK = 1024  # elements of the inner axis to a program, at most
_SIDE = 32  # of a square tile, where source and result are contiguous along different axes: both keep their lines
_MOST_BLOCKS = 65535  # programs along the second axis of a grid, the least that a GPU's driver takes
_WIDE = 2**31 - 2**16  # elements that are addressed in 32 bits, the padding of the last tile too
_PLACES = ("0", "1", "2", "3", "_inner")  # what a kernel calls its axes

# Elements are moved as integers of their width, so that every bit pattern arrives as it was; a complex one as two.
_CARRIERS = {8: "uint8", 16: "int16", 32: "int32", 64: "int64"}


def _carrier(op: str, dtype: str) -> tuple[str, int]:
    """Return (dtype a kernel moves elements of ``dtype`` in, how many of them make one element)."""
    width = bits(dtype)
    if width < 8:
        raise UnsupportedError(f"{op}: elements of a byte or more. Got {dtype}.")
    return (_CARRIERS[width], 1) if width in _CARRIERS else (_CARRIERS[64], width // 64)


def _regions(
    shape: tuple[int, ...], layouts: list[tuple[int, ...]]
) -> Iterator[tuple[list[int], list[tuple[int, ...]], dict[str, int], dict[str, Any], tuple[int, int]]]:
    """Yield (offset and five strides per layout, sizes, constants, grid) of each launch that walks the region.

    The first layout orders the axes. Axes past those a kernel walks are walked by launches, and so is an inner axis of
    more blocks than a grid has along its second axis.
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
        for start in range(0, inner, _MOST_BLOCKS * block):
            length = min(inner - start, _MOST_BLOCKS * block)
            offsets = [
                sum(i * s for i, s in zip(index, w[:beyond], strict=True)) + start * inside[-1]
                for w, inside in zip(walked, strides, strict=True)
            ]
            sizes = {"n1": n1, "n2": n2, "n3": n3, "rows": rows, "inner": length}
            yield offsets, strides, sizes, constants, (-(-rows // per_program), -(-length // block))


def _crossing(walked: tuple[tuple[int, ...], ...]) -> int | None:
    """Return the axis along which the source is contiguous, where that is not the inner one; None otherwise."""
    if len(walked) < 2 or not walked[1] or abs(walked[1][-1]) <= 1:
        return None
    return next((i for i, stride in enumerate(walked[1]) if abs(stride) == 1), None)


def _copy_launches_of(call: Call, source: str, region: Spec, offset: int) -> Iterator[Launch]:
    """Yield the launches that copy operand ``source`` into ``region`` of the result, ``offset`` elements in."""
    spec = call[source]
    dtype, parts = _carrier(call.op.name, spec.dtype)
    shape, layouts = spec.shape, [region.strides, spec.strides]
    if parts > 1:
        shape = (*shape, parts)
        layouts = [(*(s * parts for s in strides), 1) for strides in layouts]
    for (to, start), (y, x), sizes, constants, grid in _regions(shape, layouts):
        arguments = {
            "y": Pointer("output", 0, dtype, offset * parts + to),
            "x": Pointer("input", source, dtype, start),
            **sizes,
            **{f"y{p}": s for p, s in zip(_PLACES, y, strict=True)},
            **{f"x{p}": s for p, s in zip(_PLACES, x, strict=True)},
        }
        yield Launch("copy_kernel", grid, arguments, constants)


def _cost(call: Call) -> Cost:
    return Cost(flops=0, read=call.operand_nbytes, written=call.result_nbytes)


# ---- copy


def _packed(call: Call) -> Spec:
    return call["x"].packed()


def _copy_launches(call: Call) -> tuple[Launch, ...]:
    return tuple(_copy_launches_of(call, "x", call.outputs[0], 0))


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
    kernels=(Kernel("copy_kernel", _cost, _copy_launches),),
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


def _concat_launches(call: Call) -> tuple[Launch, ...]:
    axis, out = _concat_axis(call), call.outputs[0]
    launches: list[Launch] = []
    start = 0
    for name, part in call.inputs.items():
        if part.numel:
            region = Spec(part.shape, part.dtype, out.strides)
            launches.extend(_copy_launches_of(call, name, region, start * out.strides[axis]))
        start += part.shape[axis]
    return tuple(launches)


def _concat_reference(arrays: Sequence[Array], axis: int = 0) -> Array:
    return np.concatenate(list(arrays), axis)


def _parts(*shapes_: tuple[int, ...], dtype: str = "float32") -> dict[str, Spec]:
    return {f"arrays.{i}": Spec(s, dtype) for i, s in enumerate(shapes_)}


@declare(
    result=_concat_result,
    reference=_concat_reference,
    kernels=(Kernel("copy_kernel", _cost, _concat_launches),),
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
        pairs = ((operator.index(given),) * 2,) * ndim if not isinstance(given, Sequence) else _pairs(given)
    except TypeError:
        pairs = None
    if pairs is None or len(pairs) != ndim or any(len(p) != 2 or min(p) < 0 for p in pairs):
        raise ArgumentError(f"pad: one (before, after) pair of counts per axis, or one count. Got {given!r}.")
    return tuple((a, b) for a, b in pairs)


def _pairs(given: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(operator.index, pair)) for pair in given)


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
        launches.extend(_copy_launches_of(call, "x", Spec(x.shape, x.dtype, out.strides), inside))
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
    for (to,), (y,), sizes, constants, grid in _regions(shape, [out.strides]):
        arguments = {
            "y": Pointer("output", 0, out.dtype if dtype == "int1" else dtype, offset + to),
            "value": number,
            **sizes,
            **{f"y{p}": s for p, s in zip(_PLACES, y, strict=True)},
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
