"""Which blocks are kept in memory rather than computed where they are read: found before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nbxtensor.backend.cpu.elementwise import FLOATS, HEAVY
from nbxtensor.backend.cpu.ttir import Block, Function, Op, Value

__all__ = ["MATERIAL", "MOVES", "Keeping", "lazy"]

MOVES = frozenset({"tt.expand_dims", "tt.broadcast", "tt.trans", "tt.reshape", "tt.splat"})
"""Ops that only place elements elsewhere."""

MATERIAL = frozenset({"tt.reduce", "tt.scan", "tt.dot", "tt.gather", "tt.histogram", "tt.cat"})
"""Ops whose results are made where they stand; every other block is a formula, computed where it is read."""

_ROOTS = MATERIAL | {"tt.store", "scf.yield", "scf.condition", "scf.for", "scf.while"}
_LOOPS = frozenset({"scf.for", "scf.while"})
_DEEPEST = 64  # ops of a formula, one in another: a longer one is cut, and its inside kept where it is made
_FREE = MOVES | {"arith.constant", "tt.make_range", "tt.load", "tt.bitcast", "tt.join", "tt.split"}


def lazy(value: Value) -> bool:
    """Return whether a block is a formula of other values."""
    op = value.op
    return op is not None and value.type.shape is not None and not op.regions and op.name not in MATERIAL


@dataclass
class _Walk:
    """One walk through what a root reads: what it has passed, and the store that each block is read too late for."""

    done: set[Value] = field(default_factory=set[Value])
    late: dict[Value, Op | None] = field(default_factory=dict[Value, "Op | None"])


@dataclass
class Keeping:
    """What to keep, for one kernel.

    Attributes:
        kept: Blocks to keep in memory once they have been computed.
        before: For a store, a loop or a branch, the blocks that must have been computed when it begins.
        made: Blocks to compute where they stand, since formulas of them would grow too long.
        last_read: For each block, the number of the last op that reads it, by way of formulas too.
        number: Ops in order.
        written_next: For a reduction, a store of a block of the same shape that comes after it and after no other: its
            lines can be brought to the cache meanwhile.
    """

    function: Function
    kept: set[Value] = field(default_factory=set[Value])
    before: dict[Op, list[Value]] = field(default_factory=dict[Op, list[Value]])
    made: set[Value] = field(default_factory=set[Value])
    last_read: dict[Value, int] = field(default_factory=dict[Value, int])
    number: dict[Op, int] = field(default_factory=dict[Op, int])
    written_next: dict[Op, Op] = field(default_factory=dict[Op, Op])

    def __post_init__(self) -> None:
        self._around: dict[Op, tuple[Op, ...]] = {}
        self._stores: list[Op] = []
        self._held: set[Value] = set()
        self._known: dict[tuple[str, Value], bool] = {}
        self._depth: dict[Value, int] = {}
        seen: set[Value] = set()
        for root in [root for block in self.function.blocks for root in self._walk(block, ())]:
            walk = _Walk()
            for value in root.operands:
                self._decide(root, value, seen, walk)
            seen |= self._reached(root)

    def heavy(self, value: Value) -> bool:
        """Return whether the formula of a block holds an op that is dear to compute twice."""
        return self._any("heavy", value, lambda op: op.name in HEAVY)

    def _computed(self, value: Value) -> bool:
        """Whether a block of numbers is more than a load: then a loop should not compute it every turn."""
        if value.type.pointer or value.type.element not in FLOATS:
            return False
        return self._any("computed", value, lambda op: op.name not in _FREE)

    def _loads(self, value: Value) -> bool:
        return self._any("loads", value, lambda op: op.name == "tt.load")

    def _any(self, question: str, value: Value, test: Callable[[Op], bool]) -> bool:
        """Whether an op of the formula of ``value`` passes a test; remembered."""
        if not lazy(value) or value.op is None:
            return False
        key = question, value
        if key not in self._known:
            operands = value.op.operands
            self._known[key] = test(value.op) or any(self._any(question, v, test) for v in operands)
        return self._known[key]

    def _walk(self, block: Block, around: tuple[Op, ...]) -> Iterator[Op]:
        reductions: dict[tuple[int, ...] | None, Op] = {}
        for op in block.ops:
            if op.name == "tt.reduce":
                reductions[op.operands[0].type.shape] = op
            elif op.name == "tt.store" and op.operands[1].type.shape in reductions:
                self.written_next[reductions.pop(op.operands[1].type.shape)] = op
            self.number[op] = len(self.number)
            self._around[op] = around
            if op.name == "tt.store":
                self._stores.append(op)
            if op.name in _ROOTS:
                yield op
            for value in op.results:
                self._measure(op, value)
            if op.name not in {"tt.reduce", "tt.scan"}:
                for region in op.regions:
                    yield from self._walk(region, (*around, op))

    def _measure(self, op: Op, value: Value) -> None:
        if lazy(value):
            depth = 1 + max((self._depth.get(v, 0) for v in op.operands), default=0)
            if depth > _DEEPEST and not value.type.pointer:
                self.made.add(value)
                depth = 0
            self._depth[value] = depth

    def _reached(self, root: Op) -> set[Value]:
        found: set[Value] = set()
        stack = [v for v in root.operands if v.type.shape is not None]
        while stack:
            value = stack.pop()
            if value not in found:
                found.add(value)
                self.last_read[value] = max(self.last_read.get(value, -1), self.number[root])
                if lazy(value) and value.op is not None:
                    stack += [v for v in value.op.operands if v.type.shape is not None]
        return found

    def _decide(self, root: Op, value: Value, seen: set[Value], walk: _Walk) -> None:
        """Decide for each part of what ``root`` reads, from the whole down."""
        if value in walk.done or value in self._held or not lazy(value) or value.op is None:
            return
        walk.done.add(value)
        made = value.op
        if not value.type.pointer:
            store = self._overwriting(root, value, walk.late)
            before: list[Op] = []
            inside = [op for op in self._around[root] if op not in self._around[made]]
            loop = next((op for op in inside if op.name in _LOOPS), None)
            if loop and (self._computed(value) or (self._loads(value) and self._stores_in(loop))):
                before.append(inside[0])
            if store is not None and self.number[made] < self.number[store]:
                around = (*self._around[store], store)
                before.append(next(op for op in around if op not in self._around[made]))
            if before:
                self._hold(value, min(before, key=lambda op: self.number[op]), seen)
                return
            if value in seen and self.heavy(value):
                self.kept.add(value)
            if value in self.kept and store is None:
                return
        for operand in made.operands:
            self._decide(root, operand, seen, walk)

    def _hold(self, value: Value, before: Op, seen: set[Value]) -> None:
        """Have a block computed when ``before`` begins; what it is made of is then read there."""
        self.kept.add(value)
        self._held.add(value)
        self.before.setdefault(before, []).append(value)
        walk = _Walk()
        for operand in value.op.operands if value.op else ():
            self._decide(before, operand, seen, walk)

    def _stores_in(self, loop: Op) -> bool:
        return any(loop in self._around[store] for store in self._stores)

    def _overwriting(self, root: Op, value: Value, late: dict[Value, Op | None]) -> Op | None:
        """The first store between a load that ``value`` depends on and ``root``, which would read it too late."""
        if not lazy(value) or value.op is None:
            return None
        if value not in late:
            found = [self._overwriting(root, v, late) for v in value.op.operands]
            if value.op.name == "tt.load":
                begin, end = self.number[value.op], self.number[root]
                found.append(next((s for s in self._stores if begin < self.number[s] < end), None))
            late[value] = min((s for s in found if s is not None), key=lambda s: self.number[s], default=None)
        return late[value]
