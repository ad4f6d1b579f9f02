"""The check that every plan passes: it knows nothing of how the offsets were found."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence

from nbxtensor.errors import PlanError
from nbxtensor.planning.graph import Graph, Node, Ref
from nbxtensor.planning.lifetimes import Lifetime
from nbxtensor.planning.steps import PlanStep

__all__ = ["verify_in_place", "verify_placement"]


def verify_placement(
    lifetimes: Iterable[Lifetime], offsets: Mapping[str, int], nbytes: int, *, limit: int | None = None
) -> None:
    """Check that the offsets are a valid use of one block of memory.

    A sweep over time keeps what is in use sorted by offset; whatever begins is held against its two neighbours.

    Args:
        lifetimes: What is in use, and when.
        offsets: Offset of each by id, in bytes.
        nbytes: Size of the block.
        limit: Most bytes the block may have.

    Raises:
        PlanError: An id is missing, unknown or used twice, an offset is negative or not aligned, a buffer ends
            outside the block, two buffers that are in use at the same time share a byte (both are named, with their
            lifetimes and bytes), or the block is larger than the limit.
    """
    kept = tuple(lifetimes)
    buffers = {x.id: x for x in kept}
    if len(buffers) != len(kept) or buffers.keys() != offsets.keys():
        odd = sorted(buffers.keys() ^ offsets.keys())
        raise PlanError(
            f"placement: every lifetime has one offset. Got {len(kept)} lifetimes of {len(buffers)} ids and "
            f"{len(offsets)} offsets. In one of the two only: {', '.join(odd[:8]) or 'none'}."
        )
    if limit is not None and nbytes > limit:
        raise PlanError(f"placement: the block stays within the limit. Got {nbytes} bytes, and a limit of {limit}.")
    for buffer in kept:
        offset = offsets[buffer.id]
        if offset < 0 or offset % buffer.alignment:
            raise PlanError(f"placement: offsets are aligned. Got {_described(buffer, offset)}.")
        if offset + buffer.size > nbytes:
            raise PlanError(
                f"placement: every buffer ends inside the block of {nbytes} bytes. Got {_described(buffer, offset)}."
            )
    events = sorted(
        event
        for x in kept
        if x.size
        for event in ((x.lower, True, offsets[x.id], x.id), (x.upper, False, offsets[x.id], x.id))
    )  # at one moment, what ends (False) comes before what begins
    live: list[tuple[int, str]] = []
    for _, begins, offset, name in events:
        at = bisect_left(live, (offset, name))
        if not begins:
            del live[at]
            continue
        for neighbour in live[max(at - 1, 0) : at + 1]:
            _check_apart(buffers, (offset, name), neighbour)
        insort(live, (offset, name))


def _check_apart(buffers: Mapping[str, Lifetime], one: tuple[int, str], other: tuple[int, str]) -> None:
    low, high = sorted((one, other))
    if low[0] + buffers[low[1]].size > high[0]:
        raise PlanError(
            f"placement: two buffers in use at the same time share no byte. Got {_described(buffers[low[1]], low[0])} "
            f"and {_described(buffers[high[1]], high[0])}."
        )


def _described(buffer: Lifetime, offset: int) -> str:
    return (
        f"{buffer.id} in use [{buffer.lower}, {buffer.upper}) at bytes {offset}..{offset + buffer.size} "
        f"(alignment {buffer.alignment})"
    )


def verify_in_place(graph: Graph, steps: Sequence[PlanStep]) -> None:
    """Check that no node writes over memory that it may still read, whoever decided what lies where.

    A result may share bytes with an operand only where it is exactly that view of that buffer, and the op is
    elementwise and runs in one launch, or its kernel declares it (`Kernel.in_place`) and nothing else lies there.

    Raises:
        PlanError: A node breaks the rule; names it and the views.
    """
    for place, (node, step) in enumerate(zip(graph.nodes, steps, strict=True)):
        if not step.launches:
            continue
        declared = next((k.in_place for k in node.op.kernels if k.name == step.kernel), {})
        for index, result in enumerate(node.outputs):
            shared = [name for name, ref in node.operands.items() if _meet(ref, result)]
            for name in shared:
                alone = declared.get(index) == name and len(shared) == 1
                by_element = node.op.elementwise and len(step.launches) == 1
                if not (_same_elements(node, index, name) and (alone or by_element)):
                    raise PlanError(
                        f"{graph.name}, node {place} ({node.op.name}): a result lies where an operand does only where "
                        f"the kernel works in place. Got result {index} {result} and operand {name} "
                        f"{node.operands[name]}."
                    )


def _same_elements(node: Node, index: int, name: str) -> bool:
    result, operand = node.outputs[index], node.operands[name]
    packed = result.spec.is_contiguous and operand.spec.is_contiguous
    return packed and (result.span, result.spec.shape) == (operand.span, operand.spec.shape)


def _meet(one: Ref, other: Ref) -> bool:
    low, high = max(one.span[0], other.span[0]), min(one.span[1], other.span[1])
    return one.buffer == other.buffer and low < high
