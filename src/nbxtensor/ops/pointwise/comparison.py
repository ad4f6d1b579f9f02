"""Comparisons, tests, logic and bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbxtensor.op import Case, Spec
from nbxtensor.ops.pointwise import references as ref
from nbxtensor.ops.pointwise.declaring import pointwise
from nbxtensor.ops.pointwise.rules import BITS, INTEGER, PREDICATE

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = [
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "equal",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
    "signbit",
]

_BITS = ("int32", "int8", "uint8", "int64", "bool")
_SMALL = (Case({"x1": Spec((6, 40), "int8"), "x2": Spec((40,), "int8")}), Case({"x1": Spec((40,), "int32")}, {"x2": 2}))


@pointwise(PREDICATE, np.equal, cases=_SMALL)
def equal(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return whether two elements are equal; NaN equals nothing."""
    raise NotImplementedError


@pointwise(PREDICATE, np.not_equal, cases=_SMALL)
def not_equal(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return whether two elements differ; NaN differs from everything."""
    raise NotImplementedError


@pointwise(PREDICATE, np.less, cases=_SMALL)
def less(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return whether ``x1 < x2``."""
    raise NotImplementedError


@pointwise(PREDICATE, np.less_equal, cases=_SMALL)
def less_equal(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return whether ``x1 <= x2``."""
    raise NotImplementedError


@pointwise(PREDICATE, np.greater, cases=_SMALL)
def greater(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return whether ``x1 > x2``."""
    raise NotImplementedError


@pointwise(PREDICATE, np.greater_equal, cases=_SMALL)
def greater_equal(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return whether ``x1 >= x2``."""
    raise NotImplementedError


@pointwise(PREDICATE, np.isnan)
def isnan(x: Tensor, /) -> Tensor:
    """Return whether each element is NaN."""
    raise NotImplementedError


@pointwise(PREDICATE, np.isinf, flops=2)
def isinf(x: Tensor, /) -> Tensor:
    """Return whether each element is an infinity."""
    raise NotImplementedError


@pointwise(PREDICATE, np.isfinite, flops=2)
def isfinite(x: Tensor, /) -> Tensor:
    """Return whether each element is neither NaN nor an infinity."""
    raise NotImplementedError


@pointwise(PREDICATE, ref.signbit)
def signbit(x: Tensor, /) -> Tensor:
    """Return whether the sign of each element is set; it is in -0."""
    raise NotImplementedError


@pointwise(PREDICATE, np.logical_not)
def logical_not(x: Tensor, /) -> Tensor:
    """Return whether each element is zero."""
    raise NotImplementedError


@pointwise(PREDICATE, np.logical_and, flops=3)
def logical_and(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return whether both elements are true (not zero)."""
    raise NotImplementedError


@pointwise(PREDICATE, np.logical_or, flops=3)
def logical_or(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return whether one of two elements, or both, are true (not zero)."""
    raise NotImplementedError


@pointwise(PREDICATE, np.logical_xor, flops=3)
def logical_xor(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return whether one of two elements and not both are true (not zero)."""
    raise NotImplementedError


@pointwise(BITS, np.invert, dtypes=_BITS)
def bitwise_invert(x: Tensor, /) -> Tensor:
    """Return the bits inverted; of bools, ``not x``."""
    raise NotImplementedError


@pointwise(BITS, np.bitwise_and, dtypes=_BITS)
def bitwise_and(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the bits of both elements."""
    raise NotImplementedError


@pointwise(BITS, np.bitwise_or, dtypes=_BITS)
def bitwise_or(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the bits of either element."""
    raise NotImplementedError


@pointwise(BITS, np.bitwise_xor, dtypes=_BITS)
def bitwise_xor(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return the bits of one element and not both."""
    raise NotImplementedError


@pointwise(INTEGER, ref.shift_left, flops=3, dtypes=_BITS)
def bitwise_left_shift(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return ``x1 << x2``; a count outside the width of the dtype leaves 0."""
    raise NotImplementedError


@pointwise(INTEGER, ref.shift_right, flops=3, dtypes=_BITS)
def bitwise_right_shift(x1: Tensor | float, x2: Tensor | float, /) -> Tensor:
    """Return ``x1 >> x2``; a count outside the width of the dtype leaves 0, or -1 for a negative ``x1``."""
    raise NotImplementedError
