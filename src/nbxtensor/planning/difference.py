"""In what one plan differs from another, as data: what grew, which op, which buffer."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nbxtensor.planning.peak import Peak, owners, peak
from nbxtensor.planning.report import size_text

if TYPE_CHECKING:
    from nbxtensor.planning.plan import Plan

__all__ = ["Change", "Difference", "Subject", "compare"]

_COMPARED = 10_000_000  # pairs of calls that are compared in about a second
Subject = Literal["plan", "op", "buffer"]
"""What a change is of: the plan as a whole, the calls of an op, or a piece of memory."""


@dataclass(frozen=True, slots=True)
class Change:
    """A number that differs.

    Attributes:
        subject: What it is of.
        name: Which one: an area, an op, or a buffer by the node that makes it.
        what: What the number counts: "bytes", "calls", "bytes moved", "flops", "launches".
        before: In the first plan; None where it has no such thing.
        after: In the second plan; None where it has no such thing.
        at_peak: Whether it is in use at the peak of the second plan, or of the first where the second has it not.
    """

    subject: Subject
    name: str
    what: str
    before: int | None
    after: int | None
    at_peak: bool = False

    @property
    def growth(self) -> int:
        """How much it grew; negative where it shrank."""
        return (self.after or 0) - (self.before or 0)

    def __str__(self) -> str:
        """Return the change in words."""
        text = size_text if self.what.startswith("bytes") else _plain
        if self.before is None or self.after is None:
            number = self.before if self.after is None else self.after
            said = f"{'gone' if self.after is None else 'new'}, {text(number or 0)}"
        else:
            share = f" ({self.growth / self.before:+.1%})" if self.before else ""
            said = f"{text(self.before)} -> {text(self.after)}{share}"
        return f"{self.name}: {said}{'' if self.what == 'bytes' else f' {self.what}'}"


@dataclass(frozen=True, slots=True)
class Difference:
    """In what the second of two plans differs from the first.

    Attributes:
        plan: Changes of areas, of the lower bound and of all memory together.
        ops: Changes of the calls of each op: how many, bytes moved, flops, launches.
        buffers: Changes of pieces of memory: inputs, weights, states, results and workspace.
        peaks: What is in use at the peak of each plan.
        kernels: (call, kernel before, kernel after) of each call that another kernel serves now.
    """

    plan: tuple[Change, ...]
    ops: tuple[Change, ...]
    buffers: tuple[Change, ...]
    peaks: tuple[Peak | None, Peak | None]
    kernels: tuple[tuple[str, str, str], ...] = ()

    def __bool__(self) -> bool:
        """Say whether there is any."""
        return bool(self.plan or self.ops or self.buffers or self.kernels)

    @property
    def changes(self) -> tuple[Change, ...]:
        """Every change."""
        return (*self.plan, *self.ops, *self.buffers)


def compare(before: Plan, after: Plan) -> Difference:
    """Return in what ``after`` differs from ``before``.

    Calls are matched by op in their order, as a comparison of texts matches lines (in plans of thousands of calls by
    their number among those of their op); what they make is matched with them.
    Inputs, weights and states are matched by name. The changes of a kind come in
    order: what grew, the most first, and then what shrank.
    """
    peaks = peak(before), peak(after)
    pairs = tuple(_matched([n.op.name for n in before.graph.nodes], [n.op.name for n in after.graph.nodes]))
    both = [(b, a) for b, a in pairs if b is not None and a is not None]
    kernels = tuple(
        (f"node {a} {after.graph.nodes[a].op.name}", before.steps[b].kernel, after.steps[a].kernel)
        for b, a in both
        if before.steps[b].kernel != after.steps[a].kernel
    )
    return Difference(
        _sorted(_sizes(before, after)), _sorted(_ops(before, after)), _sorted(_buffers(before, after, pairs, peaks)),
        peaks, kernels,
    )  # fmt: skip


def _plain(number: int) -> str:
    return f"{number:,}"


def _sorted(changes: Iterable[Change]) -> tuple[Change, ...]:
    kept = (c for c in changes if c.before != c.after)
    return tuple(sorted(kept, key=lambda c: (c.growth < 0, -abs(c.growth), c.name, c.what)))


def _sizes(before: Plan, after: Plan) -> Iterator[Change]:
    for name, key in (
        ("arena", "arena_nbytes"), ("weights", "weights_nbytes"), ("state", "state_nbytes"), ("in all", "nbytes"),
        ("lower bound", "lower_bound"),
    ):  # fmt: skip
        yield Change("plan", name, "bytes", getattr(before, key), getattr(after, key))


def _ops(before: Plan, after: Plan) -> Iterator[Change]:
    totals = _op_totals(before), _op_totals(after)
    for name in sorted(totals[0].keys() | totals[1].keys()):
        old, new = (of.get(name, {}) for of in totals)
        for what in ("calls", "bytes moved", "flops", "launches"):
            yield Change("op", name, what, old.get(what), new.get(what))


def _op_totals(plan: Plan) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for node, step in zip(plan.graph.nodes, plan.steps, strict=True):
        of = found.setdefault(node.op.name, dict.fromkeys(("calls", "bytes moved", "flops", "launches"), 0))
        of["calls"] += 1
        of["bytes moved"] += step.cost.read + step.cost.written
        of["flops"] += step.cost.flops
        of["launches"] += len(step.launches)
    return found


def _matched(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int | None, int | None]]:
    """Yield (place before, place after) of each call; None for the side that has it not."""
    if before != after and len(before) * len(after) > _COMPARED:
        yield from _numbered(before, after)
        return
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for kind, b0, b1, a0, a1 in (
        matcher.get_opcodes() if before != after else [("equal", 0, len(before), 0, len(after))]
    ):
        if kind == "equal":
            yield from zip(range(b0, b1), range(a0, a1), strict=True)
        else:
            yield from ((place, None) for place in range(b0, b1))
            yield from ((None, place) for place in range(a0, a1))


def _numbered(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int | None, int | None]]:
    """Yield the pairs of `_matched` where the first call of an op is that of the other plan, the second the second."""
    places: tuple[dict[str, list[int]], dict[str, list[int]]] = ({}, {})
    for names, of in zip((before, after), places, strict=True):
        for place, name in enumerate(names):
            of.setdefault(name, []).append(place)
    for name in {**places[0], **places[1]}:
        yield from itertools.zip_longest(places[0].get(name, ()), places[1].get(name, ()))


def _buffers(
    before: Plan,
    after: Plan,
    pairs: Iterable[tuple[int | None, int | None]],
    peaks: tuple[Peak | None, Peak | None],
) -> Iterator[Change]:
    live = _live(peaks[0]), _live(peaks[1])
    for kind in ("input", "weight", "state", "constant"):
        old, new = ({b.name or f"{kind} {n}": (f"b{i}", b.nbytes) for n, (i, b) in enumerate(p.graph.of_kind(kind))}
                    for p in (before, after))  # fmt: skip
        for name in {**old, **new}:
            yield _change(f"{kind} {name}" if not name.startswith(kind) else name, old.get(name), new.get(name), live)
    made, named = (_made(before), _made(after)), (owners(before), owners(after))
    for old_place, new_place in pairs:
        old_made = {} if old_place is None else made[0][old_place]
        new_made = {} if new_place is None else made[1][new_place]
        for part in {**old_made, **new_made}:
            old, new = old_made.get(part), new_made.get(part)
            name = named[1][new[0]][0] if new else named[0][old[0]][0] if old else part
            yield _change(name, old, new, live)


def _live(found: Peak | None) -> set[str]:
    return {x.id for x in found.live} if found else set()


def _change(
    name: str, old: tuple[str, int] | None, new: tuple[str, int] | None, live: tuple[set[str], set[str]]
) -> Change:
    at_peak = new[0] in live[1] if new else old is not None and old[0] in live[0]
    return Change("buffer", name, "bytes", old and old[1], new and new[1], at_peak)


def _made(plan: Plan) -> list[dict[str, tuple[str, int]]]:
    """Return for each call what it makes in the arena, by what it is of the call: (id, bytes)."""
    sizes = {x.id: x.size for x in plan.lifetimes}
    found: list[dict[str, tuple[str, int]]] = []
    seen: set[str] = set()
    for place, (node, step) in enumerate(zip(plan.graph.nodes, plan.steps, strict=True)):
        ids = {f"result {n}": f"b{ref.buffer}" for n, ref in enumerate(node.outputs)}
        ids |= {f"workspace {b.name}": f"n{place}.{b.name}" for b in step.cost.buffers}
        kept = {part: (name, sizes[name]) for part, name in ids.items() if name in sizes and name not in seen}
        seen |= {name for name, _ in kept.values()}
        found.append(kept)
    return found
