"""How a reduction is declared: its passes from the dtype of its operand, its result rule, and cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits, kind
from nbxtensor.errors import DtypeError, ShapeError
from nbxtensor.op import Call, Case, OpFunction, Spec, declare
from nbxtensor.ops.reduce.passes import Reduction
from nbxtensor.ops.reduce.plan import kernels, reduced_axes, result_shape

__all__ = ["reduced_count", "reduction"]

P = ParamSpec("P")
R = TypeVar("R")


def reduced_count(call: Call) -> int:
    """Return the number of elements behind each result."""
    return shapes.numel(tuple(call["x"].shape[axis] for axis in reduced_axes(call)))


def reduction(
    rule: Callable[[Call], Reduction],
    dtype: Callable[[Call], str],
    reference: Callable[..., Any],
    *,
    kinds: Sequence[str] = ("float", "int", "uint", "bool"),
    empty: bool = True,
    cases: Sequence[Case] = (),
    params: Mapping[str, Any] | None = None,
    single: bool = False,
    rtol: float | None = None,
) -> Callable[[Callable[P, R]], OpFunction[P, R]]:
    """Declare a reduction of ``x`` over ``axis``.

    Args:
        rule: The passes of a call.
        dtype: Dtype of its result.
        reference: The same function on numpy arrays.
        kinds: Kinds of dtype that ``x`` may have.
        empty: Whether no element at all has a result.
        cases: Cases beside those made here.
        params: Parameters of the cases made here.
        single: Whether it takes one axis, or None, and not several.
        rtol: Bound of the float32 cases, where rounding of the elements before they cancel is what counts.
    """

    def result(call: Call) -> Spec:
        x = call["x"]
        if kind(x.dtype) not in kinds or bits(x.dtype) < 8 or x.dtype.startswith("float8"):
            raise DtypeError(
                f"{call.op.name}: the dtype of x has no such reduction. Got {x.dtype}. Elements of 8 bits or more "
                f"(floats: 16) of kind {', '.join(kinds)} are accepted."
            )
        shape = result_shape(call)
        if not empty and not reduced_count(call) and shapes.numel(shape):
            raise ShapeError(
                f"{call.op.name}: no element has no extreme one. Got shape {x.shape}, axis {call.params['axis']}. "
                "Reduced axes of at least one element are accepted."
            )
        return Spec(shape, dtype(call))

    def wrap(stub: Callable[P, R]) -> OpFunction[P, R]:
        made = [c for c in _cases(params or {}, empty=empty, single=single) if kind(c.operands["x"].dtype) in kinds]
        if rtol is not None:
            floats = [c for c in made if not c.fill]  # squares of the largest special values are infinite
            made = [replace(c, rtol=rtol) if c.operands["x"].dtype == "float32" else c for c in floats]
        return declare(result=result, reference=reference, kernels=kernels(rule), cases=(*made, *cases))(stub)

    return wrap


def _cases(params: Mapping[str, Any], *, empty: bool, single: bool) -> list[Case]:
    """Return cases: rows, columns, several axes, strided operands, cut sums, no element and one."""

    def case(
        shape: tuple[int, ...], dtype: str, axis: Any, *, strides: tuple[int, ...] = (), fill: str = "", **more: Any
    ) -> Case:
        fills = {"x": fill} if fill else {}
        return Case({"x": Spec(shape, dtype, strides)}, {**params, "axis": axis, **more}, fill=fills)

    cases = [
        case((5, 37), "float32", -1),
        case((3, 5000), "float32", 1),
        case((70, 33), "float32", 0, keepdims=True),
        case((6, 5, 9), "float16", 1),
        case((4, 130), "bfloat16", 1, keepdims=True),
        case((3, 4, 65), "float64", 2, strides=(520, 130, 2)),
        case((7, 12), "float32", 0, strides=(1, 7)),
        case((9, 40), "int32", 1),
        case((33, 7), "uint8", 0),
        case((20, 30), "bool", 1),
        case((3, 300000), "float32", 1),
        case((21, 20), "float32", 1, fill="special"),
        case((), "float32", None),
        case((0, 3), "float32", 1),
        case((2, 70000), "float32", 0),
        case((3, 0), "float32", 0),
    ]
    if not single:
        cases += [
            case((4, 5, 6, 7), "float32", (0, 2), keepdims=True),
            case((4, 5, 6, 7), "float16", (3, 1)),
            case((300, 2, 400), "float32", (0, 2)),
            case((5, 6, 7), "float32", (0, 2), strides=(1, 5, 30)),
            case((3, 4), "float32", ()),
        ]
    else:
        cases.append(case((4, 5, 60), "float32", None))
    return cases + ([case((4, 0, 3), "float32", 1)] if empty else [])
