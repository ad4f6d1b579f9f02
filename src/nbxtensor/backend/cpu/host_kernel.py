"""A compiled kernel in memory, and the bytes of its arguments."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from nbxtensor.backend.contract import Compiled
from nbxtensor.backend.cpu import elf
from nbxtensor.backend.cpu.runtime import CUTS, HEADER_WORDS
from nbxtensor.errors import ArgumentError, UnsupportedError

__all__ = ["HostKernel"]

# Every argument fills a slot of 8 bytes: addresses, integers extended to it, floats in its low bytes.
_SLOTS = {
    "i1": "?7x",
    "u1": "?7x",
    **dict.fromkeys(("i8", "i16", "i32", "i64"), "q"),
    **dict.fromkeys(("u8", "u16", "u32", "u64"), "Q"),
    "fp16": "e6x",
    "bf16": "H6x",
    "fp32": "f4x",
    "fp64": "d",
}
# What each argument must fit into, where its slot is wider than its type.
_RANGES = {"i8": "b", "i16": "h", "i32": "i", "u8": "B", "u16": "H", "u32": "I"}
_WORD = 8  # bytes
_ARGUMENTS_AT = _WORD * (HEADER_WORDS + CUTS + 2)  # in a table of one record for one worker


class HostKernel:
    """A kernel ready to launch; its code stays loaded while this object lives.

    Attributes:
        compiled: What it was loaded from.
        address: Where its code starts.
        scratch_nbytes: Scratch that each thread running it needs.
    """

    __slots__ = (
        "__weakref__",
        "_bfloats",
        "_module",
        "_ranges",
        "_single",
        "_slots",
        "address",
        "compiled",
        "scratch_nbytes",
    )

    def __init__(self, compiled: Compiled) -> None:
        self.compiled: Compiled = compiled
        self._module = elf.load(compiled.binary)
        self.address: int = self._module.address(compiled.name)
        self.scratch_nbytes: int = int(compiled.metadata["scratch_nbytes"])
        types = [kind.partition("@")[0] for _, kind in compiled.parameters]
        for (name, kind), type_ in zip(compiled.parameters, types, strict=True):
            if type_ not in _SLOTS and not type_.startswith("*"):
                raise UnsupportedError(
                    f"{compiled.name}: no argument slot for a parameter of that type. Got {name}: {kind}. "
                    f"Pointers and {', '.join(_SLOTS)} are accepted."
                )
        slots = "".join(_SLOTS.get(type_, "Q") for type_ in types)
        ranges = "".join(_RANGES.get(type_) or _SLOTS.get(type_, "Q") for type_ in types)
        self._slots = struct.Struct("<" + slots)
        self._ranges = struct.Struct("<" + ranges) if any(t in _RANGES for t in types) else None
        self._single = struct.Struct("<4qQ6q" + slots)
        self._bfloats = tuple(i for i, type_ in enumerate(types) if type_ == "bf16")

    def pack(self, arguments: Sequence[int | float]) -> bytes:
        """Return the argument slots of a launch.

        Raises:
            ArgumentError: Too few or too many values, or one that its parameter's type does not hold.
        """
        return self._fill(self._slots, (), arguments)

    def single(self, grid: tuple[int, int, int], arguments: Sequence[int | float]) -> bytes:
        """Return the launch table of this kernel's one launch, for one worker.

        Raises:
            ArgumentError: As `pack`.
        """
        gx, gy, gz = grid
        return self._fill(
            self._single, (1, 0, 1, 0, self.address, _ARGUMENTS_AT, gx, gy, 0, 0, gx * gy * gz), arguments
        )

    def words(
        self, grid: tuple[int, int, int], arguments: Sequence[int | float], varying: Sequence[int]
    ) -> tuple[list[int], tuple[int, ...], Callable[..., bytes]]:
        """Return the launch table of `single` as words, where among them the arguments ``varying`` are, and `pack`.

        Called with the words, some of them replaced, ``pack`` returns the table's bytes.

        Raises:
            ArgumentError: As `pack`.
        """
        table = self.single(grid, arguments)
        form = struct.Struct(f"<{len(table) // _WORD}Q")
        return list(form.unpack(table)), tuple(_ARGUMENTS_AT // _WORD + i for i in varying), form.pack

    def _fill(self, form: struct.Struct, before: tuple[int, ...], arguments: Sequence[int | float]) -> bytes:
        if self._bfloats:
            arguments = self._with_bfloats(arguments)
        try:
            if self._ranges is not None:
                self._ranges.pack(*arguments)
            return form.pack(*before, *arguments)
        except (struct.error, OverflowError) as error:
            raise self._refusal(arguments, error) from None

    def _with_bfloats(self, arguments: Sequence[int | float]) -> Sequence[int | float]:
        """Replace each bfloat16 argument by its bits, rounded to nearest even."""
        out = list(arguments)
        for index in self._bfloats:
            if index < len(out):
                (bits,) = struct.unpack("<I", struct.pack("<f", out[index]))
                quiet = (bits >> 16) | 0x40
                out[index] = quiet if out[index] != out[index] else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return out

    def _refusal(self, arguments: Sequence[int | float], error: Exception) -> ArgumentError:
        parameters = self.compiled.parameters
        wanted = ", ".join(f"{name}: {kind}" for name, kind in parameters)
        if len(arguments) != len(parameters):
            return ArgumentError(
                f"{self.compiled.name}: one value per parameter. Got {len(arguments)}. It takes ({wanted})."
            )
        for (name, kind), value in zip(parameters, arguments, strict=True):
            type_ = kind.partition("@")[0]
            try:
                struct.pack("<" + (_RANGES.get(type_) or _SLOTS.get(type_, "Q")), value)
            except (struct.error, OverflowError) as cause:
                return ArgumentError(
                    f"{self.compiled.name}: {name} is {kind}. Got {value!r}. It takes ({wanted}); {cause}."
                )
        return ArgumentError(
            f"{self.compiled.name}: arguments that fit. Got {arguments!r}. It takes ({wanted}); {error}."
        )
