"""Blocks written to scratch: ahead of a loop that reads them, or by the loop that computes them first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

from nbxtensor.backend.cpu import elementwise
from nbxtensor.backend.cpu.affine import Integer, Poly
from nbxtensor.backend.cpu.contiguity import best_axis, widest
from nbxtensor.backend.cpu.domains import Domain, vector_axis
from nbxtensor.backend.cpu.evaluation import Evaluation, Place
from nbxtensor.backend.cpu.indices import axes, operand_index, source_index, strides
from nbxtensor.backend.cpu.keeping import MOVES, Keeping, lazy
from nbxtensor.backend.cpu.state import AXIS, BYTES, Buffer, Index, Pointer, Register, State
from nbxtensor.backend.cpu.transposition import side, turned_copy
from nbxtensor.backend.cpu.ttir import Op, Type, Value

__all__ = ["Materializer"]

_TURNING = frozenset(
    {"tt.load", "tt.trans", "tt.expand_dims", "tt.reshape", "arith.extf", "arith.truncf", "tt.fp_to_fp"}
)
_LINE = 64  # bytes of a cache line
_MOVING = MOVES | {"tt.join", "tt.split", "tt.load"}


@dataclass
class _Needs:
    """What a loop reads that is kept in scratch.

    Attributes:
        made: What the loop is there for, which it need not save.
        whole: What the loop computes all of, and saves.
        ahead: What is written before it.
        turned: What is written before it for this loop's own order of elements.
        seen: What has been looked at.
    """

    made: Value | None
    whole: list[Value] = field(default_factory=list[Value])
    ahead: list[Value] = field(default_factory=list[Value])
    turned: list[Value] = field(default_factory=list[Value])
    seen: set[tuple[Value, tuple[Index, ...]]] = field(default_factory=set[tuple[Value, tuple[Index, ...]]])

    def early(self, value: Value) -> None:
        """Have a block written before the loop."""
        if value not in self.ahead:
            self.ahead.append(value)


class Materializer:
    """Sees to it that what a loop reads is there, as the analysis of the kernel asks."""

    def __init__(self, evaluation: Evaluation, keeping: Keeping) -> None:
        self.evaluation = evaluation
        self.state: State = evaluation.state
        self.keeping = keeping

    def block(self, value: Value, buffer: Buffer | None = None) -> Buffer:
        """Write a block to scratch now, row-major, and return where it is.

        Args:
            value: The block.
            buffer: Where to write it, of any float type; new scratch where it is not given.
        """
        held = self.state.buffers.get(value)
        if buffer is None and held is not None and not held.bounds and held.run is None:
            return held
        shape = value.type.shape or ()
        target = buffer or self.state.allocate(value.type)
        last = max((k for k, extent in enumerate(shape) if extent > 1), default=0)
        if self.sideways(value, last):
            self.turned(value, target, tuple(Poly.constant(n) for n in shape))
        else:
            self.straight(value, target, shape)
        if buffer is None:
            self.state.buffers[value] = target
        return target

    def lanes(self, values: Sequence[Value]) -> int:
        """Return the lanes of vectors that computing ``values`` fills registers with."""
        return self.state.width // widest(self.evaluation, values)

    def along(self, shape: tuple[int, ...], values: Sequence[Value]) -> int:
        """Return the axis for vectors over a block of ``shape`` that reads, or writes through, ``values``."""
        return best_axis(self.evaluation, shape, values, self.state.width // 4)

    def sideways(self, value: Value, axis: int) -> bool:
        """Return whether a block is a load, moved or cast at most, that lies along another axis than ``axis``."""
        shape = value.type.shape or ()
        inner = value
        while inner.op is not None and inner.op.name in _TURNING and inner not in self.state.buffers:
            if inner.op.name == "tt.load":
                along = self.along(shape, [value])
                extents = shape[along], shape[axis]
                return along != axis and side(self.state.width, self.state.element(value.type), extents) > 0
            inner = inner.op.operands[0]
        return False

    def turned(self, value: Value, target: Buffer, bounds: tuple[Poly, ...]) -> None:
        """Write a block that lies along another axis than ``target`` does."""
        shape = value.type.shape or ()
        along = self.along(shape, [value])
        across = next(k for k in target.order if shape[k] > 1)
        lanes = side(self.state.width, self.state.element(target.type), (shape[along], shape[across]))
        turned_copy(self.evaluation, value, target, along, bounds, lanes)

    def straight(self, value: Value, target: Buffer, shape: tuple[int, ...]) -> None:
        """Write a block to scratch in vectors along the axis that it is read along."""
        domain = Domain(self.evaluation, shape, self.along(shape, [value]), self.lanes([value]))
        source, element = self.state.element(value.type), self.state.element(target.type)
        with self.reading(domain, [value], made=value):

            def body(places: list[Place], _: Register | None) -> None:
                registers = [self.evaluation.register(value, place) for place in places]
                if element != source:
                    registers = [elementwise.convert(self.state, r, element) for r in registers]
                for place, register in zip(places, registers, strict=True):
                    self.evaluation.store_buffer(target, place, register)

            domain.visit(body)

    def reads(self, value: Value, block: Value, *, elsewhere: bool = False) -> bool:
        """Return whether the formula of ``value`` reads ``block``; ``elsewhere``: at another index than its own."""
        found: dict[Value, bool] = {}

        def visit(value: Value, *, moved: bool) -> None:
            if value.type.shape is None or (value in found and found[value] >= moved):
                return
            found[value] = moved
            if value not in self.state.buffers and lazy(value) and value.op is not None:
                inside = moved or value.op.name in _MOVING
                for operand in value.op.operands:
                    visit(operand, moved=inside)

        visit(value, moved=False)
        return found.get(block, False) if elsewhere else block in found

    def displace(self, block: Value) -> None:
        """Copy a block that a loop carries away, so that its place can be written while it is still read."""
        self.state.buffers[block] = self.block(block, self.state.allocate(block.type))

    def converted(self, buffer: Buffer, type_: Type) -> Buffer:
        """Return a block in scratch as one of another float type."""
        if buffer.type.element == type_.element:
            return buffer
        shape = type_.shape or ()
        target = self.state.allocate(type_)
        lanes = self.state.width // 4

        def body(places: list[Place], _: Register | None) -> None:
            for place in places:
                register = self.evaluation.load_buffer(buffer, place)
                register = elementwise.convert(self.state, register, type_.element)
                self.evaluation.store_buffer(target, place, register)

        Domain(self.evaluation, shape, vector_axis(shape, lanes), lanes).visit(body)
        return target

    def prefetcher(self, op: Op) -> Callable[[list[Place]], None]:
        """Return what asks for the memory that the block after a reduction goes to, at each turn of the reduction.

        By the time it is written its lines are in the second-level cache, fetched while the processor computed. It
        pays only where the reduction computes much; a light one keeps the memory busy by itself.
        """
        dear = any(self.keeping.heavy(v) for v in op.operands)
        store = self.keeping.written_next.get(op) if dear else None
        pointer = store.operands[0] if store else None
        index = axes(self.state, op.operands[0].type.shape or ())
        found = self.evaluation.strided(pointer, index) if pointer and self._addressable(pointer) else None
        steps = strides(found[1], len(index)) if found else None
        nbytes = BYTES.get(pointer.type.element, 0) if pointer else 0

        def ask(places: list[Place]) -> None:
            if found is None or steps is None:
                return
            base, offset = found
            for k, place in enumerate(places):
                moved = {f"{AXIS}{n}": i for n, i in enumerate(place.index) if isinstance(i, Integer)}
                where = Integer(offset).substituted(moved)
                if where.lane == Poly.constant(nbytes) and k * place.lanes * nbytes % _LINE == 0:
                    address = self.state.address(Pointer(self.state.scalars[base], where))
                    arguments = [("ptr", address), ("i32", "0"), ("i32", "2"), ("i32", "1")]
                    self.state.b.call("void", "llvm.prefetch.p0", arguments)

        return ask

    def _addressable(self, pointer: Value) -> bool:
        """Whether the integers of a pointer block's formula, and the pointer it starts from, are known by now."""
        op = pointer.op
        if pointer.type.shape is None:
            while op is not None and op.name in {"tt.addptr", "tt.bitcast"}:
                if not all(self.evaluation.written(v) for v in op.operands[1:]):
                    return False
                pointer = op.operands[0]
                op = pointer.op
            return pointer in self.state.scalars
        if op is None or op.name not in {"tt.addptr", "tt.bitcast", *MOVES}:
            return pointer in self.state.affine
        return self._addressable(op.operands[0]) and all(self.evaluation.written(v) for v in op.operands[1:])

    @contextlib.contextmanager
    def reading(self, domain: Domain, values: Sequence[Value], made: Value | None = None) -> Generator[None]:
        """Prepare what a loop over ``domain`` reads, for the length of the loop that the with statement writes.

        Blocks to be kept are saved by that loop where it computes all of them, else written ahead.

        Args:
            domain: What the loop goes over.
            values: What it reads.
            made: What it writes to scratch itself, if anything.
        """
        evaluation = self.evaluation
        index = axes(self.state, domain.shape)
        needs = _Needs(made)
        for value in values:
            self._needed(value, index, domain, needs)
        for value in needs.ahead:
            self.block(value)
        bounds = domain.bounds()
        full = bounds == tuple(Poly.constant(n) for n in domain.shape)
        run = None if domain.axis == len(domain.shape) - 1 else domain.axis

        def place_for(value: Value) -> Buffer:
            return replace(self.state.allocate(value.type), bounds=() if full else bounds, run=run)

        for value in needs.turned:
            target = place_for(value)
            self.turned(value, target, bounds)
            self.state.buffers[value] = target
        whole = () if domain.guards() else needs.whole  # a loop that may not run saves nothing
        saving = {v: place_for(v) for v in whole if v not in self.state.buffers}
        outer = evaluation.saving, evaluation.turn, evaluation.saved, domain.on_turn
        evaluation.saving, evaluation.saved = saving, set()
        turns: list[frozenset[Place]] = []

        def on_turn(places: list[Place]) -> None:
            evaluation.turn = frozenset(places)
            turns.append(evaluation.turn)

        domain.on_turn = on_turn
        try:
            yield
        finally:
            saved = evaluation.saved
            evaluation.saving, evaluation.turn, evaluation.saved, domain.on_turn = outer
        for value, buffer in saving.items():
            if turns and all((value, place) in saved for places in turns for place in places):
                self.state.buffers[value] = buffer

    def _needed(
        self,
        value: Value,
        index: tuple[Index, ...],
        domain: Domain,
        needs: _Needs,
    ) -> None:
        """Sort what is to be kept into what the loop computes whole, and what must be there before it."""
        if value.type.shape is None or (value, index) in needs.seen:
            return
        needs.seen.add((value, index))
        identity = value.type.shape == domain.shape and index == axes(self.state, domain.shape)
        buffer = self.state.buffers.get(value)
        if buffer is not None:
            if not buffer.bounds or (identity and buffer.bounds == domain.bounds()):
                return
            del self.state.buffers[value]  # filled only in part, and more is read here
        if not lazy(value) or value.op is None:
            return
        if identity and self.sideways(value, domain.axis):
            needs.turned.append(value)
            return
        if value in self.keeping.kept and value is not needs.made:
            if not identity:
                needs.early(value)
                return
            needs.whole.append(value)
        moved = source_index(value.op, index)
        if moved is not None:
            source = value.op.operands[0]
            if value.op.name == "tt.broadcast" and 1 < source.type.size < value.type.size:
                dear = self._dear(source)
                if dear is not None and dear not in self.state.buffers:
                    needs.early(dear)
            self._needed(source, moved, domain, needs)
            return
        for operand in value.op.operands:
            self._needed(operand, operand_index(value.op, operand, index), domain, needs)

    def _dear(self, value: Value) -> Value | None:
        """The part of a smaller block that would be computed again for each element of a larger one."""
        while value.op is not None and value.op.name in MOVES - {"tt.splat"}:
            value = value.op.operands[0]
        return value if self.keeping.heavy(value) and value.type.size > 1 else None
