"""Along which axis the memory that a block is read from lies in runs."""

from __future__ import annotations

from collections.abc import Sequence

from nbxtensor.backend.cpu.domains import vector_axis
from nbxtensor.backend.cpu.elementwise import WIDENING
from nbxtensor.backend.cpu.indices import Indices, axes, axis_of, operand_index, strides
from nbxtensor.backend.cpu.keeping import lazy
from nbxtensor.backend.cpu.state import BYTES, Index
from nbxtensor.backend.cpu.ttir import Value

__all__ = ["best_axis", "run_axes", "widest"]

_SHORTEST = 4  # elements of a run worth a vector of its own


def best_axis(indices: Indices, shape: Sequence[int], values: Sequence[Value], width: int) -> int:
    """Return the axis for vectors over a block of ``shape``: the one that most of what is read lies along.

    Args:
        indices: What is known of addresses.
        shape: Extents of the block.
        values: Blocks of that shape that are read, and pointers that are written through.
        width: Elements that fill a register.
    """
    usual = vector_axis(shape, width)
    votes = [axis for v in values for axis in run_axes(indices, v, shape) if shape[axis] >= _SHORTEST]
    return max(votes, key=lambda axis: (votes.count(axis), axis == usual, axis), default=usual)


def run_axes(indices: Indices, value: Value, shape: Sequence[int]) -> list[int]:
    """Return, for each load in the formula of a block of ``shape``, the axis along which it reads adjacent elements.

    Loads that read so along no axis are left out, and those that change along one axis only where the block has more:
    along the others each is one element for all lanes. A pointer block counts as the load through it.
    """
    walk = _Walk(indices, shape)
    walk.visit(value, axes(indices.state, shape))
    return walk.found


class _Walk:
    def __init__(self, indices: Indices, shape: Sequence[int]) -> None:
        self.indices = indices
        self.shape = shape
        self.needed = min(2, sum(extent > 1 for extent in shape))
        self.found: list[int] = []
        self.seen: set[tuple[Value, tuple[Index, ...]]] = set()

    def visit(self, value: Value, index: tuple[Index, ...]) -> None:
        if value.type.shape is None or (value, index) in self.seen:
            return
        self.seen.add((value, index))
        op = value.op
        held = self.indices.state.buffers.get(value)
        if held is not None:
            along = [axis_of(index[k]) for k in held.order if value.type.shape[k] > 1]
            self.note(along[:1], [axis for axis in along if axis is not None])
            return
        if value.type.pointer or (op and op.name == "tt.load"):
            pointer = value if value.type.pointer or op is None else op.operands[0]
            place = self.indices.strided(pointer, index)
            steps = strides(place[1], len(self.shape)) if place else None
            if steps is not None:
                nbytes = BYTES.get(pointer.type.element, 0)
                adjacent = [k for k, step in enumerate(steps) if step.is_constant() and abs(step.value()) == nbytes]
                self.note(adjacent, [k for k, step in enumerate(steps) if step.terms])
                return
        if lazy(value) and op is not None:
            for operand in op.operands:
                self.visit(operand, operand_index(op, operand, index))

    def note(self, adjacent: Sequence[int | None], changing: Sequence[int]) -> None:
        if len(set(changing)) >= self.needed:
            self.found += [axis for axis in adjacent if axis is not None]


def widest(indices: Indices, values: Sequence[Value]) -> int:
    """Return the bytes of the widest element that computing blocks takes: what a register is filled with.

    Indices and masks do not count; halves count as the floats that they are computed as.
    """
    seen: set[Value] = set()

    def bytes_of(value: Value) -> int:
        if value in seen or value.type.pointer:
            return 1
        seen.add(value)
        op = value.op
        element = value.type.element
        size = 1 if element == "i1" else BYTES.get(element, 4)
        if value.type.shape is None or value in indices.state.buffers or op is None or not lazy(value):
            return size
        if indices.integer(value, axes(indices.state, value.type.shape)) is not None:
            return 1
        if op.name == "tt.load":
            return max([size, *(bytes_of(v) for v in op.operands[1:])])
        if element in {"f16", "bf16"} and op.name in WIDENING:
            size = 4
        return max([size, *(bytes_of(v) for v in op.operands)])

    return max((bytes_of(v) for v in values), default=4)
