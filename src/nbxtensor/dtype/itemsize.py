"""Reader of the one table of dtype facts, ``dtypes.yml``: widths, kinds and every code of a dtype."""

from __future__ import annotations

import enum
import operator
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from nbxtensor.dtype.table import DtypeFacts, Kind, Representation, table
from nbxtensor.errors import ArgumentError, DtypeError, UnknownDtypeError

__all__ = [
    "autotune_key",
    "bits",
    "canonical",
    "dlpack_code",
    "facts",
    "from_autotune_key",
    "from_dlpack",
    "from_gguf",
    "from_numpy",
    "from_safetensors",
    "gguf_code",
    "is_storage_only",
    "itemsize",
    "kind",
    "names",
    "nbytes",
    "numpy_dtype",
    "representation",
    "representation_bytes",
    "representations",
    "storage_dtype",
    "to_safetensors",
    "triton_type",
]


def names() -> tuple[str, ...]:
    """Return the names of every dtype of the table, in the order of their frozen enum values."""
    return tuple(table().rows)


def representations() -> tuple[str, ...]:
    """Return the names of every packed representation of the table."""
    return tuple(table().representations)


def facts(name: str) -> DtypeFacts:
    """Return the row of a dtype.

    Args:
        name: A name of the table. Other spellings are read by :func:`canonical` alone, so that two names of
            one dtype never meet in a comparison.

    Raises:
        UnknownDtypeError: The table has no such row.
    """
    try:
        return table().rows[name]
    except (KeyError, TypeError):
        raise UnknownDtypeError(name, names()) from None


def bits(name: str) -> int:
    """Return the width of one element in packed memory, in bits.

    >>> bits("bfloat16"), bits("int4")
    (16, 4)
    """
    return facts(name).bits


def itemsize(name: str) -> int:
    """Return the width of one element, in bytes.

    Raises:
        UnknownDtypeError: The table has no such dtype.
        DtypeError: The dtype is narrower than a byte, so one element has no size in bytes.

    >>> itemsize("complex64")
    8
    """
    width = facts(name).bits
    if width % 8:
        raise DtypeError(
            f"itemsize: a dtype narrower than a byte has no size in bytes. Got {name} of {width} bits. "
            f"bits({name!r}) is its width; nbytes({name!r}, numel) is what a packed array takes."
        )
    return width // 8


def kind(name: str) -> Kind:
    """Return the kind of a dtype: ``float``, ``int``, ``uint``, ``bool`` or ``complex``.

    >>> kind("bfloat16"), kind("uint8")
    ('float', 'uint')
    """
    return facts(name).kind


def is_storage_only(name: str) -> bool:
    """Return whether a dtype is only stored and exchanged, and converted before arithmetic.

    These are the floats of eight bits or fewer and the integers narrower than a byte.

    >>> is_storage_only("float8_e4m3fn"), is_storage_only("float16")
    (True, False)
    """
    row = facts(name)
    return row.bits < 8 or (row.kind == "float" and row.bits == 8)


def _count(op: str, numel: int) -> int:
    try:
        count = operator.index(numel)
    except TypeError:
        count = -1
    if count < 0 or isinstance(numel, bool):
        raise ArgumentError(f"{op}: numel is a count of elements. Got {numel!r}. An int of 0 or more is accepted.")
    return count


