"""Reductions over any axes."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nbxtensor.dtype.itemsize import is_storage_only, kind
from nbxtensor.dtype.promotion import float_math_input
from nbxtensor.errors import DtypeError
from nbxtensor.op import Call, Case, Spec
from nbxtensor.ops.reduce import references as ref
from nbxtensor.ops.reduce.declaring import reduced_count, reduction
from nbxtensor.ops.reduce.passes import Pass, Reduction, accumulator, highest, lowest

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "logsumexp",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
    "vector_norm",
]

Axis = int | tuple[int, ...] | None
Rule = Callable[[Call], Reduction]
_BENCH = (Case({"x": Spec((2048, 4096), "float32")}, {"axis": -1}, bench=True),)
_TYPED = (
    Case({"x": Spec((5, 60), "float16")}, {"axis": 1, "dtype": "float32"}),
    Case({"x": Spec((5, 60), "int8")}, {"axis": 0, "dtype": "float64"}),
    Case({"x": Spec((5, 60), "uint8")}, {"axis": 0, "dtype": "int32"}),
)
_SQUARES = 2.0**-20  # of the largest result: squares of numbers that are off by 2**-24 of the largest element
_CORRECTED = (
    Case({"x": Spec((5, 60), "float32")}, {"axis": 1, "correction": 1}),
    Case({"x": Spec((5, 1), "float32")}, {"axis": 1, "correction": 1.0}),
)
_ORDERS = tuple(
    Case({"x": Spec((5, 60), "float32")}, {"axis": 1, "ord": order})
    for order in (0, 1, 3, 2.5, -1, float("inf"), float("-inf"))
)


def _same(call: Call) -> str:
    return call["x"].dtype


def _float(call: Call) -> str:
    return float_math_input(call["x"].dtype)


def _bool(call: Call) -> str:
    return "bool"


def _index(call: Call) -> str:
    return "int64"


def _wide(call: Call) -> str:
    """Dtype of a sum: the one asked for, else the operand's, integers widened to 64 bits."""
    if call.params["dtype"] is not None:
        return call.params["dtype"]
    return {"float": call["x"].dtype, "uint": "uint64"}.get(kind(call["x"].dtype), "int64")


def _checked(call: Call) -> str:
    """`_wide`, where a dtype that was asked for holds what the operand holds."""
    wide = _wide(call)
    order = ("bool", "uint", "int", "float")
    if (
        is_storage_only(wide)
        or kind(wide) not in order[1:]
        or order.index(kind(wide)) < order.index(kind(call["x"].dtype))
    ):
        raise DtypeError(
            f"{call.op.name}: dtype is of the operand's kind or of one that holds it. Got {wide} for "
            f"{call['x'].dtype}. An integer or float dtype, a float one for floats."
        )
    return wide


def _over_wide(combine: str, identity: str) -> Rule:
    def rule(call: Call) -> Reduction:
        total = accumulator(_wide(call))
        return Reduction((Pass("itself", combine, identity, "total_itself", total, total),))

    return rule


def _real(call: Call, lift: str, finish: str, number: float = 0.0) -> Pass:
    """A sum in the dtype that floats of the operand are summed in."""
    total = accumulator(_float(call))
    return Pass(lift, "plus", "0", finish, total, total, number)


def _mean(call: Call) -> Reduction:
    return Reduction((_real(call, "itself", "divided", reduced_count(call)),))


def _spread(finish: str) -> Rule:
    def rule(call: Call) -> Reduction:
        count = reduced_count(call)
        left = builtins.max(count - float(call.params["correction"]), 0.0)
        return Reduction((_real(call, "itself", "divided", count), _real(call, "deviation", finish, left)), flops=4)

    return rule


def _extreme(call: Call, *, high: bool) -> Pass:
    total = accumulator(call["x"].dtype)
    combine, identity = ("larger", lowest(total)) if high else ("smaller", highest(total))
    return Pass("itself", combine, identity, "total_itself", total, total)


def _extreme_of(*, high: bool) -> Rule:
    def rule(call: Call) -> Reduction:
        return Reduction((_extreme(call, high=high),))

    return rule


def _place_of(*, high: bool) -> Rule:
    def rule(call: Call) -> Reduction:
        value = _extreme(call, high=high)
        index = "int64" if reduced_count(call) >= 2**31 else "int32"
        place = Pass("place", "smaller", highest(index), "total_itself", value.compute, index)
        return Reduction((value, place), indexed=True, flops=2)

    return rule


def _truth(combine: str, identity: str) -> Rule:
    def rule(call: Call) -> Reduction:
        return Reduction((Pass("true", combine, identity, "total_itself", accumulator(call["x"].dtype), "int32"),))

    return rule


def _count(call: Call) -> Reduction:
    total = "int64" if reduced_count(call) >= 2**31 else "int32"
    return Reduction((Pass("true", "plus", "0", "total_itself", accumulator(call["x"].dtype), total),))


