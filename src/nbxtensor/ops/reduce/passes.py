"""What a reduction computes, apart from where its elements lie."""

from __future__ import annotations

from dataclasses import dataclass

from nbxtensor.dtype.itemsize import bits, kind
from nbxtensor.dtype.limits import iinfo

__all__ = ["Pass", "Reduction", "accumulator", "highest", "lowest"]


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over the elements.

    Attributes:
        lift: Device function of the family that turns elements into totals.
        combine: Device function that joins two totals.
        identity: Triton source of the total of no element.
        finish: Device function that makes the result of a total.
        compute: Dtype that elements are lifted in.
        total: Dtype of totals.
        number: The number ``p`` that its functions are given.
        centred: Whether ``finish`` uses the result of the pass before.
    """

    lift: str
    combine: str
    identity: str
    finish: str
    compute: str
    total: str
    number: float = 0.0
    centred: bool = False


@dataclass(frozen=True, slots=True)
class Reduction:
    """One walk over the elements, or two, the second one given the result of the first.

    Attributes:
        passes: The walks.
        indexed: Whether a lift looks at the place of an element.
        flops: Operations per element, of all walks.
    """

    passes: tuple[Pass, ...]
    indexed: bool = False
    flops: int = 1


def accumulator(dtype: str) -> str:
    """Return the dtype in which elements of ``dtype`` are compared or summed: at least 32 bits wide.

    >>> accumulator("float16"), accumulator("bool"), accumulator("uint64")
    ('float32', 'int32', 'uint64')
    """
    if kind(dtype) == "float":
        return "float64" if dtype == "float64" else "float32"
    return dtype if kind(dtype) != "bool" and bits(dtype) >= 32 else "int32"


def lowest(dtype: str) -> str:
    """Return Triton source of the value that no other of ``dtype`` is below."""
    return 'float("-inf")' if kind(dtype) == "float" else str(iinfo(dtype).min)


def highest(dtype: str) -> str:
    """Return Triton source of the value that no other of ``dtype`` is above."""
    return 'float("inf")' if kind(dtype) == "float" else str(iinfo(dtype).max)
