"""The rows of the one table of dtype facts, ``dtypes.yml``, as typed data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["DtypeFacts", "FloatFormat", "Kind", "Representation", "Table", "read_yaml", "table"]

Kind = Literal["float", "int", "uint", "bool", "complex"]
"""What the elements of a dtype are."""


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """The bit layout of a binary floating-point format.

    Attributes:
        exponent: Bits of the exponent field.
        mantissa: Bits of the mantissa field (the leading one is implicit).
        bias: Exponent bias.
        inf: Whether the format has infinities.
        nan: Which patterns are NaN: ``ieee``, ``all_ones``, ``negative_zero`` or ``none``.
        sign: Whether it has a sign bit.
        zero: Whether it has a zero (and subnormals).
    """

    exponent: int
    mantissa: int
    bias: int
    inf: bool
    nan: Literal["ieee", "all_ones", "negative_zero", "none"]
    sign: bool
    zero: bool


@dataclass(frozen=True, slots=True)
class DtypeFacts:
    """One row of the table. A code that is None does not exist in that format.

    Attributes:
        name: The dtype's name in the table.
        enum: Its frozen value in the enum.
        bits: Width of one element in packed memory, in bits.
        kind: ``float``, ``int``, ``uint``, ``bool`` or ``complex``.
        carrier: Name of the numpy dtype that holds it on the host.
        dlpack: DLPack type code.
        key: Spelling in a launch key.
        safetensors: Code in a safetensors header.
        gguf: Tensor type code in a GGUF file.
        triton: Spelling in a Triton kernel signature.
        part: The dtype of one part of a complex.
        without_fp64: What a store without float64 holds in its place.
        format: Bit layout of a float, or of one part of a complex; None for the other kinds.
        aliases: Other spellings of the name.
        source: The standard or document the format's facts come from.
    """

    name: str
    enum: int
    bits: int
    kind: Kind
    carrier: str
    dlpack: int
    key: str
    safetensors: str | None
    gguf: int | None
    triton: str | None
    part: str | None
    without_fp64: str | None
    format: FloatFormat | None
    aliases: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Representation:
    """A packed representation of a weight: blocks of values stored as several parts.

    Attributes:
        name: The representation's name in the table.
        block: Values in one block.
        parts: What one block stores: ``(part, dtype, count)``.
        nbytes: Bytes of one block.
        gguf: Tensor type code in a GGUF file, or None.
        source: The document its layout comes from.
    """

    name: str
    block: int
    parts: tuple[tuple[str, str, int], ...]
    nbytes: int
    gguf: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Table:
    """The whole table: its rows, its packed representations and every code read backwards."""

    rows: Mapping[str, DtypeFacts]
    representations: Mapping[str, Representation]
    spellings: Mapping[str, str]
    by_safetensors: Mapping[str, str]
    by_gguf: Mapping[int, str]
    by_key: Mapping[str, str]
    by_dlpack: Mapping[tuple[int, int], str]


def _row(name: str, row: Mapping[str, Any]) -> DtypeFacts:
    layout = None
    if "exponent" in row:
        layout = FloatFormat(
            exponent=row["exponent"],
            mantissa=row["mantissa"],
            bias=row["bias"],
            inf=row["inf"],
            nan=row["nan"],
            sign=row.get("sign", True),
            zero=row.get("zero", True),
        )
    return DtypeFacts(
        name=name,
        enum=row["enum"],
        bits=row["bits"],
        kind=row["kind"],
        carrier=row["carrier"],
        dlpack=row["dlpack"],
        key=row["key"],
        safetensors=row.get("safetensors"),
        gguf=row.get("gguf"),
        triton=row.get("triton"),
        part=row.get("part"),
        without_fp64=row.get("without_fp64"),
        format=layout,
        aliases=tuple(row["aliases"]),
        source=row["source"],
    )


def _representation(name: str, row: Mapping[str, Any], rows: Mapping[str, DtypeFacts]) -> Representation:
    parts = tuple((part, dtype, count) for part, (dtype, count) in row["parts"].items())
    return Representation(
        name=name,
        block=row["block"],
        parts=parts,
        nbytes=sum(-(-rows[dtype].bits * count // 8) for _, dtype, count in parts),
        gguf=row.get("gguf"),
        source=row["source"],
    )


def _index(pairs: Iterable[tuple[Any, str]]) -> Mapping[Any, str]:
    return MappingProxyType({code: name for code, name in pairs if code is not None})


def read_yaml(file: str) -> Any:
    """Return what a file of this package's facts holds."""
    # Read at the first question and not at import: importing yaml costs more than reading the file.
    import yaml

    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@lru_cache(maxsize=1)
def table() -> Table:
    """Return the table, read once, at the first question."""
    raw = read_yaml("dtypes.yml")
    rows = {name: _row(name, row) for name, row in raw["dtypes"].items()}
    packed = {name: _representation(name, row, rows) for name, row in raw["representations"].items()}
    return Table(
        rows=MappingProxyType(rows),
        representations=MappingProxyType(packed),
        spellings=_index((s, r.name) for r in rows.values() for s in (r.name, *r.aliases)),
        by_safetensors=_index((r.safetensors, r.name) for r in rows.values()),
        by_gguf=_index((r.gguf, r.name) for r in (*rows.values(), *packed.values())),
        by_key=_index((r.key, r.name) for r in rows.values()),
        by_dlpack=_index(((r.dlpack, r.bits), r.name) for r in rows.values()),
    )
