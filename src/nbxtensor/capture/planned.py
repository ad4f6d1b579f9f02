"""From a graph to a plan for a device of this machine: passes, load-time work split off, placement; plans as text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from nbxtensor.capture.described import resolved
from nbxtensor.capture.loading import PlanLoader
from nbxtensor.errors import ArgumentError
from nbxtensor.memory import limit
from nbxtensor.op import Target
from nbxtensor.ops.layout.op import copy
from nbxtensor.planning.alias import in_place
from nbxtensor.planning.bounds import Symbolic
from nbxtensor.planning.graph import Graph
from nbxtensor.planning.ordering import arrange, ordered_nodes
from nbxtensor.planning.passes import compact, partition, remove_dead
from nbxtensor.planning.plan import ALIGNMENT, Plan
from nbxtensor.planning.plan import plan as place_graph
from nbxtensor.planning.specialising import Prepare, arrangement, varying
from nbxtensor.planning.state import settle
from nbxtensor.run import Device
from nbxtensor.run import device as open_device
from nbxtensor.tracing.fusion import fuse
from nbxtensor.tracing.packing import pack

__all__ = ["load_plan", "plan"]


def plan(graph: Graph, *, device: str | Device | Target = "cpu", optimize: bool = True) -> Plan:
    """Return the plan of ``graph`` on a device: kernels chosen, every byte placed, checked, ready to load.

    Args:
        graph: What `trace` returned.
        device: Name of the device ("cpu"); or a target, for a plan that is priced and drawn but not loaded: the device
            need not be there.
        optimize: Whether pointwise nodes are fused, weights packed, results written over operands that die, new values
            of states over the old ones, parts of joined values made where they end up, and nodes run in the order that
            needs least memory; False keeps the nodes as traced, and copies new values at the end.

    Raises:
        ArgumentError: ``graph`` is no graph.
        PlanError: The graph breaks a rule, or the plan is larger than the memory limit in force, or than the device's
            memory.
        UnsupportedError: No kernel serves a node on the device.
        MissingFactError: There is no such device.
    """
    if not isinstance(graph, Graph):
        raise ArgumentError(f"plan: a graph, which nbxtensor.trace makes. Got {type(graph).__name__}.")
    target, loader, most = device, None, limit()
    if not isinstance(target, Target):
        where = open_device(target)
        target, loader = where.target, PlanLoader(where)
        total = where.backend.memory(where.index).info().total
        most = total if most is None else min(most, total)
    if graph.symbolic is not None:
        return _bounded(graph, graph.symbolic, target, most, loader, optimize=optimize)
    prologue, main = _settled(_rewritten(graph, target, optimize=optimize), target, optimize=optimize)
    main = arrange(main, copy.op, target, alignment=ALIGNMENT) if optimize else compact(main)
    return place_graph(main, target, limit=most, prologue=prologue, loader=loader)


def _rewritten(graph: Graph, target: Target, *, optimize: bool) -> Graph:
    found = compact(remove_dead(graph))
    return pack(fuse(found), target) if optimize else found


def _settled(graph: Graph, target: Target, late: Collection[int] = (), *, optimize: bool) -> tuple[Graph, Graph]:
    """Return what is computed at load, and what every run computes, its states settled."""
    prologue, main = partition(graph, late)
    return prologue, settle(main, copy.op, target if optimize else None)


def _prepare(graph: Graph, symbolic: Symbolic, target: Target, *, optimize: bool) -> Prepare:
    """Return what gives the settled graph of a value; nodes that dims change are never computed at load."""
    bounds = symbolic.bounds
    less = {n: max(a, b - 1) for n, a, b in zip(bounds.names, bounds.least, bounds.most, strict=True)}
    bound = _rewritten(graph, target, optimize=optimize)
    late = varying(bound, _rewritten(symbolic.at(less), target, optimize=optimize))

    def prepare(values: Mapping[str, int]) -> tuple[Graph, Graph]:
        return _settled(_rewritten(symbolic.at(values), target, optimize=optimize), target, late, optimize=optimize)

    return prepare


def _bounded(
    graph: Graph, symbolic: Symbolic, target: Target, most: int | None, loader: PlanLoader | None, *, optimize: bool
) -> Plan:
    """Return the plan of a graph with dims, made at their bounds."""
    prepare = _prepare(graph, symbolic, target, optimize=optimize)
    prologue, settled = prepare(symbolic.bounds.largest)
    ordered = ordered_nodes(settled, target, ALIGNMENT) if optimize else settled
    places = {id(node): place for place, node in enumerate(settled.nodes)}
    order = tuple(places[id(node)] for node in ordered.nodes)
    arranged = compact(in_place(ordered, target) if optimize else ordered)
    how = arrangement(settled, arranged, order, optimize=optimize)
    made = place_graph(arranged, target, limit=most, prologue=prologue, loader=loader)
    return replace(made, bounds=symbolic.bounds, arrangement=how, prepare=prepare)


def load_plan(text: str, *, device: str | Device = "cpu", graph: Graph | None = None) -> Plan:
    """Return the plan that `save_plan` wrote, checked anew, ready to load on ``device``.

    Args:
        text: What `save_plan` returned.
        device: Name of the device.
        graph: For a plan with dims, the graph it was made of, traced again: text holds no function, and values under
            the bound are traced. Left out, the plan runs at its bound alone.

    Raises:
        ArgumentError: ``graph`` is no graph with the dims of the plan.
        FormatError: The text is no plan, is damaged, or names an op or a kernel that this version lacks.
        MissingFactError: There is no such device.
    """
    found = Plan.from_json(text, resolved, loader=PlanLoader(open_device(device)))
    if graph is None:
        return found
    symbolic = graph.symbolic if isinstance(graph, Graph) else None
    if symbolic is None or found.arrangement is None or symbolic.bounds != found.bounds:
        given = type(graph).__name__ if symbolic is None else symbolic.bounds
        raise ArgumentError(f"load_plan: a graph with the dims of the plan ({found.bounds or 'none'}). Got {given}.")
    return replace(found, prepare=_prepare(graph, symbolic, found.target, optimize=found.arrangement.optimize))