def nbytes(name: str, numel: int) -> int:
    """Return the bytes of ``numel`` packed elements: ``numel * bits / 8``, rounded up.

    >>> nbytes("float16", 3), nbytes("int4", 3)
    (6, 2)
    """
    return -(-facts(name).bits * _count("nbytes", numel) // 8)


def representation(name: str) -> Representation:
    """Return the row of a packed representation.

    Raises:
        UnknownDtypeError: The table has no such representation.
    """
    try:
        return table().representations[name]
    except (KeyError, TypeError):
        raise UnknownDtypeError(name, representations()) from None


def representation_bytes(name: str, numel: int) -> int:
    """Return the bytes of ``numel`` values stored in a packed representation.

    Args:
        name: A packed representation of the table, or a dtype (stored as it is).
        numel: Values stored; whole blocks of a packed representation.

    Raises:
        UnknownDtypeError: Neither a representation nor a dtype has that name.
        ArgumentError: ``numel`` is negative or no whole number of blocks.

    >>> representation_bytes("int4-g128-asym", 256)
    136
    """
    count = _count("representation_bytes", numel)
    if name in table().rows:
        return nbytes(name, count)
    row = table().representations.get(name)
    if row is None:
        raise UnknownDtypeError(name, (*names(), *representations()))
    if count % row.block:
        raise ArgumentError(
            f"representation_bytes: {name} stores whole blocks of {row.block} values. Got {count}. "
            f"A multiple of {row.block} is accepted."
        )
    return count // row.block * row.nbytes


def storage_dtype(name: str, *, stores_fp64: bool) -> str:
    """Return the dtype a store holds in place of another.

    Args:
        name: The dtype wanted.
        stores_fp64: Whether the store has float64. One without holds float32 in its place, and complex64 in
            place of complex128.
    """
    row = facts(name)
    return name if stores_fp64 or row.without_fp64 is None else row.without_fp64


def canonical(dtype: object) -> str:
    """Return the table's name of a dtype, read from any spelling of it.

    Args:
        dtype: A name, an alias, either with ``torch.`` before it, a member of the enum, or a numpy dtype or
            scalar type (those of ml_dtypes too).

    Raises:
        UnknownDtypeError: The table carries no such spelling.

    >>> canonical("half"), canonical("torch.bfloat16"), canonical(np.int8)
    ('float16', 'bfloat16', 'int8')
    """
    if isinstance(dtype, str):
        found = table().spellings.get(dtype.removeprefix("torch."))
    elif isinstance(dtype, enum.Enum):
        found = table().spellings.get(dtype.name)
    elif isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic)):
        return from_numpy(dtype)
    else:
        found = None
    if found is None:
        raise UnknownDtypeError(dtype, names())
    return found


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype that carries a dtype on the host.

    A dtype that numpy lacks is carried as its bit patterns: bfloat16 as uint16; a float of eight bits, and a
    dtype narrower than a byte (one element per byte, in the low bits), as uint8.
    """
    return np.dtype(facts(name).carrier)


def from_numpy(dtype: np.dtype[Any] | type[np.generic]) -> str:
    """Return the name of a numpy dtype (those of ml_dtypes too), by what it means to numpy: uint16 is uint16.

    Raises:
        UnknownDtypeError: The table carries no such dtype.
        DtypeError: The dtype is not in the machine's byte order.
    """
    found = np.dtype(dtype)
    if not found.isnative:
        raise DtypeError(f"from_numpy: a dtype is in the machine's byte order. Got {found!r}. Swap the bytes first.")
    if found.name not in table().rows:
        raise UnknownDtypeError(found.name, names())
    return found.name


def _no_code(op: str, name: str, column: str) -> NoReturn:
    have = ", ".join(n for n, row in table().rows.items() if getattr(row, column) is not None)
    raise DtypeError(f"{op}: {name} has no {column} spelling. Got {name}. One of {have} is accepted.")


def _decode(index: Mapping[Any, str], code: object) -> str:
    try:
        return index[code]
    except (KeyError, TypeError):
        raise UnknownDtypeError(code, map(str, index)) from None


def from_safetensors(code: str) -> str:
    """Return the dtype of a code in a safetensors header ("BF16").

    Raises:
        UnknownDtypeError: No dtype of the table has that code.
    """
    return _decode(table().by_safetensors, code)


def to_safetensors(name: str) -> str:
    """Return the code of a dtype in a safetensors header.

    Raises:
        DtypeError: The format has no code for it.
    """
    code = facts(name).safetensors
    return _no_code("to_safetensors", name, "safetensors") if code is None else code


def from_gguf(code: int) -> str:
    """Return the dtype, or the packed representation, of a tensor type code in a GGUF file.

    Raises:
        UnknownDtypeError: Nothing in the table has that code.

    >>> from_gguf(30), from_gguf(12)
    ('bfloat16', 'q4_k')
    """
    return _decode(table().by_gguf, code)


def gguf_code(name: str) -> int:
    """Return the tensor type code of a dtype or a packed representation in a GGUF file.

    Raises:
        DtypeError: The format has no code for it.
    """
    row = table().representations.get(name) or facts(name)
    return _no_code("gguf_code", name, "gguf") if row.gguf is None else row.gguf


def from_autotune_key(key: str) -> str:
    """Return the dtype of its spelling in a launch key ("fp16").

    Raises:
        UnknownDtypeError: No dtype of the table is spelt so.
    """
    return _decode(table().by_key, key)


def autotune_key(name: str) -> str:
    """Return the spelling of a dtype in a launch key: Triton's own name of it, where Triton has it."""
    return facts(name).key


def triton_type(name: str) -> str:
    """Return the spelling of a dtype in a Triton kernel signature ("fp16", "i32").

    Raises:
        DtypeError: Triton has no such dtype; its elements are passed as their bit patterns.
    """
    code = facts(name).triton
    return _no_code("triton_type", name, "triton") if code is None else code


def dlpack_code(name: str) -> tuple[int, int]:
    """Return the DLPack type code and bits of a dtype (its lanes are 1)."""
    row = facts(name)
    return row.dlpack, row.bits


def from_dlpack(code: int, bits: int, lanes: int = 1) -> str:
    """Return the dtype of a DLPack data type.

    Raises:
        UnknownDtypeError: No dtype of the table has that code, bits and lanes.
    """
    if lanes != 1:
        raise UnknownDtypeError(f"DLPack ({code}, {bits}, lanes {lanes})", map(str, table().by_dlpack))
    return _decode(table().by_dlpack, (code, bits))
