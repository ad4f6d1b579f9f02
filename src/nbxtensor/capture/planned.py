"""From a graph to a plan for a device of this machine: passes, the split of load-time work, placement."""

from __future__ import annotations

from nbxtensor.capture.program import PlanLoader
from nbxtensor.memory import limit
from nbxtensor.planning.graph import Graph
from nbxtensor.planning.passes import compact, partition, remove_dead
from nbxtensor.planning.plan import Plan
from nbxtensor.planning.plan import plan as plan_graph
from nbxtensor.run import Device
from nbxtensor.run import device as open_device
from nbxtensor.tracing.fusion import fuse
from nbxtensor.tracing.packing import pack

__all__ = ["plan"]


def plan(graph: Graph, *, device: str | Device = "cpu", optimize: bool = True) -> Plan:
    """Return the plan of ``graph`` on a device: kernels chosen, every byte placed, checked, ready to load.

    Args:
        graph: What `trace` returned.
        device: Name of the device ("cpu").
        optimize: Whether pointwise nodes are fused and weights packed; False keeps the nodes as traced.

    Raises:
        PlanError: The graph breaks a rule, or the plan is larger than the memory limit in force.
        UnsupportedError: No kernel serves a node on the device.
        MissingFactError: There is no such device.
    """
    where = open_device(device)
    found = compact(remove_dead(graph))
    if optimize:
        found = pack(fuse(found), where.target)
    prologue, main = partition(found)
    return plan_graph(main, where.target, limit=limit(), loader=PlanLoader(where, prologue))
