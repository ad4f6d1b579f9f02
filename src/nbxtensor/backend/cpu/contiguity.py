"""Along which axis the memory that a block is read from lies in runs."""

from __future__ import annotations

from collections.abc import Sequence

from nbxtensor.backend.cpu.domains import vector_axis
from nbxtensor.backend.cpu.indices import Indices, axes, axis_of, operand_index, strides
from nbxtensor.backend.cpu.keeping import lazy
from nbxtensor.backend.cpu.state import BYTES, Index
from nbxtensor.backend.cpu.ttir import Value

__all__ = ["best_axis", "run_axes"]

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

    Loads that read so along no axis are left out; a pointer block counts as the load through it.
    """
    found: list[int] = []
    _collect(indices, value, axes(indices.state, shape), (found, set()), len(shape))
    return found


def _collect(
    indices: Indices,
    value: Value,
    index: tuple[Index, ...],
    results: tuple[list[int], set[tuple[Value, tuple[Index, ...]]]],
    rank: int,
) -> None:
    found, seen = results
    if value.type.shape is None or (value, index) in seen:
        return
    seen.add((value, index))
    op = value.op
    if value in indices.state.buffers:
        inner = [axis_of(index[k]) for k in indices.state.buffers[value].order if value.type.shape[k] > 1]
        found += [axis for axis in inner[:1] if axis is not None]
        return
    if value.type.pointer or (op and op.name == "tt.load"):
        pointer = value if value.type.pointer or op is None else op.operands[0]
        place = indices.strided(pointer, index)
        steps = strides(place[1], rank) if place else None
        if steps is not None:
            nbytes = BYTES.get(pointer.type.element, 0)
            found += [axis for axis, step in enumerate(steps) if step.is_constant() and abs(step.value()) == nbytes]
            return
    if lazy(value) and op is not None:
        for operand in op.operands:
            _collect(indices, operand, operand_index(op, operand, index), results, rank)
