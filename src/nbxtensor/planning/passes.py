"""Graph passes that know no op: dead nodes, unused buffers, and what can be computed once at load."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import count

from nbxtensor.op import Spec
from nbxtensor.planning.graph import Graph, GraphBuffer, Node, Ref

__all__ = ["compact", "partition", "remove_dead"]


def remove_dead(graph: Graph) -> Graph:
    """Return the graph without the nodes whose results nothing uses: no later node, no output and no state.

    Buffers keep their indices; `compact` drops those left without a use.
    """
    needed = {ref.buffer for ref in graph.leaving} | {i for i, _ in graph.of_kind("state")}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(ref.buffer in needed for ref in node.outputs):
            needed.update(ref.buffer for ref in node.operands.values())
            kept.append(node)
    return replace(graph, nodes=tuple(reversed(kept)))


def compact(graph: Graph) -> Graph:
    """Return the graph without the weights, constants and temporaries that nothing uses.

    Inputs and state stay, used or not: they belong to how the graph is called.
    """
    used = {ref.buffer for node in graph.nodes for ref in _all(node)} | {ref.buffer for ref in graph.leaving}
    kept = [i for i, b in enumerate(graph.buffers) if i in used or b.kind in ("input", "state")]
    place = {old: new for new, old in enumerate(kept)}
    return Graph(
        tuple(graph.buffers[i] for i in kept),
        tuple(_placed(node, place) for node in graph.nodes),
        tuple(replace(ref, buffer=place[ref.buffer]) for ref in graph.outputs),
        graph.name,
        {name: replace(ref, buffer=place[ref.buffer]) for name, ref in graph.new_state.items()},
    )


def partition(graph: Graph, late_nodes: Collection[int] = ()) -> tuple[Graph, Graph]:
    """Split the graph into what is computed once, from weights and constants alone, and what every run computes.

    Args:
        graph: The graph.
        late_nodes: Nodes that every run computes whatever they read: those that dims change.

    Returns:
        The prologue, whose inputs are the weights it needs (by their names) and whose outputs are, in order, the
        values of the weights "folded.N" of the main graph, N counting on from such weights the graph has already;
        and the main graph, which holds no node that could be computed beforehand and no weight that nothing uses.
        A folded value is given in the layout its node writes, where that is packed and fills its buffer, and as
        uint8 otherwise.

    A value that is only part of a buffer which runs write to, or that a run reads before the buffer gets its final
    content, is not folded.
    """
    fixed = _fixed(graph, late_nodes)
    early = tuple(n for n in graph.nodes if all(ref.buffer in fixed for ref in n.outputs))
    late = tuple(n for n in graph.nodes if any(ref.buffer not in fixed for ref in n.outputs))
    computed = {ref.buffer for node in early for ref in node.outputs}
    read = {ref.buffer for node in late for ref in node.operands.values()} | {ref.buffer for ref in graph.leaving}
    crossing = sorted(computed & read)
    specs = {i: _spec(i, graph.buffers[i], early) for i in crossing}
    taken = {b.name for _, b in graph.of_kind("weight")}
    names = (name for n in count() if (name := f"folded.{n}") not in taken)
    weights = {i: GraphBuffer(graph.buffers[i].nbytes, "weight", next(names), specs[i]) for i in crossing}
    inputs = {i: replace(b, kind="input") for i, b in graph.of_kind("weight")}
    unused = {i for i, b in enumerate(graph.buffers) if b.kind in ("input", "state")}
    prologue = Graph(
        tuple(inputs.get(i, b) for i, b in enumerate(graph.buffers)),
        early,
        tuple(Ref(i, specs[i]) for i in crossing),
        f"{graph.name}.prologue",
    )
    main = replace(graph, buffers=tuple(weights.get(i, b) for i, b in enumerate(graph.buffers)), nodes=late)
    return _only_used(remove_dead(prologue), unused), compact(main)


def _fixed(graph: Graph, late: Collection[int]) -> set[int]:
    """Return the buffers that hold, whenever a run reads them, what weights and constants alone decide."""
    fixed = {i for i, b in enumerate(graph.buffers) if b.kind in ("weight", "constant", "temporary")}
    last_write = {ref.buffer: place for place, node in enumerate(graph.nodes) for ref in node.outputs}
    size = -1
    while size != len(fixed):
        size = len(fixed)
        for place, node in enumerate(graph.nodes):
            results = {ref.buffer for ref in node.outputs}
            operands = {ref.buffer for ref in node.operands.values()}
            if place in late or not (results | operands) <= fixed:
                fixed -= results  # computed in every run, so what it writes is not fixed
                fixed -= {i for i in operands & fixed if last_write.get(i, -1) > place}
    return fixed


def _spec(index: int, buffer: GraphBuffer, nodes: Iterable[Node]) -> Spec:
    """Return the layout in which the value of a computed buffer is handed over."""
    for node in nodes:
        for ref in node.outputs:
            if ref.buffer == index and ref.spec.is_contiguous and ref.span == (0, buffer.nbytes):
                return ref.spec.packed()
    return Spec((buffer.nbytes,), "uint8")


def _only_used(graph: Graph, absent: set[int]) -> Graph:
    """Return a prologue, compacted, without the inputs and state of the whole graph and the weights it ignores."""
    used = {ref.buffer for node in graph.nodes for ref in _all(node)}
    hidden = tuple(
        replace(b, kind="temporary") if i in absent or (b.kind == "input" and i not in used) else b
        for i, b in enumerate(graph.buffers)
    )
    return compact(replace(graph, buffers=hidden))


def _all(node: Node) -> tuple[Ref, ...]:
    return (*node.operands.values(), *node.outputs)


def _placed(node: Node, place: dict[int, int]) -> Node:
    operands = {name: replace(ref, buffer=place[ref.buffer]) for name, ref in node.operands.items()}
    return replace(node, operands=operands, outputs=tuple(replace(r, buffer=place[r.buffer]) for r in node.outputs))
