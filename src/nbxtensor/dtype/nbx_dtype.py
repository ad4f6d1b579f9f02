"""The dtype enum, with frozen values, and its tables, derived from ``dtypes.yml``."""

from __future__ import annotations

import enum

from nbxtensor.dtype.itemsize import canonical, itemsize

__all__ = ["NBXDtype", "dtype_size", "parse_dtype"]


class NBXDtype(enum.Enum):
    """Every dtype of the table, by a value that never changes: new members are appended.

    The member's name is the table's name of the dtype.
    """

    float16 = 0
    bfloat16 = 1
    float32 = 2
    float64 = 3
    int8 = 4
    int16 = 5
    int32 = 6
    int64 = 7
    uint8 = 8
    bool = 9
    bool_ = 9  # noqa: PIE796 (the same member, by a name that hides no builtin)
    complex64 = 10
    complex128 = 11
    uint16 = 12
    uint32 = 13
    uint64 = 14
    float8_e4m3fn = 15
    float8_e5m2 = 16
    float8_e4m3fnuz = 17
    float8_e5m2fnuz = 18
    float8_e8m0fnu = 19
    float4_e2m1fn = 20
    int4 = 21
    uint4 = 22

    def __str__(self) -> str:
        return self.name


def dtype_size(dtype: NBXDtype) -> int:
    """Return the width of one element of a dtype, in bytes.

    Raises:
        DtypeError: The dtype is narrower than a byte.

    >>> dtype_size(NBXDtype.complex64)
    8
    """
    return itemsize(dtype.name)


def parse_dtype(dtype: object) -> NBXDtype:
    """Return the member that a spelling names (see :func:`nbxtensor.dtype.itemsize.canonical`).

    Raises:
        UnknownDtypeError: The table carries no such spelling.

    >>> parse_dtype("torch.float16").value
    0
    """
    return NBXDtype[canonical(dtype)]
