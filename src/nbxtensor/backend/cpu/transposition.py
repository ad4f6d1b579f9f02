"""Copies of blocks that are read along one axis and written along another, through squares turned in registers."""

from __future__ import annotations

from collections.abc import Sequence

from nbxtensor.backend.cpu import elementwise, padding
from nbxtensor.backend.cpu.affine import Fact, Integer, Poly
from nbxtensor.backend.cpu.domains import Condition
from nbxtensor.backend.cpu.evaluation import Evaluation, Place
from nbxtensor.backend.cpu.indices import axes
from nbxtensor.backend.cpu.ir import Builder, vector_type
from nbxtensor.backend.cpu.state import AXIS, BYTES, LLVM, Buffer, Index, Register
from nbxtensor.backend.cpu.ttir import Value

__all__ = ["side", "turned", "turned_copy"]


def side(width: int, element: str, extents: Sequence[int]) -> int:
    """Return how many lanes a square has that fits registers of ``width`` bytes and both extents; 0 for none."""
    lanes = width // max(BYTES[element], 4)
    return lanes if min(extents) >= lanes else 0


def turned(b: Builder, vectors: list[str], kind: str) -> list[str]:
    """Write the transpose of a square of n vectors of n lanes: blocks of n/2, n/4, ..., 1 change places."""
    n = len(vectors)
    full = vector_type(kind, n)
    vectors = list(vectors)
    step = n // 2
    while step:
        low = [k if not k & step else n + k - step for k in range(n)]
        high = [k + step if not k & step else n + k for k in range(n)]
        for i in (i for i in range(n) if not i & step):
            pair = f"{full} {vectors[i]}, {full} {vectors[i + step]}"
            vectors[i], vectors[i + step] = (
                b.op(f"shufflevector {pair}, <{n} x i32> <{', '.join(f'i32 {k}' for k in order)}>")
                for order in (low, high)
            )
        step //= 2
    return vectors


def turned_copy(
    evaluation: Evaluation, value: Value, target: Buffer, along: int, bounds: Sequence[Poly], lanes: int
) -> None:
    """Write a block to ``target``, which lies along one axis, from what is read along another, ``along``.

    Args:
        evaluation: Where values come from.
        value: The block.
        target: Where it goes, of any float type if it is of one.
        along: The axis that it is read along.
        bounds: How far it is needed along each axis.
        lanes: Lanes of a square, at most the extent of either axis.
    """
    _Copy(evaluation, value, target, along, lanes).axis(0, (), bounds)


class _Copy:
    def __init__(self, evaluation: Evaluation, value: Value, target: Buffer, along: int, lanes: int) -> None:
        self.evaluation = evaluation
        self.state = evaluation.state
        self.b = evaluation.b
        self.value = value
        self.target = target
        self.along = along
        self.lanes = lanes
        self.shape = value.type.shape or ()
        self.across = next(k for k in target.order if self.shape[k] > 1)
        found = padding.candidates(evaluation, value, axes(self.state, self.shape))
        self.limits = [c for c in found if c.axis in {along, self.across}]

    def axis(self, k: int, index: tuple[Integer, ...], bounds: Sequence[Poly]) -> None:
        """Write the loops over axis ``k`` and those after it."""
        if k == len(self.shape):
            self.choose(index)
            return
        step = self.lanes if k in {self.along, self.across} else 1
        extent = self.shape[k]
        if extent == step:
            self.axis(k + 1, (*index, Integer(Poly.constant(0))), bounds)
            return

        def turn(counter: str, _: list[str]) -> list[str]:
            self.state.facts[counter] = Fact(0, extent - step, step)
            self.axis(k + 1, (*index, Integer(Poly.symbol(counter))), bounds)
            return []

        self.b.loop("0", self.state.scalar(bounds[k]), str(step), turn)

    def choose(self, index: tuple[Integer, ...]) -> None:
        """Write one square: without masks where it lies inside all limits, and with them where it may not."""
        starts = {f"{AXIS}{k}": i.base for k, i in enumerate(index)}
        condition = ""
        for c in self.limits:
            room = c.limit - starts[f"{AXIS}{c.axis}"] - Poly.constant(self.lanes - 1)
            known = self.state.facts.positive(room)
            if known is not True:
                test = self.b.pure(f"icmp sgt i64 {self.state.scalar(room)}, 0")
                condition = self.b.pure(f"and i1 {condition}, {test}") if condition else test

        def inside() -> list[str]:
            self.square(index, self.limits)
            return []

        def partly() -> list[str]:
            self.square(index, [])
            return []

        if condition:
            self.b.choose(condition, inside, partly)
        else:
            inside()

    def square(self, index: tuple[Integer, ...], limits: Sequence[Condition]) -> None:
        """Write one square, where ``limits`` are taken to hold."""
        source, element = self.state.element(self.value.type), self.state.element(self.target.type)
        vectors: list[str] = []
        for k in range(self.lanes):
            place = Place(self.moved(index, {self.across: (k, 0), self.along: (0, 1)}), self.lanes)
            values = {f"{AXIS}{n}": i for n, i in enumerate(place.index) if isinstance(i, Integer)}
            for c in limits:
                where = tuple(i.substituted(values) if isinstance(i, Integer) else i for i in c.index)
                self.evaluation.assume(c.value, Place(where, self.lanes))
            register = self.evaluation.register(self.value, place)
            if element != source:
                register = elementwise.convert(self.state, register, element)
            vectors.append(self.state.vector(register, self.lanes))
        for k, vector in enumerate(turned(self.b, vectors, LLVM[element])):
            place = Place(self.moved(index, {self.along: (k, 0), self.across: (0, 1)}), self.lanes)
            self.evaluation.store_buffer(self.target, place, Register(vector, element, self.lanes))

    def moved(self, index: tuple[Integer, ...], by: dict[int, tuple[int, int]]) -> tuple[Index, ...]:
        """The index with (offset, step per lane) added on some axes."""
        moved: list[Index] = list(index)
        for axis, (offset, step) in by.items():
            moved[axis] = Integer(index[axis].base + Poly.constant(offset), Poly.constant(step))
        return tuple(moved)
