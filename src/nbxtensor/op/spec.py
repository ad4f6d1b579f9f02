"""A value without its data: shape, dtype and layout."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits, canonical
from nbxtensor.errors import ShapeError

__all__ = ["Spec"]


@dataclass(frozen=True, slots=True)
class Spec:
    """A value's shape, dtype and strides, without its data.

    Attributes:
        shape: Extents, none negative; a `nbxtensor.Dim` stands for an extent that calls of a program choose.
        dtype: A name of the dtype table; given as any of its spellings ("half", a numpy dtype).
        strides: Elements (never bytes) between neighbours along each axis; row-major when left out.

    Raises:
        ShapeError: Extents or strides that are no integers, a negative extent, 2**59 elements or more, or another
            number of strides than axes.
        UnknownDtypeError: A dtype the table does not carry.

    >>> Spec((2, 3), "float32").strides
    (3, 1)
    """

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the extents and fill in row-major strides."""
        object.__setattr__(self, "dtype", canonical(self.dtype))
        extents = shapes.as_shape(self.shape, op="Spec")
        try:
            strides = tuple(map(shapes.integer, self.strides)) or shapes.contiguous_strides(extents)
        except TypeError:
            raise ShapeError(f"Spec: strides are integers. Got {self.strides!r}. Elements, one int per axis.") from None
        if len(strides) != len(extents):
            raise ShapeError(f"Spec: one stride per axis. Got shape {self.shape} with strides {self.strides}.")
        given: object = self.shape
        if isinstance(given, (tuple, list)) and shapes.Dim in map(type, given):  # `trace` asks for them
            extents = tuple(d if type(d) is shapes.Dim else n for d, n in zip(given, extents, strict=True))
        object.__setattr__(self, "shape", extents)
        object.__setattr__(self, "strides", strides)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, packed: ``ceil(numel * bits / 8)``."""
        return -(-self.numel * bits(self.dtype) // 8)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie row-major without gaps."""
        return shapes.is_contiguous(self.shape, self.strides)

    def packed(self) -> Spec:
        """Return the same shape and dtype, laid out row-major."""
        return Spec(tuple(map(int, self.shape)), self.dtype)

    def with_dtype(self, dtype: str) -> Spec:
        """Return the same shape, packed, in ``dtype``."""
        return Spec(self.shape, dtype)
