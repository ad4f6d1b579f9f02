"""From a graph to a plan for a device of this machine: passes, load-time work split off, placement; plans as text."""

from __future__ import annotations

from nbxtensor.capture.described import resolved
from nbxtensor.capture.loading import PlanLoader
from nbxtensor.errors import ArgumentError
from nbxtensor.memory import limit
from nbxtensor.op import Target
from nbxtensor.ops.layout.op import copy
from nbxtensor.planning.graph import Graph
from nbxtensor.planning.ordering import arrange
from nbxtensor.planning.passes import compact, partition, remove_dead
from nbxtensor.planning.plan import ALIGNMENT, Plan
from nbxtensor.planning.plan import plan as place_graph
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
    found = compact(remove_dead(graph))
    if optimize:
        found = pack(fuse(found), target)
    prologue, main = partition(found)
    main = settle(main, copy.op, target if optimize else None)
    main = arrange(main, copy.op, target, alignment=ALIGNMENT) if optimize else compact(main)
    return place_graph(main, target, limit=most, prologue=prologue, loader=loader)


def load_plan(text: str, *, device: str | Device = "cpu") -> Plan:
    """Return the plan that `save_plan` wrote, checked anew, ready to load on ``device``.

    Raises:
        FormatError: The text is no plan, is damaged, or names an op or a kernel that this version lacks.
        MissingFactError: There is no such device.
    """
    return Plan.from_json(text, resolved, loader=PlanLoader(open_device(device)))
