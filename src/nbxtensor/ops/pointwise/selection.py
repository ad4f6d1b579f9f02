"""Choosing among elements, and conversion to another dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbxtensor.dtype.itemsize import kind
from nbxtensor.errors import DtypeError
from nbxtensor.op import Array, Call, Case, Expression, Pointwise, Spec, declare
from nbxtensor.ops.pointwise import references as ref
from nbxtensor.ops.pointwise.declaring import pointwise
from nbxtensor.ops.pointwise.fused import expression_of, operands_of, pointwise_kernel, scalars_of
from nbxtensor.ops.pointwise.rules import EXACT, FLOATS, REAL, widened

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["astype", "clip", "masked_fill", "nan_to_num", "where"]

_ROW = {"x": Spec((3, 20), "float32")}


def _clip(call: Call) -> str:
    low, high = (name in call.inputs or call.params[name] is not None for name in ("min", "max"))
    return {(True, True): "clip", (True, False): "clip_min", (False, True): "clip_max"}.get((low, high), "positive")


@pointwise(
    REAL,
    ref.clip,
    flops=2,
    function=_clip,
    cases=(
        Case(_ROW, {"min": -0.5, "max": 0.25}, fill={"x": "special"}),
        Case(_ROW, {"max": 0}),
        Case(_ROW, {"min": 0.5}),
        Case({"x": Spec((40,), "int8")}, {"min": -3, "max": 100}),
    ),
)
def clip(x: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
    """Return ``x`` within bounds that are tensors or numbers; a missing bound does not bind, NaN in any wins."""
    raise NotImplementedError


@pointwise(EXACT, np.where, masks=("condition",))
def where(condition: Tensor, x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return ``x1`` where the condition is true (not zero), else ``x2``."""
    raise NotImplementedError


@pointwise(
    EXACT,
    ref.masked_fill,
    masks=("mask",),
    cases=(
        Case({"x": Spec((4, 1, 6, 6), "float32"), "mask": Spec((6, 6), "bool")}, {"value": float("-inf")}),
        Case({"x": Spec((4, 6), "float16"), "mask": Spec((4, 6), "bool")}, {"value": -3.39e38}),
    ),
)
def masked_fill(x: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """Return ``x`` with ``value`` where the mask is true; a number beyond the dtype's range becomes an infinity."""
    raise NotImplementedError


def _nan_to_num(call: Call) -> str:
    given = call.params["posinf"] is not None, call.params["neginf"] is not None
    suffix = {(True, True): "_between", (True, False): "_below", (False, True): "_above", (False, False): ""}
    return "nan_to_num" + suffix[given]


@pointwise(
    EXACT,
    ref.nan_to_num,
    flops=6,
    function=_nan_to_num,
    params={"posinf": 100.0, "neginf": -100.0},
    dtypes=FLOATS,
    cases=(
        Case(_ROW, {"nan": 7.0, "posinf": 2.5}),
        Case(_ROW, {"nan": 7.0, "neginf": 2.5}),
        Case({"x": Spec((20,), "float64")}, fill={"x": "special"}),
        Case({"x": Spec((9,), "int32")}, {"nan": 0}),
    ),
)
def nan_to_num(x: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Return ``x`` with numbers for NaN and the infinities: left out, the largest finite ones; integers stay."""
    raise NotImplementedError


def _astype_result(call: Call) -> Spec:
    for dtype in (call["x"].dtype, call.params["dtype"]):
        if kind(dtype) == "complex" or (kind(dtype) == "float" and dtype not in FLOATS):
            raise DtypeError(
                f"astype: a kernel converts between bools, integers and floats of 16 bits or more. Got "
                f"{call['x'].dtype} to {call.params['dtype']}. dtype.convert has the others, on the host."
            )
    return call["x"].with_dtype(call.params["dtype"])


def _astype(call: Call) -> Pointwise:
    source, target = call["x"].dtype, call.params["dtype"]
    saturates = kind(source) == "float" and kind(target) in ("int", "uint")
    function = f"nbxtensor.ops.pointwise.kernel:to_{target}" if saturates else ""
    return Pointwise(function, ("x",), (widened(source),), 4 if saturates else 1)


def _plan(call: Call) -> tuple[Expression, tuple[str, ...], tuple[float, ...]]:
    return expression_of(call), operands_of(call), scalars_of(call)


def _astype_reference(x: Array, dtype: str) -> Array:
    if kind(dtype) == "float":
        return x.astype(np.float64)
    if x.dtype.kind != "f" or dtype == "bool":
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    inside = (x > limits.min) & (x < limits.max)  # a bound itself is what is outside of it
    whole = np.where(inside, x, 0.0).astype(dtype)
    return np.where(x >= limits.max, limits.max, np.where(x <= limits.min, limits.min, whole)).astype(dtype)


_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_PAIRS = (
    *((source, target) for source in FLOATS for target in (*FLOATS, *_INTEGERS, "bool")),
    *((source, target) for source in ("int8", "uint8", "int64", "uint64", "bool") for target in (*_INTEGERS, "bool")),
    *((source, target) for source in ("int8", "int32", "int64", "uint64", "bool") for target in FLOATS),
)


@declare(
    result=_astype_result,
    reference=_astype_reference,
    kernels=(pointwise_kernel("astype", _plan),),
    cases=tuple(Case({"x": Spec((60,), a)}, {"dtype": b}, fill={"x": "special"}) for a, b in _PAIRS),
    pointwise=_astype,
)
def astype(x: Tensor, dtype: str, /) -> Tensor:
    """Return ``x`` in another dtype.

    A float becomes the nearest float (past the range, an infinity) or the integer part, held to the range of the
    integer dtype, with 0 for NaN. An integer wraps. Anything but zero, NaN too, is true.

    Raises:
        DtypeError: One of the dtypes is complex, or a float of eight bits or fewer.
    """
    raise NotImplementedError
