"""A graph pass: cheap values that wait through the moment of the peak are made again after it."""

from __future__ import annotations

from dataclasses import replace

from nbxtensor.op import Target
from nbxtensor.planning.alias import in_place
from nbxtensor.planning.graph import Graph, Node, Ref
from nbxtensor.planning.lifetimes import Lifetime, buffer_id, graph_lifetimes
from nbxtensor.planning.passes import compact, remove_dead
from nbxtensor.planning.placement import lower_bound
from nbxtensor.planning.steps import PlanStep, choose

__all__ = ["remake"]

_ROUNDS = 8  # peaks that are lowered one after another
MOST = 0.1
"""Share of the bytes that a graph moves which may be moved again."""


def remake(graph: Graph, target: Target, *, alignment: int, most: float = MOST) -> Graph:
    """Return ``graph`` with masks, tables and other cheap values made again where that lowers its peak.

    Such a value is made by one elementwise node in one launch, from inputs, weights, constants and states that no node
    writes: they are there all the time. Where it waits through the moment at which most memory is in use, used before
    and after it, a node more makes it anew for those that use it after. This goes on while the peak, measured with
    results in place, becomes lower.

    Args:
        graph: The graph in the order in which it will run, results not in place yet.
        target: What it is planned for.
        alignment: What sizes are rounded up to, in bytes.
        most: Share of the bytes that the graph moves which may be moved again.

    Raises:
        UnsupportedError: No kernel serves a node.
    """
    steps = choose(graph, target)
    budget = most * sum(step.cost.read + step.cost.written for step in steps)
    if not _cheap(graph, steps):
        return graph
    bound = _bound(graph, target, alignment)
    for _ in range(_ROUNDS):
        found, nbytes = _once(graph, steps, target, alignment)
        budget -= nbytes
        if found is None or budget < 0:
            break
        lower = _bound(found, target, alignment)
        if lower >= bound:
            break
        graph, bound, steps = found, lower, choose(found, target)
    return graph


def _cheap(graph: Graph, steps: tuple[PlanStep, ...]) -> dict[int, int]:
    """Return the temporaries that can be made again at any time, and the node that makes each."""
    written: dict[int, list[int]] = {}
    for place, node in enumerate(graph.nodes):
        for ref in node.outputs:
            written.setdefault(ref.buffer, []).append(place)
    leaving = {ref.buffer for ref in graph.leaving}
    found: dict[int, int] = {}
    for place, (node, step) in enumerate(zip(graph.nodes, steps, strict=True)):
        result = node.outputs[0].buffer
        alone = len(node.outputs) == 1 and written[result] == [place] and result not in leaving
        lasting = all(
            graph.buffers[ref.buffer].kind != "temporary" and ref.buffer not in written
            for ref in node.operands.values()
        )
        plain = node.op.elementwise and len(step.launches) == 1 and not step.cost.buffers
        if alone and lasting and plain and graph.buffers[result].kind == "temporary":
            found[result] = place
    return found


def _once(graph: Graph, steps: tuple[PlanStep, ...], target: Target, alignment: int) -> tuple[Graph | None, int]:
    """Return the graph with what waits through its first peak made again, or None, and the bytes that takes."""
    shared = in_place(graph, target)  # the same nodes and buffers
    steps = choose(shared, target)
    lives = {x.id: x for x in graph_lifetimes(shared, steps, alignment)}
    moment = _peak(tuple(lives.values()))
    starts = [0]
    for step in steps:
        starts.append(starts[-1] + step.moments)
    place = next(i for i in range(len(steps)) if starts[i + 1] > moment)
    again: dict[int, int] = {}  # buffer -> the one it is made again in
    nodes: list[Node] = list(graph.nodes)
    buffers = list(graph.buffers)
    inserted: dict[int, list[Node]] = {}
    nbytes = 0
    for buffer, maker in _cheap(graph, steps).items():
        life = lives.get(buffer_id(buffer))
        users = [i for i, node in enumerate(graph.nodes) if any(r.buffer == buffer for r in node.operands.values())]
        after = [i for i in users if i > place]
        waits = life is not None and life.lower <= moment < life.upper and place not in users and maker < place
        if not waits or not after:
            continue
        buffers.append(graph.buffers[buffer])
        again[buffer] = len(buffers) - 1
        made = graph.nodes[maker]
        result = replace(made.outputs[0], buffer=again[buffer])
        inserted.setdefault(after[0], []).append(replace(made, outputs=(result,)))
        nbytes += steps[maker].cost.read + steps[maker].cost.written
        for user in after:
            node = nodes[user]
            operands = {name: _from(ref, buffer, again[buffer]) for name, ref in node.operands.items()}
            nodes[user] = replace(node, operands=operands)
    if not again:
        return None, 0
    order = tuple(each for i, node in enumerate(nodes) for each in (*inserted.get(i, ()), node))
    return remove_dead(replace(graph, buffers=tuple(buffers), nodes=order)), nbytes


def _from(ref: Ref, old: int, new: int) -> Ref:
    return replace(ref, buffer=new) if ref.buffer == old else ref


def _peak(lives: tuple[Lifetime, ...]) -> int:
    """Return the first moment at which most is in use."""
    change: dict[int, int] = {}
    for x in lives:
        change[x.lower] = change.get(x.lower, 0) + x.nbytes
        change[x.upper] = change.get(x.upper, 0) - x.nbytes
    best, at, total = -1, 0, 0
    for moment in sorted(change):
        total += change[moment]
        if total > best:
            best, at = total, moment
    return at


def _bound(graph: Graph, target: Target, alignment: int) -> int:
    shared = compact(in_place(graph, target))
    return lower_bound(graph_lifetimes(shared, choose(shared, target), alignment))
