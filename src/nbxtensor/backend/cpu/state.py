"""What the lowering of one kernel knows while it writes: scalars, blocks in scratch, facts; values as text."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from nbxtensor.backend.cpu.affine import ZERO, Fact, Facts, Integer, Poly
from nbxtensor.backend.cpu.ir import Builder, vector_type
from nbxtensor.backend.cpu.ttir import Type, Value
from nbxtensor.errors import CompileError

__all__ = ["ARITHMETIC", "AXIS", "BYTES", "LLVM", "Buffer", "Index", "Operand", "Pointer", "Register", "State", "bits"]

LLVM = {"f16": "i16", "bf16": "i16", "f32": "float", "f64": "double", "ptr": "ptr", "index": "i64"} | {
    name: name for name in ("i1", "i8", "i16", "i32", "i64")
}
"""LLVM's type of each element type that is lowered, between ops. Halves travel as integers, which every processor has
registers for; they are floats only where an op works on them."""

ARITHMETIC = LLVM | {"f16": "half", "bf16": "bfloat"}
"""LLVM's type of each element type while an op works on it."""

BYTES = {"i1": 1, "i8": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8, "index": 8, "ptr": 8}
"""Bytes of one element in memory: a boolean takes one."""

AXIS = "@"
"""What the name of a symbol begins with that stands for "the index along axis k" where no loop runs yet."""

_ALIGN = 64  # bytes: one cache line, one AVX-512 register


def bits(element: str) -> int:
    """Return the width of an integer element type."""
    return 64 if element == "index" else int(element[1:])


@dataclass(frozen=True)
class Register:
    """A value in LLVM: a scalar when ``lanes`` is 0 (then equal in all lanes of whatever reads it), else a vector."""

    value: str
    element: str
    lanes: int = 0

    @property
    def type(self) -> str:
        """Its LLVM type."""
        return vector_type(LLVM[self.element], self.lanes)


@dataclass(frozen=True)
class Pointer:
    """Addresses: ``base + offset`` bytes, and where ``index`` is given ``+ index * unit`` bytes per lane."""

    base: str
    offset: Integer
    index: Register | None = None
    unit: int = 1


Operand = Register | Integer | Pointer
Index = Integer | Register


@dataclass(frozen=True)
class Buffer:
    """A block kept in scratch, row-major but for the one axis that lies in runs.

    Attributes:
        address: Pointer value.
        type: Type of the block.
        bounds: Per axis how far it is filled, where that is less than the extent (the rest is undefined).
        run: The axis whose elements are adjacent, where that is not the last.
    """

    address: str
    type: Type
    bounds: tuple[Poly, ...] = ()
    run: int | None = None

    @property
    def order(self) -> list[int]:
        """The axes from the one whose elements are adjacent to the one whose are farthest apart."""
        rank = len(self.type.shape or ())
        order = list(reversed(range(rank)))
        if self.run is not None:
            order.remove(self.run)
            order.insert(0, self.run)
        return order


