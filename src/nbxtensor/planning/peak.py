"""What is in use in the arena at the moment that sets its size, and to which node each piece belongs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbxtensor.planning.lifetimes import Lifetime, buffer_id, workspace_id
from nbxtensor.planning.steps import family

if TYPE_CHECKING:
    from nbxtensor.planning.plan import Plan

__all__ = ["Occupant", "Peak", "in_use", "owners", "peak"]


@dataclass(frozen=True, slots=True)
class Occupant:
    """A piece of the arena.

    Attributes:
        id: Its id among `Plan.lifetimes`.
        name: What it is, for a reader.
        family: The op family it belongs to, or "input".
        nbytes: Its size.
        offset: Where it begins in the arena, in bytes.
        lower: First launch it is in use in.
        upper: First launch it is free again in.
    """

    id: str
    name: str
    family: str
    nbytes: int
    offset: int
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The first moment at which most of the arena is in use.

    Attributes:
        moment: The launch, counted from the first.
        node: Index of the node that makes it; None in a graph without nodes.
        op: Name of its op; "" without one.
        nbytes: Bytes in use, each piece rounded up to the plan's alignment.
        live: What is in use, the largest first.
    """

    moment: int
    node: int | None
    op: str
    nbytes: int
    live: tuple[Occupant, ...]


def owners(plan: Plan) -> Mapping[str, tuple[str, str]]:
    """Return for each lifetime of the arena its name for a reader and the op family it belongs to."""
    found: dict[str, tuple[str, str]] = {}
    for index, buffer in plan.graph.of_kind("input"):
        found[buffer_id(index)] = (buffer.name or f"input {index}", "input")
    for place, (node, step) in enumerate(zip(plan.graph.nodes, plan.steps, strict=True)):
        for number, ref in enumerate(node.outputs):
            label = f"{node.op.name}.{number}" if len(node.outputs) > 1 else node.op.name
            found.setdefault(buffer_id(ref.buffer), (f"node {place} {label}", family(node)))
        for buffer in step.cost.buffers:
            found[workspace_id(place, buffer.name)] = (
                f"node {place} {node.op.name}, workspace {buffer.name}",
                family(node),
            )
    return found


def in_use(lifetimes: Iterable[Lifetime]) -> dict[int, int]:
    """Return the bytes in use from each moment at which that changes.

    >>> in_use([Lifetime("a", 0, 2, 8), Lifetime("b", 1, 3, 4)])
    {0: 8, 1: 12, 2: 4, 3: 0}
    """
    change: Counter[int] = Counter()
    for x in lifetimes:
        change[x.lower] += x.nbytes
        change[x.upper] -= x.nbytes
    live: dict[int, int] = {}
    total = 0
    for moment in sorted(change):
        total += change[moment]
        live[moment] = total
    return live


def peak(plan: Plan) -> Peak | None:
    """Return what is in use at the first moment at which most of the arena is; None for an empty arena."""
    live = in_use(plan.lifetimes)
    if not live:
        return None
    moment = max(live, key=lambda time: (live[time], -time))
    kept = sorted((x for x in plan.lifetimes if x.lower <= moment < x.upper), key=lambda x: (-x.nbytes, x.id))
    named = owners(plan)
    occupants = tuple(Occupant(x.id, *named[x.id], x.size, plan.offsets[x.id], x.lower, x.upper) for x in kept)
    node = _node_at(plan, moment)
    op = "" if node is None else plan.graph.nodes[node].op.name
    return Peak(moment, node, op, live[moment], occupants)


def _node_at(plan: Plan, moment: int) -> int | None:
    now = 0
    for place, step in enumerate(plan.steps):
        now += step.moments
        if moment < now:
            return place
    return None
