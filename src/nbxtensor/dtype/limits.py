"""What a dtype can hold, computed from its row: the extremes of floats and integers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from nbxtensor.dtype.itemsize import facts
from nbxtensor.dtype.table import FloatFormat
from nbxtensor.errors import DtypeError

__all__ = ["FloatLimits", "IntLimits", "finfo", "iinfo", "max_code"]


@dataclass(frozen=True, slots=True)
class FloatLimits:
    """The extremes of a floating-point dtype (of one part of a complex), exact as Python floats.

    Attributes:
        dtype: The dtype's name, of one part for a complex.
        bits: Width of one element, in bits.
        max: Largest finite value.
        min: Lowest finite value.
        eps: Distance from 1.0 to the next larger value of the format's precision.
        smallest_normal: Smallest positive value of full precision.
        smallest_subnormal: Smallest positive value.
    """

    dtype: str
    bits: int
    max: float
    min: float
    eps: float
    smallest_normal: float
    smallest_subnormal: float


@dataclass(frozen=True, slots=True)
class IntLimits:
    """The range of an integer dtype.

    Attributes:
        dtype: The dtype's name.
        bits: Width of one element, in bits.
        max: Largest value.
        min: Lowest value.
    """

    dtype: str
    bits: int
    max: int
    min: int


def max_code(layout: FloatFormat) -> int:
    """Return the pattern of the largest finite value of a format."""
    top = 1 << layout.exponent + layout.mantissa
    if layout.nan == "ieee":
        return top - (1 << layout.mantissa) - 1
    # Only the all-ones pattern is lost to NaN, or none is.
    return top - 2 if layout.nan == "all_ones" else top - 1


@cache
def finfo(name: str) -> FloatLimits:
    """Return the limits of a floating-point dtype; those of one part for a complex.

    Raises:
        DtypeError: The dtype is no float and no complex.

    >>> finfo("float16").max, finfo("float8_e4m3fn").max
    (65504.0, 448.0)
    """
    row = facts(name)
    if row.part is not None:
        return finfo(row.part)
    layout = row.format
    if layout is None:
        raise DtypeError(f"finfo: the dtype is a float or a complex. Got {name}, a {row.kind}. iinfo reads integers.")
    field, fraction = divmod(max_code(layout), 1 << layout.mantissa)
    largest = math.ldexp(1 + fraction / (1 << layout.mantissa), field - layout.bias)
    # Without a zero there are no subnormals, and the exponent field 0 is an exponent like any other.
    normal = math.ldexp(1.0, (1 if layout.zero else 0) - layout.bias)
    return FloatLimits(
        dtype=name,
        bits=row.bits,
        max=largest,
        min=-largest if layout.sign else normal,
        eps=math.ldexp(1.0, -layout.mantissa),
        smallest_normal=normal,
        smallest_subnormal=math.ldexp(normal, -layout.mantissa),
    )


@cache
def iinfo(name: str) -> IntLimits:
    """Return the range of an integer dtype.

    Raises:
        DtypeError: The dtype is no integer.

    >>> iinfo("int4").min, iinfo("uint64").max
    (-8, 18446744073709551615)
    """
    row = facts(name)
    if row.kind not in {"int", "uint"}:
        raise DtypeError(f"iinfo: the dtype is an integer. Got {name}, a {row.kind}. finfo reads floats.")
    signed = row.kind == "int"
    return IntLimits(
        dtype=name,
        bits=row.bits,
        max=(1 << row.bits - signed) - 1,
        min=-(1 << row.bits - 1) if signed else 0,
    )
