"""Arguments of a kernel on a GPU: the bytes of each, laid out as a C structure, and the table that points at them."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from typing import Any

from nbxtensor.backend.contract import Compiled
from nbxtensor.errors import ArgumentError, UnsupportedError

__all__ = ["Arguments"]

_FORMS = {
    **dict.fromkeys(("i1", "u1"), "?"),
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "fp16": "e",
    "bf16": "H",
    "fp32": "f",
    "fp64": "d",
}
_POINTER = "Q"
_WORD = 8  # bytes of a pointer


class Arguments:
    """The argument block of one kernel, filled anew for each launch.

    Whoever fills it holds ``lock`` until the driver has read it.

    Attributes:
        lock: Held from `fill` to the end of the call that takes ``table``.
        table: Address of the table of pointers that a launch takes.
        words: The block, as an array of words that may be written.
    """

    __slots__ = ("_bfloats", "_form", "_hidden", "_kernel", "_places", "_table", "lock", "table", "words")

    def __init__(self, compiled: Compiled, hidden: int) -> None:
        """Lay the block out.

        Args:
            compiled: The kernel.
            hidden: Pointers that its code takes after the parameters; they are null.

        Raises:
            UnsupportedError: A parameter is of a type that has no bytes of its own.
        """
        self.lock: threading.Lock = threading.Lock()
        self._kernel = compiled
        types = [kind.partition("@")[0] for _, kind in compiled.parameters]
        for (name, kind), type_ in zip(compiled.parameters, types, strict=True):
            if type_ not in _FORMS and not type_.startswith("*"):
                raise UnsupportedError(
                    f"{compiled.name}: no argument slot for a parameter of that type. Got {name}: {kind}. "
                    f"Pointers and {', '.join(_FORMS)} are accepted."
                )
        forms = [_FORMS.get(type_, _POINTER) for type_ in types] + [_POINTER] * hidden
        self._form = struct.Struct("@" + "".join(forms))
        self._hidden = (0,) * hidden
        self._bfloats = tuple(i for i, type_ in enumerate(types) if type_ == "bf16")
        self.words: Any = (ctypes.c_uint64 * max(-(-self._form.size // _WORD), 1))()
        base = ctypes.addressof(self.words)
        self._places = tuple(_offset(forms, i) for i in range(len(forms)))
        self._table = (ctypes.c_void_p * max(len(forms), 1))(*(base + place for place in self._places))
        self.table: int = ctypes.addressof(self._table)

    def fill(self, values: Sequence[int | float]) -> None:
        """Write the values of a launch into the block.

        Raises:
            ArgumentError: Too few or too many values, or one that its parameter's type does not hold.
        """
        if self._bfloats:
            values = self._with_bfloats(values)
        try:
            self._form.pack_into(self.words, 0, *values, *self._hidden)
        except (struct.error, OverflowError) as error:
            raise self._refusal(values, error) from None

    def pointers(self, numbers: Sequence[int]) -> list[int]:
        """Return which of ``words`` the pointers ``numbers`` are."""
        return [self._places[n] // _WORD for n in numbers]

    def _with_bfloats(self, values: Sequence[int | float]) -> Sequence[int | float]:
        """Replace each bfloat16 value by its bits, rounded to nearest even."""
        out = list(values)
        for index in self._bfloats:
            if index < len(out):
                (bits,) = struct.unpack("<I", struct.pack("<f", out[index]))
                quiet = (bits >> 16) | 0x40
                out[index] = quiet if out[index] != out[index] else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return out

    def _refusal(self, values: Sequence[int | float], error: Exception) -> ArgumentError:
        kernel = self._kernel
        wanted = ", ".join(f"{name}: {kind}" for name, kind in kernel.parameters)
        if len(values) != len(kernel.parameters):
            return ArgumentError(f"{kernel.name}: one value per parameter. Got {len(values)}. It takes ({wanted}).")
        for (name, kind), value in zip(kernel.parameters, values, strict=True):
            cause = _misfit(_FORMS.get(kind.partition("@")[0], _POINTER), value)
            if cause:
                return ArgumentError(f"{kernel.name}: {name} is {kind}. Got {value!r}. It takes ({wanted}); {cause}.")
        return ArgumentError(f"{kernel.name}: arguments that fit. Got {values!r}. It takes ({wanted}); {error}.")


def _misfit(form: str, value: int | float) -> str:
    try:
        struct.pack("@" + form, value)
    except (struct.error, OverflowError) as error:
        return str(error)
    return ""


def _offset(forms: Sequence[str], index: int) -> int:
    """Return where a field starts: the size of all up to it, less its own."""
    return struct.calcsize("@" + "".join(forms[: index + 1])) - struct.calcsize("@" + forms[index])
