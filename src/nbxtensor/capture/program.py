"""A plan made to run: one arena, one block of weights, one of state, every kernel loaded, every address known."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from nbxtensor.backend.contract import Bound
from nbxtensor.backend.forks import in_child
from nbxtensor.capture.interface import Interface, Place, View
from nbxtensor.capture.recording import Recording
from nbxtensor.dtype.convert import convert
from nbxtensor.dtype.itemsize import bits, kind, numpy_dtype
from nbxtensor.errors import ArgumentError, DtypeError, NbxError, PlanError, ShapeError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Array, Spec, Target
from nbxtensor.planning.graph import Ref
from nbxtensor.run import Device, launch
from nbxtensor.tensor import Tensor, asarray, from_numpy_array

if TYPE_CHECKING:
    from nbxtensor.planning.plan import Plan  # a program that was saved may run without ever looking at its plan

__all__ = ["Program", "State"]


Saver = Callable[..., None]
"""Writes programs to a folder: `saving.save_programs`."""


class _Turn:
    """One caller at a time; a child process starts anew, whoever was inside when it was forked."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._forget()
        in_child(self._forget)

    def _forget(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Program:
    """What `Plan.load` returns: call it with the inputs, or `capture` it to replay it.

    All memory was allocated when it was made: the arena (inputs, temporaries, workspace), the weights and the state,
    at the offsets the plan states, or shared with another program. Threads may call it, and its recordings, at once:
    calls take turns, from the copy of the inputs to the copy of the outputs (outputs that are borrowed are the next
    caller's to overwrite). Programs that share their state, or their arena, take turns with each other.

    Attributes:
        name: What it is called in messages.
        device: What it runs on.
        places: Where each buffer of the plan's graph lies; None for one that nothing touches.
        turn: Held, as a context, by the one caller whose values are in the arena.
        areas: The blocks that this program has, by what they hold ("arena", "weights", "state"); without those of
            weights and state that are another's.
        launches: Every launch of a run, in order.
        nodes: For each launch, the index of its node in ``plan.graph``.
        saver: What `save` calls; None for a program that was loaded from a bundle.
    """

    def __init__(
        self,
        interface: Interface,
        device: Device,
        areas: Mapping[str, Storage],
        launches: Sequence[tuple[int, Bound]],
        plan: Callable[[], Plan],
        *,
        dependencies: Callable[[], Sequence[Sequence[int]]] | None = None,
        share: Program | None = None,
        saver: Saver | None = None,
    ) -> None:
        """Keep a program.

        Args:
            interface: What callers see of it.
            device: What it runs on.
            areas: The blocks allocated for it alone.
            launches: (node, launch) of every launch of a run.
            plan: Returns the plan; asked at most once, when somebody wants to see it.
            dependencies: Returns what each launch waits for; left out, the plan says.
            share: A program that it shares weights or state with.
            saver: What `save` calls; None for a program that was loaded from a bundle.
        """
        self.name: str = interface.name
        self.device = device
        self.places: tuple[Place | None, ...] = interface.places
        self.turn: _Turn = _Turn() if share is None else share.turn
        self.nodes: tuple[int, ...] = tuple(node for node, _ in launches)
        self.launches: tuple[Bound, ...] = tuple(bound for _, bound in launches)
        self.areas = areas
        self.saver = saver
        self._plan = plan
        self._dependencies = dependencies
        self._inputs = tuple(self._tensor(view) for view in interface.inputs)
        self._outputs = tuple(self._tensor(view) for view in interface.outputs)
        self._state = State(self, {name: self._tensor(view) for name, view in interface.states.items()})

    @property
    def state(self) -> State:
        """What outlives a run, by name: read it, set it, reset it between runs."""
        return self._state

    @cached_property
    def plan(self) -> Plan:
        """The plan."""
        return self._plan()

    def __reduce__(self) -> NoReturn:
        """Refuse: what pickle and copy would take along is the memory of a device.

        Raises:
            PlanError: Always; names `save`.
        """
        raise PlanError(f"{self.name}: a program is not pickled: it holds a device's memory. Program.save keeps it.")

    def dependencies(self) -> Sequence[Sequence[int]]:
        """Return, for each launch, the earlier launches that it has to wait for."""
        if self._dependencies is not None:
            return self._dependencies()
        from nbxtensor.planning.dependencies import launch_dependencies

        return launch_dependencies(self.plan)

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
            raise ArgumentError(f"{self.name}: one value per input. Got {len(inputs)} for {len(self._inputs)}.")
        words = (f"input {i}" for i in range(len(inputs)))
        checked = [self.checked(t, w, v) for t, w, v in zip(self._inputs, words, inputs, strict=True)]
        for tensor, value in zip(self._inputs, checked, strict=True):
            self.put(tensor, value)

    def put(self, tensor: Tensor, value: Array | Tensor) -> None:
        """Copy what `checked` returned into a tensor of the program."""
        memory = self.device.backend.memory(self.device.index)
        if isinstance(value, Tensor):
            memory.copy(address_of(tensor), address_of(value), value.nbytes)
        elif tensor.nbytes:
            memory.copy_in(address_of(tensor), value.reshape(-1).view(np.uint8).data)

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

        The state is afterwards what it was before: both runs start from it, and have to leave it alike.

        Args:
            inputs: Values to verify with; left out, what the input buffers hold is replaced by small random numbers
                (zeros for integers, which are valid as indices).

        Raises:
            CaptureError: What the replay returns, or leaves in the state, differs from the run's.
        """
        return Recording(self, inputs or tuple(example(i, spec) for i, spec in enumerate(self.inputs)))

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        targets: Sequence[Target | str] = (),
        weights: Sequence[Any] = (),
    ) -> None:
        """Write the program to a folder that `nbxtensor.load_program` runs in a process without Triton.

        See `nbxtensor.save_programs`, which writes several that share weights and state.

        Args:
            folder: Where; not there yet, or empty.
            targets: Further targets of the same backend that its kernels are compiled for.
            weights: Open safetensors files that have its weights, to be referred to instead of copied.

        Raises:
            ArgumentError: A folder that has something in it, or a weight that the files lack or have with other values.
            PlanError: The program was loaded from a bundle.
            UnsupportedError: A kernel of the plan does not serve one of ``targets``.
            CompileError: A kernel does not compile for one of ``targets``.
            OSError: The folder cannot be written.

        >>> import tempfile, nbxtensor as nbx
        >>> program = nbx.plan(nbx.trace(nbx.exp, nbx.Spec((2,), "float32"))).load()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     program.save(f"{folder}/exp")
        ...     nbx.load_program(f"{folder}/exp")(nbx.zeros(2, dtype="float32")).numpy()
        array([1., 1.], dtype=float32)
        """
        if self.saver is None:
            raise PlanError(f"{self.name}: a program of a bundle is saved already. Copy the bundle's folder.")
        self.saver(folder, {"program": self}, targets=targets, weights=weights)

    def scrub(self) -> None:
        """Overwrite the whole arena, so that nothing of an earlier run can be mistaken for a result."""
        arena = self.areas["arena"]
        self.device.backend.memory(self.device.index).fill(arena.address, 0xFF, arena.nbytes)

    def checked(self, tensor: Tensor, words: str, value: Any) -> Array | Tensor:
        """Return a value for ``tensor``, called ``words``: packed on the host, or as it is where the device copies it.

        Raises:
            ArgumentError: It is no tensor, and `asarray` does not take it.
            ShapeError: It has another shape.
            DtypeError: It has another dtype. A Python number takes the dtype of its place, where that holds its kind.
        """
        spec, name = tensor.spec, f"{self.name}: {words}"
        if _is_weak(value, spec.dtype):
            value = asarray(value, dtype=spec.dtype)
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
        return host.copy() if self._in_arena(host) else host

    def _in_arena(self, host: Array) -> bool:
        """Return whether an array is a view of the arena: a borrowed output, which filling an input may overwrite."""
        arena = self.areas["arena"]
        return arena.address <= host.__array_interface__["data"][0] < arena.address + arena.nbytes

    def _copies_on_device(self, tensor: Tensor) -> bool:
        """Return whether a tensor is packed in memory of its own (no view of the arena) out of the host's reach."""
        own = isinstance(tensor.storage, Storage) and tensor.storage.owner is None and tensor.is_contiguous()
        return own and tensor.device is self.device and not self._host_reaches

    @property
    def _host_reaches(self) -> bool:
        return hasattr(self.device.backend.memory(self.device.index), "view")

    def _tensor(self, view: View) -> Tensor:
        place = view.place
        storage = Storage(place.address, place.nbytes, None, place.storage, readonly=place.storage.readonly)
        return Tensor(storage, view.spec, view.offset, self.device)

    def _copied(self, tensor: Tensor) -> Tensor:
        if self._host_reaches:
            return from_numpy_array(np.array(tensor.numpy()), tensor.dtype, device=self.device)
        start, end = Ref(0, tensor.spec, tensor.offset).span
        kept = self.device.allocator.allocate(end - start)
        self.device.backend.memory(self.device.index).copy(kept.address, address_of(tensor, 0) + start, end - start)
        return Tensor(kept, tensor.spec, tensor.offset - start // tensor.itemsize, self.device)


class State(Mapping[str, Tensor]):
    """What outlives a run of a program, by name.

    Reading a name gives a view of the state's memory, which later runs change (`Tensor.copy` keeps what it is now);
    setting one copies a value there. Programs that share their state see the same memory.
    """

    def __init__(self, program: Program, tensors: Mapping[str, Tensor]) -> None:
        self._program = program
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        """Return a view of state ``name``; KeyError where there is none."""
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order of the trace."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self._tensors)

    def __setitem__(self, name: str, value: Any) -> None:
        """Copy ``value`` into state ``name``.

        Raises:
            ArgumentError: There is no such state, or the value is no tensor and `asarray` does not take it.
            ShapeError: The value has another shape.
            DtypeError: The value has another dtype.
        """
        if name not in self._tensors:
            raise ArgumentError(f"{self._program.name}: no state {name!r}. It has {', '.join(self) or 'none'}.")
        tensor = self._tensors[name]
        with self._program.turn:
            given = self._program.checked(tensor, f"state {name}", value)
            # What is copied may be a view of the state itself.
            self._program.put(tensor, given if isinstance(given, Tensor) else np.array(given))

    def reset(self) -> None:
        """Set every state to zeros, as when the program was loaded."""
        memory = self._program.device.backend.memory(self._program.device.index)
        with self._program.turn:
            for tensor in self._tensors.values():
                memory.fill(address_of(tensor), 0, tensor.nbytes)

    def save(self) -> dict[str, Array]:
        """Return the bytes of every state, copied to the host."""
        memory = self._program.device.backend.memory(self._program.device.index)
        found = {name: np.empty(tensor.nbytes, np.uint8) for name, tensor in self._tensors.items()}
        with self._program.turn:
            for name, tensor in self._tensors.items():
                memory.copy_out(found[name].data, address_of(tensor))
        return found

    def restore(self, saved: Mapping[str, Array]) -> None:
        """Set every state to what `save` returned."""
        memory = self._program.device.backend.memory(self._program.device.index)
        with self._program.turn:
            for name, tensor in self._tensors.items():
                memory.copy_in(address_of(tensor), saved[name].data)


def _is_weak(value: Any, dtype: str) -> bool:
    """Return whether a value is a Python number that a place of ``dtype`` takes as it takes a scalar in arithmetic."""
    return (type(value) is int and kind(dtype) in ("int", "uint", "float")) or (
        type(value) is float and kind(dtype) == "float"
    )


def address_of(tensor: Tensor, elements: int | None = None) -> int:
    """Return the address of a tensor's first element, or of the element of its storage at ``elements``."""
    storage = tensor.storage
    if not isinstance(storage, Storage):
        raise PlanError("a program's tensors have memory.")
    return storage.address + (tensor.offset if elements is None else elements) * bits(tensor.dtype) // 8


def example(index: int, spec: Spec) -> Tensor:
    """Return values to verify a recording with: small numbers for floats, zeros for all else."""
    if kind(spec.dtype) == "float":
        values = np.random.default_rng(index).uniform(-1, 1, spec.shape)
        return from_numpy_array(convert(values, "float64", spec.dtype), spec.dtype)
    values = np.zeros(spec.shape, numpy_dtype(spec.dtype))
    return from_numpy_array(~values if spec.dtype == "bool" else values, spec.dtype)