def _norm(call: Call) -> Reduction:
    order = float(call.params["ord"])
    if math.isinf(order):
        total = accumulator(_float(call))
        combine, identity = ("larger", "0") if order > 0 else ("smaller", highest(total))
        return Reduction((Pass("magnitude", combine, identity, "total_itself", total, total),), flops=2)
    known = {
        0.0: ("nonzero", "total_itself"),
        1.0: ("magnitude", "total_itself"),
        2.0: ("squared", "root"),
    }
    lift, finish = known.get(order, ("powered", "powered_root"))
    return Reduction((_real(call, lift, finish, order),), flops=2 if order in known else 30)


def _logsumexp(call: Call) -> Reduction:
    total = accumulator(_float(call))
    high = Pass("itself", "larger", lowest(total), "total_itself", total, total)
    return Reduction((high, replace(_real(call, "exponential", "logarithm"), centred=True)), flops=14)


@reduction(_over_wide("plus", "0"), _checked, ref.total, params={"dtype": None}, cases=(*_BENCH, *_TYPED))
def sum(x: Tensor, /, *, axis: Axis = None, dtype: str | None = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Return the sum over ``axis`` (all axes for None).

    The half formats are summed in float32; integers and bools in 64 bits, where they wrap.

    Args:
        x: Any tensor.
        axis: One axis or several.
        dtype: Dtype of the result and of the sum; left out, that of ``x``, 64 bits wide for integers.
        keepdims: Whether a reduced axis stays with extent 1.

    Raises:
        DtypeError: ``dtype`` does not hold the elements of ``x``.
        BoundsError: An axis is out of range.
    """
    raise NotImplementedError


@reduction(_over_wide("times", "1"), _checked, ref.product, params={"dtype": None})
def prod(x: Tensor, /, *, axis: Axis = None, dtype: str | None = None, keepdims: bool = False) -> Tensor:
    """Return the product over ``axis`` (all axes for None); of no element, 1. Dtypes are those of `sum`."""
    raise NotImplementedError


@reduction(_mean, _float, ref.mean)
def mean(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the mean over ``axis`` (all axes for None); of no element, NaN. Integers are read as float32."""
    raise NotImplementedError


@reduction(_spread("divided"), _float, ref.spread(np.var), params={"correction": 0.0}, cases=_CORRECTED, rtol=_SQUARES)
def var(x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Return the variance over ``axis``: squares of distances from the mean, divided by ``n - correction``.

    It is computed in two passes, so that a large mean costs no digits. Integers are read as float32.
    """
    raise NotImplementedError


@reduction(
    _spread("divided_root"), _float, ref.spread(np.std), params={"correction": 0.0}, cases=_CORRECTED, rtol=_SQUARES
)
def std(x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Return the square root of `var`."""
    raise NotImplementedError


@reduction(_extreme_of(high=True), _same, ref.extreme(np.max), empty=False)
def max(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Return the largest element over ``axis`` (all axes for None); NaN where there is one.

    Raises:
        ShapeError: There is no element.
    """
    raise NotImplementedError


@reduction(_extreme_of(high=False), _same, ref.extreme(np.min), empty=False)
def min(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Return the smallest element over ``axis`` (all axes for None); NaN where there is one.

    Raises:
        ShapeError: There is no element.
    """
    raise NotImplementedError


@reduction(_place_of(high=True), _index, ref.arg(np.argmax), empty=False, single=True)
def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the int64 index of the first largest element along ``axis`` (of all, row-major, for None).

    A NaN counts as the largest.

    Raises:
        ShapeError: There is no element.
    """
    raise NotImplementedError


@reduction(_place_of(high=False), _index, ref.arg(np.argmin), empty=False, single=True)
def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the int64 index of the first smallest element along ``axis`` (of all, row-major, for None).

    A NaN counts as the smallest.

    Raises:
        ShapeError: There is no element.
    """
    raise NotImplementedError


@reduction(_truth("larger", "0"), _bool, ref.truth(np.any))
def any(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Return whether some element over ``axis`` (all axes for None) is true (not zero, NaN too)."""
    raise NotImplementedError


@reduction(_truth("smaller", "1"), _bool, ref.truth(np.all))
def all(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:  # noqa: A001
    """Return whether every element over ``axis`` (all axes for None) is true (not zero, NaN too)."""
    raise NotImplementedError


@reduction(_count, _index, ref.nonzeros)
def count_nonzero(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the int64 number of elements over ``axis`` (all axes for None) that are not zero; NaN is not."""
    raise NotImplementedError


@reduction(_norm, _float, ref.vector_norm, params={"ord": 2}, cases=_ORDERS, rtol=_SQUARES)
def vector_norm(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """Return ``sum(|x|**ord) ** (1 / ord)`` over ``axis`` (all axes for None).

    Args:
        x: A tensor; integers and bools are read as float32.
        axis: One axis or several.
        keepdims: Whether a reduced axis stays with extent 1.
        ord: 0 counts the elements that are not zero, infinity takes the largest magnitude, minus infinity the smallest.
    """
    raise NotImplementedError


@reduction(_logsumexp, _float, ref.logsumexp)
def logsumexp(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return ``log(sum(exp(x)))`` over ``axis`` (all axes for None) without overflow on the way; of none, -inf."""
    raise NotImplementedError
