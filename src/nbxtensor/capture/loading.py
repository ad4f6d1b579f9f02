"""From a plan to a program: memory allocated or shared, weights copied and folded, kernels loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbxtensor.backend.contract import Bound
from nbxtensor.capture.bounded import BoundedProgram, refuse_bundle
from nbxtensor.capture.interface import Interface, Place, spec_of
from nbxtensor.capture.program import Program, address_of
from nbxtensor.capture.saving import save_programs
from nbxtensor.dtype.itemsize import bits, numpy_dtype
from nbxtensor.errors import ArgumentError, DtypeError, NbxError, PlanError, ShapeError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Pointer, Spec
from nbxtensor.planning.graph import Graph, Node, Ref
from nbxtensor.planning.plan import Plan
from nbxtensor.planning.sharing import shared_buffers
from nbxtensor.run import ALIGNED_NBYTES, Device, layout, prepare, ready
from nbxtensor.tensor import Tensor, from_numpy_array

__all__ = ["PlanLoader"]

Progress = Callable[[int, int, str], None]
Places = tuple[Place | None, ...]


@dataclass(frozen=True, slots=True)
class PlanLoader:
    """What makes plans of one device run.

    Attributes:
        device: The device.
    """

    device: Device

    def load(
        self,
        plan: Plan,
        weights: Mapping[str, Any],
        progress: Progress | None = None,
        share: Any = None,
        arena: Any = None,
    ) -> Program | BoundedProgram:
        """Return the program that runs ``plan`` with ``weights``, its state zeros, or with those of ``share``.

        Weights are taken one by one, each as it is needed, and what is folded is made at its place: a mapping may make
        or read its values when asked for them.

        Args:
            plan: The plan.
            weights: Value of every weight of the traced function by name: tensors, or numpy arrays in the dtype's
                carrier. Not asked for where they are shared.
            progress: Called as (done, total, op) before each node's kernels are compiled or fetched.
            share: A program whose weights and state this one uses too.
            arena: A program whose arena this one uses too, in turns.

        Raises:
            ArgumentError: A weight is missing, ``weights`` is no mapping, ``share`` or ``arena`` no program. Names
                that the function does not use are passed over.
            ShapeError: A weight has another shape than was traced.
            DtypeError: A weight has another dtype.
            PlanError: ``share`` is on another device, or lacks a weight or a state, or has it laid out otherwise; or
                ``arena`` is on another device, has a smaller arena, or does not take turns with ``share``.
            CompileError: A kernel does not compile.
            OutOfMemoryError: The device, or the limit set, cannot hold the plan.
        """
        name = plan.graph.name
        if not isinstance(weights, Mapping):
            raise ArgumentError(f"{name}: weights are a mapping from names to values. Got {type(weights).__name__}.")
        share, arena = (x.bound if isinstance(x, BoundedProgram) else x for x in (share, arena))
        for words, given in (("share", share), ("arena", arena)):
            if given is not None and not isinstance(given, Program):
                raise ArgumentError(f"{name}: {words} is a program. Got {type(given).__name__}. Plan.load returns one.")
        block = self._arena(plan, share, arena)
        if share is None:
            self._check_named(plan, weights)
            areas, places = self._allocated(plan, block)
            self._fill_weights(plan, weights, places)
            for index, _ in plan.graph.of_kind("state"):
                place = _placed(plan, places, index)
                self._memory.fill(place.address, 0, place.nbytes)
        else:
            areas, places = self._shared(plan, share, block)
        self._fill_constants(plan, places)
        launches: list[tuple[int, Bound]] = []
        for number, node in enumerate(plan.graph.nodes):
            if progress is not None:
                progress(number, len(plan.graph.nodes), node.op.name)
            launches += [(number, bound) for bound in self._bound(plan, number, areas["arena"], places)]
        if progress is not None:
            progress(len(plan.graph.nodes), len(plan.graph.nodes), "")
        interface = Interface.of_plan(plan, places)
        saver = save_programs if plan.bounds is None else refuse_bundle
        made = Program(interface, self.device, areas, launches, lambda: plan, share=share or arena, saver=saver)
        return made if plan.bounds is None else BoundedProgram(plan, plan.bounds, made, self._at)

    def _at(self, plan: Plan, bound: Program) -> Program:
        """Return the program of a value under the bound, in the memory of the bound's program."""
        pairs = zip(bound.places, plan.locations, strict=True)
        places = tuple(place and at and Place(place.storage, place.offset, at.nbytes) for place, at in pairs)
        numbers = range(len(plan.graph.nodes))
        launches = [(n, x) for n in numbers for x in self._bound(plan, n, bound.areas["arena"], places)]
        interface = Interface.of_plan(plan, places)
        return Program(interface, self.device, bound.areas, launches, lambda: plan, share=bound, saver=refuse_bundle)

    @property
    def _memory(self) -> Any:
        return self.device.backend.memory(self.device.index)

    # ---- memory

    def _arena(self, plan: Plan, share: Program | None, arena: Program | None) -> Storage:
        """Return the arena of a program: its own, or that of another which it takes turns with."""
        if arena is None:
            return self.device.allocator.allocate(plan.arena_nbytes)
        if arena.device is not self.device:
            raise PlanError(
                f"{plan.graph.name}: programs share an arena on one device. Got {self.device} and {arena.device}."
            )
        if share is not None and share.turn is not arena.turn:
            raise PlanError(
                f"{plan.graph.name}: a program takes turns with all that it shares memory with. Got {share.name} for "
                f"its weights and {arena.name} for its arena, which do not take turns. Loaded with share or arena, "
                "one of the other, they would."
            )
        block = arena.areas["arena"]
        if block.nbytes < plan.arena_nbytes:
            raise PlanError(
                f"{plan.graph.name}: an arena that is shared holds the largest plan. Got {block.nbytes} bytes of "
                f"{arena.name} for {plan.arena_nbytes}, {plan.arena_nbytes - block.nbytes} too few. Load this plan "
                "first, and the other with its arena."
            )
        return block

    def _block(self, nbytes: int, arena: Storage) -> Storage:
        """Return a block; one without bytes takes none of the device, which may have no more than the plan states."""
        if nbytes or not arena.nbytes:
            return self.device.allocator.allocate(nbytes)
        return Storage(arena.address + arena.nbytes, 0, None, arena)

    def _allocated(self, plan: Plan, arena: Storage) -> tuple[dict[str, Storage], Places]:
        """Return the memory of a program of its own, and where each buffer lies in it."""
        sizes = {"weights": plan.weights_nbytes, "state": plan.state_nbytes}
        areas = {area: self._block(nbytes, arena) for area, nbytes in sizes.items()} | {"arena": arena}
        return areas, tuple(x and Place(areas[x.area], x.offset, x.nbytes) for x in plan.locations)

    def _shared(self, plan: Plan, share: Program, arena: Storage) -> tuple[dict[str, Storage], Places]:
        """Return the memory that a program has beside what it shares, and where each buffer lies in both."""
        if share.device is not self.device:
            raise PlanError(
                f"{plan.graph.name}: programs share weights and state on one device. Got {self.device} and "
                f"{share.device}."
            )
        same = shared_buffers(plan, share.plan)
        start = plan.constants_offset
        areas = {
            "arena": arena,
            "constants": self._block(plan.weights_nbytes - start, arena),
        }
        places: list[Place | None] = []
        for index, location in enumerate(plan.locations):
            if index in same:
                places.append(share.places[same[index]])
            elif location is None:
                places.append(None)
            elif location.area == "arena":
                places.append(Place(areas["arena"], location.offset, location.nbytes))
            else:
                places.append(Place(areas["constants"], location.offset - start, location.nbytes))
        return areas, tuple(places)

    # ---- values

    def _check_named(self, plan: Plan, given: Mapping[str, Any]) -> None:
        prologue = plan.prologue or Graph((), (), ())
        names = [b.name for _, b in prologue.of_kind("input")]
        names += [b.name for _, b in plan.graph.of_kind("weight") if not b.name.startswith("folded.")]
        lacking = [name for name in dict.fromkeys(names) if name not in given]
        if lacking:
            raise ArgumentError(f"{plan.graph.name}: a value for every weight. Got none for {', '.join(lacking)}.")

    def _fill_weights(self, plan: Plan, given: Mapping[str, Any], places: Places) -> None:
        """Copy every weight to its place, and make those that are folded from others."""
        graph = plan.graph.name
        indices = {b.name: i for i, b in plan.graph.of_kind("weight")}
        for index, buffer in plan.graph.of_kind("weight"):
            if not buffer.name.startswith("folded."):
                value = _weight(graph, buffer.name, given[buffer.name], spec_of(buffer))
                self.put(_placed(plan, places, index), value)
        if plan.prologue is not None:
            count = len(plan.prologue.outputs)
            made = [_placed(plan, places, indices[f"folded.{number}"]) for number in range(count)]
            _Folding(self, plan.prologue, given, graph).run(made)
            self.device.allocator.trim()  # what folding took goes back: memory in use is what the plan states

    def _fill_constants(self, plan: Plan, places: Places) -> None:
        for index, buffer in plan.graph.of_kind("constant"):
            if buffer.value is not None:
                self.put(_placed(plan, places, index), from_numpy_array(buffer.value, spec_of(buffer).dtype))

    def put(self, place: Place, value: Tensor) -> None:
        """Copy a value, on whatever device, to its place."""
        if not value.nbytes:
            return
        if value.device is self.device and value.is_contiguous():
            self._memory.copy(place.address, address_of(value), value.nbytes)
        else:
            self._memory.copy_in(place.address, np.ascontiguousarray(value.numpy()).reshape(-1).view(np.uint8).data)

    # ---- launches

    def _bound(self, plan: Plan, number: int, arena: Storage, places: Places) -> Iterator[Bound]:
        node, step = plan.graph.nodes[number], plan.steps[number]
        if not step.launches:
            return
        call = node.call(plan.target)
        kernel = next(k for k in node.op.kernels if k.name == step.kernel)

        def resolve(pointer: Pointer) -> int:
            if pointer.role == "workspace":
                return arena.address + plan.workspaces[number][str(pointer.key)]
            ref = node.operands[str(pointer.key)] if pointer.role == "input" else node.outputs[int(pointer.key)]
            return _placed(plan, places, ref.buffer).address + ref.offset * bits(ref.spec.dtype) // 8

        def aligned(pointer: Pointer) -> bool:
            return resolve(pointer) % ALIGNED_NBYTES == 0

        backend, index = self.device.backend, self.device.index
        for prepared in prepare(call, kernel, step.launches, backend, index, bake=True, aligned=aligned):
            yield prepared.bind(resolve)


