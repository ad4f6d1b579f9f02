"""Loops over a block: restricted to where its masks can be true, the last part in vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nbxtensor.backend.cpu.affine import Fact, Integer, Poly
from nbxtensor.backend.cpu.evaluation import Evaluation, Place
from nbxtensor.backend.cpu.indices import source_index
from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.state import AXIS, Index, Register, State
from nbxtensor.backend.cpu.ttir import Value

__all__ = ["Condition", "Domain", "conditions", "explained", "vector_axis"]

Body = Callable[[list[Place], Register | None], None]
Turn = Callable[[list[Place], "Register | None", list[str]], list[str]]


@dataclass(frozen=True)
class Condition:
    """One comparison that a mask is made of.

    Attributes:
        value: The boolean block that it is.
        index: Where that block is read, in terms of the axes.
        axis: The axis that it limits; None when it is the same all over the block.
        limit: It holds where the index along ``axis`` is below this; where that is the whole block, if positive.
    """

    value: Value
    index: tuple[Index, ...]
    axis: int | None
    limit: Poly


def conditions(evaluation: Evaluation, mask: Value, index: tuple[Index, ...]) -> list[Condition]:
    """Return the limits on single axes that ``mask`` is the conjunction of, as far as it is one."""
    op = mask.op
    if op is None or mask in evaluation.state.buffers:
        return []
    if op.name == "arith.andi":
        return [c for v in op.operands for c in conditions(evaluation, v, index)]
    if (moved := source_index(op, index)) is not None:
        return conditions(evaluation, op.operands[0], moved)
    if op.name == "arith.cmpi" and mask.type.shape is not None:
        found = _limit(evaluation, mask, index)
        return [found] if found else []
    return []


def explained(evaluation: Evaluation, mask: Value, index: tuple[Index, ...]) -> list[Condition] | None:
    """Return the limits that ``mask`` is the conjunction of, or None where it is more than that."""
    op = mask.op
    if op is None or mask in evaluation.state.buffers:
        return None
    if op.name == "arith.andi":
        parts = [explained(evaluation, v, index) for v in op.operands]
        return None if None in parts else [c for part in parts if part for c in part]
    if op.name == "arith.constant":
        return [] if all(op.constant()) else None
    if (moved := source_index(op, index)) is not None:
        return explained(evaluation, op.operands[0], moved)
    return conditions(evaluation, mask, index) or None


def _limit(evaluation: Evaluation, mask: Value, index: tuple[Index, ...]) -> Condition | None:
    op = mask.op
    predicate = op.attributes["predicate"] if op else ""
    if op is None or predicate not in {"slt", "sle", "sgt", "sge"}:
        return None
    left, right = (evaluation.integer(v, index) for v in op.operands)
    if left is None or right is None:
        return None
    if predicate in {"sgt", "sge"}:
        left, right = right, left
    room = right.added(left, -1).base  # the mask holds where this is positive (not negative, for <= and >=)
    if predicate in {"sle", "sge"}:
        room += Poly.constant(1)
    named = {name for name in room.symbols() if name.startswith(AXIS)}
    if not named:
        return Condition(mask, index, None, room)
    (name, *others) = named
    coefficient = room.terms.get((name,), 0)
    rest = Poly({m: c for m, c in room.terms.items() if m != (name,)})
    if others or name in rest.symbols():
        return None
    axis = int(name.removeprefix(AXIS))
    if coefficient == -1:
        return Condition(mask, index, axis, rest)
    if coefficient < 0 and rest.is_constant():
        return Condition(mask, index, axis, Poly.constant(-(-rest.value() // -coefficient)))
    return None


def vector_axis(shape: Sequence[int], width: int) -> int:
    """Return the axis that vectors run along: the last, unless it is too short and another one is long."""
    last = max((k for k, extent in enumerate(shape) if extent > 1), default=len(shape) - 1)
    longest = max(range(len(shape)), key=lambda k: (min(shape[k], width), k))
    return longest if shape[last] * 2 <= min(shape[longest], width) else last


@dataclass
class Domain:
    """A block to loop over.

    Attributes:
        evaluation: Where values come from.
        shape: Extents of the block.
        axis: The axis that vectors run along.
        lanes: Lanes of a vector.
        unroll: Vectors per turn of the innermost loop.
        limits: What restricts it: only indices where all of these hold are visited.
        on_turn: Told the places of each turn before anything is written there.
    """

    evaluation: Evaluation
    shape: tuple[int, ...]
    axis: int
    lanes: int
    unroll: int = 2
    limits: list[Condition] = field(default_factory=list[Condition])
    on_turn: Callable[[list[Place]], None] | None = None

    def __post_init__(self) -> None:
        self.state: State = self.evaluation.state
        self.b: Builder = self.state.b
        if self.shape:
            self.lanes = min(self.lanes, self.shape[self.axis])

    def bounds(self) -> tuple[Poly, ...]:
        """Return how far each axis is visited, as constants and symbols."""
        return tuple(self._high(k) for k in range(len(self.shape)))

    def guards(self) -> list[Condition]:
        """Return the limits on the whole block that are not known to hold: where one does not, nothing is visited."""
        return [c for c in self.limits if c.axis is None and self.state.facts.positive(c.limit) is not True]

    def visit(self, body: Body) -> None:
        """Write the loops; ``body`` gets the places of one turn, and which lanes count where not all do."""

        def turn(places: list[Place], active: Register | None, _: list[str]) -> list[str]:
            body(places, active)
            return []

        self.nest(lambda index: self.row(index, turn))

    def nest(self, inside: Callable[[tuple[Integer, ...]], object]) -> None:
        """Write the loops over all axes but the vectors'; ``inside`` gets the index (0 along that axis)."""
        guards = self.guards()
        highs = self.bounds()

        def write() -> list[str]:
            self._outer(0, (), highs, inside)
            return []

        if not guards:
            write()
            return
        condition = ""
        for guard in guards:
            test = self.b.pure(f"icmp sgt i64 {self.state.scalar(guard.limit)}, 0")
            condition = self.b.pure(f"and i1 {condition}, {test}") if condition else test
        self.b.choose(condition, write)

    def row(
        self, index: tuple[Integer, ...], body: Turn, carried: Sequence[tuple[str, str]] = (), start: int = 0
    ) -> list[str]:
        """Write the loop along the vectors' axis and return what it carried.

        Args:
            index: Index along the other axes.
            body: Gets the places of one turn, which lanes count where not all do, and the carried values: as many as
                there are vectors in a whole turn for each of them. Returns their next values.
            carried: (type, initial value) of what is carried.
            start: First index, a multiple of the vectors of a turn.
        """
        high = self._high(self.axis) if self.shape else Poly.constant(1)
        if self.lanes <= 1:
            return self._scalars(index, high, body, carried, start)
        step = self.lanes * self.unroll
        kinds = [kind for kind, _ in carried]
        if high.is_constant():
            full = high.value() // step * step
            values = self._main(index, (start, str(full)), body, carried)
            whole = high.value() // self.lanes * self.lanes
            rest = [Poly.constant(i) for i in range(full, whole, self.lanes)]
            if rest:
                values = self._turn(index, rest, None, body, values)
            if whole < high.value():
                count = high.value() - whole
                ones = "<" + ", ".join(f"i1 {int(k < count)}" for k in range(self.lanes)) + ">"
                active = Register(ones, "i1", self.lanes)
                values = self._turn(index, [Poly.constant(whole)], active, body, values)
            return values
        end = self.state.scalar(high)
        full = self.b.pure(f"and i64 {end}, {-step}")
        values = self._main(index, (start, full), body, carried)

        def turn(counter: str, values: list[str]) -> list[str]:
            self.state.facts[counter] = Fact(0, self.shape[self.axis] - self.lanes, self.lanes)
            left = self.b.pure(f"trunc i64 {self.b.pure(f'sub i64 {end}, {counter}')} to i32")
            kind = f"<{self.lanes} x i32>"
            numbers = self.state.lane_numbers("i32", self.lanes)
            test = self.b.pure(f"icmp slt {kind} {numbers}, {self.b.splat(left, 'i32', self.lanes)}")
            active = Register(test, "i1", self.lanes)
            return self._turn(index, [Poly.symbol(counter)], active, body, values)

        return self.b.loop(full, end, str(self.lanes), turn, list(zip(kinds, values, strict=True)))

    def _high(self, axis: int) -> Poly:
        extent = self.shape[axis]
        constant, values = extent, list[str]()
        for limit in (c.limit for c in self.limits if c.axis == axis):
            low, high = self.state.facts.bounds(limit)
            if low is not None and low >= extent:
                continue
            if low is not None and low == high:
                constant = max(0, min(constant, low))
            else:
                values.append(self.state.scalar(limit))
        if not values:
            return Poly.constant(constant)
        value = str(constant)
        for other in values:
            value = self.b.call("i64", "llvm.smin.i64", [("i64", value), ("i64", other)], pure=True)
        value = self.b.call("i64", "llvm.smax.i64", [("i64", value), ("i64", "0")], pure=True)
        self.state.facts[value] = Fact(0, constant)
        return Poly.symbol(value)

    def _outer(
        self,
        k: int,
        index: tuple[Integer, ...],
        highs: tuple[Poly, ...],
        inside: Callable[[tuple[Integer, ...]], object],
    ) -> None:
        if k == len(self.shape):
            inside(index)
        elif k == self.axis or highs[k] == Poly.constant(1):
            self._outer(k + 1, (*index, Integer(Poly.constant(0))), highs, inside)
        else:

            def turn(counter: str, _: list[str]) -> list[str]:
                self.state.facts[counter] = Fact(0, self.shape[k] - 1)
                self._outer(k + 1, (*index, Integer(Poly.symbol(counter))), highs, inside)
                return []

            self.b.loop("0", self.state.scalar(highs[k]), "1", turn)

    def _main(
        self, index: tuple[Integer, ...], span: tuple[int, str], body: Turn, carried: Sequence[tuple[str, str]]
    ) -> list[str]:
        """The turns of whole vectors only."""
        step = self.lanes * self.unroll
        start, full = span
        values = [value for _, value in carried]
        if full == str(start):
            return values
        if full == str(start + step):
            first = [Poly.constant(start + k * self.lanes) for k in range(self.unroll)]
            return self._turn(index, first, None, body, values)

        def turn(counter: str, values: list[str]) -> list[str]:
            self.state.facts[counter] = Fact(0, self.shape[self.axis] - step, step)
            first = Poly.symbol(counter)
            starts = [first + Poly.constant(k * self.lanes) for k in range(self.unroll)]
            return self._turn(index, starts, None, body, values)

        return self.b.loop(str(start), full, str(step), turn, carried)

    def _scalars(
        self, index: tuple[Integer, ...], high: Poly, body: Turn, carried: Sequence[tuple[str, str]], start: int
    ) -> list[str]:
        if not self.shape or high == Poly.constant(1):
            return self._turn(index, [Poly.constant(0)], None, body, [value for _, value in carried])

        def turn(counter: str, values: list[str]) -> list[str]:
            self.state.facts[counter] = Fact(0, self.shape[self.axis] - 1)
            return self._turn(index, [Poly.symbol(counter)], None, body, values)

        return self.b.loop(str(start), self.state.scalar(high), "1", turn, carried)

    def _turn(
        self, index: tuple[Integer, ...], starts: list[Poly], active: Register | None, body: Turn, values: list[str]
    ) -> list[str]:
        known = self.b.scopes[-1].known
        before = set(known)
        values = body(self.places(index, starts, active), active, values)
        if active is not None:  # what was computed for some lanes must not be taken for all of them later
            for key in [key for key in known if key not in before and not isinstance(key, str)]:
                del known[key]
        return values

    def places(self, index: tuple[Integer, ...], starts: Sequence[Poly], active: Register | None) -> list[Place]:
        """Return the places of one turn; what limits the domain is taken as true there."""
        places = [self._place(index, start, active) for start in starts]
        if self.on_turn:
            self.on_turn(places)
        return places

    def _place(self, index: tuple[Integer, ...], start: Poly, active: Register | None) -> Place:
        """One place. Where not all lanes count, what limits the vectors' own axis is taken to be ``active``.

        The other lanes then see masks that are false, and what is done with them must not matter.
        """
        lanes = self.lanes if self.lanes > 1 else 0
        moved: list[Index] = list(index)
        if self.shape:
            moved[self.axis] = Integer(start, Poly.constant(1 if lanes else 0))
        values = {f"{AXIS}{k}": i for k, i in enumerate(moved) if isinstance(i, Integer)}
        for c in self.limits:
            where = tuple(i.substituted(values) if isinstance(i, Integer) else i for i in c.index)
            truth = active if active and c.axis == self.axis else None
            self.evaluation.assume(c.value, Place(where, lanes), truth)
        return Place(tuple(moved), lanes)
