"""A graph pass: results take over the memory of operands that die there, where their op can work in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nbxtensor.dtype.itemsize import bits
from nbxtensor.op import Target
from nbxtensor.planning.graph import Graph, Node, Ref

__all__ = ["could_lie_on", "in_place", "is_whole", "lies_on"]


def in_place(graph: Graph, target: Target) -> Graph:
    """Return the graph with results written over operands wherever the declarations prove it safe.

    A result takes over an operand's buffer when all of this holds: the node can write it there (`lies_on`); the
    operand and the result are each their whole buffer; both buffers are temporaries; no later node uses the operand's
    buffer through any view, and it does not leave the graph; and this node writes no other result to it.

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
    new_state = dict(zip(graph.new_state, _refs(tuple(graph.new_state.values()), moved), strict=True))
    return replace(graph, nodes=tuple(nodes), outputs=_refs(graph.outputs, moved), new_state=new_state)


@dataclass(frozen=True, slots=True)
class _Use:
    last: int  # node
    leaves: bool  # as an output of the graph


def _uses(graph: Graph) -> dict[int, _Use]:
    leaving = {ref.buffer for ref in graph.leaving}
    uses: dict[int, _Use] = {}
    for place, node in enumerate(graph.nodes):
        for ref in (*node.operands.values(), *node.outputs):
            uses[ref.buffer] = _Use(place, leaves=ref.buffer in leaving)
    return uses


def _taken_over(graph: Graph, uses: dict[int, _Use], place: int, node: Node, index: int, target: Target) -> int | None:
    """Return the buffer that result ``index`` of ``node`` may take over, or None."""
    for operand in could_lie_on(graph, node, index, target):
        if uses[operand.buffer].last == place and not uses[operand.buffer].leaves:
            return operand.buffer
    return None


def could_lie_on(graph: Graph, node: Node, index: int, target: Target) -> Iterator[Ref]:
    """Yield the operands whose memory result ``index`` of ``node`` may take over, if nothing uses them later.

    Raises:
        UnsupportedError: No kernel serves the node.
    """
    result = node.outputs[index]
    written = [ref.buffer for ref in node.outputs]
    if not is_whole(graph, result) or written.count(result.buffer) != 1:
        return
    if any(ref.buffer == result.buffer for ref in node.operands.values()):
        return
    for name, operand in node.operands.items():
        if operand.buffer not in written and is_whole(graph, operand) and lies_on(node, index, name, target):
            yield operand


def is_whole(graph: Graph, ref: Ref, kind: str = "temporary") -> bool:
    """Return whether ``ref`` is all of a buffer of ``kind``, packed, in elements of whole bytes."""
    buffer = graph.buffers[ref.buffer]
    return (
        buffer.kind == kind
        and bits(ref.spec.dtype) % 8 == 0
        and ref.spec.is_contiguous
        and ref.span == (0, buffer.nbytes)
        and buffer.nbytes > 0
    )


def lies_on(node: Node, index: int, name: str, target: Target) -> bool:
    """Return whether ``node`` can write result ``index`` to where its operand ``name`` lies, both packed.

    It can where both are of one shape and one element width, and

    - the op is elementwise and its kernel makes one launch on ``target``, so that each element is read before it is
      written and by the same program, and no other view of that memory is read; or
    - its kernel declares it (`Kernel.in_place`), and no other operand lies there.

    Raises:
        UnsupportedError: No kernel serves the node.
    """
    result, operand = node.outputs[index], node.operands[name]
    if result.spec.shape != operand.spec.shape or bits(result.spec.dtype) != bits(operand.spec.dtype):
        return False
    others = [ref for key, ref in node.operands.items() if key != name and ref.buffer == operand.buffer]
    call = node.call(target)
    if node.op.elementwise:
        return all(_same_view(ref, operand) for ref in others) and len(node.op.kernel(call).launch(call)) == 1
    return not others and result.spec == operand.spec and node.op.kernel(call).in_place.get(index) == name


def _same_view(one: Ref, other: Ref) -> bool:
    layouts = [(ref.offset, ref.spec.shape, bits(ref.spec.dtype), ref.spec.is_contiguous) for ref in (one, other)]
    return layouts[0] == layouts[1]


def _moved(node: Node, moved: dict[int, int]) -> Node:
    operands = dict(zip(node.operands, _refs(tuple(node.operands.values()), moved), strict=True))
    return replace(node, operands=operands, outputs=_refs(node.outputs, moved))


def _refs(refs: Sequence[Ref], moved: dict[int, int]) -> tuple[Ref, ...]:
    return tuple(replace(ref, buffer=moved.get(ref.buffer, ref.buffer)) for ref in refs)
