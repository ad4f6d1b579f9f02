"""A plan made to run: one arena, one block of weights, every kernel loaded, every address known."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbxtensor.backend.contract import Bound
from nbxtensor.capture.recording import Recording
from nbxtensor.dtype.itemsize import numpy_dtype
from nbxtensor.errors import ArgumentError, DtypeError, NbxError, PlanError, ShapeError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Array, Pointer, Spec
from nbxtensor.planning.graph import Graph, GraphBuffer, Ref
from nbxtensor.planning.plan import Location, Plan
from nbxtensor.run import ALIGNED_NBYTES, Device, launch, prepare
from nbxtensor.tensor import Tensor, asarray, from_numpy_array

__all__ = ["PlanLoader", "Program"]

Progress = Callable[[int, int, str], None]


class _Turn:
    """One caller at a time; a child process starts anew, whoever was inside when it was forked."""

    __slots__ = ("_lock", "_process")

    def __init__(self) -> None:
        self._process = -1
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.RLock()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Program:
    """What `Plan.load` returns: call it with the inputs, or `capture` it to replay it.

    All memory was allocated when it was made: the arena (inputs, temporaries, workspace) and the weights, at the
    offsets the plan states. Threads may call it, and its recordings, at once: calls take turns, from the copy of the
    inputs to the copy of the outputs (outputs that are borrowed are the next caller's to overwrite).

    Attributes:
        plan: The plan.
        device: What it runs on.
        turn: Held, as a context, by the one caller whose values are in the arena.
        launches: Every launch of a run, in order.
        nodes: For each launch, the index of its node in ``plan.graph``.
    """

    def __init__(
        self, plan: Plan, device: Device, areas: Mapping[str, Storage], launches: list[tuple[int, Bound]]
    ) -> None:
        self.plan = plan
        self.device = device
        self.turn: _Turn = _Turn()
        self.nodes: tuple[int, ...] = tuple(node for node, _ in launches)
        self.launches: tuple[Bound, ...] = tuple(bound for _, bound in launches)
        self._areas = areas
        self._inputs = tuple(self._tensor(Ref(i, _spec(b))) for i, b in plan.graph.of_kind("input"))
        self._outputs = tuple(self._tensor(ref) for ref in plan.graph.outputs)
        self._returns_inputs = any(plan.graph.buffers[ref.buffer].kind == "input" for ref in plan.graph.outputs)

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """Shape and dtype of each input."""
        return tuple(t.spec for t in self._inputs)

    def __call__(self, *inputs: Any, borrow: bool = False) -> Any:
        """Run once, launch by launch.

        Args:
            inputs: One value per input: a tensor, or what `asarray` takes, of the planned shape and dtype.
            borrow: True for views of the arena, which the next run overwrites; False for copies.

        Returns:
            A tensor, or a tuple of tensors where the function returned several.

        Raises:
            ArgumentError: Not one value per input.
            ShapeError: A value of another shape.
            DtypeError: A value of another dtype.
        """
        with self.turn:
            self.fill(inputs)
            self.run()
            return self.results(borrow=borrow)

    def fill(self, inputs: tuple[Any, ...]) -> None:
        """Copy values into the fixed input buffers; see `__call__` for what is refused (then nothing is copied)."""
        if len(inputs) != len(self._inputs):
            raise ArgumentError(
                f"{self.plan.graph.name}: one value per input. Got {len(inputs)} for {len(self._inputs)}."
            )
        checked = [self._checked(i, value) for i, value in enumerate(inputs)]
        memory = self.device.backend.memory(self.device.index)
        for tensor, value in zip(self._inputs, checked, strict=True):
            if isinstance(value, Tensor):
                memory.copy(_address(tensor), _address(value) + value.offset * value.itemsize, value.nbytes)
            elif tensor.nbytes:
                memory.copy_in(_address(tensor), value.reshape(-1).view(np.uint8).data)

    def run(self) -> None:
        """Run every launch on what the input buffers hold."""
        for bound in self.launches:
            launch(self.device, bound)

    def results(self, *, borrow: bool) -> Any:
        """Return what the output buffers hold, as views (``borrow``) or as copies."""
        kept = self._outputs if borrow else tuple(self._copied(t) for t in self._outputs)
        return kept[0] if len(kept) == 1 else kept

    def capture(self, *inputs: Any) -> Recording:
        """Return the run recorded as one object, verified to repeat a normal run byte for byte.

        Args:
            inputs: Values to verify with; left out, what the input buffers hold is replaced by small random numbers
                (zeros for integers, which are valid as indices).

        Raises:
            CaptureError: The replay's outputs differ from the run's.
        """
        return Recording(self, inputs or tuple(_example(i, spec) for i, spec in enumerate(self.inputs)))

    def scrub(self) -> None:
        """Overwrite the whole arena, so that nothing of an earlier run can be mistaken for a result."""
        arena = self._areas["arena"]
        self.device.backend.memory(self.device.index).fill(arena.address, 0xFF, arena.nbytes)

    def _checked(self, index: int, value: Any) -> Array | Tensor:
        """Return an input as packed host memory, or as it is where it can be copied on the device."""
        spec, name = self._inputs[index].spec, f"{self.plan.graph.name}: input {index}"
        try:
            given = value if isinstance(value, Tensor) else np.asarray(value)
            dtype = value.dtype if isinstance(value, Tensor) else asarray(given).dtype
        except (NbxError, ValueError) as error:
            raise ArgumentError(
                f"{name} is a tensor or what asarray takes. Got {type(value).__name__}: {error}"
            ) from None
        if tuple(given.shape) != spec.shape:
            raise ShapeError(f"{name} was planned with shape {spec.shape}. Got {given.shape}.")
        if dtype != spec.dtype:
            bits = not isinstance(given, Tensor) and given.dtype == numpy_dtype(spec.dtype)
            hint = "from_numpy_array takes bit patterns" if bits else "astype converts"
            raise DtypeError(f"{name} was planned as {spec.dtype}. Got {dtype}. {hint}.")
        if isinstance(given, Tensor) and self._copies_on_device(given):
            return given
        host = np.ascontiguousarray(given.numpy() if isinstance(given, Tensor) else given)
        return host.copy() if self._returns_inputs and self._in_arena(host) else host

    def _in_arena(self, host: Array) -> bool:
        """Return whether an array is a view of the arena: a borrowed output, which filling an input may overwrite."""
        arena = self._areas["arena"]
        return arena.address <= host.__array_interface__["data"][0] < arena.address + arena.nbytes

    def _copies_on_device(self, tensor: Tensor) -> bool:
        """Return whether a tensor is packed in memory of its own (no view of the arena) out of the host's reach."""
        own = isinstance(tensor.storage, Storage) and tensor.storage.owner is None and tensor.is_contiguous()
        return own and tensor.device is self.device and not self._host_reaches

    @property
    def _host_reaches(self) -> bool:
        return hasattr(self.device.backend.memory(self.device.index), "view")

    def _tensor(self, ref: Ref) -> Tensor:
        location = self.plan.locations[ref.buffer]
        if location is None:
            raise PlanError(f"{self.plan.graph.name}: buffer {ref.buffer} has no place.")
        area = self._areas[location.area]
        storage = Storage(area.address + location.offset, location.nbytes, None, area)
        return Tensor(storage, ref.spec, ref.offset, self.device)

    def _copied(self, tensor: Tensor) -> Tensor:
        if self._host_reaches:
            return from_numpy_array(np.array(tensor.numpy()), tensor.dtype, device=self.device)
        source = _storage(tensor)
        kept = self.device.allocator.allocate(source.nbytes)
        self.device.backend.memory(self.device.index).copy(kept.address, source.address, source.nbytes)
        return Tensor(kept, tensor.spec, tensor.offset, self.device)


def _spec(buffer: GraphBuffer) -> Spec:
    if buffer.spec is None:
        raise PlanError(f"a buffer of kind {buffer.kind} has a spec. {buffer.name!r} has none.")
    return buffer.spec


def _address(tensor: Tensor) -> int:
    return _storage(tensor).address


def _storage(tensor: Tensor) -> Storage:
    storage = tensor.storage
    if not isinstance(storage, Storage):
        raise PlanError("a program's tensors have memory.")
    return storage


def _example(index: int, spec: Spec) -> Tensor:
    """Return values to verify a recording with: small numbers for floats, zeros for all else."""
    if spec.dtype in ("float16", "float32", "float64"):
        values = np.random.default_rng(index).uniform(-1, 1, spec.shape).astype(spec.dtype)
    else:
        values = np.zeros(spec.shape, numpy_dtype(spec.dtype))
        if spec.dtype == "bool":
            values = ~values
    return from_numpy_array(values, spec.dtype)


@dataclass(frozen=True, slots=True)
class PlanLoader:
    """What makes plans of one device run.

    Attributes:
        device: The device.
    """

    device: Device

    def load(self, plan: Plan, weights: Mapping[str, Any], progress: Progress | None = None) -> Program:
        """Return the program that runs ``plan`` with ``weights``.

        Args:
            plan: The plan.
            weights: Value of every weight of the traced function by name: tensors, or numpy arrays in the dtype's
                carrier.
            progress: Called as (done, total, op) before each node's kernels are compiled or fetched.

        Raises:
            ArgumentError: A weight is missing, or ``weights`` is no mapping. Names the function does not use are
                passed over.
            ShapeError: A weight has another shape than was traced.
            DtypeError: A weight has another dtype.
            CompileError: A kernel does not compile.
            OutOfMemoryError: The device, or the limit set, cannot hold the plan.
        """
        if not isinstance(weights, Mapping):
            raise ArgumentError(
                f"{plan.graph.name}: weights are a mapping from names to values. Got {type(weights).__name__}."
            )
        values = self._weights(plan, weights)
        areas = {
            "arena": self.device.allocator.allocate(plan.arena_nbytes),
            "weights": self.device.allocator.allocate(plan.weights_nbytes),
            "state": self.device.allocator.allocate(plan.state_nbytes),
        }
        memory = self.device.backend.memory(self.device.index)
        for index, array in values.items():
            location = plan.locations[index]
            if location is not None and array.nbytes:
                address = areas["weights"].address + location.offset
                memory.copy_in(address, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        launches: list[tuple[int, Bound]] = []
        for number, node in enumerate(plan.graph.nodes):
            if progress is not None:
                progress(number, len(plan.graph.nodes), node.op.name)
            launches += [(number, bound) for bound in self._bound(plan, number, areas)]
        if progress is not None:
            progress(len(plan.graph.nodes), len(plan.graph.nodes), "")
        return Program(plan, self.device, areas, launches)

    def _bound(self, plan: Plan, number: int, areas: Mapping[str, Storage]) -> list[Bound]:
        node, step = plan.graph.nodes[number], plan.steps[number]
        if not step.launches:
            return []
        call = node.call(plan.target)
        kernel = next(k for k in node.op.kernels if k.name == step.kernel)

        def resolve(pointer: Pointer) -> int:
            if pointer.role == "workspace":
                return areas["arena"].address + plan.workspaces[number][str(pointer.key)]
            ref = node.operands[str(pointer.key)] if pointer.role == "input" else node.outputs[int(pointer.key)]
            location = _located(plan, ref)
            width = np.dtype(numpy_dtype(ref.spec.dtype)).itemsize
            return areas[location.area].address + location.offset + ref.offset * width

        def aligned(pointer: Pointer) -> bool:
            return resolve(pointer) % ALIGNED_NBYTES == 0

        backend, index = self.device.backend, self.device.index
        ready = prepare(call, kernel, step.launches, backend, index, bake=True, aligned=aligned)
        return [prepared.bind(resolve) for prepared in ready]

    def _weights(self, plan: Plan, given: Mapping[str, Any]) -> dict[int, Array]:
        """Return the value of every weight and constant of the plan by buffer, the prologue's results among them."""
        prologue = plan.prologue or Graph((), (), ())
        specs = {b.name: _spec(b) for _, b in prologue.of_kind("input")}
        direct = {b.name: (i, _spec(b)) for i, b in plan.graph.of_kind("weight") if not b.name.startswith("folded.")}
        specs |= {name: spec for name, (_, spec) in direct.items()}
        lacking = [name for name in specs if name not in given]
        if lacking:
            raise ArgumentError(f"{plan.graph.name}: a value for every weight. Got none for {', '.join(lacking)}.")
        taken = {name: _weight(plan.graph.name, name, given[name], spec) for name, spec in specs.items()}
        values = {i: taken[name].numpy() for name, (i, _) in direct.items()}
        values |= {i: b.value for i, b in plan.graph.of_kind("constant") if b.value is not None}
        folded = interpret(prologue, taken, self.device)
        names = {b.name: i for i, b in plan.graph.of_kind("weight")}
        values |= {names[f"folded.{n}"]: t.numpy() for n, t in enumerate(folded)}
        return values


def _located(plan: Plan, ref: Ref) -> Location:
    location = plan.locations[ref.buffer]
    if location is None:
        raise PlanError(f"{plan.graph.name}: buffer {ref.buffer} has no place.")
    return location


def _weight(graph: str, name: str, value: Any, spec: Spec) -> Tensor:
    tensor = value if isinstance(value, Tensor) else from_numpy_array(np.asarray(value), _given_dtype(value, spec))
    if tensor.shape != spec.shape:
        raise ShapeError(f"{graph}: weight {name} was traced with shape {spec.shape}. Got {tensor.shape}.")
    if tensor.dtype != spec.dtype:
        raise DtypeError(f"{graph}: weight {name} was traced as {spec.dtype}. Got {tensor.dtype}. astype converts.")
    return tensor


def _given_dtype(value: Any, spec: Spec) -> str | None:
    """Return the traced dtype where an array comes in its carrier, else None for numpy's own."""
    return spec.dtype if np.asarray(value).dtype == numpy_dtype(spec.dtype) else None


def interpret(graph: Graph, inputs: Mapping[str, Tensor], device: Device) -> tuple[Tensor, ...]:
    """Return the outputs of ``graph``, every node run eagerly on ``device``.

    Each node writes a whole buffer, row-major, as traces make them.
    """
    storages: dict[int, Storage] = {}
    for index, buffer in enumerate(graph.buffers):
        given = inputs[buffer.name].to(device).contiguous() if buffer.kind == "input" else None
        if buffer.value is not None:
            given = from_numpy_array(buffer.value, _spec(buffer).dtype, device=device)
        if given is not None:
            storages[index] = _whole(given)
    for node in graph.nodes:
        operands = {n: Tensor(storages[r.buffer], r.spec, r.offset, device) for n, r in node.operands.items()}
        first = next(iter(operands.values()))
        results = first.__run__(node.op, operands, node.params)
        for ref, result in zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=True):
            storages[ref.buffer] = _whole(result)
    return tuple(Tensor(storages[r.buffer], r.spec, r.offset, device) for r in graph.outputs)


def _whole(tensor: Tensor) -> Storage:
    """Return the storage of a packed tensor that starts at its first element."""
    storage = tensor.storage
    if not isinstance(storage, Storage):
        raise PlanError("an eager tensor has memory.")
    if not tensor.offset:
        return storage
    width = np.dtype(numpy_dtype(tensor.dtype)).itemsize
    return Storage(storage.address + tensor.offset * width, tensor.nbytes, None, storage)
