"""The safetensors format: a checked reader without copies, and the rounding of a weight to bfloat16 at load."""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nbxtensor.backend.cpu import pool
from nbxtensor.dtype.convert import convert
from nbxtensor.dtype.itemsize import bits, from_numpy, from_safetensors, nbytes, numpy_dtype
from nbxtensor.errors import ArgumentError, DtypeError, FormatError, ShapeError, UnknownDtypeError
from nbxtensor.shape import numel

__all__ = ["SafetensorsFile", "open_file", "to_bf16_bits"]

_LARGEST_HEADER = 100_000_000  # bytes: the limit of the format's own reader


def open_file(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Open a safetensors file: its header is read and checked whole, its data is mapped and read when touched.

    Raises:
        FormatError: The file breaks the format; names the tensor and its offset.
        OSError: The file cannot be opened.
    """
    return SafetensorsFile(Path(path))


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int


class SafetensorsFile(Mapping[str, npt.NDArray[Any]]):
    """The tensors of a safetensors file by name, as read-only arrays over the mapped file.

    An array keeps the mapping alive; nothing has to be closed. The order is that of the data.

    Attributes:
        path: The file.
        metadata: The free text that the file carries, by key.
    """

    def __init__(self, path: Path) -> None:
        """Map the file at ``path`` and check its header.

        Raises:
            FormatError: The file breaks the format.
        """
        self.path = path
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < 8:
                raise FormatError(f"{path}: a file starts with the 8 bytes of the header's length. Got {size} bytes.")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        (length,) = struct.unpack("<Q", self._map[:8])
        if length > min(size - 8, _LARGEST_HEADER):
            raise FormatError(
                f"{path}: the header is inside the file and at most {_LARGEST_HEADER} bytes. "
                f"Got a length of {length} in a file of {size} bytes."
            )
        header = _parse(self._map[8 : 8 + length], path)
        self.metadata: dict[str, str] = _metadata(header.pop("__metadata__", {}), path)
        start = 8 + length
        entries = {name: _entry(name, row, start, path) for name, row in header.items()}
        self._entries = dict(sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)))
        _check_cover(self._entries, start, size, path)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return the tensor called ``name``, as `array` does; KeyError where there is none."""
        return self._view(self._entries[name])

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order of the data."""
        return iter(self._entries)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._entries)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors, in the order of the data."""
        return tuple(self._entries)

    def spec(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return (dtype, shape) of a tensor, its dtype by the name of the dtype table.

        Raises:
            ArgumentError: The file has no such tensor.
        """
        entry = self._entry(name)
        return entry.dtype, entry.shape

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor over the mapped file, read-only, without a copy.

        A dtype that numpy lacks comes in its carrier (bfloat16 as uint16, float8 as uint8: the bit patterns); one of
        less than 8 bits as its packed bytes, flat.

        Raises:
            ArgumentError: The file has no such tensor.
        """
        return self._view(self._entry(name))

    def place(self, name: str) -> tuple[int, int]:
        """Return where the bytes of a tensor begin in the file, and how many they are.

        Raises:
            ArgumentError: The file has no such tensor.
        """
        entry = self._entry(name)
        return entry.offset, entry.nbytes

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise ArgumentError(f"{self.path}: no tensor {name!r}. It has {', '.join(self._entries) or 'none'}.")
        return self._entries[name]

    def _view(self, entry: _Entry) -> npt.NDArray[Any]:
        carrier = numpy_dtype(entry.dtype)
        count = entry.nbytes // carrier.itemsize
        if count == 0:
            flat = np.empty(0, dtype=carrier)
            flat.flags.writeable = False
        else:
            flat = np.frombuffer(self._map, dtype=carrier, count=count, offset=entry.offset)
        return flat if bits(entry.dtype) < 8 else flat.reshape(entry.shape)


def to_bf16_bits(
    array: npt.NDArray[np.float32 | np.float16], out: npt.NDArray[np.uint16] | None = None
) -> npt.NDArray[np.uint16]:
    """Round float32 or float16 to bfloat16 bit patterns, to nearest even, split over the pool.

    The bytes are those of one call of `nbxtensor.dtype.convert.convert`.

    Args:
        array: float32 or float16, of any shape.
        out: Where the patterns go: uint16 of the same shape, contiguous; a new array when left out.

    Raises:
        DtypeError: ``array`` is of another dtype, or ``out`` is not uint16.
        ShapeError: ``out`` has another shape, or is not contiguous.

    >>> to_bf16_bits(np.array([1.0, -2.0], np.float16)).tolist() == [0x3F80, 0xC000]
    True
    """
    if array.dtype.name not in ("float32", "float16"):
        raise DtypeError(f"to_bf16_bits: a float32 or float16 array is rounded. Got {array.dtype}.")
    if out is None:
        out = np.empty(array.shape, dtype=np.uint16)
    if out.dtype != np.uint16:
        raise DtypeError(f"to_bf16_bits: out is uint16, for bit patterns. Got {out.dtype}.")
    if out.shape != array.shape or not out.flags.c_contiguous:
        raise ShapeError(
            f"to_bf16_bits: out is contiguous and has the array's shape. Got {out.shape} for {array.shape}"
            f"{'' if out.flags.c_contiguous else ', not contiguous'}."
        )
    source, flat, target = from_numpy(array.dtype), array.reshape(-1), out.reshape(-1)

    def body(start: int, stop: int) -> None:
        convert(flat[start:stop], source, "bfloat16", target[start:stop])

    pool.parallel_for(flat.size, body, f"to_bf16_bits {source}")
    return out


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise FormatError(f"{path}: a name stands once in the header. Got {', '.join(twice)} twice.")
        return found

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise FormatError(f"{path}: the header is JSON in UTF-8. Got {error}.") from None
    if not isinstance(header, dict) or not text.startswith(b"{"):
        raise FormatError(f"{path}: the header is a JSON object, from its first byte. Got {text[:20]!r}.")
    return header


def _metadata(metadata: Any, path: Path) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError(f"{path}: __metadata__ holds text by key. Got {metadata!r}.")
    return metadata


def _entry(name: str, row: Any, start: int, path: Path) -> _Entry:
    match row:
        case {"dtype": str(code), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if len(row) == 3:
            pass
        case _:
            raise FormatError(f"{path}: tensor {name!r} has dtype, shape and two data_offsets. Got {row!r}.")
    if not all(type(extent) is int and extent >= 0 for extent in shape):
        raise FormatError(f"{path}: the extents of tensor {name!r} are zero or more. Got {shape}.")
    try:
        dtype = from_safetensors(code)
    except UnknownDtypeError as error:
        raise FormatError(f"{path}: tensor {name!r} at offset {begin} has a dtype that is not read. {error}") from None
    extents = tuple(shape)
    size = nbytes(dtype, numel(extents))
    if numel(extents) * bits(dtype) % 8:
        raise FormatError(f"{path}: tensor {name!r} fills whole bytes. Got {dtype} of shape {extents}.")
    if begin < 0 or end - begin != size:
        raise FormatError(
            f"{path}: tensor {name!r} of {dtype} {extents} takes {size} bytes. Got data_offsets {begin} to {end}."
        )
    return _Entry(dtype, extents, start + begin, size)


def _check_cover(entries: Mapping[str, _Entry], start: int, size: int, path: Path) -> None:
    """Check that the tensors, in the order of their data, fill the file from ``start`` without overlap or hole."""
    at = start
    for name, entry in entries.items():
        if entry.offset != at:
            what = "overlaps the tensor before it" if entry.offset < at else "leaves a hole before it"
            raise FormatError(
                f"{path}: tensors follow each other. Tensor {name!r} at offset {entry.offset - start} {what}, "
                f"which ends at {at - start}."
            )
        at += entry.nbytes
        if at > size:
            raise FormatError(
                f"{path}: the file is truncated. Tensor {name!r} at offset {entry.offset - start} ends at "
                f"{at - start}, the data at {size - start}."
            )
    if at != size:
        raise FormatError(f"{path}: the tensors fill the file. They end at {at - start}, the data at {size - start}.")