def _placed(plan: Plan, places: Places, buffer: int) -> Place:
    place = places[buffer]
    if place is None:
        raise PlanError(f"{plan.graph.name}: buffer {buffer} has no place.")
    return place


def _weight(graph: str, name: str, value: Any, spec: Spec) -> Tensor:
    try:
        tensor = value if isinstance(value, Tensor) else from_numpy_array(np.asarray(value), _given_dtype(value, spec))
    except (NbxError, ValueError) as error:
        raise DtypeError(
            f"{graph}: weight {name} is a tensor or an array of {spec.dtype}. Got {type(value).__name__}: {error}"
        ) from None
    if tensor.shape != spec.shape:
        raise ShapeError(f"{graph}: weight {name} was traced with shape {spec.shape}. Got {tensor.shape}.")
    if tensor.dtype != spec.dtype:
        raise DtypeError(f"{graph}: weight {name} was traced as {spec.dtype}. Got {tensor.dtype}. astype converts.")
    return tensor


def _given_dtype(value: Any, spec: Spec) -> str | None:
    """Return the traced dtype where an array comes in its carrier, else None for numpy's own."""
    return spec.dtype if np.asarray(value).dtype == numpy_dtype(spec.dtype) else None


class _Folding:
    """The part of a graph that weights alone decide, run node by node, its results made where they stay.

    Each node writes whole buffers, row-major, as traces make them. A weight is taken when the first node reads it,
    and what nothing reads any more is forgotten.
    """

    def __init__(self, loader: PlanLoader, prologue: Graph, given: Mapping[str, Any], name: str) -> None:
        self._loader = loader
        self._prologue = prologue
        self._given = given
        self._name = name
        self._storages: dict[int, Storage] = {}
        self._last = {ref.buffer: at for at, node in enumerate(prologue.nodes) for ref in node.operands.values()}

    def run(self, places: Sequence[Place]) -> None:
        """Make every output of the graph at its place."""
        prologue = self._prologue
        numbers: dict[int, list[int]] = {}
        for number, ref in enumerate(prologue.outputs):
            numbers.setdefault(ref.buffer, []).append(number)
        for at, node in enumerate(prologue.nodes):
            homes = {ref.buffer: self._home(ref, numbers.get(ref.buffer, ()), places) for ref in node.outputs}
            for ref, storage in zip(node.outputs, self._results(node, homes), strict=True):
                self._storages[ref.buffer] = storage
                for number in numbers.get(ref.buffer, ()):
                    out, place = prologue.outputs[number], places[number]
                    if storage.address != place.address:
                        self._loader.put(place, Tensor(storage, out.spec, out.offset, self._loader.device))
            for buffer in {ref.buffer for ref in (*node.operands.values(), *node.outputs)}:
                if self._last.get(buffer, -1) <= at:
                    self._storages.pop(buffer, None)

    def _home(self, ref: Ref, numbers: Sequence[int], places: Sequence[Place]) -> Storage | None:
        """Return where a result stays: the place of the first output that is all of it, packed."""
        for number in numbers:
            out, place = self._prologue.outputs[number], places[number]
            if out == ref and ref.spec.is_contiguous and not ref.offset and ref.spec.nbytes == place.nbytes:
                return Storage(place.address, place.nbytes, None, place.storage)
        return None

    def _results(self, node: Node, homes: Mapping[int, Storage | None]) -> list[Storage]:
        """Return the storage of each result of a node run eagerly."""
        device, allocate = self._loader.device, self._loader.device.allocator.allocate
        operands = {n: Tensor(self._held(r.buffer), r.spec, r.offset, device) for n, r in node.operands.items()}
        at = {n: address_of(t) for n, t in operands.items()}
        layouts = {n: layout(t.spec, device, aligned=not at[n] % ALIGNED_NBYTES) for n, t in operands.items()}
        into = [homes[ref.buffer] or allocate(ref.spec.nbytes) for ref in node.outputs]
        return ready(node.op, layouts, node.params, device).run(list(at.values()), into)

    def _held(self, buffer: int) -> Storage:
        if buffer not in self._storages:
            found = self._prologue.buffers[buffer]
            if found.value is not None:
                value = from_numpy_array(found.value, spec_of(found).dtype)
            else:
                value = _weight(self._name, found.name, self._given[found.name], spec_of(found))
            self._storages[buffer] = _whole(value.to(self._loader.device).contiguous())
        return self._storages[buffer]


def _whole(tensor: Tensor) -> Storage:
    """Return the storage of a packed tensor that starts at its first element."""
    storage = tensor.storage
    if not isinstance(storage, Storage):
        raise PlanError("an eager tensor has memory.")
    if not tensor.offset:
        return storage
    return Storage(address_of(tensor), tensor.nbytes, None, storage)
