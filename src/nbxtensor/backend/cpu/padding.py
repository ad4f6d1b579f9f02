"""What a block holds where a mask is false: proofs that the padding of a block does not matter to a reduction."""

from __future__ import annotations

import math
from collections.abc import Callable

from nbxtensor.backend.cpu.domains import Condition, conditions
from nbxtensor.backend.cpu.evaluation import Evaluation
from nbxtensor.backend.cpu.indices import axes, source_index
from nbxtensor.backend.cpu.state import Index
from nbxtensor.backend.cpu.ttir import Op, Value

__all__ = ["candidates", "limits"]

_INF = math.inf


def limits(evaluation: Evaluation, block: Value, axis: int, identity: float) -> list[Condition]:
    """Return the limits along ``axis`` outside which ``block`` is ``identity``, whatever the data.

    One thing is taken for granted: minus infinity in the padding stays so when a number is added or subtracted.
    """
    index = axes(evaluation.state, block.type.shape or ())
    found = [c for c in candidates(evaluation, block, index) if c.axis == axis]
    return [c for c in found if _Outside(evaluation, c).value(block, index) == identity]


def candidates(evaluation: Evaluation, value: Value, index: tuple[Index, ...]) -> list[Condition]:
    """Return the limits in the masks of everything that a block is computed from."""
    return _candidates(evaluation, value, index, set())


def _candidates(
    evaluation: Evaluation, value: Value, index: tuple[Index, ...], seen: set[tuple[Value, tuple[Index, ...]]]
) -> list[Condition]:
    op = value.op
    if op is None or value.type.shape is None or (value, index) in seen or op.regions:
        return []
    seen.add((value, index))
    moved = source_index(op, index)
    if moved is not None:
        return _candidates(evaluation, op.operands[0], moved, seen)
    found: list[Condition] = []
    if op.name == "arith.select":
        found = conditions(evaluation, op.operands[0], index)
    elif op.name == "tt.load" and len(op.operands) > 1:
        found = conditions(evaluation, op.operands[1], index)
    if op.name in {"tt.load", "tt.reshape", "tt.join", "tt.split", "tt.cat", "tt.gather", "tt.dot"}:
        return found
    return found + [c for v in op.operands for c in _candidates(evaluation, v, index, seen)]


class _Outside:
    """Values where one condition is false."""

    def __init__(self, evaluation: Evaluation, condition: Condition) -> None:
        self.evaluation = evaluation
        self.condition = condition
        self.known: dict[tuple[Value, tuple[Index, ...]], float | None] = {}

    def value(self, value: Value, index: tuple[Index, ...]) -> float | None:
        """Return the number that ``value`` is there, or None."""
        key = value, index
        if key not in self.known:
            self.known[key] = self.found(value, index)
        return self.known[key]

    def found(self, value: Value, index: tuple[Index, ...]) -> float | None:
        op = value.op
        if op is None or op.regions:
            return None
        if op.name == "arith.constant":
            numbers = op.constant()
            return numbers[0] if len(numbers) == 1 else None
        if value.type.shape is None:
            return None
        if op.name == "tt.splat":
            return self.value(op.operands[0], ())
        moved = source_index(op, index)
        if moved is not None:
            return self.value(op.operands[0], moved)
        if op.name == "tt.load":
            if len(op.operands) > 2 and self.false(op.operands[1], index):
                return self.value(op.operands[2], index)
            return None
        if op.name == "arith.select":
            if self.false(op.operands[0], index):
                return self.value(op.operands[2], index)
            chosen = [self.value(v, index) for v in op.operands[1:]]
            return chosen[0] if chosen[0] == chosen[1] else None
        return self.computed(op, index)

    def computed(self, op: Op, index: tuple[Index, ...]) -> float | None:
        numbers = [self.value(v, index) for v in op.operands]
        if op.name in _FOLDED and all(n is not None for n in numbers):
            return _FOLDED[op.name](*numbers)
        if op.name == "arith.subf" and numbers[0] == -_INF:
            return -_INF
        if op.name == "arith.addf" and -_INF in numbers:
            return -_INF
        return None

    def false(self, mask: Value, index: tuple[Index, ...]) -> bool:
        """Return whether ``mask`` is false wherever the condition is."""
        limit = self.condition.limit
        for c in conditions(self.evaluation, mask, index):
            if c.axis == self.condition.axis:
                low, _ = self.evaluation.state.facts.bounds(limit - c.limit)
                if low is not None and low >= 0:
                    return True
        return False


def _exp(x: float) -> float | None:
    return 0.0 if x == -_INF else 1.0 if x == 0 else None


def _same(x: float) -> float:
    return x


def _magnitude(x: float) -> float:
    return abs(x)


_FOLDED: dict[str, Callable[..., float | None]] = {
    "arith.addf": lambda a, b: a + b,
    "arith.subf": lambda a, b: a - b,
    "arith.mulf": lambda a, b: None if {abs(a), abs(b)} & {_INF} and 0 in {a, b} else a * b,
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.andi": lambda a, b: int(a) & int(b),
    "arith.ori": lambda a, b: int(a) | int(b),
    "arith.maxnumf": max,
    "arith.minnumf": min,
    "arith.maximumf": max,
    "arith.minimumf": min,
    "arith.maxsi": max,
    "arith.minsi": min,
    "arith.negf": lambda a: -a,
    "math.absf": _magnitude,
    "math.absi": _magnitude,
    "math.exp": _exp,
    "math.exp2": _exp,
    "math.sqrt": lambda a: a if a in {0.0, 1.0, _INF} else None,
    "arith.extf": _same,
    "arith.truncf": lambda a: a if a in {0.0, 1.0, _INF, -_INF} else None,
    "tt.fp_to_fp": lambda a: a if a in {0.0, 1.0, _INF, -_INF} else None,
    "arith.extsi": _same,
    "arith.sitofp": lambda a: float(a) if abs(a) <= 1 else None,
    "math.fma": lambda a, b, c: a * b + c if not {abs(a), abs(b), abs(c)} & {_INF} else None,
}
