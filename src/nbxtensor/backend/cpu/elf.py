"""Relocatable x86-64 ELF objects into executable memory: no linker, never writable and executable at once."""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
from dataclasses import dataclass

from nbxtensor.errors import CompileError

__all__ = ["Module", "load"]

# Section header fields and types, symbol table and relocation entries: System V ABI (gABI 4.1), chapter 4.
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_ALLOCATED = 2

# Relocation types: System V ABI, AMD64 supplement 1.0, table 4.9.
_ABS64, _PC32, _GOTPCREL, _PLT32, _PC64, _GOTPCRELX, _REX_GOTPCRELX = 1, 2, 9, 4, 24, 41, 42
_SLOT = 16  # bytes of one entry of the table of outside addresses: a jump of 6 bytes, then the address at 8

_MATH = (
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erfc exp exp2 expm1 fmod hypot lgamma log log10 log1p "
    "log2 pow sin sinh sqrt tan tanh tgamma trunc floor ceil rint nearbyint round roundeven fma ldexp"
).split()
_OUTSIDE = frozenset({*_MATH, *(f"{name}f" for name in _MATH), "memcpy", "memmove", "memset"})


@dataclass(frozen=True)
class _Section:
    kind: int
    flags: int
    offset: int
    nbytes: int
    link: int
    info: int
    align: int


class Module:
    """Code in memory; unmapped when no one holds it any more.

    Attributes:
        nbytes: Size of the mapping.
    """

    def __init__(self, pages: mmap.mmap, symbols: dict[str, int]) -> None:
        self._pages = pages
        self._symbols = symbols
        self.nbytes: int = len(pages)

    def address(self, symbol: str) -> int:
        """Return the address of ``symbol``; it holds only while this module does.

        Raises:
            CompileError: When the object defines no such symbol.
        """
        try:
            return self._symbols[symbol]
        except KeyError:
            known = ", ".join(sorted(self._symbols))
            raise CompileError(f"elf: a symbol is defined by the object. Got {symbol!r}. It has {known}.") from None


def load(object: bytes) -> Module:
    """Place a relocatable x86-64 object in memory, resolve it, and make its pages readable and executable.

    Symbols from outside are found in the C and math libraries of the process, by name, if they are mathematical
    functions or memory copies.

    Raises:
        CompileError: For bytes that are no such object, an unknown outside symbol or relocation type.
    """
    if object[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", object, 16) != (1, 62):
        raise CompileError(
            f"elf: the bytes are a relocatable x86-64 ELF object. Got {object[:6]!r}. What codegen.object_code returns."
        )
    return _Loader(object).load()


@functools.cache
def _library(name: str) -> ctypes.CDLL:
    # Asking where a library is starts other programs; the interpreter has most often loaded both.
    here = ctypes.CDLL(None)
    if hasattr(here, {"c": "mprotect", "m": "expm1"}[name]):
        return here
    from ctypes.util import find_library

    return ctypes.CDLL(find_library(name))


def _outside(symbol: str) -> int:
    if symbol in _OUTSIDE:
        for library in ("m", "c"):
            function = getattr(_library(library), symbol, None)
            if function is not None:
                return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise CompileError(
        f"elf: an outside symbol is a function of the math library or a memory copy. Got {symbol!r}. "
        f"{', '.join(sorted(_OUTSIDE))} are accepted."
    )


class _Loader:
    def __init__(self, object: bytes) -> None:
        self.object = object
        (table,) = struct.unpack_from("<Q", object, 40)
        (count,) = struct.unpack_from("<H", object, 60)
        raw = [_SECTION.unpack_from(object, table + _SECTION.size * i) for i in range(count)]
        self.sections = [_Section(k, f, o, n, link, info, a) for _, k, f, _, o, n, link, info, a, _ in raw]
        self.place: dict[int, int] = {}  # section index -> offset in the mapping
        self.slots: dict[str, int] = {}  # outside symbol -> offset of its slot

    def load(self) -> Module:
        end = 0
        for i, section in enumerate(self.sections):
            if section.flags & _ALLOCATED and section.nbytes:
                align = max(section.align, 16)
                end = -(-end // align) * align
                self.place[i] = end
                end += section.nbytes
        self.symbols = self.read_symbols()
        for index, symbol in self.used():
            name, home, _ = self.symbols[symbol]
            if index in self.place and home not in self.place and name not in self.slots:
                self.slots[name] = -(-end // _SLOT) * _SLOT
                end = self.slots[name] + _SLOT
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, max(end, 1), flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        for i, start in self.place.items():
            section = self.sections[i]
            if section.kind != _NOBITS:
                pages[start : start + section.nbytes] = self.object[section.offset : section.offset + section.nbytes]
        for name, start in self.slots.items():
            pages[start : start + _SLOT] = b"\xff\x25\x02\x00\x00\x00\x90\x90" + struct.pack("<Q", _outside(name))
        self.relocate(pages)
        if _library("c").mprotect(ctypes.c_void_p(self.base), ctypes.c_size_t(len(pages)), 1 | 4):
            raise CompileError(
                f"elf: {len(pages)} bytes become executable. The system refused. Memory that may run is needed."
            )
        defined = {n: self.base + self.place[s] + v for n, s, v in self.symbols if n and s in self.place}
        return Module(pages, defined)

    def read_symbols(self) -> list[tuple[str, int, int]]:
        """Every symbol as (name, section, offset in it)."""
        for section in self.sections:
            if section.kind == _SYMTAB:
                names = self.sections[section.link].offset
                entries = _SYMBOL.iter_unpack(self.object[section.offset : section.offset + section.nbytes])
                return [(self.text(names + name), home, value) for name, _, _, home, value, _ in entries]
        raise CompileError("elf: an object has a symbol table. Got none. What codegen.object_code returns is accepted.")

    def text(self, offset: int) -> str:
        return self.object[offset : self.object.index(b"\0", offset)].decode()

    def used(self) -> list[tuple[int, int]]:
        """(section, symbol) of every relocation."""
        return [(index, info >> 32) for index, _, info, _ in self.relocations()]

    def relocations(self) -> list[tuple[int, int, int, int]]:
        """(section, offset, info, addend) of every relocation."""
        found: list[tuple[int, int, int, int]] = []
        for section in self.sections:
            if section.kind == _RELA:
                entries = _RELOCATION.iter_unpack(self.object[section.offset : section.offset + section.nbytes])
                found += [(section.info, *entry) for entry in entries]
        return found

    def relocate(self, pages: mmap.mmap) -> None:
        for index, offset, info, addend in self.relocations():
            if index not in self.place:
                continue
            name, home, value = self.symbols[info >> 32]
            kind = info & 0xFFFFFFFF
            where = self.place[index] + offset
            through_table = kind in {_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX}
            if home in self.place and not through_table:
                target = self.place[home] + value
            elif home not in self.place:
                target = self.slots[name] + (8 if through_table else 0)
            else:
                kind = -kind  # a local symbol read through a table: not what this code model emits
                target = 0
            if kind == _ABS64:
                pages[where : where + 8] = struct.pack("<Q", self.base + target + addend)
            elif kind == _PC64:
                pages[where : where + 8] = struct.pack("<q", target + addend - where)
            elif kind in {_PC32, _PLT32, _GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX}:
                pages[where : where + 4] = struct.pack("<i", target + addend - where)
            else:
                raise CompileError(
                    f"elf: a relocation is of a known type. Got type {abs(kind)} against {name!r}. "
                    "R_X86_64_64, PC32, PLT32, PC64 and GOTPCREL* of outside symbols are accepted."
                )
