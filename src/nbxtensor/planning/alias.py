"""A graph pass: results of pointwise nodes take over the memory of operands that die there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nbxtensor.dtype.itemsize import bits
from nbxtensor.op import Target
from nbxtensor.planning.graph import Graph, Node, Ref

__all__ = ["in_place"]


def in_place(graph: Graph, target: Target) -> Graph:
    """Return the graph with results written over operands wherever the declarations prove it safe.

    A result takes over an operand's buffer when all of this holds: the op is declared elementwise and its kernel makes
    one launch on ``target``, so each element is read before it is written and by the same program; the operand and
    the result are packed, of one shape and one element width of whole bytes, and each is its whole buffer; both
    buffers are temporaries; no later node uses the operand's buffer through any view, and it is no output of the
    graph; and this node sees it through no other view and writes no other result to it.

    The result's buffer stays in the list of buffers, unused; `nbxtensor.planning.passes.compact` drops it.

    Raises:
        UnsupportedError: No kernel serves a node that could work in place.
    """
    uses = _uses(graph)
    moved: dict[int, int] = {}  # result's buffer -> the buffer it took over
    nodes: list[Node] = []
    for place, original in enumerate(graph.nodes):
        node = _moved(original, moved)
        for index in range(len(node.outputs)):
            buffer = _taken_over(graph, uses, place, node, index, target)
            if buffer is not None:
                result = node.outputs[index].buffer
                moved[result] = buffer
                uses[buffer] = uses[result]
                node = _moved(original, moved)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), outputs=_refs(graph.outputs, moved))


@dataclass(frozen=True, slots=True)
class _Use:
    last: int  # node
    leaves: bool  # as an output of the graph


def _uses(graph: Graph) -> dict[int, _Use]:
    leaving = {ref.buffer for ref in graph.outputs}
    uses: dict[int, _Use] = {}
    for place, node in enumerate(graph.nodes):
        for ref in (*node.operands.values(), *node.outputs):
            uses[ref.buffer] = _Use(place, leaves=ref.buffer in leaving)
    return uses


def _taken_over(graph: Graph, uses: dict[int, _Use], place: int, node: Node, index: int, target: Target) -> int | None:
    """Return the buffer that result ``index`` of ``node`` may take over, or None."""
    result = node.outputs[index]
    if not node.op.elementwise or not _whole(graph, result):
        return None
    seen = tuple(node.operands.values())
    written = [ref.buffer for ref in node.outputs]
    if written.count(result.buffer) != 1 or any(ref.buffer == result.buffer for ref in seen):
        return None
    for operand in seen:
        use = uses[operand.buffer]
        if (
            operand.buffer not in written
            and _whole(graph, operand)
            and operand.spec.shape == result.spec.shape
            and bits(operand.spec.dtype) == bits(result.spec.dtype)
            and use.last == place
            and not use.leaves
            and all(_same_view(ref, operand) for ref in seen if ref.buffer == operand.buffer)
        ):
            return operand.buffer if _launches(node, target) == 1 else None
    return None


def _whole(graph: Graph, ref: Ref) -> bool:
    """Say whether ``ref`` is all of a temporary, packed, in elements of whole bytes."""
    buffer = graph.buffers[ref.buffer]
    return (
        buffer.kind == "temporary"
        and bits(ref.spec.dtype) % 8 == 0
        and ref.spec.is_contiguous
        and ref.span == (0, buffer.nbytes)
        and buffer.nbytes > 0
    )


def _same_view(one: Ref, other: Ref) -> bool:
    layouts = [(ref.offset, ref.spec.shape, bits(ref.spec.dtype), ref.spec.is_contiguous) for ref in (one, other)]
    return layouts[0] == layouts[1]


def _launches(node: Node, target: Target) -> int:
    call = node.call(target)
    return len(node.op.kernel(call).launch(call))


def _moved(node: Node, moved: dict[int, int]) -> Node:
    operands = dict(zip(node.operands, _refs(tuple(node.operands.values()), moved), strict=True))
    return replace(node, operands=operands, outputs=_refs(node.outputs, moved))


def _refs(refs: Sequence[Ref], moved: dict[int, int]) -> tuple[Ref, ...]:
    return tuple(replace(ref, buffer=moved.get(ref.buffer, ref.buffer)) for ref in refs)
