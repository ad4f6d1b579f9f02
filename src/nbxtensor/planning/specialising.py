"""The plan of a value under the bound: its graph in the order, and at the places, of the bound's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nbxtensor.errors import PlanError
from nbxtensor.op import Op
from nbxtensor.planning.graph import Graph, Node, Ref
from nbxtensor.planning.lifetimes import Lifetime, graph_lifetimes, workspace_id
from nbxtensor.planning.steps import PlanStep, choose

if TYPE_CHECKING:
    from nbxtensor.planning.plan import Plan

__all__ = ["Arrangement", "Prepare", "arrangement", "specialised", "varying"]

Prepare = Callable[[Mapping[str, int]], tuple[Graph, Graph]]
"""Returns the load-time graph and the settled graph of a value of every dim."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What planning at the bound did to the settled graph: values under it get the same.

    Attributes:
        order: The nodes of the settled graph in the order in which they run.
        homes: For each buffer of the settled graph, the buffer of the plan's graph; -1 for one that nothing uses.
        optimize: Whether the graph was fused and packed.
    """

    order: tuple[int, ...]
    homes: tuple[int, ...]
    optimize: bool


def arrangement(settled: Graph, arranged: Graph, order: tuple[int, ...], *, optimize: bool) -> Arrangement:
    """Return how ``arranged`` came from ``settled``, whose nodes it runs in ``order``."""
    homes = [-1] * len(settled.buffers)
    for kind in ("input", "state"):
        for (old, _), (new, _) in zip(settled.of_kind(kind), arranged.of_kind(kind), strict=True):
            homes[old] = new
    for at, node in zip(order, arranged.nodes, strict=True):
        for old, new in zip(_refs(settled.nodes[at]), _refs(node), strict=True):
            homes[old.buffer] = new.buffer
    for old, new in zip(settled.outputs, arranged.outputs, strict=True):
        homes[old.buffer] = new.buffer
    return Arrangement(order, tuple(homes), optimize)


def varying(graph: Graph, other: Graph) -> frozenset[int]:
    """Return the nodes of ``graph`` that dims change, given the same graph at another value."""
    _same_nodes(graph.name, graph.nodes, other.nodes, "another value of its dims")
    pairs = zip(graph.nodes, other.nodes, strict=True)
    return frozenset(place for place, (one, two) in enumerate(pairs) if not _equal(one, two))


def specialised(plan: Plan, values: Mapping[str, int], prepare: Prepare) -> Plan:
    """Return the plan of a value under the bound, its buffers where those of the bound are.

    Raises:
        PlanError: The function does another thing at this value than at the bound, or needs memory where the bound has
            none; names what differs.
    """
    if plan.arrangement is None:
        raise PlanError(f"{plan.graph.name}: a plan without dims has one value.")
    words = ", ".join(f"{name}={value}" for name, value in values.items())
    where = f"{plan.graph.name} at {words}"
    prologue, settled = prepare(values)
    _same_prologue(where, plan.prologue, prologue)
    graph = _arranged(where, settled, plan, plan.arrangement)
    steps = choose(graph, plan.target)
    locations = tuple(
        None if x is None else replace(x, nbytes=buffer.nbytes)
        for x, buffer in zip(plan.locations, graph.buffers, strict=True)
    )
    lives = graph_lifetimes(graph, steps, plan.alignment)
    workspaces = _workspaces(where, plan, steps, lives)
    made = replace(
        plan, graph=graph, steps=steps, locations=locations, workspaces=workspaces, bounds=None, arrangement=None,
        prepare=None,
    )  # fmt: skip
    try:
        return made.check()
    except PlanError as error:
        raise PlanError(f"{where}: what is decided at the bound holds at each value. {error}") from error


def _arranged(where: str, settled: Graph, plan: Plan, how: Arrangement) -> Graph:
    """Return ``settled`` in the order and with the buffers of the plan's graph."""
    bound = plan.graph
    if len(settled.buffers) != len(how.homes) or len(settled.nodes) != len(how.order):
        raise PlanError(
            f"{where}: a function does the same at every value of its dims. Got {len(settled.nodes)} nodes over "
            f"{len(settled.buffers)} buffers; {len(how.order)} over {len(how.homes)} at the bound "
            f"({', '.join(node.op.name for node in settled.nodes)}; at the bound "
            f"{', '.join(node.op.name for node in bound.nodes)})."
        )
    nodes = [settled.nodes[at] for at in how.order]
    _same_nodes(where, nodes, bound.nodes, "the bound")

    def moved(node: Node) -> Node:
        operands = {n: replace(r, buffer=how.homes[r.buffer]) for n, r in node.operands.items()}
        return replace(
            node, operands=operands, outputs=tuple(replace(r, buffer=how.homes[r.buffer]) for r in node.outputs)
        )

    nodes = tuple(moved(node) for node in nodes)
    outputs = tuple(replace(ref, buffer=how.homes[ref.buffer]) for ref in settled.outputs)
    for place, (node, other) in enumerate(zip(nodes, bound.nodes, strict=True)):
        if [ref.buffer for ref in _refs(node)] != [ref.buffer for ref in _refs(other)]:
            raise PlanError(
                f"{where}: node {place} ({node.op.name}) uses the buffers it uses at the bound. Got others."
            )
    if [ref.buffer for ref in outputs] != [ref.buffer for ref in bound.outputs]:
        raise PlanError(f"{where}: a function returns the same values at every value of its dims. Got others.")
    buffers = [replace(buffer, nbytes=0) for buffer in bound.buffers]
    for old, home in zip(settled.buffers, how.homes, strict=True):
        if home < 0:
            continue
        now, then = buffers[home], bound.buffers[home]
        nbytes = max(now.nbytes, old.nbytes)
        if nbytes > then.nbytes:
            raise PlanError(
                f"{where}: no buffer is larger than at the bound. Got {nbytes} bytes of buffer {home} "
                f"({then.kind} {then.name}), {then.nbytes} at the bound."
            )
        if then.kind in ("weight", "constant", "state"):
            one, two = (old.kind, old.name, old.spec), (then.kind, then.name, then.spec)
            if one != two or not _same_value(old.value, then.value):
                raise PlanError(
                    f"{where}: weights, constants and state do not depend on dims. Got {old.kind} {old.name or home} "
                    f"{old.spec}; {then.spec} at the bound, or other values. An input, or a part of a weight, may."
                )
        buffers[home] = replace(now, nbytes=nbytes, spec=old.spec if then.kind == "input" else then.spec)
    return replace(bound, buffers=tuple(buffers), nodes=nodes, outputs=outputs)


