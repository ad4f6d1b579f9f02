"""Two plans over one set of weights and state: which buffer of one is which of the other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nbxtensor.errors import PlanError
from nbxtensor.planning.graph import Graph, Node

if TYPE_CHECKING:
    from nbxtensor.planning.plan import Plan

__all__ = ["shared_buffers"]


def shared_buffers(plan: Plan, other: Plan) -> Mapping[int, int]:
    """Return, for each weight and state of ``plan``, the buffer of ``other`` that holds the same.

    A weight is the same under the same name with the same shape and dtype; a value folded at load is the same where
    the same ops make it from the same weights. States go by name, shape and dtype. ``other`` may have more of both.

    Raises:
        PlanError: ``other`` is for another target, or lacks a weight or a state, or has it in another shape, dtype or
            packing; names each.
    """
    if plan.target != other.target:
        raise PlanError(
            f"{plan.graph.name}: plans share weights and state on one target. Got {plan.target.backend} "
            f"{plan.target.arch} and {other.target.backend} {other.target.arch}."
        )
    mine, theirs = _identities(plan), _identities(other)
    places = {identity: index for index, identity in theirs.items()}
    lacking = [index for index, identity in mine.items() if identity not in places]
    if lacking:
        known = {(other.graph.buffers[i].kind, other.graph.buffers[i].name): i for i in theirs}
        told = [_difference(plan, other, index, known) for index in lacking[:8]]
        raise PlanError(
            f"{plan.graph.name}: {other.graph.name} has every weight and state that is shared, laid out alike. "
            f"{len(lacking)} differ: {'; '.join(told)}."
        )
    return {index: places[identity] for index, identity in mine.items()}


def _difference(plan: Plan, other: Plan, index: int, known: Mapping[tuple[str, str], int]) -> str:
    buffer = plan.graph.buffers[index]
    spec = buffer.spec
    what = f"{buffer.kind} {buffer.name!r} {spec.dtype if spec else ''}{list(spec.shape) if spec else ''}"
    if buffer.name.startswith("folded."):
        return f"{what}, made from {', '.join(_sources(plan, buffer.name)) or 'constants'}, is made otherwise there"
    there = known.get((buffer.kind, buffer.name))
    found = other.graph.buffers[there].spec if there is not None else None
    return f"{what} is {found.dtype}{list(found.shape)} there" if found else f"{what} is not there"


def _identities(plan: Plan) -> dict[int, str]:
    """Return what each weight and state of a plan is, as text that is equal where they are the same."""
    found: dict[int, str] = {}
    derivation = _Derivation(plan.prologue) if plan.prologue is not None else None
    for kind in ("weight", "state"):
        for index, buffer in plan.graph.of_kind(kind):
            identity = f"{kind} {buffer.name} {buffer.spec} {buffer.nbytes}"
            number = buffer.name.removeprefix("folded.")
            if kind == "weight" and number != buffer.name and derivation is not None:
                identity = f"folded {derivation.output(int(number))} {buffer.spec}"
            found[index] = identity
    return found


def _sources(plan: Plan, name: str) -> list[str]:
    """Return the weights that a folded value is made from."""
    prologue = plan.prologue or Graph((), (), ())
    wanted = {prologue.outputs[int(name.removeprefix("folded."))].buffer}
    for node in reversed(prologue.nodes):
        if any(ref.buffer in wanted for ref in node.outputs):
            wanted |= {ref.buffer for ref in node.operands.values()}
    return [b.name for i, b in prologue.of_kind("input") if i in wanted]


class _Derivation:
    """How the values of a prologue are made, as digests."""

    def __init__(self, prologue: Graph) -> None:
        self._graph = prologue
        self._known: dict[int, str] = {}
        for index, buffer in enumerate(prologue.buffers):
            value = "" if buffer.value is None else hashlib.sha256(buffer.value.tobytes()).hexdigest()
            self._known[index] = _digest(f"{buffer.kind} {buffer.name} {buffer.spec} {buffer.nbytes} {value}")
        for node in prologue.nodes:
            made = self._made(node)
            for number, ref in enumerate(node.outputs):
                self._known[ref.buffer] = _digest(f"{self._known[ref.buffer]} {number} {ref.spec} {ref.offset} {made}")

    def _made(self, node: Node) -> str:
        op = node.op.expression or node.op.name
        operands = [f"{n} {self._known[r.buffer]} {r.spec} {r.offset}" for n, r in node.operands.items()]
        return f"{op} {operands} {sorted(node.params.items(), key=lambda item: item[0])}"

    def output(self, number: int) -> str:
        """Return the digest of output ``number``."""
        ref = self._graph.outputs[number]
        return f"{self._known[ref.buffer]} {ref.spec} {ref.offset}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
