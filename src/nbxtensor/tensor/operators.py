"""Python's operators on tensors, and the methods that array users expect, each one call of an op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbxtensor.ops.deferred import Deferred

if TYPE_CHECKING:
    from nbxtensor.ops.matmul import op as products
    from nbxtensor.ops.pointwise import arithmetic, comparison, selection
    from nbxtensor.ops.reduce import op as reductions
    from nbxtensor.tensor.tensor import Tensor
else:
    products = Deferred("nbxtensor.ops.matmul.op")
    arithmetic, comparison, selection = (
        Deferred(f"nbxtensor.ops.pointwise.{name}") for name in ("arithmetic", "comparison", "selection")
    )
    reductions = Deferred("nbxtensor.ops.reduce.op")

__all__ = ["Operators"]

Axes = int | tuple[int, ...] | None


class Operators:
    """What a tensor can do by an operator or a method; broadcasting and promotion are the ops' own."""

    __slots__ = ()

    def __hash__(self) -> int:
        """By identity, although == compares elements."""
        return object.__hash__(self)

    def __add__(self: Any, other: Any) -> Tensor:
        return arithmetic.add(self, other)

    def __radd__(self: Any, other: Any) -> Tensor:
        return arithmetic.add(other, self)

    def __sub__(self: Any, other: Any) -> Tensor:
        return arithmetic.subtract(self, other)

    def __rsub__(self: Any, other: Any) -> Tensor:
        return arithmetic.subtract(other, self)

    def __mul__(self: Any, other: Any) -> Tensor:
        return arithmetic.multiply(self, other)

    def __rmul__(self: Any, other: Any) -> Tensor:
        return arithmetic.multiply(other, self)

    def __truediv__(self: Any, other: Any) -> Tensor:
        return arithmetic.divide(self, other)

    def __rtruediv__(self: Any, other: Any) -> Tensor:
        return arithmetic.divide(other, self)

    def __floordiv__(self: Any, other: Any) -> Tensor:
        return arithmetic.floor_divide(self, other)

    def __rfloordiv__(self: Any, other: Any) -> Tensor:
        return arithmetic.floor_divide(other, self)

    def __mod__(self: Any, other: Any) -> Tensor:
        return arithmetic.remainder(self, other)

    def __rmod__(self: Any, other: Any) -> Tensor:
        return arithmetic.remainder(other, self)

    def __pow__(self: Any, other: Any) -> Tensor:
        return arithmetic.pow(self, other)

    def __rpow__(self: Any, other: Any) -> Tensor:
        return arithmetic.pow(other, self)

    def __and__(self: Any, other: Any) -> Tensor:
        return comparison.bitwise_and(self, other)

    def __rand__(self: Any, other: Any) -> Tensor:
        return comparison.bitwise_and(other, self)

    def __or__(self: Any, other: Any) -> Tensor:
        return comparison.bitwise_or(self, other)

    def __ror__(self: Any, other: Any) -> Tensor:
        return comparison.bitwise_or(other, self)

    def __xor__(self: Any, other: Any) -> Tensor:
        return comparison.bitwise_xor(self, other)

    def __rxor__(self: Any, other: Any) -> Tensor:
        return comparison.bitwise_xor(other, self)

    def __lshift__(self: Any, other: Any) -> Tensor:
        return comparison.bitwise_left_shift(self, other)

    def __rlshift__(self: Any, other: Any) -> Tensor:
        return comparison.bitwise_left_shift(other, self)

    def __rshift__(self: Any, other: Any) -> Tensor:
        return comparison.bitwise_right_shift(self, other)

    def __rrshift__(self: Any, other: Any) -> Tensor:
        return comparison.bitwise_right_shift(other, self)

    def __eq__(self: Any, other: Any) -> Tensor:  # type: ignore[override]
        return comparison.equal(self, other)

    def __ne__(self: Any, other: Any) -> Tensor:  # type: ignore[override]
        return comparison.not_equal(self, other)

    def __lt__(self: Any, other: Any) -> Tensor:
        return comparison.less(self, other)

    def __le__(self: Any, other: Any) -> Tensor:
        return comparison.less_equal(self, other)

    def __gt__(self: Any, other: Any) -> Tensor:
        return comparison.greater(self, other)

    def __ge__(self: Any, other: Any) -> Tensor:
        return comparison.greater_equal(self, other)

    def __neg__(self: Any) -> Tensor:
        return arithmetic.negative(self)

    def __pos__(self: Any) -> Tensor:
        return arithmetic.positive(self)

    def __abs__(self: Any) -> Tensor:
        return arithmetic.abs(self)

    def __invert__(self: Any) -> Tensor:
        return comparison.bitwise_invert(self)

    def __matmul__(self: Any, other: Any) -> Tensor:
        return products.matmul(self, other)

    def __rmatmul__(self: Any, other: Any) -> Tensor:
        return products.matmul(other, self)

    def astype(self: Any, dtype: str) -> Tensor:
        """Return the elements converted to ``dtype``."""
        return selection.astype(self, dtype)

    def sum(self: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Return `nbxtensor.sum` of the tensor."""
        return reductions.sum(self, axis=axis, keepdims=keepdims)

    def mean(self: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Return `nbxtensor.mean` of the tensor."""
        return reductions.mean(self, axis=axis, keepdims=keepdims)

    def max(self: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Return `nbxtensor.max` of the tensor."""
        return reductions.max(self, axis=axis, keepdims=keepdims)

    def min(self: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Return `nbxtensor.min` of the tensor."""
        return reductions.min(self, axis=axis, keepdims=keepdims)

    def prod(self: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Return `nbxtensor.prod` of the tensor."""
        return reductions.prod(self, axis=axis, keepdims=keepdims)

    def any(self: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Return `nbxtensor.any` of the tensor."""
        return reductions.any(self, axis=axis, keepdims=keepdims)

    def all(self: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Return `nbxtensor.all` of the tensor."""
        return reductions.all(self, axis=axis, keepdims=keepdims)

    def argmax(self: Any, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """Return `nbxtensor.argmax` of the tensor."""
        return reductions.argmax(self, axis=axis, keepdims=keepdims)

    def argmin(self: Any, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
        """Return `nbxtensor.argmin` of the tensor."""
        return reductions.argmin(self, axis=axis, keepdims=keepdims)
