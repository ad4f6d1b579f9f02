"""take, take_along_axis and embedding: reads at places that are data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits, nbytes
from nbxtensor.dtype.itemsize import kind as dtype_kind
from nbxtensor.errors import DtypeError, ShapeError, UnsupportedError
from nbxtensor.op import Array, Call, Case, Cost, Kernel, Launch, Spec, declare
from nbxtensor.shape.collapse import collapse

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["embedding", "take", "take_along_axis"]

_BLOCK = 1024
_WIDE = 2**31
_NINE = {"indices": "index:9"}  # how cases fill indices into nine entries


def _check(call: Call, values: str) -> None:
    index, dtype = call["indices"].dtype, call[values].dtype
    if dtype_kind(index) not in ("int", "uint") or index == "uint64":
        raise DtypeError(f"{call.op.name}: indices are integers other than uint64. Got {index}.")
    if dtype_kind(dtype) == "complex" or bits(dtype) < 8 or dtype.startswith("float8"):
        raise DtypeError(f"{call.op.name}: real elements of a byte or more, float8 apart. Got {dtype}.")


def _missing(dtype: str) -> float | int | bool:
    if dtype == "bool":
        return False
    return float("nan") if dtype_kind(dtype) == "float" else 0


def _is_wide(call: Call) -> bool:
    specs = (*call.inputs.values(), *call.outputs)
    return any(shapes.extent_span(s.shape, s.strides) >= _WIDE for s in specs)


def _widths(call: Call) -> dict[str, Any]:
    """Return the constants that say how wide places and indices are: no index wraps before it is compared."""
    dtype, wide = call["indices"].dtype, _is_wide(call)
    index = "tl.int64" if wide or bits(dtype) == 64 or dtype == "uint32" else "tl.int32"
    return {"WIDE": wide, "INDEX": index}


def _block(extent: int) -> int:
    return min(_BLOCK, 1 << (extent - 1).bit_length())


def _flat_stride(op: str, indices: Spec) -> int:
    extents, (strides,) = collapse(indices.shape, [indices.strides])
    if len(extents) > 1:
        raise UnsupportedError(f"{op}: indices that lie evenly spaced. Got strides {indices.strides}. copy packs them.")
    return strides[0] if strides else 0


def _cost(values: str) -> Any:
    def cost(call: Call) -> Cost:
        """Only what is taken is read, and no more than there is."""
        taken = min(call.result_nbytes, nbytes(call[values].dtype, call[values].numel))
        return Cost(flops=0, read=call["indices"].nbytes + taken, written=call.result_nbytes)

    return cost


def _rows_launch(call: Call, values: str, axis: int) -> tuple[Launch, ...]:
    """Launch over (outer, places, inner): rows where there is an inner extent, single elements where there is none."""
    x, indices = call[values], call["indices"]
    outer, (x_outer,) = collapse(x.shape[:axis], [x.strides[:axis]])
    inner, (x_inner,) = collapse(x.shape[axis + 1 :], [x.strides[axis + 1 :]])
    if len(outer) > 1 or len(inner) > 1:
        raise UnsupportedError(
            f"{call.op.name}: axes before and after the taken one that merge. Got strides {x.strides}. copy packs them."
        )
    count, width, times = indices.numel, shapes.numel(inner), shapes.numel(outer)
    arguments: dict[str, Any] = {
        "y": call.output(),
        "x": call.input(values),
        "indices": call.input("indices"),
        "count": count,
        "extent": x.shape[axis],
        "i_stride": _flat_stride(call.op.name, indices),
        "x_outer": x_outer[0] if x_outer else 0,
        "x_axis": x.strides[axis],
        "y_outer": count * width,
    }
    constants = {"MISSING": _missing(x.dtype), **_widths(call)}
    if width == 1:
        block = _block(count)
        return (Launch("take_lanes_kernel", (times, -(-count // block)), arguments, constants | {"BLOCK": block}),)
    block = _block(width)
    arguments |= {"inner": width, "x_inner": x_inner[0]}
    grid = (times * count, -(-width // block))
    return (Launch("take_rows_kernel", grid, arguments, constants | {"BLOCK": block}),)


# ---- take


def _take_axis(call: Call) -> int:
    if call.params["axis"] is None:
        if call["x"].ndim != 1:
            raise ShapeError(f"take: an axis for more than one. Got x of shape {call['x'].shape} and axis None.")
        return 0
    return shapes.normalize_axis(call.params["axis"], call["x"].ndim, op="take")


def _take_result(call: Call) -> Spec:
    _check(call, "x")
    x, axis = call["x"].shape, _take_axis(call)
    return Spec((*x[:axis], *call["indices"].shape, *x[axis + 1 :]), call["x"].dtype)


def _take_launch(call: Call) -> tuple[Launch, ...]:
    return _rows_launch(call, "x", _take_axis(call))


def _take_reference(x: Array, indices: Array, axis: int | None = None) -> Array:
    return np.take(x, indices, axis=0 if axis is None else axis)


@declare(
    result=_take_result,
    reference=_take_reference,
    kernels=(Kernel("take_rows_kernel", _cost("x"), _take_launch),),
    cases=(
        *(
            Case({"x": Spec((7, 5), d), "indices": Spec((4,), "int64")}, {"axis": 0}, fill={"indices": "index:7"})
            for d in ("float32", "float16", "bfloat16", "float64", "int8", "int64", "bool")
        ),
        Case({"x": Spec((9,), "float32"), "indices": Spec((3, 4), "int32")}, fill=_NINE),
        Case(
            {"x": Spec((3, 9, 5), "float32"), "indices": Spec((2, 3), "int64")},
            {"axis": 1},
            fill=_NINE,
        ),
        Case(
            {"x": Spec((3, 4, 9), "float32"), "indices": Spec((2100,), "int64")},
            {"axis": -1},
            fill=_NINE,
        ),
        Case(
            {"x": Spec((9, 5), "float32", (1, 9)), "indices": Spec((4,), "int64", (2,))},
            {"axis": 0},
            fill=_NINE,
        ),
        Case({"x": Spec((9, 5), "float32"), "indices": Spec((0,), "int64")}, {"axis": 0}),
    ),
)
def take(x: Tensor, indices: Tensor, axis: int | None = None) -> Tensor:
    """Return the elements of ``x`` at ``indices`` along ``axis``; the indices' shape takes the axis' place.

    A negative index counts from the end. One outside the axis reads nothing: it gives NaN (0 for integers, False).
    """
    raise NotImplementedError


# ---- embedding


def _embedding_result(call: Call) -> Spec:
    _check(call, "weight")
    weight = call["weight"]
    if weight.ndim != 2:
        raise ShapeError(f"embedding: weight [entries, width]. Got shape {weight.shape}.")
    return Spec((*call["indices"].shape, weight.shape[1]), weight.dtype)


def _embedding_launch(call: Call) -> tuple[Launch, ...]:
    return _rows_launch(call, "weight", 0)


def _embedding_reference(weight: Array, indices: Array) -> Array:
    return np.asarray(weight[indices])


def _table(indices: tuple[int, ...], dtype: str = "float32") -> Case:
    specs = {"weight": Spec((50, 24), dtype), "indices": Spec(indices, "int64")}
    return Case(specs, fill={"indices": "index:50"})


@declare(
    result=_embedding_result,
    reference=_embedding_reference,
    kernels=(Kernel("take_rows_kernel", _cost("weight"), _embedding_launch),),
    cases=(_table((6,)), _table((2, 3), "float16"), _table((3,), "bfloat16"), _table(())),
)
def embedding(weight: Tensor, indices: Tensor) -> Tensor:
    """Return ``weight[indices]``: a row of ``weight [entries, width]`` for every index; out of range as in `take`."""
    raise NotImplementedError


# ---- take_along_axis


def _along_result(call: Call) -> Spec:
    _check(call, "x")
    x, indices = call["x"], call["indices"]
    axis = shapes.normalize_axis(call.params["axis"], x.ndim, op="take_along_axis")
    if indices.ndim != x.ndim or any(
        a != b for i, (a, b) in enumerate(zip(x.shape, indices.shape, strict=False)) if i != axis
    ):
        raise ShapeError(
            f"take_along_axis: indices differ from x along axis {axis} only. Got shapes {x.shape} and {indices.shape}."
        )
    return Spec(indices.shape, x.dtype)


def _along_launch(call: Call) -> tuple[Launch, ...]:
    x, indices, out = call["x"], call["indices"], call.outputs[0]
    axis = shapes.normalize_axis(call.params["axis"], x.ndim, op="take_along_axis")
    across = (*x.strides[:axis], 0, *x.strides[axis + 1 :])
    extents, walked = collapse(out.shape, [out.strides, across, indices.strides], order=0)
    if len(extents) > 4:
        raise UnsupportedError(
            f"take_along_axis: layouts that merge into 4 axes. Got strides {x.strides}. copy packs them."
        )
    lead = 4 - len(extents)
    n0, n1, n2, inner = ((1,) * lead) + extents
    y, xs, ind = (((0,) * lead) + w for w in walked)
    block = _block(inner)
    arguments: dict[str, Any] = {
        "y": call.output(), "x": call.input("x"), "indices": call.input("indices"),
        "extent": x.shape[axis], "n1": n1, "n2": n2, "inner": inner, "x_axis": x.strides[axis],
        "x0": xs[0], "x1": xs[1], "x2": xs[2], "x_inner": xs[3],
        "i0_stride": ind[0], "i1_stride": ind[1], "i2_stride": ind[2], "i_inner": ind[3],
        "y0": y[0], "y1": y[1], "y2": y[2],
    }  # fmt: skip
    constants = {"MISSING": _missing(x.dtype), **_widths(call), "BLOCK": block}
    return (Launch("take_along_kernel", (n0 * n1 * n2, -(-inner // block)), arguments, constants),)


def _along_reference(x: Array, indices: Array, axis: int = -1) -> Array:
    return np.take_along_axis(x, indices.astype(np.int64), axis)


@declare(
    result=_along_result,
    reference=_along_reference,
    kernels=(Kernel("take_along_kernel", _cost("x"), _along_launch),),
    cases=(
        Case({"x": Spec((4, 9), "float32"), "indices": Spec((4, 3), "int64")}, fill=_NINE),
        Case(
            {"x": Spec((4, 9, 3), "float16"), "indices": Spec((4, 2, 3), "int32")},
            {"axis": 1},
            fill=_NINE,
        ),
        Case(
            {"x": Spec((9, 4), "int64", (1, 9)), "indices": Spec((5, 4), "int64")},
            {"axis": 0},
            fill=_NINE,
        ),
        Case({"x": Spec((9,), "bool"), "indices": Spec((1500,), "int64")}, fill=_NINE),
    ),
)
def take_along_axis(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """Return, for every place in ``indices``, the element of ``x`` there with its place along ``axis`` replaced.

    The same as ATen's gather for operands that differ along ``axis`` only; out of range as in `take`.
    """
    raise NotImplementedError
