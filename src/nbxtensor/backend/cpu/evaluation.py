"""Blocks as functions of an index: any value of the kernel at any place, written where it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from nbxtensor.backend.cpu import elementwise, memory_access
from nbxtensor.backend.cpu.affine import ZERO, Integer, Poly
from nbxtensor.backend.cpu.indices import Indices, source_index
from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.state import BYTES, LLVM, Buffer, Index, Operand, Pointer, Register, State, bits
from nbxtensor.backend.cpu.ttir import Op, Value

__all__ = ["FORMULAS", "Evaluation", "Place"]

_TRUE = Register("true", "i1")
_FALSE = Register("false", "i1")


@dataclass(frozen=True)
class Place:
    """Where a block is evaluated: one index per axis, in ``lanes`` lanes (0: all indices are scalars)."""

    index: tuple[Index, ...]
    lanes: int = 0


class Evaluation(Indices):
    """Writes values at places; everything is computed once per place, outside the loops it does not depend on."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.b: Builder = state.b
        self.saving: dict[Value, Buffer] = {}
        """Blocks to write to scratch as they are computed, wherever that is at one of :attr:`turn`."""
        self.turn: frozenset[Place] = frozenset()
        """The places of the loop that saves."""
        self.saved: set[tuple[Value, Place]] = set()
        """What has been written so."""

    def _reshaped_lanes(self, op: Op, index: tuple[Index, ...], lanes: int) -> tuple[Index, ...]:
        """The same, each lane for itself."""
        kind = f"<{lanes} x i32>" if lanes else "i32"
        position, stride = "", 1
        for extent, i in zip(reversed(op.results[0].type.shape or ()), reversed(index), strict=True):
            lane = self.state.vector(self.state.register(i, "i32", lanes), lanes)
            factor = self.b.splat(str(stride), "i32", lanes)
            term = self.b.pure(f"mul {kind} {lane}, {factor}")
            position = self.b.pure(f"add {kind} {position}, {term}") if position else term
            stride *= extent
        moved: list[Index] = []
        for extent in reversed(op.operands[0].type.shape or ()):
            divisor = self.b.splat(str(extent), "i32", lanes)
            moved.append(Register(self.b.pure(f"urem {kind} {position}, {divisor}"), "i32", lanes))
            position = self.b.pure(f"udiv {kind} {position}, {divisor}")
        return tuple(reversed(moved))

    # What is written.

    def at(self, value: Value, place: Place) -> Operand:
        """Return a value at a place, written now unless it has been."""
        if value.type.shape is None:
            return Register(self.state.scalars[value], self.state.element(value.type))
        depth = max([self.state.floor, self.state.homes.get(value, 0), *map(self._depth, place.index)])
        depth = min(depth, self.b.depth)
        with self.b.at(depth):
            key = (value, place)
            for scope in reversed(self.b.scopes):
                if key in scope.known:
                    return scope.known[key]  # pyright: ignore[reportReturnType]
            result = self.b.scopes[-1].known[key] = self._at(value, place)
            if value in self.saving and place in self.turn:
                register = self.state.register(result, self.state.element(value.type), place.lanes)
                self.store_buffer(self.saving[value], place, register)
                self.saved.add(key)
        return result  # pyright: ignore[reportReturnType]

    def register(self, value: Value, place: Place) -> Register:
        """Return a value at a place as a register: a scalar when all lanes are equal."""
        operand = self.at(value, place)
        return self.state.register(operand, self.state.element(value.type), place.lanes)

    def assume(self, value: Value, place: Place, truth: Register | None = None) -> None:
        """Take a boolean block as ``truth`` (None: true) at a place, in the scope being written and inside it."""
        self.b.scopes[-1].known[value, place] = truth or _TRUE

    def _depth(self, index: Index) -> int:
        if isinstance(index, Register):
            return self.b.depth_of(index.value)
        return max((self.b.depth_of(s) for s in (*index.base.symbols(), *index.lane.symbols())), default=0)

    def _at(self, value: Value, place: Place) -> Operand:
        if value in self.state.buffers:
            return self.load_buffer(self.state.buffers[value], place)
        if value in self.state.affine:
            source, offset = self.state.affine[value]
            start = self.at(source, place)
            if isinstance(start, Pointer):
                return Pointer(start.base, start.offset.added(Integer(offset)), start.index, start.unit)
            if isinstance(start, Integer):
                return start.added(Integer(offset))
            return self._shifted(start, offset)
        integer = self.integer(value, place.index, place.lanes)
        if integer is not None:
            return integer
        op = value.op
        if op is None:
            raise self.state.error("a block is known where it is read", value, "This is a defect of the lowering")
        moved = source_index(op, place.index)
        if moved is not None:
            return self.at(op.operands[0], Place(moved, place.lanes))
        special = self._SPECIAL.get(op.name)
        if special is not None:
            return special(self, op, value, place)
        return elementwise.apply(self.state, op, [self.register(v, place) for v in op.operands])

    def _shifted(self, start: Register, offset: Poly) -> Register:
        """A register of integers, or of addresses, plus a scalar."""
        amount = self.state.scalar(offset)
        if start.element == "ptr":
            return Register(
                self.b.pure(f"getelementptr i8, {start.type} {start.value}, i64 {amount}"), "ptr", start.lanes
            )
        kind = LLVM[start.element]
        step = self.b.splat(self.state.narrow(amount, kind), kind, start.lanes)
        return Register(self.b.pure(f"add {start.type} {start.value}, {step}"), start.element, start.lanes)

    def load_buffer(self, buffer: Buffer, place: Place) -> Register:
        """Return an element, or a vector of them, of a block kept in scratch."""
        element = self.state.element(buffer.type)
        return memory_access.load(self.state, self.locate(buffer, place), element, place.lanes, None, None)

    def store_buffer(self, buffer: Buffer, place: Place, value: Register) -> None:
        """Write an element, or a vector of them, of a block kept in scratch."""
        pointer = self.locate(buffer, place)
        if place.lanes and all(isinstance(i, Integer) and i.uniform for i in place.index):
            place = Place(place.index)
        memory_access.store(self.state, pointer, value, place.lanes, None)

    def locate(self, buffer: Buffer, place: Place) -> Pointer:
        """Return where a block in scratch keeps what is at a place."""
        stride = BYTES[self.state.element(buffer.type)]
        pointer = Pointer(buffer.address, Integer(ZERO))
        for axis in buffer.order:
            extent = (buffer.type.shape or ())[axis]
            if extent != 1:
                pointer = self._moved(pointer, place.index[axis], stride)
            stride *= extent
        return pointer

    def _moved(self, pointer: Pointer, index: Index, unit: int) -> Pointer:
        """A pointer plus ``index * unit`` bytes."""
        if isinstance(index, Register) and not index.lanes:
            index = Integer(self.state.symbol(index.value, index.element))
        if isinstance(index, Integer):
            offset = pointer.offset.added(index.scaled(Poly.constant(unit)))
            return Pointer(pointer.base, offset, pointer.index, pointer.unit)
        if pointer.index is None:
            return Pointer(pointer.base, pointer.offset, index, unit)
        parts: list[str] = []
        kind = f"<{index.lanes} x i64>"
        for register, factor in ((pointer.index, pointer.unit), (index, unit)):
            wide = self.state.wide(register).value
            parts.append(self.b.pure(f"mul {kind} {wide}, {self.b.splat(str(factor), 'i64', index.lanes)}"))
        total = self.b.pure(f"add {kind} {parts[0]}, {parts[1]}")
        return Pointer(pointer.base, pointer.offset, Register(total, "i64", index.lanes), 1)

    def pointer(self, value: Value, place: Place) -> Pointer | Register:
        """Return a pointer block at a place."""
        found = self.at(value, place)
        if isinstance(found, Register) and not found.lanes:
            return Pointer(found.value, Integer(ZERO))
        if isinstance(found, Integer):
            raise self.state.error("a pointer is no integer", value, "This is a defect of the lowering")
        return found

    def _addptr(self, op: Op, value: Value, place: Place) -> Operand:
        base = self.pointer(op.operands[0], place)
        index = self.at(op.operands[1], place)
        unit = BYTES.get(value.type.element, 0)
        if not unit:
            raise self.state.error("a pointer's element is lowered", value.type.element, f"{', '.join(BYTES)} are")
        if isinstance(index, Pointer):
            raise self.state.error("an offset is an integer", op.line, "This is a defect of the lowering")
        if isinstance(base, Pointer):
            return self._moved(base, index, unit)
        lanes = base.lanes
        register = self.state.wide(self.state.register(index, "i64", lanes))
        wide = f"<{lanes} x i64> {self.state.vector(register, lanes)}"
        kind = f"i{8 * unit}"
        return Register(self.b.pure(f"getelementptr {kind}, <{lanes} x ptr> {base.value}, {wide}"), "ptr", lanes)

    def _splat(self, op: Op, value: Value, _: Place) -> Operand:
        scalar = self.state.scalars[op.operands[0]]
        if value.type.pointer:
            return Pointer(scalar, Integer(ZERO))
        return Register(scalar, self.state.element(value.type))

    def _range(self, op: Op, value: Value, place: Place) -> Operand:
        """A range where the index is a number of its own in each lane."""
        element = value.type.element
        number = self.state.register(place.index[0], element, place.lanes)
        kind = LLVM[element]
        wide = f"<{number.lanes} x {kind}>" if number.lanes else kind
        text = number.value
        if LLVM[number.element] != kind:
            text = self.b.pure(
                f"{'trunc' if bits(number.element) > bits(element) else 'sext'} {number.type} {text} to {wide}"
            )
        start = self.b.splat(op.attributes["start"], kind, number.lanes)
        return Register(self.b.pure(f"add {wide} {text}, {start}"), element, number.lanes)

    def _constant(self, op: Op, value: Value, place: Place) -> Operand:
        numbers = op.constant()
        element = self.state.element(value.type)
        if len(numbers) == 1:
            return Register(elementwise.literal(numbers[0], element), element)
        table = self.state.table([elementwise.literal(n, element) for n in numbers], element)
        return self.load_buffer(Buffer(table, value.type), place)

    def _load(self, op: Op, value: Value, place: Place) -> Operand:
        pointer = self.pointer(op.operands[0], place)
        mask = self.register(op.operands[1], place) if len(op.operands) > 1 else None
        other = self.register(op.operands[2], place) if len(op.operands) > 2 else None
        return memory_access.load(self.state, pointer, self.state.element(value.type), place.lanes, mask, other)

    def _reshape(self, op: Op, _: Value, place: Place) -> Operand:
        moved = self.reshaped(op, place.index, place.lanes)
        if moved is None:
            moved = self._reshaped_lanes(op, place.index, place.lanes)
        return self.at(op.operands[0], Place(moved, place.lanes))

    def _join(self, op: Op, value: Value, place: Place) -> Operand:
        which = place.index[-1]
        rest = Place(place.index[:-1], place.lanes)
        if isinstance(which, Integer) and which.uniform and which.base.is_constant():
            return self.at(op.operands[which.base.value()], rest)
        first, second = (self.register(v, rest) for v in op.operands)
        lanes = max(place.lanes, 0)
        number = self.state.register(which, "i32", lanes)
        zero = self.b.splat("0", LLVM[number.element], number.lanes)
        condition = self.b.pure(f"icmp eq {number.type} {number.value}, {zero}")
        kind = LLVM[self.state.element(value.type)]
        kind = f"<{lanes} x {kind}>" if lanes else kind
        test = "i1" if not number.lanes else f"<{lanes} x i1>"
        a, c = (self.state.vector(r, lanes) for r in (first, second))
        return Register(self.b.pure(f"select {test} {condition}, {kind} {a}, {kind} {c}"), first.element, lanes)

    def _split(self, op: Op, value: Value, place: Place) -> Operand:
        which = Integer(Poly.constant(value.index))
        return self.at(op.operands[0], Place((*place.index, which), place.lanes))

    def _bitcast(self, op: Op, value: Value, place: Place) -> Operand:
        if value.type.pointer:
            return self.at(op.operands[0], place)
        return elementwise.apply(self.state, op, [self.register(op.operands[0], place)])

    def _compare(self, op: Op, _: Value, place: Place) -> Operand:
        a, c = (self.integer(v, place.index, place.lanes) for v in op.operands)
        if a is not None and c is not None:
            known = self.compared(op.attributes["predicate"], a, c, place.lanes)
            if known is not None:
                return _TRUE if known else _FALSE
        return elementwise.apply(self.state, op, [self.register(v, place) for v in op.operands])

    _SPECIAL: ClassVar[dict[str, Callable[[Evaluation, Op, Value, Place], Operand]]] = {
        "tt.addptr": _addptr,
        "tt.splat": _splat,
        "tt.make_range": _range,
        "arith.constant": _constant,
        "tt.load": _load,
        "tt.reshape": _reshape,
        "tt.join": _join,
        "tt.split": _split,
        "tt.bitcast": _bitcast,
        "arith.cmpi": _compare,
    }


FORMULAS = frozenset(
    "tt.addptr tt.splat tt.load tt.reshape tt.join tt.split tt.bitcast tt.expand_dims tt.broadcast tt.trans "
    "tt.make_range arith.constant arith.cmpi".split()
)
"""Ops on blocks that are evaluated where they are read, beside the elementwise ones."""
