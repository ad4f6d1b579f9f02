"""A graph pass: nodes in the order that needs least memory, results over operands included."""

from __future__ import annotations

from dataclasses import replace

from nbxtensor.op import Op, Target
from nbxtensor.planning.alias import could_lie_on, in_place
from nbxtensor.planning.graph import Graph
from nbxtensor.planning.joining import join
from nbxtensor.planning.lifetimes import graph_lifetimes
from nbxtensor.planning.order import BUDGET, Task, dependencies, search
from nbxtensor.planning.passes import compact
from nbxtensor.planning.placement import lower_bound
from nbxtensor.planning.remaking import remake
from nbxtensor.planning.steps import PlanStep, choose

__all__ = ["arrange", "ordered_nodes", "reorder"]


def reorder(graph: Graph, target: Target, *, alignment: int, budget: int = BUDGET) -> Graph:
    """Return ``graph`` with its nodes in the order that needs least memory of those found, and results in place.

    The graph comes back in its own order, with results in place, unless another needs less: both are measured by the
    most bytes that a plan of them has in use at one moment. Nodes keep the order of reads and writes of each buffer.

    Args:
        graph: The graph, its states settled (`state.settle`).
        target: What it is planned for.
        alignment: What sizes are rounded up to, in bytes.
        budget: Steps that the search may take.

    Raises:
        UnsupportedError: No kernel serves a node.
    """
    return compact(in_place(ordered_nodes(graph, target, alignment, budget), target))


def ordered_nodes(graph: Graph, target: Target, alignment: int, budget: int = BUDGET) -> Graph:
    """Return ``graph`` in the better order, results not in place."""
    sizes, tasks = _tasks(graph, choose(graph, target), target, alignment)
    found = search(tasks, sizes, {ref.buffer for ref in graph.outputs if sizes[ref.buffer]}, budget=budget)
    if found.order == tuple(range(len(tasks))):
        return graph
    ordered = replace(graph, nodes=tuple(graph.nodes[index] for index in found.order))
    return ordered if _bound(ordered, target, alignment) < _bound(graph, target, alignment) else graph


def arrange(graph: Graph, copy: Op, target: Target, *, alignment: int, budget: int = BUDGET) -> Graph:
    """Return ``graph`` as `reorder` does, with parts of values made where they end up if that needs no more memory.

    Values that are cheap to make, from what is there all the time, are made again where that needs less
    (`remaking.remake`).

    Args:
        graph: The graph, its states settled.
        copy: The op that copies its operand ``x``; see `joining.join`.
        target: What it is planned for.
        alignment: What sizes are rounded up to, in bytes.
        budget: Steps that each search may take.

    Raises:
        UnsupportedError: No kernel serves a node.
    """
    best = ordered_nodes(graph, target, alignment, budget)
    joined = join(graph, copy, target)
    if joined is not graph:
        other = ordered_nodes(joined, target, alignment, budget)
        if _bound(other, target, alignment) <= _bound(best, target, alignment):
            best = other
    return compact(in_place(remake(best, target, alignment=alignment), target))


def _tasks(graph: Graph, steps: tuple[PlanStep, ...], target: Target, alignment: int) -> tuple[list[int], list[Task]]:
    """Return the bytes of each buffer that shares memory with others, and the nodes as tasks."""
    shares = [buffer.kind == "temporary" for buffer in graph.buffers]
    sizes = [
        -(-b.nbytes // alignment) * alignment if shared else 0 for b, shared in zip(graph.buffers, shares, strict=True)
    ]
    accesses = [
        ([ref.buffer for ref in node.operands.values()], [ref.buffer for ref in node.outputs]) for node in graph.nodes
    ]
    tasks: list[Task] = []
    for node, step, after in zip(graph.nodes, steps, dependencies(accesses), strict=True):
        used = dict.fromkeys(ref.buffer for ref in (*node.operands.values(), *node.outputs))
        over = tuple(
            (node.outputs[index].buffer, ref.buffer)
            for index in range(len(node.outputs))
            for ref in could_lie_on(graph, node, index, target)
        )
        extra = sum(-(-b.nbytes // alignment) * alignment for b in step.cost.buffers)
        tasks.append(Task(tuple(b for b in used if sizes[b]), after, over, extra))
    return sizes, tasks


def _bound(graph: Graph, target: Target, alignment: int) -> int:
    graph = compact(in_place(graph, target))
    return lower_bound(graph_lifetimes(graph, choose(graph, target), alignment))
