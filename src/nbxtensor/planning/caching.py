"""Which bytes of a run provably stay in a cache of a given size, by the distance between their uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from nbxtensor.op.launch import distinct_nbytes
from nbxtensor.planning.graph import Graph, Node, Ref
from nbxtensor.planning.steps import PlanStep

__all__ = ["CachedShare", "cached_shares"]


@dataclass(frozen=True, slots=True)
class CachedShare:
    """What part of a node's bytes stays in cache, from 0.0 to 1.0.

    Attributes:
        read: Of the bytes of its operands.
        written: Of the bytes of its results.
    """

    read: float
    written: float


def cached_shares(graph: Graph, steps: Sequence[PlanStep], nbytes: int) -> tuple[CachedShare, ...]:
    """Return the share of each node's bytes that a cache of ``nbytes`` bytes, least recently used out first, holds.

    What a node reads is in cache when all that was touched since the buffer's use before, both uses included, fits;
    what it writes stays there when all that is touched until the next use fits. The run repeats: before the first
    use in a run comes the last of the run before.
    """
    touched = [_touched(n, s) for n, s in zip(graph.nodes, steps, strict=True)]
    after = list(accumulate(touched))
    total = after[-1] if after else 0
    uses: dict[int, list[int]] = {}
    for place, node in enumerate(graph.nodes):
        for buffer in {ref.buffer for ref in (*node.operands.values(), *node.outputs)}:
            uses.setdefault(buffer, []).append(place)
    apart: dict[tuple[int, int], int] = {}  # (buffer, use) -> bytes touched from the use before to the end of this one
    for buffer, places in uses.items():
        for before, place in zip([places[-1], *places], places, strict=False):
            wrapped = total if before >= place else 0
            apart[buffer, place] = after[place] - (after[before] - touched[before]) + wrapped

    def share(refs: Sequence[Ref], distance: dict[int, int]) -> float:
        whole = sum(distinct_nbytes(ref.spec) for ref in refs)
        held = sum(distinct_nbytes(ref.spec) for ref in refs if distance[ref.buffer] <= nbytes)
        return held / whole if whole else 0.0

    shares: list[CachedShare] = []
    for place, node in enumerate(graph.nodes):
        reads, writes = tuple(node.operands.values()), node.outputs
        following = {r.buffer: _next(uses[r.buffer], place) for r in writes}
        shares.append(
            CachedShare(
                share(reads, {r.buffer: apart[r.buffer, place] for r in reads}),
                share(writes, {buffer: apart[buffer, later] for buffer, later in following.items()}),
            )
        )
    return tuple(shares)


def _next(places: list[int], place: int) -> int:
    return next((later for later in places if later > place), places[0])


def _touched(node: Node, step: PlanStep) -> int:
    refs = (*node.operands.values(), *node.outputs)
    whole = sum(distinct_nbytes(ref.spec) for ref in refs) + sum(b.nbytes for b in step.cost.buffers)
    return min(whole, step.cost.read + step.cost.written)  # a lookup touches some rows of a table
