"""A graph pass: values that are copied into parts of another are made there in the first place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nbxtensor.dtype.itemsize import bits
from nbxtensor.op import Op, Spec, Target
from nbxtensor.planning.alias import is_whole
from nbxtensor.planning.graph import Graph, Node, Ref

__all__ = ["join"]

_WIDEST = 16  # bytes that parts begin at a multiple of, so that kernels still read and write whole vectors


def join(graph: Graph, copy: Op, target: Target) -> Graph:
    """Return the graph without the copies of nodes whose kernel only copies operands to their places (`Kernel.parts`).

    An operand is made where it ends up when it is a temporary buffer of its own, written by nodes before this one
    alone. Where it is packed there too, what reads it reads it there. Where it has gaps there, it is made there if one
    node makes it, by a kernel that leaves gaps (`Kernel.strided`), and only this node reads it. Other operands are
    copied by nodes of their own. Nothing changes where no operand of a node can be made in its place.

    Buffers that are left without a use stay in the list; `nbxtensor.planning.passes.compact` drops them.

    Args:
        graph: The graph, states settled (`state.settle`).
        copy: The op that copies its operand ``x``, to a result of any strides.
        target: What it is planned for.

    Raises:
        UnsupportedError: No kernel serves a node.
    """
    place = len(graph.nodes) - 1
    while place >= 0:  # from the end: a result that is itself made in its place stays whole for its own parts
        node = graph.nodes[place]
        call = node.call(target)
        parts = node.op.kernel(call).parts if node.outputs and node.outputs[0].spec.numel else None
        if parts is not None:
            graph = _joined(graph, place, parts(call), copy, target)
        place -= 1
    return graph


@dataclass(frozen=True, slots=True)
class _Move:
    """Where a buffer goes: into another one, some bytes after its start, or exactly to a view of it."""

    buffer: int
    nbytes: int
    view: Ref | None = None


def _joined(graph: Graph, place: int, parts: Mapping[str, tuple[int, Spec]], copy: Op, target: Target) -> Graph:
    """Return the graph with what can be made in its place of the result of node ``place`` made there."""
    node = graph.nodes[place]
    result = node.outputs[0]
    if len(node.outputs) != 1 or graph.buffers[result.buffer].kind != "temporary":
        return graph
    moves: dict[int, _Move] = {}
    rest: list[Node] = []
    for name, (offset, spec) in parts.items():
        there = Ref(result.buffer, spec, result.offset + offset)
        operand = node.operands[name]
        if operand.buffer not in moves and _moves(graph, place, operand, there):
            moves[operand.buffer] = _Move(result.buffer, there.span[0])
        elif operand.buffer not in moves and _is_made_with_gaps(graph, place, operand, there, target):
            moves[operand.buffer] = _Move(result.buffer, 0, there)
        elif spec.numel:
            rest.append(Node(copy, {"x": operand}, (there,), {}))
    if not moves or not _alone(graph, place, result):
        return graph
    made = replace(graph, nodes=(*graph.nodes[:place], *rest, *graph.nodes[place + 1 :]))
    nodes = tuple(
        replace(
            each,
            operands={name: _moved(ref, moves) for name, ref in each.operands.items()},
            outputs=tuple(_moved(ref, moves) for ref in each.outputs),
        )
        for each in made.nodes
    )
    return replace(
        made,
        nodes=nodes,
        outputs=tuple(_moved(ref, moves) for ref in graph.outputs),
        new_state={name: _moved(ref, moves) for name, ref in graph.new_state.items()},
    )


def _moves(graph: Graph, place: int, operand: Ref, there: Ref) -> bool:
    """Return whether the buffer that ``operand`` views can lie at ``there`` from the start."""
    start, end = there.span
    fits = is_whole(graph, operand) and there.spec.is_contiguous and end - start == graph.buffers[operand.buffer].nbytes
    if not fits or start % _WIDEST or operand.buffer == there.buffer:
        return False
    written = False
    for number, node in enumerate(graph.nodes):
        refs = (*node.operands.values(), *node.outputs)
        if any(ref.buffer == operand.buffer and start * 8 % bits(ref.spec.dtype) for ref in refs):
            return False
        if any(ref.buffer == operand.buffer for ref in node.outputs):
            if number >= place:
                return False  # it changes after it was copied
            written = True
    return written


def _is_made_with_gaps(graph: Graph, place: int, operand: Ref, there: Ref, target: Target) -> bool:
    """Return whether the one node that makes ``operand`` for node ``place`` can write it with the gaps of ``there``."""
    whole = is_whole(graph, operand) and operand.buffer != there.buffer
    leaves = any(ref.buffer == operand.buffer for ref in graph.leaving)
    width = bits(operand.spec.dtype) // 8
    apart = [stride * width for stride in there.spec.strides if stride != 1]
    if not whole or leaves or there.span[0] % _WIDEST or any(stride % _WIDEST for stride in apart):
        return False
    for number, node in enumerate(graph.nodes):
        reads = [name for name, ref in node.operands.items() if ref.buffer == operand.buffer]
        if reads and (number != place or len(reads) > 1):
            return False
        if any(ref.buffer == operand.buffer for ref in node.outputs):
            packed = len(node.outputs) == 1 and node.outputs[0] == Ref(operand.buffer, operand.spec.packed())
            call = node.call(target)
            if number >= place or not packed or call.in_place or not node.op.kernel(call).strided:
                return False
            made = replace(node, outputs=(there,)).call(target)
            if not node.op.kernel(made).strided:
                return False
    return True


def _alone(graph: Graph, place: int, result: Ref) -> bool:
    """Return whether node ``place`` alone writes the part of the buffer where ``result`` is, which is read later."""
    low, high = result.span
    for number, node in enumerate(graph.nodes):
        used = node.outputs if number > place else (*node.operands.values(), *node.outputs)
        for ref in used if number != place else node.operands.values():
            start, end = ref.span
            if ref.buffer == result.buffer and start < high and low < end:
                return False
    return True


def _moved(ref: Ref, moves: Mapping[int, _Move]) -> Ref:
    move = moves.get(ref.buffer)
    if move is None:
        return ref
    if move.view is not None:
        return move.view
    return replace(ref, buffer=move.buffer, offset=ref.offset + move.nbytes * 8 // bits(ref.spec.dtype))
