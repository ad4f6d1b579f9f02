"""Blocks written to scratch: ahead of a loop that reads them, or by the loop that computes them first."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence

from nbxtensor.backend.cpu import elementwise
from nbxtensor.backend.cpu.affine import Poly
from nbxtensor.backend.cpu.domains import Domain, axes, vector_axis
from nbxtensor.backend.cpu.evaluation import Evaluation, Place, operand_index, source_index
from nbxtensor.backend.cpu.keeping import MOVES, Keeping, lazy
from nbxtensor.backend.cpu.state import Buffer, Index, Register
from nbxtensor.backend.cpu.ttir import Type, Value

__all__ = ["Materializer"]

_MOVING = MOVES | {"tt.join", "tt.split", "tt.load"}


class Materializer:
    """Sees to it that what a loop reads is there, as the analysis of the kernel asks."""

    def __init__(self, evaluation: Evaluation, keeping: Keeping) -> None:
        self.evaluation = evaluation
        self.state = evaluation.state
        self.keeping = keeping

    def block(self, value: Value, buffer: Buffer | None = None) -> Buffer:
        """Write a block to scratch now, to ``buffer`` where given (of any float type), and return where it is."""
        if buffer is None and value in self.state.buffers and not self.state.buffers[value].bounds:
            return self.state.buffers[value]
        shape = value.type.shape or ()
        lanes = self.state.width // 4
        domain = Domain(self.evaluation, shape, vector_axis(shape, lanes), lanes)
        target = buffer or self.state.allocate(value.type)
        source, element = self.state.element(value.type), self.state.element(target.type)
        with self.reading(domain, [value]):

            def body(places: list[Place], _: Register | None) -> None:
                registers = [self.evaluation.register(value, place) for place in places]
                if element != source:
                    registers = [elementwise.convert(self.state, r, element) for r in registers]
                for place, register in zip(places, registers, strict=True):
                    self.evaluation.store_buffer(target, place, register)

            domain.visit(body)
        if buffer is None:
            self.state.buffers[value] = target
        return target

    def reads(self, value: Value, block: Value, *, elsewhere: bool = False) -> bool:
        """Return whether the formula of ``value`` reads ``block``; ``elsewhere``: at another index than its own."""
        found: dict[Value, bool] = {}

        def visit(value: Value, moved: bool) -> None:
            if value.type.shape is None or (value in found and found[value] >= moved):
                return
            found[value] = moved
            if value not in self.state.buffers and lazy(value) and value.op is not None:
                inside = moved or value.op.name in _MOVING
                for operand in value.op.operands:
                    visit(operand, inside)

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

    @contextlib.contextmanager
    def reading(self, domain: Domain, values: Sequence[Value]) -> Generator[None]:
        """Prepare what a loop over ``domain`` reads, for the length of the loop that the with statement writes.

        Blocks to be kept are saved by that loop where it computes all of them, else written ahead.
        """
        evaluation = self.evaluation
        index = axes(evaluation, domain.shape)
        whole = set[Value]()
        parts = list[Value]()
        for value in values:
            self._needed(value, index, domain, (whole, parts, set()))
        for value in parts:
            self.block(value)
        saving = {v: self.state.allocate(v.type) for v in whole if v not in self.state.buffers}
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
        bounds = domain.bounds()
        full = bounds == tuple(Poly.constant(n) for n in domain.shape)
        for value, buffer in saving.items():
            if turns and all((value, place) in saved for places in turns for place in places):
                self.state.buffers[value] = Buffer(buffer.address, buffer.type, () if full else bounds)

    def _needed(
        self,
        value: Value,
        index: tuple[Index, ...],
        domain: Domain,
        found: tuple[set[Value], list[Value], set[tuple[Value, tuple[Index, ...]]]],
    ) -> None:
        """Sort what is to be kept into what the loop computes whole, and what must be there before it."""
        whole, parts, seen = found
        if value.type.shape is None or (value, index) in seen:
            return
        seen.add((value, index))
        identity = value.type.shape == domain.shape and index == axes(self.evaluation, domain.shape)
        buffer = self.state.buffers.get(value)
        if buffer is not None:
            if not buffer.bounds or (identity and buffer.bounds == domain.bounds()):
                return
            del self.state.buffers[value]  # filled only in part, and more is read here
        if not lazy(value) or value.op is None:
            return
        if value in self.keeping.kept:
            if identity:
                whole.add(value)
            elif value not in parts:
                self._ahead(value, whole, parts)
                return
        moved = source_index(value.op, index)
        if moved is not None:
            source = value.op.operands[0]
            if value.op.name == "tt.broadcast" and 1 < source.type.size < value.type.size:
                dear = self._dear(source)
                if dear is not None and dear not in parts and dear not in self.state.buffers:
                    self._ahead(dear, whole, parts)
            self._needed(source, moved, domain, found)
            return
        for operand in value.op.operands:
            self._needed(operand, operand_index(value.op, operand, index), domain, found)

    def _ahead(self, value: Value, whole: set[Value], parts: list[Value]) -> None:
        whole.discard(value)
        parts.append(value)

    def _dear(self, value: Value) -> Value | None:
        """The part of a smaller block that would be computed again for each element of a larger one."""
        while value.op is not None and value.op.name in MOVES - {"tt.splat"}:
            value = value.op.operands[0]
        return value if self.keeping.heavy(value) and value.type.size > 1 else None