@dataclass
class State:
    """The lowering of one kernel.

    Attributes:
        kernel: Name of the kernel, for messages.
        b: Where instructions go.
        facts: What is known of symbols: scalars as 64-bit integers, by name.
        scalars: LLVM value of every scalar made so far.
        buffers: Where blocks that were made are kept.
        affine: Blocks carried by a loop that are an earlier block plus a scalar: (that block, the scalar's symbol).
        homes: Depth of the scope that a value was made in: it is evaluated no further out.
        floor: Depth of the region being written: no block is evaluated further out, where what it is read from may
            not have been written yet.
        features: LLVM features that may be used beyond the level.
        tables: Constant blocks of the module, as LLVM globals.
        scratch_nbytes: Most scratch given out at any time.
        scratch_top: Scratch given out now: what a branch or a loop's body took is free after it.
        workspace_nbytes: Scratch at ``%workspace``, which one op after another may write.
    """

    kernel: str
    b: Builder
    features: frozenset[str] = frozenset()
    facts: Facts = field(default_factory=Facts)
    scalars: dict[Value, str] = field(default_factory=dict[Value, str])
    buffers: dict[Value, Buffer] = field(default_factory=dict[Value, Buffer])
    affine: dict[Value, tuple[Value, Poly]] = field(default_factory=dict[Value, tuple[Value, Poly]])
    homes: dict[Value, int] = field(default_factory=dict[Value, int])
    floor: int = 0
    tables: list[str] = field(default_factory=list[str])
    scratch_nbytes: int = 0
    scratch_top: int = 0
    workspace_nbytes: int = 0

    @property
    def width(self) -> int:
        """Bytes of a vector register."""
        return 64 if self.b.level == "x86-64-v4" else 32

    def error(self, rule: str, got: object, accepted: str) -> CompileError:
        """Return the error that names this kernel."""
        return CompileError(f"{self.kernel}: {rule}. Got {got}. {accepted}.")

    def element(self, type_: Type) -> str:
        """Return the element of a type as registers have it.

        Raises:
            CompileError: For an element type that is not lowered.
        """
        name = "ptr" if type_.pointer else type_.element
        if name not in LLVM:
            accepted = ", ".join(n for n in LLVM if n != "ptr")
            raise self.error("an element type is lowered", name, f"{accepted} are accepted")
        return name

    def allocate(self, type_: Type) -> Buffer:
        """Return scratch for a block, aligned to a cache line."""
        nbytes = BYTES[self.element(type_)] * type_.size
        with self.b.at(0):
            address = self.b.pure(f"getelementptr i8, ptr %scratch, i64 {self.scratch_top}")
        self.scratch_top += -(-nbytes // _ALIGN) * _ALIGN
        self.scratch_nbytes = max(self.scratch_nbytes, self.scratch_top)
        return Buffer(address, type_)

    def table(self, numbers: Sequence[str], element: str) -> str:
        """Return the address of a constant array, given as LLVM literals."""
        kind = "i8" if element == "i1" else LLVM[element]
        body = f"constant [{len(numbers)} x {kind}] [{', '.join(f'{kind} {n}' for n in numbers)}], align {_ALIGN}"
        for line in self.tables:
            name, same = line.split(" = private ", 1)
            if same == body:
                return name
        name = f"@table{len(self.tables)}"
        self.tables.append(f"{name} = private {body}")
        return name

    @contextlib.contextmanager
    def part(self) -> Generator[None]:
        """Forget, after a with statement that writes a branch or a loop's body, the blocks put into scratch there."""
        held, top, floor = dict(self.buffers), self.scratch_top, self.floor
        try:
            yield
        finally:
            self.buffers, self.scratch_top, self.floor = held, top, floor

    # Scalars as symbols, and back.

    def symbol(self, value: str, element: str, fact: Fact | None = None) -> Poly:
        """Return the integer scalar ``value`` as a polynomial."""
        if not value.startswith("%"):
            return Poly.constant(int(value))
        wide = value if bits(element) == 64 else self.b.pure(f"sext {LLVM[element]} {value} to i64")
        known = fact or self.facts.get(value)
        if known is not None:
            self.facts[wide] = known
        return Poly.symbol(wide)

    def scalar(self, poly: Poly) -> str:
        """Return the value of a polynomial as an i64, computed as far out as its symbols allow."""

        def depth(item: tuple[tuple[str, ...], int]) -> tuple[int, tuple[str, ...]]:
            return max((self.b.depth_of(name) for name in item[0]), default=-1), item[0]

        total = ""
        for monomial, coefficient in sorted(((m, c) for m, c in poly.terms.items() if m), key=depth):
            factor, *others = sorted(monomial, key=self.b.depth_of)
            for name in others:
                factor = self.b.pure(f"mul i64 {factor}, {name}")
            if coefficient != 1:
                factor = self.b.pure(f"mul i64 {factor}, {coefficient}")
            total = self.b.pure(f"add i64 {total}, {factor}") if total else factor
        constant = poly.value()
        if not total:
            return str(constant)
        return self.b.pure(f"add i64 {total}, {constant}") if constant else total

    def split(self, poly: Poly, divisor: int) -> tuple[Poly, Poly] | None:
        """Return quotient and remainder of a polynomial that is not negative by a positive constant, as symbols.

        None where a symbol stands for an axis, which has no value to write.
        """
        if any(name.startswith(AXIS) for name in poly.symbols()):
            return None
        value = self.scalar(poly)
        _, high = self.facts.bounds(poly)
        known = self.facts.multiple(poly)
        quotient = self.b.pure(f"udiv i64 {value}, {divisor}")
        rest = self.b.pure(f"urem i64 {value}, {divisor}")
        multiple = known // divisor if known % divisor == 0 else 1
        self.facts[quotient] = Fact(0, None if high is None else high // divisor, max(multiple, 1))
        common = math.gcd(known, divisor)
        self.facts[rest] = Fact(0, divisor - common, common)
        return Poly.symbol(quotient), Poly.symbol(rest)

    # Operands as registers.

    def register(self, operand: Operand, element: str, lanes: int) -> Register:
        """Return an operand as a register: a scalar when all lanes are equal, else a vector of ``lanes``."""
        if isinstance(operand, Register):
            return operand
        if isinstance(operand, Pointer):
            return self.addresses(operand, lanes)
        kind = LLVM[element]
        value = self.narrow(self.scalar(operand.base), kind)
        if operand.uniform or not lanes:
            return Register(value, element)
        return Register(self._steps(value, operand.lane, kind, lanes), element, lanes)

    def narrow(self, value: str, kind: str) -> str:
        """Return an i64 scalar cut to the integer type ``kind``."""
        if kind == "i64":
            return value
        if not value.startswith("%"):
            modulus = 1 << int(kind[1:])
            number = int(value) % modulus
            return str(number - modulus if number >= modulus // 2 > 0 else number)
        return self.b.pure(f"trunc i64 {value} to {kind}")

    def _steps(self, base: str, lane: Poly, kind: str, lanes: int) -> str:
        if lane.is_constant():
            modulus = 1 << int(kind[1:])
            numbers = (lane.value() * k % modulus for k in range(lanes))
            steps = "<" + ", ".join(f"{kind} {n}" for n in numbers) + ">"
        else:
            step = self.b.splat(self.narrow(self.scalar(lane), kind), kind, lanes)
            steps = self.b.pure(f"mul <{lanes} x {kind}> {step}, {self.lane_numbers(kind, lanes)}")
        if base == "0":
            return steps
        return self.b.pure(f"add <{lanes} x {kind}> {self.b.splat(base, kind, lanes)}, {steps}")

    def lane_numbers(self, kind: str, lanes: int) -> str:
        """Return the constant vector 0, 1, 2, ..."""
        return "<" + ", ".join(f"{kind} {k}" for k in range(lanes)) + ">"

    def vector(self, register: Register, lanes: int) -> str:
        """Return a register as a vector of ``lanes`` (as it is when ``lanes`` is 0)."""
        if register.lanes or not lanes:
            return register.value
        return self.b.splat(register.value, LLVM[register.element], lanes)

    def address(self, pointer: Pointer) -> str:
        """Return the address in lane 0 of a pointer without an index."""
        by_depth: dict[int, Poly] = {}
        for monomial, coefficient in pointer.offset.base.terms.items():
            depth = max((self.b.depth_of(name) for name in monomial), default=1 << 30)
            by_depth[depth] = by_depth.get(depth, ZERO) + Poly({monomial: coefficient})
        address = pointer.base
        for depth in sorted(by_depth):
            address = self.b.pure(f"getelementptr i8, ptr {address}, i64 {self.scalar(by_depth[depth])}")
        return address

    def addresses(self, pointer: Pointer, lanes: int) -> Register:
        """Return the addresses of a pointer: a scalar when all lanes are equal."""
        base = self.address(pointer)
        if not pointer.offset.uniform and lanes:
            steps = self._steps("0", pointer.offset.lane, "i64", lanes)
            base = self.b.pure(f"getelementptr i8, ptr {base}, <{lanes} x i64> {steps}")
        if pointer.index is None:
            return Register(base, "ptr", 0 if pointer.offset.uniform else lanes)
        kind = "ptr" if pointer.offset.uniform else f"<{lanes} x ptr>"
        index = self.wide(pointer.index)
        unit = f"[{pointer.unit} x i8]" if pointer.unit not in {1, 2, 4, 8} else f"i{8 * pointer.unit}"
        return Register(self.b.pure(f"getelementptr {unit}, {kind} {base}, {index.type} {index.value}"), "ptr", lanes)

    def wide(self, register: Register) -> Register:
        """Return an integer register sign-extended to 64 bits."""
        if register.element == "i64":
            return register
        target = vector_type("i64", register.lanes)
        return Register(self.b.pure(f"sext {register.type} {register.value} to {target}"), "i64", register.lanes)
