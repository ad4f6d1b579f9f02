"""Type promotion: the Array API standard's tables, NEP 50 for Python scalars, and what both leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nbxtensor.dtype.itemsize import facts, is_storage_only
from nbxtensor.dtype.limits import iinfo
from nbxtensor.dtype.table import DtypeFacts, Kind
from nbxtensor.errors import ArgumentError, DtypeError

__all__ = ["Scalar", "binary_result", "float_math_input", "promoted", "result_type", "scalar_result"]

Scalar = bool | int | float | complex
"""A Python number: it has a kind and no width."""

_DEFAULT_INT, _DEFAULT_FLOAT, _DEFAULT_COMPLEX = "int64", "float64", "complex128"


def result_type(*operands: str | Scalar) -> str:
    """Return the dtype that several operands promote to, whatever their order.

    Args:
        operands: Dtypes by name, and Python scalars; at least one dtype. The dtypes promote first, all at once;
            a scalar is weak, and changes the result only where its kind is higher (:func:`scalar_result`).

    Raises:
        UnknownDtypeError: The table has no such dtype.
        DtypeError: The dtypes do not promote: a signed integer with uint64 (no signed integer holds both), or a
            storage-only dtype (a float of eight bits or fewer, an integer narrower than a byte) with any other.
        ArgumentError: No dtype is given, or a Python int is outside the range of an integer dtype.

    >>> result_type("int8", "uint8", "float16"), result_type("int32", 1.5)
    ('float16', 'float64')
    """
    names = [operand for operand in operands if isinstance(operand, str)]
    result = _promote(names)
    for operand in operands:
        if not isinstance(operand, str):
            result = scalar_result(result, operand)
    return result


def binary_result(a: str, b: str) -> str:
    """Return the dtype that two dtypes promote to, in either order.

    Two of one kind follow the Array API standard's tables: wide enough for both. Across kinds (bool, unsigned,
    signed, float, complex) the higher kind keeps its own width; a complex keeps the wider float's precision;
    float16 and bfloat16, of which neither holds the other, meet in float32.

    Raises:
        UnknownDtypeError: The table has no such dtype.
        DtypeError: The two do not promote (see :func:`result_type`).

    >>> binary_result("int8", "uint8"), binary_result("bfloat16", "float16")
    ('int16', 'float32')
    """
    return _promote([a, b])


def scalar_result(name: str, scalar: Scalar) -> str:
    """Return the dtype that an array and a Python scalar promote to: the array's, unless the scalar's kind is higher.

    A Python int with a bool array gives int64; a Python float with an integer or bool array gives float64; a
    Python complex gives the complex of the float array's precision (complex64 at least), else complex128.

    Raises:
        UnknownDtypeError: The table has no such dtype.
        DtypeError: The scalar is no Python bool, int, float or complex, or its kind is higher than a
            storage-only dtype's.
        ArgumentError: A Python int is outside the range of the integer dtype.

    >>> scalar_result("float16", 0.5), scalar_result("int32", 1.5)
    ('float16', 'float64')
    """
    row = facts(name)
    # A subclass (a numpy scalar, an enum) has a dtype or a meaning of its own and is not weak.
    if type(scalar) not in {bool, int, float, complex}:
        raise DtypeError(
            f"scalar_result: a weak scalar is a Python number. Got {scalar!r} of {type(scalar).__name__}. "
            "A bool, an int, a float or a complex is accepted."
        )
    if isinstance(scalar, bool):
        return name
    if isinstance(scalar, int):
        if row.kind == "bool":
            return _DEFAULT_INT
        if row.kind in {"int", "uint"} and not iinfo(name).min <= scalar <= iinfo(name).max:
            raise ArgumentError(
                f"scalar_result: a Python int fits the array's dtype. Got {scalar} with {name}. "
                f"{iinfo(name).min} to {iinfo(name).max} is accepted."
            )
        return name
    if row.kind == "complex" or (row.kind == "float" and isinstance(scalar, float)):
        return name
    if is_storage_only(name):
        raise _refused_storage([name, type(scalar).__name__])
    if isinstance(scalar, float):
        return _DEFAULT_FLOAT
    return _complex_of(row.bits) if row.kind == "float" else _DEFAULT_COMPLEX


def promoted(names: Sequence[str]) -> str | None:
    """Return the widest float among several dtypes, or None where the caller's precision policy decides.

    Args:
        names: Dtypes; those that are no float take no part.

    Returns:
        The one float among them, or their widest past two bytes; None for float16 with bfloat16, of which
        neither holds the other.

    Raises:
        UnknownDtypeError: The table has no such dtype.
        DtypeError: None of them is a float or a complex, or a storage-only float meets another.

    >>> promoted(["float16", "float32"]), promoted(["float16", "bfloat16"])
    ('float32', None)
    """
    floats = [name for name in names if facts(name).kind in {"float", "complex"}]
    if not floats:
        raise DtypeError(f"promoted: one of the dtypes is a float. Got {', '.join(names) or 'none'}. Pass a float.")
    result = _promote(floats)
    return result if result in floats or facts(result).kind == "complex" else None


def float_math_input(name: str) -> str:
    """Return the dtype in which an op on floats (a square root, an exponential) reads its operand.

    A float or a complex is read as it is; an integer, a bool and a storage-only float are read as float32.

    Raises:
        UnknownDtypeError: The table has no such dtype.

    >>> float_math_input("int64"), float_math_input("float16")
    ('float32', 'float16')
    """
    row = facts(name)
    return name if row.kind in {"float", "complex"} and not is_storage_only(name) else "float32"


def _promote(names: Sequence[str]) -> str:
    if not names:
        raise ArgumentError("result_type: promotion takes a dtype. Got none. Pass the name of one dtype or more.")
    rows = {name: facts(name) for name in names}
    if len(rows) == 1:
        return names[0]
    if any(is_storage_only(name) for name in rows):
        raise _refused_storage(names)
    real, parts = _widest(rows, "float"), _widest(rows, "complex") // 2
    if parts:
        return _complex_of(max(real, parts))
    if real:
        widest = [name for name, row in rows.items() if row.kind == "float" and row.bits == real]
        return widest[0] if len(widest) == 1 else f"float{2 * real}"
    return _integer(_widest(rows, "int"), _widest(rows, "uint"), names)


def _widest(rows: Mapping[str, DtypeFacts], kind: Kind) -> int:
    """The width of the widest dtype of one kind, in bits; 0 where there is none."""
    return max((row.bits for row in rows.values() if row.kind == kind), default=0)


def _complex_of(part_bits: int) -> str:
    """The complex whose parts hold a float of so many bits; the table has none with parts under 32."""
    return f"complex{2 * max(part_bits, 32)}"


def _integer(signed: int, unsigned: int, names: Sequence[str]) -> str:
    """The narrowest integer for the widest signed and unsigned widths met (0 where there is none)."""
    if not signed:
        return f"uint{unsigned}"
    if unsigned < signed:
        return f"int{signed}"
    if unsigned == 64:
        raise DtypeError(
            f"result_type: no signed integer holds uint64. Got {', '.join(names)}. Convert one of them first."
        )
    return f"int{2 * unsigned}"


def _refused_storage(operands: Sequence[str]) -> DtypeError:
    return DtypeError(
        f"result_type: a storage-only dtype promotes with itself alone. Got {', '.join(operands)}. "
        "Convert it first, to float16, bfloat16 or float32, say."
    )
