"""Prefix scans along any axis, forward or backward, with any combination of any number of blocks."""

from __future__ import annotations

from collections.abc import Sequence

from nbxtensor.backend.cpu.affine import Fact, Integer, Poly
from nbxtensor.backend.cpu.domains import Domain, vector_axis
from nbxtensor.backend.cpu.evaluation import Place
from nbxtensor.backend.cpu.materialize import Materializer
from nbxtensor.backend.cpu.reduction import Combination
from nbxtensor.backend.cpu.state import Index, Register
from nbxtensor.backend.cpu.ttir import Op

__all__ = ["scan"]


def scan(materializer: Materializer, op: Op) -> None:
    """Write a ``tt.scan``: its results become blocks in scratch."""
    _Scan(materializer, op).write()


class _Scan:
    def __init__(self, materializer: Materializer, op: Op) -> None:
        self.materializer = materializer
        self.evaluation = materializer.evaluation
        self.state = materializer.state
        self.b = self.state.b
        self.op = op
        self.shape = op.operands[0].type.shape or ()
        self.axis = op.integer("axis")
        self.backward = op.attributes["reverse"] == "true"
        self.combination = Combination(self.state, op)
        self.buffers = [self.state.allocate(v.type) for v in op.results]

    def write(self) -> None:
        lanes = self.state.width // 4
        kept = tuple(n for k, n in enumerate(self.shape) if k != self.axis)
        along = vector_axis(self.shape, lanes)
        lengthwise = along == self.axis or max(kept, default=1) == 1
        domain = Domain(self.evaluation, self.shape, self.axis if lengthwise else along, lanes, 1)
        with self.materializer.reading(domain, self.op.operands):
            if lengthwise:
                domain.nest(self.row)
            else:
                outer = Domain(self.evaluation, kept, vector_axis(kept, lanes), lanes, 1)
                outer.visit(lambda places, _: self.columns(places[0]))
        for value, buffer in zip(self.op.results, self.buffers, strict=True):
            self.state.buffers[value] = buffer

    def group(self, place: Place) -> list[str]:
        registers = [self.evaluation.register(v, place) for v in self.op.operands]
        return [self.state.vector(r, place.lanes) for r in registers]

    def store(self, place: Place, group: Sequence[str]) -> None:
        for buffer, value, element in zip(self.buffers, group, self.combination.elements, strict=True):
            self.evaluation.store_buffer(buffer, place, Register(value, element, place.lanes))

    def columns(self, place: Place) -> None:
        """Vectors along another axis: one step after the other along the scanned one."""
        extent = self.shape[self.axis]

        def at(position: Poly) -> Place:
            index: list[Index] = list(place.index)
            if self.backward:
                position = Poly.constant(extent - 1) - position
            index.insert(self.axis, Integer(position))
            return Place(tuple(index), place.lanes)

        first = self.group(at(Poly.constant(0)))
        self.store(at(Poly.constant(0)), first)

        def turn(counter: str, total: list[str]) -> list[str]:
            self.state.facts[counter] = Fact(1, extent - 1)
            here = at(Poly.symbol(counter))
            total = self.combination.write(total, self.group(here), place.lanes)
            self.store(here, total)
            return total

        self.b.loop("1", str(extent), "1", turn, list(zip(self.combination.kinds(place.lanes), first, strict=True)))

    def row(self, index: tuple[Integer, ...]) -> None:
        """Vectors along the scanned axis: scanned inside, then combined with the last element before them."""
        extent = self.shape[self.axis]
        lanes = min(self.state.width // 4, extent)
        lanes = lanes if lanes > 1 else 0
        step = max(lanes, 1)

        def at(position: Poly) -> Place:
            if self.backward:
                position = Poly.constant(extent - step) - position
            moved: list[Index] = list(index)
            moved[self.axis] = Integer(position, Poly.constant(1 if lanes else 0))
            return Place(tuple(moved), lanes)

        def part(position: Poly) -> list[str]:
            return self.inside(self.group(at(position)), lanes)

        first = part(Poly.constant(0))
        self.store(at(Poly.constant(0)), first)

        def turn(counter: str, total: list[str]) -> list[str]:
            self.state.facts[counter] = Fact(step, extent - step, step)
            here = Poly.symbol(counter)
            group = self.combination.write(total, part(here), lanes)
            self.store(at(here), group)
            return self.last(group, lanes)

        carried = list(zip(self.combination.kinds(lanes), self.last(first, lanes), strict=True))
        self.b.loop(str(step), str(extent), str(step), turn, carried)

    def last(self, group: Sequence[str], lanes: int) -> list[str]:
        """The element that a vector ends with, in all lanes."""
        if not lanes:
            return list(group)
        order = ", ".join([f"i32 {0 if self.backward else lanes - 1}"] * lanes)
        return [
            self.b.op(f"shufflevector {kind} {v}, {kind} poison, <{lanes} x i32> <{order}>")
            for kind, v in zip(self.combination.kinds(lanes), group, strict=True)
        ]

    def inside(self, group: list[str], lanes: int) -> list[str]:
        """The scan of the lanes of a vector, in steps of 1, 2, 4, ..."""
        step = 1
        sign = -1 if self.backward else 1
        while step < lanes:
            sources = [k - sign * step for k in range(lanes)]
            valid = [0 <= s < lanes for s in sources]
            order = ", ".join(f"i32 {s}" if ok else "i32 poison" for s, ok in zip(sources, valid, strict=True))
            earlier = [
                self.b.op(f"shufflevector {kind} {v}, {kind} poison, <{lanes} x i32> <{order}>")
                for kind, v in zip(self.combination.kinds(lanes), group, strict=True)
            ]
            both = self.combination.write(earlier, group, lanes)
            test = "<" + ", ".join(f"i1 {int(ok)}" for ok in valid) + ">"
            group = [
                self.b.op(f"select <{lanes} x i1> {test}, {kind} {new}, {kind} {old}")
                for kind, new, old in zip(self.combination.kinds(lanes), both, group, strict=True)
            ]
            step *= 2
        return group
