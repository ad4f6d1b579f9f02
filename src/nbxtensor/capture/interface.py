"""Where a program's values lie, and what callers see of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbxtensor.errors import PlanError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Spec
from nbxtensor.planning.graph import GraphBuffer, Ref

if TYPE_CHECKING:
    from nbxtensor.planning.plan import Plan  # a program that was saved may run without ever looking at its plan

__all__ = ["Interface", "Place", "View", "spec_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lies in memory.

    Attributes:
        storage: The block it is part of.
        offset: Bytes from the block's start.
        nbytes: Its size.
    """

    storage: Storage
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        """Its first byte."""
        return self.storage.address + self.offset


@dataclass(frozen=True, slots=True)
class View:
    """What a caller sees of a place.

    Attributes:
        place: The place.
        spec: Shape, dtype and strides.
        offset: Elements from the place's start to the view's first element.
    """

    place: Place
    spec: Spec
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Interface:
    """What callers see of a program.

    Attributes:
        name: What the program is called in messages.
        inputs: The inputs.
        outputs: The results.
        states: What outlives a run, by name.
        places: Where each buffer of the plan's graph lies; None for one that nothing touches.
    """

    name: str
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    states: Mapping[str, View]
    places: tuple[Place | None, ...]

    @classmethod
    def of_plan(cls, plan: Plan, places: tuple[Place | None, ...]) -> Interface:
        """Return the interface of a plan whose buffers lie at ``places``."""
        graph = plan.graph

        def view(ref: Ref) -> View:
            place = places[ref.buffer]
            if place is None:
                raise PlanError(f"{graph.name}: buffer {ref.buffer} has no place.")
            return View(place, ref.spec, ref.offset)

        return cls(
            graph.name,
            tuple(view(Ref(i, spec_of(b))) for i, b in graph.of_kind("input")),
            tuple(view(ref) for ref in graph.outputs),
            {b.name or str(i): view(Ref(i, b.spec or _bytes(b))) for i, b in graph.of_kind("state")},
            places,
        )


def spec_of(buffer: GraphBuffer) -> Spec:
    """Return the layout in which a buffer's value is given."""
    if buffer.spec is None:
        raise PlanError(f"a buffer of kind {buffer.kind} has a spec. {buffer.name!r} has none.")
    return buffer.spec


def _bytes(buffer: GraphBuffer) -> Spec:
    return Spec((buffer.nbytes,), "uint8")
