"""Writing LLVM IR text: names, blocks, loops, declarations."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

__all__ = ["Builder", "float_literal", "vector_type"]

_FLOAT_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


def float_literal(value: float, type_: str) -> str:
    """Return ``value`` as LLVM writes a constant of ``type_`` ("half", "bfloat", "float", "double"), exactly.

    A float32 is rounded from ``value`` first; LLVM spells it by the bits of the double that equals it.
    """
    if type_ == "double":
        return "0x" + struct.pack(">d", value).hex().upper()
    if type_ == "float":
        try:
            rounded = struct.unpack(">f", struct.pack(">f", value))[0]
        except OverflowError:
            rounded = float("inf") if value > 0 else float("-inf")
        return "0x" + struct.pack(">d", rounded).hex().upper()
    if type_ == "half":
        return "0xH" + struct.pack(">e", value).hex().upper()
    if type_ == "bfloat":
        bits = struct.unpack(">I", struct.pack(">f", value))[0]
        return f"0xR{(bits + 0x7FFF + ((bits >> 16) & 1)) >> 16:04X}"
    raise AssertionError(type_)


def vector_type(element: str, lanes: int) -> str:
    """Return LLVM's type of ``lanes`` elements: a vector, or the element itself for one lane (``lanes`` 0)."""
    return f"<{lanes} x {element}>" if lanes else element


class Builder:
    """One function body being written: instructions in order, with the declarations it needs.

    Values are LLVM operand strings ("%v12", "3", "0x3FF0000000000000"). ``lanes`` is 0 for scalars.

    Args:
        level: Instruction set the text is written for, as LLVM names processors ("x86-64-v3", "x86-64-v4").
    """

    def __init__(self, level: str = "x86-64-v4") -> None:
        self.level = level
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.block = "entry"
        self._count = 0

    def fresh(self, stem: str = "v") -> str:
        """Return a name (without "%") that no other value or block of this builder has."""
        self._count += 1
        return f"{stem}{self._count}"

    def do(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self.lines.append("  " + instruction)

    def op(self, instruction: str, stem: str = "v") -> str:
        """Append an instruction with a result and return its value."""
        name = "%" + self.fresh(stem)
        self.lines.append(f"  {name} = {instruction}")
        return name

    def call(self, result: str, function: str, arguments: Sequence[tuple[str, str]]) -> str:
        """Append a call of ``@function`` (declared on the way) with (type, value) pairs; return its value.

        For ``result`` "void" the returned string is empty.
        """
        types = ", ".join(t for t, _ in arguments)
        self.declarations.add(f"declare {result} @{function}({types})")
        text = f"call {result} @{function}({', '.join(f'{t} {v}' for t, v in arguments)})"
        if result == "void":
            self.do(text)
            return ""
        return self.op(text)

    def splat(self, value: str, element: str, lanes: int) -> str:
        """Return a vector of ``lanes`` copies of the scalar ``value`` (the scalar itself for 0 lanes)."""
        if not lanes:
            return value
        if not value.startswith("%"):
            return f"splat ({element} {value})"
        first = self.op(f"insertelement <{lanes} x {element}> poison, {element} {value}, i64 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.op(f"shufflevector <{lanes} x {element}> {first}, <{lanes} x {element}> poison, {mask}")

    def constant(self, value: float, element: str, lanes: int) -> str:
        """Return a constant vector (or scalar): ``element`` is an LLVM type such as "float" or "i32"."""
        literal = float_literal(value, element) if element in _FLOAT_BITS else str(int(value))
        return self.splat(literal, element, lanes)

    def start(self, label: str) -> None:
        """Open the block ``label``; instructions go there from now on."""
        self.lines.append(f"{label}:")
        self.block = label

    def branch(self, label: str) -> None:
        """Jump to ``label``."""
        self.do(f"br label %{label}")

    def loop(
        self,
        low: str,
        high: str,
        step: str,
        body: Callable[[str, list[str]], list[str]],
        carried: Sequence[tuple[str, str]] = (),
        type_: str = "i64",
    ) -> list[str]:
        """Write ``for i in low..high step`` and return the final values of what it carries.

        Args:
            low: First value of the counter.
            high: The counter stays below it (signed).
            step: What is added after each turn, positive.
            body: Called once with the counter and the carried values; returns their next values.
            carried: (type, initial value) of each value kept from turn to turn.
            type_: Integer type of the counter.

        Returns:
            One value per carried one, as it stands when the loop ends.
        """
        before, head, inside, latch, after = (self.fresh(s) for s in ("pre", "head", "body", "latch", "exit"))
        self.branch(before)
        self.start(before)
        self.branch(head)
        self.start(head)
        counter, following = "%" + self.fresh("i"), "%" + self.fresh("n")
        names = ["%" + self.fresh("c") for _ in carried]
        self.do(f"{counter} = phi {type_} [{low}, %{before}], [{following}, %{latch}]")
        phis = len(self.lines)  # their second halves are known once the body is written
        more = self.op(f"icmp slt {type_} {counter}, {high}")
        self.do(f"br i1 {more}, label %{inside}, label %{after}")
        self.start(inside)
        results = body(counter, names)
        self.branch(latch)
        self.start(latch)
        self.do(f"{following} = add {type_} {counter}, {step}")
        self.branch(head)
        self.lines[phis:phis] = [
            f"  {name} = phi {kind} [{initial}, %{before}], [{value}, %{latch}]"
            for (kind, initial), name, value in zip(carried, names, results, strict=True)
        ]
        self.start(after)
        return names
