"""Reductions along any axis, with any combination of any number of blocks; the order is fixed by the shape alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbxtensor.backend.cpu import elementwise, padding
from nbxtensor.backend.cpu.affine import Fact, Integer, Poly
from nbxtensor.backend.cpu.domains import Condition, Domain
from nbxtensor.backend.cpu.evaluation import Place
from nbxtensor.backend.cpu.ir import vector_type
from nbxtensor.backend.cpu.materialize import Materializer
from nbxtensor.backend.cpu.state import AXIS, LLVM, Index, Register, State, bits
from nbxtensor.backend.cpu.ttir import Block, Op, Value

__all__ = ["Combination", "reduce"]

_CHAINS = 4  # independent accumulators: the latency of an add over its throughput


class Combination:
    """The region of a reduction or a scan: how two groups of values become one.

    Attributes:
        elements: Element type of each value of a group.
        identity: What changes nothing when combined, for one value and one op; None where it is not known.
    """

    def __init__(self, state: State, op: Op) -> None:
        (block,) = op.regions
        self.block: Block = block
        self.state = state
        self.elements: list[str] = [state.element(v.type) for v in op.operands]
        *inside, end = block.ops
        self.end: Op = end
        self.identity: float | None = None
        if len(self.elements) == 1 and len(inside) == 1 and set(inside[0].operands) == set(self.block.arguments):
            self.identity = _identity(inside[0].name, self.elements[0])

    def kinds(self, lanes: int) -> list[str]:
        """Return the LLVM type of each value of a group, ``lanes`` wide."""
        return [vector_type(LLVM[e], lanes) for e in self.elements]

    def write(self, left: Sequence[str], right: Sequence[str], lanes: int) -> list[str]:
        """Write the combination of two groups; ``left`` holds what comes first."""
        values: dict[Value, Register] = {
            argument: Register(value, element, lanes)
            for argument, value, element in zip(self.block.arguments, [*left, *right], self.elements * 2, strict=True)
        }
        for op in self.block.ops[:-1]:
            element = self.state.element(op.results[0].type)
            if op.name == "arith.constant":
                values[op.result] = Register(elementwise.literal(op.constant()[0], element), element)
            else:
                known = [self.value(v, values) for v in op.operands]
                values[op.result] = elementwise.apply(self.state, op, known)
        return [self.state.vector(self.value(v, values), lanes) for v in self.end.operands]

    def value(self, value: Value, values: dict[Value, Register]) -> Register:
        """Return a value that the region reads: its own, or a scalar from outside."""
        if value in values:
            return values[value]
        return Register(self.state.scalars[value], self.state.element(value.type))

    def across(self, group: Sequence[str], lanes: int) -> list[str]:
        """Combine the lanes of a group of vectors, halves with halves, and return the scalars."""
        b = self.state.b
        group = list(group)
        half = lanes // 2
        while half:
            order = ", ".join(f"i32 {half + k}" if k < half else "i32 poison" for k in range(lanes))
            other = [
                b.op(f"shufflevector {kind} {v}, {kind} poison, <{lanes} x i32> <{order}>")
                for kind, v in zip(self.kinds(lanes), group, strict=True)
            ]
            group = self.write(group, other, lanes)
            half //= 2
        return [b.op(f"extractelement {kind} {v}, i64 0") for kind, v in zip(self.kinds(lanes), group, strict=True)]


def _identity(name: str, element: str) -> float | None:
    infinity = float("inf")
    if element in elementwise.FLOATS:
        return {
            "arith.addf": 0.0,
            "arith.mulf": 1.0,
            "arith.maxnumf": -infinity,
            "arith.maximumf": -infinity,
            "arith.minnumf": infinity,
            "arith.minimumf": infinity,
        }.get(name)
    width = bits(element)
    least, most = -(1 << (width - 1)), (1 << (width - 1)) - 1
    return {
        "arith.addi": 0,
        "arith.ori": 0,
        "arith.xori": 0,
        "arith.maxui": 0,
        "arith.muli": 1,
        "arith.andi": -1,
        "arith.minui": -1,
        "arith.maxsi": least,
        "arith.minsi": most,
    }.get(name)


def reduce(materializer: Materializer, op: Op) -> None:
    """Write a ``tt.reduce``: its results become scalars, or blocks in scratch."""
    _Reduction(materializer, op).write()


@dataclass
class _Reduction:
    materializer: Materializer
    op: Op

    def __post_init__(self) -> None:
        self.evaluation = self.materializer.evaluation
        self.state = self.evaluation.state
        self.b = self.state.b
        self.shape = self.op.operands[0].type.shape or ()
        self.axis = self.op.integer("axis")
        self.combination = Combination(self.state, self.op)
        self.identity = self.combination.identity

    def write(self) -> None:
        limits: list[Condition] = []
        if self.identity is not None:
            limits = padding.limits(self.evaluation, self.op.operands[0], self.axis, self.identity)
        scalar = self.op.results[0].type.shape is None
        self.buffers = [] if scalar else [self.state.allocate(v.type) for v in self.op.results]
        lanes = self.state.width // 4
        kept = tuple(n for k, n in enumerate(self.shape) if k != self.axis)
        along = self.materializer.along(self.shape, self.op.operands)
        if scalar or along == self.axis or max(kept, default=1) == 1:
            self.lengthwise(limits, lanes)
        else:
            self.crosswise(limits, kept, lanes, along - (along > self.axis))
        for value, buffer in zip(self.op.results, self.buffers, strict=False):
            self.state.buffers[value] = buffer

    def group(self, place: Place) -> list[str]:
        """The operands at a place, as vectors."""
        registers = [self.evaluation.register(v, place) for v in self.op.operands]
        return [self.state.vector(r, place.lanes) for r in registers]

    def neutral(self, lanes: int) -> list[str]:
        """The identity as a group of vectors."""
        element = self.combination.elements[0]
        text = elementwise.literal(self.identity or 0, element)
        return [self.b.splat(text, LLVM[element], lanes)]

    def lengthwise(self, limits: list[Condition], lanes: int) -> None:
        """Vectors along the reduced axis: several accumulators, combined at the end."""
        extent = self.shape[self.axis]
        lanes = min(lanes, extent)
        lanes = lanes if lanes > 1 else 0
        chains = max(1, min(_CHAINS, extent // max(lanes, 1)))
        domain = Domain(self.evaluation, self.shape, self.axis, max(lanes, 1), chains, limits)
        if not lanes:
            chains = domain.unroll = 1
        count = len(self.combination.elements)
        kinds = self.combination.kinds(lanes) * chains
        prefetch = self.materializer.prefetcher(self.op)

        def turn(places: list[Place], active: Register | None, values: list[str]) -> list[str]:
            prefetch(places)
            groups = [self.group(place) for place in places]
            if active is not None:
                groups = [self.masked(group, active, lanes) for group in groups]
            values = list(values)
            for k, group in enumerate(groups):
                mine = slice(k * count, (k + 1) * count)
                values[mine] = self.combination.write(values[mine], group, lanes)
            return values

        def row(index: tuple[Integer, ...]) -> None:
            if self.identity is not None:
                start, first = 0, self.neutral(lanes) * chains
            else:
                start = chains * max(lanes, 1)
                starts = [Poly.constant(k * max(lanes, 1)) for k in range(chains)]
                first = [v for place in domain.places(index, starts, None) for v in self.group(place)]
            values = domain.row(index, turn, list(zip(kinds, first, strict=True)), start)
            groups = [values[k * count : (k + 1) * count] for k in range(chains)]
            while len(groups) > 1:
                half = len(groups) // 2
                groups = [self.combination.write(groups[k], groups[half + k], lanes) for k in range(half)]
            self.finish(index, self.combination.across(groups[0], lanes) if lanes else groups[0])

        with self.materializer.reading(domain, self.op.operands):
            domain.nest(row)

    def finish(self, index: tuple[Integer, ...], scalars: list[str]) -> None:
        registers = [Register(v, e) for v, e in zip(scalars, self.combination.elements, strict=True)]
        if not self.buffers:
            self.state.scalars.update(zip(self.op.results, scalars, strict=True))
            return
        place = Place(index[: self.axis] + index[self.axis + 1 :])
        for buffer, register in zip(self.buffers, registers, strict=True):
            self.evaluation.store_buffer(buffer, place, register)

    def masked(self, group: list[str], active: Register, lanes: int) -> list[str]:
        """A group with the identity where lanes do not count."""
        kinds = self.combination.kinds(lanes)
        return [
            self.b.pure(f"select {active.type} {active.value}, {kind} {v}, {kind} {n}")
            for kind, v, n in zip(kinds, group, self.neutral(lanes), strict=True)
        ]

    def crosswise(self, limits: list[Condition], kept: tuple[int, ...], lanes: int, along: int) -> None:
        """Vectors along another axis: a loop over the reduced axis inside, accumulators in registers."""
        domain = Domain(self.evaluation, kept, along, lanes, max(1, min(_CHAINS, kept[along] // lanes)))
        vectors = along + (along >= self.axis)
        whole = Domain(self.evaluation, self.shape, vectors, 1, 1, limits)

        def body(places: list[Place], _: Register | None) -> None:
            lanes = places[0].lanes
            count = len(self.combination.elements)

            def groups(position: Poly) -> list[str]:
                inside: list[Place] = []
                for place in places:
                    index: list[Index] = list(place.index)
                    index.insert(self.axis, Integer(position))
                    self.assume(limits, tuple(index), lanes)
                    inside.append(Place(tuple(index), lanes))
                if whole.on_turn:
                    whole.on_turn(inside)
                return [v for place in inside for v in self.group(place)]

            def turn(counter: str, values: list[str]) -> list[str]:
                self.state.facts[counter] = Fact(0, self.shape[self.axis] - 1)
                new = groups(Poly.symbol(counter))
                return [
                    v
                    for k in range(0, len(values), count)
                    for v in self.combination.write(values[k : k + count], new[k : k + count], lanes)
                ]

            if self.identity is not None:
                low, first = "0", self.neutral(lanes) * len(places)
            else:
                low, first = "1", groups(Poly.constant(0))
            high = self.state.scalar(whole.bounds()[self.axis])
            kinds = self.combination.kinds(lanes) * len(places)
            values = self.b.loop(low, high, "1", turn, list(zip(kinds, first, strict=True)))
            for k, place in enumerate(places):
                for j, (buffer, element) in enumerate(zip(self.buffers, self.combination.elements, strict=True)):
                    self.evaluation.store_buffer(buffer, place, Register(values[k * count + j], element, lanes))

        with self.materializer.reading(whole, self.op.operands):
            domain.visit(body)

    def assume(self, limits: list[Condition], index: tuple[Index, ...], lanes: int) -> None:
        values = {f"{AXIS}{k}": i for k, i in enumerate(index) if isinstance(i, Integer)}
        for c in limits:
            where = tuple(i.substituted(values) if isinstance(i, Integer) else i for i in c.index)
            self.evaluation.assume(c.value, Place(where, lanes))
