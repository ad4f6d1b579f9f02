"""Writing LLVM IR text: names, blocks, loops, declarations."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

__all__ = ["Builder", "Scope", "float_literal", "vector_type"]

_VALUE = re.compile(r"%[\w.]+")
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


@dataclass
class Scope:
    """The body of one loop or branch while it is being written; the outermost is the function's own.

    Attributes:
        lines: Its instructions so far. What is hoisted out of an inner scope lands here, before that inner scope.
        block: Label of the block that the next instruction belongs to.
        known: What is already computed here, by a key of the writer's choice (instruction text, a value and an index).
    """

    lines: list[str] = field(default_factory=list[str])
    block: str = "entry"
    known: dict[object, object] = field(default_factory=dict[object, object])


class Builder:
    """One function body being written: instructions in order, with the declarations it needs.

    Values are LLVM operand strings ("%v12", "3", "0x3FF0000000000000"). ``lanes`` is 0 for scalars. Scopes nest as
    loops and branches do; ``depth`` counts them (0 is the function's body), and every value knows the depth it was
    made at.

    Args:
        level: Instruction set the text is written for, as LLVM names processors ("x86-64-v3", "x86-64-v4").
    """

    def __init__(self, level: str = "x86-64-v4") -> None:
        self.level = level
        self.declarations: set[str] = set()
        self.scopes: list[Scope] = [Scope()]
        self._depths: dict[str, int] = {}
        self._count = 0

    @property
    def lines(self) -> list[str]:
        """The instructions of the innermost scope."""
        return self.scopes[-1].lines

    @property
    def block(self) -> str:
        """Label of the block being written."""
        return self.scopes[-1].block

    @property
    def depth(self) -> int:
        """How many loops and branches surround the next instruction."""
        return len(self.scopes) - 1

    def fresh(self, stem: str = "v") -> str:
        """Return a name (without "%") that no other value or block of this builder has."""
        self._count += 1
        return f"{stem}{self._count}"

    def name(self, stem: str = "v") -> str:
        """Return a new value ("%..."), defined at the present depth by whoever asked for it."""
        value = "%" + self.fresh(stem)
        self._depths[value] = self.depth
        return value

    def depth_of(self, value: str) -> int:
        """Return the depth that ``value`` was made at (0 for constants, arguments and unknown names)."""
        return self._depths.get(value, 0)

    def do(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self.lines.append("  " + instruction)

    def op(self, instruction: str, stem: str = "v") -> str:
        """Append an instruction with a result and return its value."""
        name = self.name(stem)
        self.lines.append(f"  {name} = {instruction}")
        return name

    def pure(self, instruction: str) -> str:
        """Return the value of an instruction without side effects, written once, as far out as its operands allow.

        It may run where the program would not have run it, so it must not trap: no division by an unknown value.
        """
        depth = max((self._depths.get(v, 0) for v in _VALUE.findall(instruction)), default=0)
        with self.at(depth):
            known = self.scopes[-1].known
            value = known.get(instruction)
            if value is None:
                value = known[instruction] = self.op(instruction)
        return str(value)

    @contextlib.contextmanager
    def at(self, depth: int) -> Generator[None]:
        """Write into the scope at ``depth`` for the length of a with statement, before the scopes inside it."""
        inner = self.scopes[depth + 1 :]
        del self.scopes[depth + 1 :]
        try:
            yield
        finally:
            self.scopes.extend(inner)

    @contextlib.contextmanager
    def nested(self, label: str) -> Generator[Scope]:
        """Write into a new innermost scope that begins with the block ``label``; the caller places its lines."""
        scope = Scope([f"{label}:"], label)
        self.scopes.append(scope)
        try:
            yield scope
        finally:
            self.scopes.pop()

    def call(self, result: str, function: str, arguments: Sequence[tuple[str, str]], *, pure: bool = False) -> str:
        """Append a call of ``@function`` (declared on the way) with (type, value) pairs; return its value.

        For ``result`` "void" the returned string is empty. ``pure`` calls are written as :meth:`pure` writes.
        """
        types = ", ".join(t for t, _ in arguments)
        self.declarations.add(f"declare {result} @{function}({types})")
        text = f"call {result} @{function}({', '.join(f'{t} {v}' for t, v in arguments)})"
        if result == "void":
            self.do(text)
            return ""
        return self.pure(text) if pure else self.op(text)

    def splat(self, value: str, element: str, lanes: int) -> str:
        """Return a vector of ``lanes`` copies of the scalar ``value`` (the scalar itself for 0 lanes)."""
        if not lanes:
            return value
        if not value.startswith("%"):
            return f"splat ({element} {value})"
        first = self.pure(f"insertelement <{lanes} x {element}> poison, {element} {value}, i64 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        return self.pure(f"shufflevector <{lanes} x {element}> {first}, <{lanes} x {element}> poison, {mask}")

    def constant(self, value: float, element: str, lanes: int) -> str:
        """Return a constant vector (or scalar): ``element`` is an LLVM type such as "float" or "i32"."""
        literal = float_literal(value, element) if element in _FLOAT_BITS else str(int(value))
        return self.splat(literal, element, lanes)

    def start(self, label: str) -> None:
        """Open the block ``label``; instructions go there from now on."""
        self.lines.append(f"{label}:")
        self.scopes[-1].block = label

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
        following = "%" + self.fresh("n")
        with self.nested(inside) as scope:
            counter = self.name("i")
            names = [self.name("c") for _ in carried]
            results = body(counter, names)
            self.branch(latch)
            self.start(latch)
            self.do(f"{following} = add nsw {type_} {counter}, {step}")
            self.branch(head)
        self.branch(before)
        self.start(before)
        self.branch(head)
        self.start(head)
        self.do(f"{counter} = phi {type_} [{low}, %{before}], [{following}, %{latch}]")
        for (kind, initial), name, value in zip(carried, names, results, strict=True):
            self.do(f"{name} = phi {kind} [{initial}, %{before}], [{value}, %{latch}]")
        more = self.op(f"icmp slt {type_} {counter}, {high}")
        self.do(f"br i1 {more}, label %{inside}, label %{after}")
        self.lines.extend(scope.lines)
        self.start(after)
        self.outlive(names)
        return names

    def outlive(self, values: Sequence[str]) -> None:
        """Take values made in a scope that has ended as made in the one being written."""
        self._depths.update(dict.fromkeys((v for v in values if v.startswith("%")), self.depth))

    def choose(
        self,
        condition: str,
        then: Callable[[], list[str]],
        otherwise: Callable[[], list[str]] | None = None,
        types: Sequence[str] = (),
    ) -> list[str]:
        """Write ``if condition: then() else: otherwise()`` and return one merged value per type in ``types``.

        Both callables return their values in order; without ``otherwise`` there is nothing to merge.
        """
        yes, no, after = self.fresh("then"), self.fresh("else"), self.fresh("endif")
        ends: list[tuple[Scope, list[str], str]] = []
        for label, write in ((yes, then), (no, otherwise)):
            if write is None:
                continue
            with self.nested(label) as scope:
                values = write()
                ends.append((scope, values, self.block))
                self.branch(after)
        self.do(f"br i1 {condition}, label %{yes}, label %{no if otherwise else after}")
        for scope, _, _ in ends:
            self.lines.extend(scope.lines)
        self.start(after)
        return [
            self.op(f"phi {kind} " + ", ".join(f"[{values[k]}, %{end}]" for _, values, end in ends))
            for k, kind in enumerate(types)
        ]
