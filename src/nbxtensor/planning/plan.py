"""The plan of a graph on a target: every kernel chosen, every byte placed, checked and priced, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, Protocol

from nbxtensor import op as declared
from nbxtensor.errors import ArgumentError, FormatError, NbxError, PlanError
from nbxtensor.op import Target
from nbxtensor.planning.bounds import Bounds
from nbxtensor.planning.difference import Difference, compare
from nbxtensor.planning.document import RUNTIME, Describer, Resolver, op_name, read_document, write_document
from nbxtensor.planning.graph import Graph, GraphBuffer, Node, Ref
from nbxtensor.planning.lifetimes import Lifetime, buffer_id, graph_lifetimes, workspace_id
from nbxtensor.planning.picture import draw
from nbxtensor.planning.placement import lower_bound, place
from nbxtensor.planning.price import Price, price_graph
from nbxtensor.planning.report import at_peak, difference, summary, would_fit
from nbxtensor.planning.specialising import Arrangement, Prepare, specialised
from nbxtensor.planning.steps import PlanStep, choose
from nbxtensor.planning.verify import verify_in_place, verify_placement

__all__ = ["ALIGNMENT", "Area", "Loader", "Location", "Plan", "plan"]

Area = Literal["arena", "weights", "state"]
"""A block of device memory that a plan lays out: what a run uses, what it only reads, and what outlives it."""
ALIGNMENT = 256
"""Bytes that every offset is a multiple of: what device allocators give at least (cudaMalloc states it)."""
_FORMAT, _VERSION = "nbxtensor.plan", 4
_AREAS: Mapping[str, Area] = {
    "input": "arena",
    "temporary": "arena",
    "weight": "weights",
    "constant": "weights",
    "state": "state",
}


@dataclass(frozen=True, slots=True)
class Location:
    """Where a buffer lies.

    Attributes:
        area: "arena" (inputs and temporaries), "weights" (weights and constants) or "state".
        offset: Bytes from the start of the area.
        nbytes: Size of the buffer.
    """

    area: Area
    offset: int
    nbytes: int


Progress = Callable[[int, int, str], None]


class Loader(Protocol):
    """What makes a plan run: a device runtime."""

    def load(
        self,
        plan: Plan,
        weights: Mapping[str, Any],
        progress: Progress | None = None,
        share: Any = None,
        arena: Any = None,
    ) -> Any:
        """Return the program that runs ``plan`` with ``weights`` by name, or with those of the program ``share``.

        Its arena is that of the program ``arena``, where one is given.
        """
        ...


@dataclass(frozen=True)
class Plan:
    """A graph on a target with everything decided before the first run.

    Attributes:
        graph: The graph.
        target: What it is planned for.
        steps: What each node runs: kernel, launches, cost.
        locations: Where each buffer of the graph lies; None for a temporary that no node touches.
        workspaces: Offset in the arena of each node's workspace buffers, by name.
        arena_nbytes: Bytes of the arena: inputs, temporaries and workspace share it.
        weights_nbytes: Bytes of the weights and constants.
        state_nbytes: Bytes of the state.
        alignment: What every offset is a multiple of and every size is rounded up to, in bytes. Each area begins at
            a multiple of it.
        lower_bound: Most bytes in use in the arena at one moment: no placement needs less.
        algorithm: What found the offsets.
        prologue: What is computed once from the weights, when they are loaded (`passes.partition`); None: nothing.
        bounds: The dims of its inputs, which it is planned for at their largest; None: it has none.
        arrangement: How the plan's graph came from the traced one, so that values under the bound get the same.
        prepare: What traces the function again at another value; no part of the plan's data.
        loader: The runtime that `load` hands the plan to; no part of the plan's data.
    """

    graph: Graph
    target: Target
    steps: tuple[PlanStep, ...]
    locations: tuple[Location | None, ...]
    workspaces: tuple[Mapping[str, int], ...]
    arena_nbytes: int
    weights_nbytes: int
    state_nbytes: int
    alignment: int
    lower_bound: int
    algorithm: str
    prologue: Graph | None = None
    bounds: Bounds | None = None
    arrangement: Arrangement | None = None
    prepare: Prepare | None = field(default=None, compare=False, repr=False, metadata=RUNTIME)
    loader: Loader | None = field(default=None, compare=False, repr=False, metadata=RUNTIME)

    @property
    def peak(self) -> int:
        """Bytes of the arena that are ever in use: its size."""
        return self.arena_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of device memory in all: arena, weights and state."""
        return self.arena_nbytes + self.weights_nbytes + self.state_nbytes

    @property
    def ratio(self) -> float:
        """Peak over lower bound; 1.0 is perfect."""
        return self.peak / self.lower_bound if self.lower_bound else 1.0

    @cached_property
    def lifetimes(self) -> tuple[Lifetime, ...]:
        """When each buffer and workspace in the arena is in use, counted in launches."""
        return graph_lifetimes(self.graph, self.steps, self.alignment)

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        """Offset in the arena of everything in `lifetimes`, by id."""
        found = {
            buffer_id(index): location.offset
            for index, location in enumerate(self.locations)
            if location is not None and location.area == "arena" and location.nbytes
        }
        for node, names in enumerate(self.workspaces):
            found.update((workspace_id(node, name), offset) for name, offset in names.items())
        return found

    @property
    def weights(self) -> Mapping[str, Location]:
        """Where each weight lies, by name."""
        found = ((b.name, self.locations[i]) for i, b in self.graph.of_kind("weight"))
        return {name: location for name, location in found if location is not None}

    @property
    def constants_offset(self) -> int:
        """Where the constants begin in the weights' area: they follow the last weight."""
        found = [self.locations[i] for i, _ in self.graph.of_kind("constant")]
        return min((x.offset for x in found if x is not None), default=self.weights_nbytes)

    @property
    def state(self) -> Mapping[str, Location]:
        """Where each named state lies, by name."""
        found = ((b.name, self.locations[i]) for i, b in self.graph.of_kind("state") if b.name)
        return {name: location for name, location in found if location is not None}

    @cached_property
    def largest_op(self) -> tuple[int, int] | None:
        """The node whose own operands, results and workspace take most at one moment, and those bytes.

        No order of the nodes and no placement needs less; only other kernels do. None for a graph without nodes.
        """
        known = {x.id: x for x in self.lifetimes}
        best: tuple[int, int] | None = None
        start = 0
        for place_, (node, step) in enumerate(zip(self.graph.nodes, self.steps, strict=True)):
            ids = {buffer_id(ref.buffer) for ref in (*node.operands.values(), *node.outputs)}
            ids |= {workspace_id(place_, buffer.name) for buffer in step.cost.buffers}
            nbytes = lower_bound(_during(known, ids, start, start + step.moments))
            if best is None or nbytes > best[1]:
                best = place_, nbytes
            start += step.moments
        return best

    def at(self, **values: int) -> Plan:
        """Return the plan of one value of the dims, in the arena and at the offsets of this one.

        Dims that are left out have their largest extent. The function is traced again at the value; what it does, in
        what order, and what lies on what, has to be what it is at the bound.

        Raises:
            ArgumentError: A name is no dim.
            ShapeError: A value is out of its dim's bounds.
            PlanError: The function does another thing at this value, or the plan was read from text without its graph.
        """
        if self.bounds is None:
            if values:
                raise ArgumentError(f"{self.graph.name}: the plan has no dims. Got {', '.join(values)}.")
            return self
        found = self.bounds.checked(self.graph.name, values)
        if tuple(found.values()) == self.bounds.most:
            return replace(self, bounds=None, arrangement=None, prepare=None)
        if self.prepare is None:
            raise PlanError(
                f"{self.graph.name}: a value under the bound is traced again. Got {found} and a plan without its "
                "function. load_plan(text, graph=trace(...)) knows it; the bound itself is accepted."
            )
        return specialised(self, found, self.prepare)

    def price(self, **values: int) -> Price:
        """Return what a run costs on the target, from declared costs and the target's facts; no device is needed.

        Args:
            values: Extents of dims, for a plan that has some (see `at`); left out, the largest.

        Raises:
            MissingFactError: The target does not state a number that is needed.
            ArgumentError: A name is no dim.
            ShapeError: A value is out of its dim's bounds.
        """
        plan = self.at(**values) if values else self
        return price_graph(plan.graph, plan.steps, plan.target)

    def load(
        self,
        weights: Mapping[str, Any] = MappingProxyType({}),
        *,
        share: Any = None,
        arena: Any = None,
        progress: Progress | None = None,
    ) -> Any:
        """Return a program that runs the plan, made by its loader.

        Args:
            weights: Value of every weight, by name; not asked for where they are shared.
            share: A program of another plan, whose weights and state this one uses too: they lie in memory once, and
                what one program writes to a state, the other reads. The memory lives as long as either.
            arena: A program of another plan, whose arena this one uses too: the two never run at once, but take turns,
                and a run of one overwrites the inputs and the borrowed outputs of the other. It has the larger arena.
            progress: Called as (done, total, op) before the kernels of each node are compiled or fetched.

        Raises:
            PlanError: The plan has no loader, or ``share`` lacks a weight or a state of the same shape, dtype and
                packing; names each. Or the arena of ``arena`` is too small, or it does not take turns with
                ``share``.
        """
        if self.loader is None:
            raise PlanError(
                f"{self.graph.name}: the plan was made without a device runtime. Got no loader. Pass one to plan() "
                "or Plan.from_json()."
            )
        return self.loader.load(self, weights, progress, share, arena)

    def check(self, *, limit: int | None = None) -> Plan:
        """Return the plan itself after checking it anew: the graph, and every area against its lifetimes.

        Args:
            limit: Most bytes of device memory in all.

        Raises:
            PlanError: The plan is larger than the limit, does not fit its graph, or lets two buffers in use share a
                byte; see `verify_placement`.
        """
        self.graph.check()
        if limit is not None and self.nbytes > limit:
            raise PlanError(
                f"{self.graph.name}: the plan stays within the limit. Got {self.nbytes} bytes (arena "
                f"{self.arena_nbytes}, weights {self.weights_nbytes}, state {self.state_nbytes}) and a limit of "
                f"{limit}. {would_fit(self, limit)} At the peak of the arena: {', '.join(at_peak(self)) or 'nothing'}."
            )
        counts = len(self.graph.buffers), len(self.graph.nodes), len(self.graph.nodes)
        if counts != (len(self.locations), len(self.steps), len(self.workspaces)):
            raise PlanError(
                f"{self.graph.name}: a plan has a location per buffer and a step per node. Got {len(self.locations)}, "
                f"{len(self.steps)} steps and {len(self.workspaces)} workspaces for {counts[0]} buffers and "
                f"{counts[1]} nodes."
            )
        for index, (buffer, location) in enumerate(zip(self.graph.buffers, self.locations, strict=True)):
            right = (_AREAS[buffer.kind], buffer.nbytes)
            if location is None and buffer.kind == "temporary":
                continue  # where a node touches it, `verify_placement` misses it below
            if location is None or (location.area, location.nbytes) != right:
                raise PlanError(
                    f"{self.graph.name}: a buffer lies in the area of its kind, with its size. Got {location} for "
                    f"buffer {index} ({buffer.kind}, {buffer.nbytes} bytes)."
                )
        verify_placement(self.lifetimes, self.offsets, self.arena_nbytes)
        if self.graph.new_state:
            raise PlanError(
                f"{self.graph.name}: a plan's nodes write its states. Got new values that none writes, of "
                f"{', '.join(self.graph.new_state)}. planning.state.settle makes such nodes."
            )
        verify_in_place(self.graph, self.steps)
        for area, nbytes in (("weights", self.weights_nbytes), ("state", self.state_nbytes)):
            kept = {buffer_id(i): x for i, x in enumerate(self.locations) if x is not None and x.area == area}
            whole = [Lifetime(name, 0, 1, x.nbytes, self.alignment) for name, x in kept.items()]
            verify_placement(whole, {name: x.offset for name, x in kept.items()}, nbytes)
        return self

    def to_json(self, describe: Describer = op_name) -> str:
        """Return the plan as text: a versioned JSON document, ops by name, constants in base64.

        Args:
            describe: What tells an op from all others, as plain data that `from_json` resolves: left out, its name.
                An op made for one use (a fused expression) needs more than that.

        Raises:
            FormatError: A parameter of a node is no plain data.
        """
        return write_document(_FORMAT, _VERSION, self, describe)

    @classmethod
    def from_json(cls, text: str, resolve: Resolver, *, loader: Loader | None = None) -> Plan:
        """Return the plan that `to_json` wrote, checked anew.

        Args:
            text: The document.
            resolve: Op by name, or by what `to_json` was told to write for it.
            loader: The runtime for `load`.

        Raises:
            FormatError: Not a plan, a version that is not read, damaged, or an op or a kernel that is not to be had.
        """
        found = read_document(text, _FORMAT, _VERSION, (*_CLASSES, cls), resolve)
        if not isinstance(found, cls):
            raise FormatError(f"{_FORMAT}: the content is a plan. Got {type(found).__name__}.")
        try:
            found = replace(found, loader=loader).check()
        except (NbxError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise FormatError(f"{_FORMAT}: the document is not a valid plan. {error}") from error
        for node, step in zip(found.graph.nodes, found.steps, strict=True):
            known = [k.name for k in node.op.kernels]
            if step.kernel and step.kernel not in known:
                raise FormatError(
                    f"{_FORMAT}: {node.op.name} has the kernel that was chosen. Got {step.kernel!r}. It has "
                    f"{', '.join(known) or 'none'}."
                )
        return found

    def svg(self) -> str:
        """Return a picture of the arena as SVG: time across, address up, one colour per op family, with tooltips."""
        return draw(self)

    def diff(self, other: Plan) -> str:
        """Return, as text, in what ``other`` differs: sizes, kernels, and where results lie; "" where in nothing."""
        return difference(self, other)

    def difference(self, other: Plan) -> Difference:
        """Return, as data, in what ``other`` differs: what grew, which op, which buffer; false where nothing did."""
        return compare(self, other)

    def __str__(self) -> str:
        """Return the plan on one screen."""
        return summary(self)


_CLASSES = (
    Arrangement,
    Bounds,
    declared.Buffer,
    declared.Cost,
    declared.Expression,
    declared.Launch,
    declared.Number,
    declared.Pointer,
    declared.Round,
    declared.Scalar,
    declared.Source,
    declared.Spec,
    declared.Step,
    declared.Target,
    Graph,
    GraphBuffer,
    Location,
    Node,
    PlanStep,
    Ref,
)


def plan(
    graph: Graph,
    target: Target,
    *,
    limit: int | None = None,
    prologue: Graph | None = None,
    loader: Loader | None = None,
    alignment: int = ALIGNMENT,
) -> Plan:
    """Plan a graph on a target: choose every kernel, place every byte, and check the result.

    Args:
        graph: The graph.
        target: What it will run on; the device need not be there.
        limit: Most bytes of device memory in all.
        prologue: What is computed from the weights when they are loaded, where `passes.partition` split the graph.
        loader: The runtime that `Plan.load` uses.
        alignment: What every offset is a multiple of, in bytes.

    Raises:
        PlanError: The graph or a declaration breaks a rule, or the plan is larger than the limit.
        UnsupportedError: No kernel serves a node on the target.
        MissingFactError: A kernel's declaration needs a number that the target does not state.
        ArgumentError: ``graph`` is no graph, or ``target`` no target.
    """
    if not isinstance(graph, Graph) or not isinstance(target, Target):
        told = f"{type(graph).__name__} and {type(target).__name__}"
        raise ArgumentError(f"plan: a Graph and a Target. Got {told}. nbxtensor.plan takes the name of a device.")
    graph.check()
    steps = choose(graph, target)
    placed = place(graph_lifetimes(graph, steps, alignment))
    ends = {"arena": placed.peak, "weights": 0, "state": 0}
    locations: list[Location | None] = []
    offsets: dict[int, int] = {}
    for kind in ("weight", "constant", "state"):  # constants last: programs that share weights have their own
        for index, buffer in graph.of_kind(kind):
            offsets[index] = ends[_AREAS[kind]]
            ends[_AREAS[kind]] += -(-buffer.nbytes // alignment) * alignment
    for index, buffer in enumerate(graph.buffers):
        offset = placed.offsets.get(buffer_id(index), offsets.get(index, None if buffer.nbytes else 0))
        locations.append(None if offset is None else Location(_AREAS[buffer.kind], offset, buffer.nbytes))
    workspaces = tuple(
        {b.name: placed.offsets[workspace_id(place_, b.name)] for b in step.cost.buffers if b.nbytes}
        for place_, step in enumerate(steps)
    )
    return Plan(
        graph=graph,
        target=target,
        steps=steps,
        locations=tuple(locations),
        workspaces=workspaces,
        arena_nbytes=ends["arena"],
        weights_nbytes=ends["weights"],
        state_nbytes=ends["state"],
        alignment=alignment,
        lower_bound=placed.lower_bound,
        algorithm=placed.algorithm,
        prologue=prologue,
        loader=loader,
    ).check(limit=limit)


def _during(known: Mapping[str, Lifetime], ids: set[str], start: int, end: int) -> Iterator[Lifetime]:
    """Yield those of ``ids`` that are in use in [start, end), cut to it."""
    for x in (known[name] for name in sorted(ids) if name in known):
        if x.lower < end and x.upper > start:
            yield replace(x, lower=max(x.lower, start), upper=min(x.upper, end))
