"""Indices, masks and addresses of blocks as far as they follow from the index and scalars alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from nbxtensor.backend.cpu.affine import ZERO, Fact, Integer, Poly
from nbxtensor.backend.cpu.state import AXIS, BYTES, Index, State, bits
from nbxtensor.backend.cpu.ttir import Op, Value

__all__ = ["Indices", "axes", "axis_of", "operand_index", "source_index", "strides"]

_WIDTHS = {"i32": 32, "i64": 64, "index": 64}  # element types that indices have


def source_index(op: Op, index: tuple[Index, ...]) -> tuple[Index, ...] | None:
    """Return the index into the only operand of an op that just moves elements, or None for other ops."""
    shape = op.results[0].type.shape or ()
    if op.name == "tt.expand_dims":
        axis = op.integer("axis")
        return index[:axis] + index[axis + 1 :]
    if op.name == "tt.broadcast":
        source = op.operands[0].type.shape or ()
        zero = Integer(ZERO)
        return tuple(zero if have == 1 and want != 1 else i for have, want, i in zip(source, shape, index, strict=True))
    if op.name == "tt.trans":
        order = [int(n) for n in re.findall(r"\d+", op.attributes["order"].split(":")[1])]
        moved = list(index)
        for k, axis in enumerate(order):
            moved[axis] = index[k]
        return tuple(moved)
    return None


_UNKNOWN = Integer(Poly.symbol(f"{AXIS}?"))  # an index that is no axis: the block is read in some other order


def operand_index(op: Op, operand: Value, index: tuple[Index, ...]) -> tuple[Index, ...]:
    """Return the index that a formula read at ``index`` reads an operand at, unknown where it is no plain one."""
    moved = source_index(op, index)
    if moved is not None:
        return moved
    shape = operand.type.shape or ()
    return index if shape == op.results[0].type.shape else (_UNKNOWN,) * len(shape)


def axes(state: State, shape: Sequence[int]) -> tuple[Integer, ...]:
    """Return the symbolic index over a block of ``shape``: axis k is the symbol "@k"."""
    for k, extent in enumerate(shape):
        state.facts[f"{AXIS}{k}"] = Fact(0, extent - 1)
    return tuple(
        Integer(Poly.symbol(f"{AXIS}{k}") if extent > 1 else Poly.constant(0)) for k, extent in enumerate(shape)
    )


def strides(offset: Poly, rank: int) -> list[Poly] | None:
    """Return the coefficient of each axis in an offset, or None where it is not linear in them."""
    found = [Poly({}) for _ in range(rank)]
    for monomial, coefficient in offset.terms.items():
        named = [name for name in monomial if name.startswith(AXIS)]
        if len(named) > 1:
            return None
        if named:
            rest = tuple(name for name in monomial if name not in named)
            axis = named[0].removeprefix(AXIS)
            if not axis.isdigit():
                return None
            found[int(axis)] += Poly({rest: coefficient})
    return found


def axis_of(index: Index) -> int | None:
    """Return the axis that an index is the number along, None where it is anything else."""
    if isinstance(index, Integer) and index.uniform and len(index.base.terms) == 1:
        ((monomial, coefficient),) = index.base.terms.items()
        name = monomial[0].removeprefix(AXIS) if len(monomial) == 1 and coefficient == 1 else ""
        return int(name) if name.isdigit() else None
    return None


class Indices:
    """What is known of integer and pointer blocks without writing anything but scalars.

    Args:
        state: The lowering.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._asked: dict[tuple[Value, tuple[Index, ...], int], Integer | None] = {}

    def integer(self, value: Value, index: tuple[Index, ...], lanes: int = 0) -> Integer | None:
        """Return an integer block at an index if it follows from the index and scalars alone, else None."""
        type_ = value.type
        if type_.pointer or type_.element not in _WIDTHS:
            return None
        if type_.shape is None:
            return Integer(self.state.symbol(self.state.scalars[value], type_.element), bits=bits(type_.element))
        if value in self.state.buffers:
            return None
        if value in self.state.affine:
            source, offset = self.state.affine[value]
            start = self.integer(source, index, lanes)
            return start.added(Integer(offset)) if start else None
        key = value, index, lanes
        outermost = not self._asked
        if key not in self._asked:
            self._asked[key] = None
            self._asked[key] = self._checked(value, index, lanes)
        found = self._asked[key]
        if outermost:
            self._asked.clear()  # what is known changes from one op to the next
        return found

    def _checked(self, value: Value, index: tuple[Index, ...], lanes: int) -> Integer | None:
        found = self._integer(value, index, lanes)
        # A coefficient as wide as the type is no index but arithmetic on bits, as in a hash: that is computed as bits.
        limit = 1 << (_WIDTHS[value.type.element] - 1)
        if found is None or any(abs(c) >= limit for c in (*found.base.terms.values(), *found.lane.terms.values())):
            return None
        return found

    def _integer(self, value: Value, index: tuple[Index, ...], lanes: int) -> Integer | None:
        op = value.op
        if op is None:
            return None
        width = bits(value.type.element)
        if op.name == "tt.make_range":
            place = index[0]
            start = Integer(Poly.constant(op.integer("start")), bits=width)
            return Integer(place.base, place.lane, width).added(start) if isinstance(place, Integer) else None
        if op.name == "arith.constant":
            numbers = op.constant()
            return Integer(Poly.constant(int(numbers[0])), bits=width) if len(numbers) == 1 else None
        if op.name == "tt.splat":
            return self.integer(op.operands[0], (), lanes)
        if (moved := source_index(op, index)) is not None:
            return self.integer(op.operands[0], moved, lanes)
        if op.name == "tt.reshape":
            moved = self.reshaped(op, index, lanes)
            return self.integer(op.operands[0], moved, lanes) if moved else None
        if op.name in {"arith.extsi", "arith.extui", "arith.index_cast"}:
            found = self.integer(op.operands[0], index, lanes)
            if found is None or (op.name == "arith.extui" and not self._natural(found)):
                return None
            return Integer(found.base, found.lane, width)
        if op.name in _AFFINE:
            return self._arithmetic(op, index, lanes, width)
        return None

    def _arithmetic(self, op: Op, index: tuple[Index, ...], lanes: int, width: int) -> Integer | None:
        a = self.integer(op.operands[0], index, lanes)
        c = self.integer(op.operands[1], index, lanes) if a else None
        if a is None or c is None:
            return None
        if op.name == "arith.addi":
            return a.added(c)
        if op.name == "arith.subi":
            return a.added(c, -1)
        if op.name == "arith.muli":
            return a.multiplied(c)
        if not c.uniform or not c.base.is_constant():
            return None
        number = c.base.value()
        if op.name == "arith.shli":
            return a.scaled(Poly.constant(1 << number)) if 0 <= number < width else None
        if number <= 0:
            return None
        parts = a.divided(number, max(lanes, 1), self.state.facts, self.state.split)
        return parts and parts[0 if "div" in op.name else 1]

    def reshaped(self, op: Op, index: tuple[Index, ...], lanes: int) -> tuple[Index, ...] | None:
        """The index before a reshape, by way of the position in row-major order."""
        position: Integer | None = Integer(ZERO)
        stride = 1
        for extent, i in zip(reversed(op.results[0].type.shape or ()), reversed(index), strict=True):
            if not isinstance(i, Integer):
                position = None
                break
            position = position.added(i.scaled(Poly.constant(stride)))
            stride *= extent
        moved: list[Index] = []
        for extent in reversed(op.operands[0].type.shape or ()):
            parts = position and position.divided(extent, max(lanes, 1), self.state.facts, self.state.split)
            if not parts:
                return None
            position = parts[0]
            moved.append(parts[1])
        return tuple(reversed(moved))

    def _natural(self, number: Integer) -> bool:
        """Whether an integer is known not to be negative in any lane."""
        low, _ = self.state.facts.bounds(number.base)
        return low is not None and low >= 0 and number.lane.is_constant() and number.lane.value() >= 0

    def origin(self, value: Value) -> tuple[Value, Poly]:
        """Return a scalar pointer as the pointer it was made from and an offset in bytes."""
        offset = ZERO
        while value.op is not None and value.op.name in {"tt.addptr", "tt.bitcast"}:
            if value.op.name == "tt.addptr":
                index = value.op.operands[1]
                step = self.state.symbol(self.state.scalars[index], index.type.element)
                offset += step.scaled(BYTES[value.type.element])
            value = value.op.operands[0]
        return value, offset

    def strided(self, value: Value, index: tuple[Index, ...]) -> tuple[Value, Poly] | None:
        """Return a pointer block as a scalar pointer and an offset in bytes in terms of the axes, where it is one.

        The pointer is one that no other was added to: an argument, a loaded one, one that a loop carries.
        """
        if value in self.state.affine:
            source, moved_by = self.state.affine[value]
            found = self.strided(source, index)
            return found and (found[0], found[1] + moved_by)
        op = value.op
        if op is None or value in self.state.buffers or value.type.shape is None:
            return None
        if op.name == "tt.splat":
            return self.origin(op.operands[0])
        if op.name == "tt.bitcast":
            return self.strided(op.operands[0], index)
        if (moved := source_index(op, index)) is not None:
            return self.strided(op.operands[0], moved)
        if op.name != "tt.addptr":
            return None
        found = self.strided(op.operands[0], index)
        step = self.integer(op.operands[1], index) if found else None
        return (found[0], found[1] + step.base.scaled(BYTES[value.type.element])) if found and step else None

    def written(self, value: Value) -> bool:
        """Return whether the scalars that a formula needs have been written."""
        seen: set[Value] = set()

        def known(value: Value) -> bool:
            if value in seen:
                return True
            seen.add(value)
            if value.type.shape is None:
                return value in self.state.scalars
            return value.op is not None and all(known(v) for v in value.op.operands)

        return known(value)

    def compared(self, predicate: str, a: Integer, c: Integer, lanes: int) -> bool | None:
        """Return what a comparison gives in every lane, where that is known."""
        difference = a.added(c, -1)
        if not difference.lane.is_constant():
            return None
        reach = difference.lane.value() * (max(lanes, 1) - 1)
        low, high = self.state.facts.bounds(difference.base)
        low = None if low is None else low + min(reach, 0)
        high = None if high is None else high + max(reach, 0)
        if predicate[0] == "u" and not (self._natural(a) and self._natural(c)):
            return None
        return _DECIDE[predicate.lstrip("us")](low, high)


_AFFINE = frozenset(
    "arith.addi arith.subi arith.muli arith.shli arith.divsi arith.divui arith.remsi arith.remui".split()
)


def _less(low: int | None, high: int | None) -> bool | None:
    return True if high is not None and high < 0 else False if low is not None and low >= 0 else None


def _less_or_equal(low: int | None, high: int | None) -> bool | None:
    return True if high is not None and high <= 0 else False if low is not None and low > 0 else None


def _equal(low: int | None, high: int | None) -> bool | None:
    if low is not None and low == high:
        return low == 0
    return False if (low is not None and low > 0) or (high is not None and high < 0) else None


def _not(answer: bool | None) -> bool | None:  # noqa: FBT001  the answer is what it takes
    return None if answer is None else not answer


_DECIDE: dict[str, Callable[[int | None, int | None], bool | None]] = {
    "lt": _less,
    "le": _less_or_equal,
    "gt": lambda low, high: _not(_less_or_equal(low, high)),
    "ge": lambda low, high: _not(_less(low, high)),
    "eq": _equal,
    "ne": lambda low, high: _not(_equal(low, high)),
}
