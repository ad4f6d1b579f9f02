"""A plan as text: one screen about it, and in what two plans differ."""

from __future__ import annotations

import difflib
from collections import Counter
from typing import TYPE_CHECKING

from nbxtensor.planning.peak import owners, peak
from nbxtensor.planning.steps import family

if TYPE_CHECKING:
    from nbxtensor.planning.plan import Plan

__all__ = ["at_peak", "difference", "owners", "size_text", "summary", "would_fit"]

_SHOWN = 6  # entries of a list on the one screen


def size_text(nbytes: int) -> str:
    """Return a number of bytes in the unit that reads best.

    >>> size_text(1000), size_text(3 << 20)
    ('1000 B', '3 MiB')
    """
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):.4g} {unit}"
    return f"{nbytes} B"


def at_peak(plan: Plan) -> list[str]:
    """Return what is in use at the first moment at which most of the arena is, the largest first."""
    found = peak(plan)
    return [] if found is None else [f"{x.id} {size_text(x.nbytes)} ({x.name})" for x in found.live]


def would_fit(plan: Plan, limit: int) -> str:
    """Return, as text, by how much a plan is too large and what would fit."""
    kept, short = plan.weights_nbytes + plan.state_nbytes, plan.nbytes - limit
    if kept >= limit:
        left = f"Weights and state alone take {kept}: smaller ones would fit, no smaller input."
    else:
        place, least = plan.largest_op or (0, 0)
        left = f"Beside weights and state, an arena of {limit - kept} bytes would fit; "
        if least > limit - kept:
            left += f"node {place} ({plan.graph.nodes[place].op.name}) takes {least} by itself, in any order."
        else:
            left += f"no operation takes more than {least} by itself."
    return f"It is {short} bytes too large. {left}"


def summary(plan: Plan) -> str:
    """Return a plan on one screen: sizes, how good they are, what takes them, and what runs."""
    launches = sum(len(step.launches) for step in plan.steps)
    kinds = Counter(buffer.kind for buffer in plan.graph.buffers)
    families = Counter(family(node) for node in plan.graph.nodes)
    rows = [] if plan.bounds is None else [("dims", f"{plan.bounds}; planned at the bound")]
    rows += [
        ("arena", f"{_both(plan.arena_nbytes)}, {len(plan.lifetimes)} buffers"),
        ("lower bound", f"{_both(plan.lower_bound)}, peak / bound {plan.ratio:.4f} ({plan.algorithm})"),
        ("weights", f"{_both(plan.weights_nbytes)}, {kinds['weight']} weights and {kinds['constant']} constants"),
        ("state", f"{_both(plan.state_nbytes)}, {kinds['state']} buffers"),
        ("in all", f"{_both(plan.nbytes)}, aligned to {plan.alignment} bytes"),
    ]
    if plan.largest_op is not None:
        place, nbytes = plan.largest_op
        rows.append(("largest op", f"{_both(nbytes)}, node {place} {plan.graph.nodes[place].op.name}"))
    peak = at_peak(plan)
    rows += [("at the peak" if number == 0 else "", text) for number, text in enumerate(peak[:_SHOWN])]
    if len(peak) > _SHOWN:
        rows.append(("", f"and {len(peak) - _SHOWN} more"))
    most = [f"{name} {number}" for name, number in families.most_common(_SHOWN)]
    most += [f"and {len(families) - _SHOWN} more"] * (len(families) > _SHOWN)
    rows.append(("families", ", ".join(most) or "none"))
    head = (
        f"{plan.graph.name} on {plan.target.backend} {plan.target.arch}: {len(plan.steps)} nodes, {launches} launches"
    )
    return "\n".join([head, *(f"  {label:<12} {text}" for label, text in rows)])


def _both(nbytes: int) -> str:
    return f"{size_text(nbytes)} ({nbytes:,} bytes)"


def difference(before: Plan, after: Plan) -> str:
    """Return in what ``after`` differs from ``before``, as text; "" where in nothing that is planned."""
    facts = [
        ("graph", before.graph.name, after.graph.name),
        ("target", f"{before.target.backend} {before.target.arch}", f"{after.target.backend} {after.target.arch}"),
        ("alignment", before.alignment, after.alignment),
        ("arena", before.arena_nbytes, after.arena_nbytes),
        ("lower bound", before.lower_bound, after.lower_bound),
        ("weights", before.weights_nbytes, after.weights_nbytes),
        ("state", before.state_nbytes, after.state_nbytes),
        ("in all", before.nbytes, after.nbytes),
        ("algorithm", before.algorithm, after.algorithm),
    ]
    lines = [f"{label}: {old} -> {new}{_change(old, new)}" for label, old, new in facts if old != new]
    changed = difflib.unified_diff(_listing(before), _listing(after), lineterm="", n=0)
    return "\n".join([*lines, *(line for line in changed if not line.startswith(("---", "+++", "@@")))])


def _change(old: object, new: object) -> str:
    if isinstance(old, int) and isinstance(new, int) and old:
        return f" ({(new - old) / old:+.1%})"
    return ""


def _listing(plan: Plan) -> list[str]:
    """Return one line per buffer that comes from outside and one per node, without numbers that merely shift."""

    def where(index: int) -> str:
        location = plan.locations[index]
        return "nowhere" if location is None else f"{location.area}+{location.offset}"

    lines = [
        f" {buffer.kind} {buffer.name or index}: {buffer.nbytes} bytes at {where(index)}"
        for index, buffer in enumerate(plan.graph.buffers)
        if buffer.kind != "temporary"
    ]
    for node, step, workspace in zip(plan.graph.nodes, plan.steps, plan.workspaces, strict=True):
        results = ", ".join(f"{ref.spec.dtype}{list(ref.spec.shape)} at {where(ref.buffer)}" for ref in node.outputs)
        scratch = "".join(f", {name} at arena+{offset}" for name, offset in workspace.items())
        cost = f"{step.cost.flops} flops, {step.cost.read + step.cost.written} bytes"
        runs = f"{step.kernel or 'nothing'} in {len(step.launches)} launches"
        lines.append(f" {node.op.name}: {runs}, {cost} -> {results}{scratch}")
    return lines