def _workspaces(
    where: str, plan: Plan, steps: Sequence[PlanStep], lives: Sequence[Lifetime]
) -> tuple[dict[str, int], ...]:
    """Return where workspace lies: where it does at the bound if it fits there, else in the first gap."""
    placed = [(x, plan.offsets[x.id]) for x in lives if x.id in plan.offsets and "." not in x.id]
    known = {x.id: x for x in lives}
    found: list[dict[str, int]] = []
    for node, step in enumerate(steps):
        offsets: dict[str, int] = {}
        for buffer in (b for b in step.cost.buffers if b.nbytes):
            life = known[workspace_id(node, buffer.name)]
            met = [(at, at + x.nbytes) for x, at in placed if x.lower < life.upper and life.lower < x.upper]
            tries = [plan.workspaces[node].get(buffer.name, 0), 0, *sorted(end for _, end in met)]
            fits = (
                at
                for at in tries
                if at + life.nbytes <= plan.arena_nbytes
                and all(end <= at or at + life.nbytes <= start for start, end in met)
            )
            at = next(fits, None)
            if at is None:
                raise PlanError(
                    f"{where}: workspace fits in the arena of the bound. Got {life.nbytes} bytes of {life.id} "
                    f"({step.kernel}), for which {plan.arena_nbytes} bytes have no gap."
                )
            offsets[buffer.name] = at
            placed.append((life, at))
        found.append(offsets)
    return tuple(found)


def _same_prologue(where: str, bound: Graph | None, other: Graph) -> None:
    """Check that what is computed when weights are loaded depends on no dim."""
    if bound is None:
        return
    same = bound.buffers == other.buffers and bound.outputs == other.outputs and len(bound.nodes) == len(other.nodes)
    same = same and all(map(_equal, bound.nodes, other.nodes))
    if not same or not all(_same_value(a.value, b.value) for a, b in zip(bound.buffers, other.buffers, strict=True)):
        raise PlanError(
            f"{where}: what is computed from weights and constants alone is the same at every value of the dims. Got "
            f"{', '.join(node.op.name for node in other.nodes) or 'nothing'}; "
            f"{', '.join(node.op.name for node in bound.nodes) or 'nothing'} at the bound, or other shapes."
        )


def _same_nodes(where: str, nodes: Sequence[Node], others: Sequence[Node], words: str) -> None:
    for place, (node, other) in enumerate(zip(nodes, others, strict=False)):
        if not _same_op(node.op, other.op) or list(node.operands) != list(other.operands):
            raise PlanError(
                f"{where}: a function does the same at every value of its dims. Got node {place} "
                f"{node.op.name}({', '.join(node.operands)}); {other.op.name}({', '.join(other.operands)}) at {words}."
            )
    if len(nodes) != len(others):
        raise PlanError(
            f"{where}: a function does the same at every value of its dims. Got {len(nodes)} nodes; {len(others)} at "
            f"{words}."
        )


def _same_op(one: Op, two: Op) -> bool:
    return one is two or ((one.name, one.expression) == (two.name, two.expression) and one.module == two.module)


def _equal(one: Node, two: Node) -> bool:
    parts = ((node.operands, node.outputs, repr(sorted(node.params.items()))) for node in (one, two))
    return _same_op(one.op, two.op) and next(parts) == next(parts)


def _same_value(one: object, two: object) -> bool:
    if one is None or two is None:
        return one is two
    a, b = np.asarray(one), np.asarray(two)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _refs(node: Node) -> tuple[Ref, ...]:
    return (*node.operands.values(), *node.outputs)
