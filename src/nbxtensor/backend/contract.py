"""What a backend provides: protocols and the plain data they trade in, no implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from nbxtensor.op import Target

__all__ = [
    "Backend",
    "Bound",
    "Compiled",
    "DeviceMemory",
    "KernelRequest",
    "LoadedKernel",
    "MemoryInfo",
    "Replay",
    "adjacent",
]


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of a device's memory."""

    free: int
    total: int


class DeviceMemory(Protocol):
    """Raw memory of one device. Addresses are integers; sizes are bytes."""

    def allocate(self, nbytes: int, alignment: int = 64) -> int:
        """Return the address of a new block; raises OutOfMemoryError when there is none."""
        ...

    def free(self, address: int) -> None:
        """Give the block at ``address`` back."""
        ...

    def copy_in(self, address: int, source: memoryview) -> None:
        """Copy contiguous host bytes to the device."""
        ...

    def copy_out(self, target: memoryview, address: int) -> None:
        """Copy device bytes into contiguous, writable host memory."""
        ...

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy within the device; the ranges do not overlap."""
        ...

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Set every byte to ``value``."""
        ...

    def info(self) -> MemoryInfo:
        """Return what the device has and what is free."""
        ...

    def view(self, address: int, nbytes: int) -> memoryview:
        """(optional) Return the block as host memory, writable; absent where the host cannot reach it."""
        ...


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """A kernel to compile: the whole key of compilation.

    Attributes:
        module: Module that holds the Triton function; "" when ``text`` defines it.
        name: Name of the Triton function.
        text: Generated source of the function, or "".
        signature: Triton type of every parameter that varies, by name: "*fp32", "i32", "i64", "fp32", "u1"; a
            trailing "@16" marks a pointer known to be 16-byte aligned, or an integer known to be a multiple of 16.
        constants: Value of every parameter fixed at compilation, as `op.Launch.constants` spells them.
        functions: Module that "fn:" constants are looked up in.
        warps: Warps per program, where the device has them.
        stages: Depth of software pipelining, where the device has it.
        grid: Programs along each axis, where the kernel runs on no larger grid: masks that follow from it can be
            left out. Empty where that is not known.
    """

    module: str
    name: str
    text: str
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    functions: str = ""
    warps: int = 4
    stages: int = 2
    grid: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled kernel: bytes and facts that can be kept on disk.

    Attributes:
        name: Symbol of the kernel in ``binary``.
        binary: Object the backend loads.
        parameters: (name, Triton type) of each run-time argument, in order.
        metadata: Facts about the code (scratch bytes, registers, spills, shared memory), by name.
    """

    name: str
    binary: bytes
    parameters: tuple[tuple[str, str], ...]
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


class LoadedKernel(Protocol):
    """A kernel ready to launch; it keeps its code loaded while it lives."""

    compiled: Compiled


@dataclass(frozen=True, slots=True)
class Bound:
    """A launch with everything known: kernel, grid and the value of every argument (addresses as ints).

    Attributes:
        kernel: The loaded kernel.
        grid: Number of programs along three axes.
        arguments: Values in the order of ``kernel.compiled.parameters``.
        nanoseconds: Predicted time on one worker, from the declared cost; 0 when not known.
        kept: What its backend keeps with it, so that the next `Backend.launch` of it costs less.
    """

    kernel: LoadedKernel
    grid: tuple[int, int, int]
    arguments: tuple[int | float, ...]
    nanoseconds: float = 0.0
    kept: Any = field(default=None, init=False, compare=False, repr=False)

    def at(self, places: Sequence[int], values: Sequence[int]) -> Bound:
        """Return the launch with other values for the arguments at ``places``."""
        arguments = list(self.arguments)
        for place, value in zip(places, values, strict=True):
            arguments[place] = value
        return replace(self, arguments=tuple(arguments))


class Replay(Protocol):
    """A recorded sequence of launches."""

    def run(self) -> None:
        """Run all launches once, in order, and wait until they are done."""
        ...

    def rebind(self, number: int, arguments: Sequence[int | float]) -> None:
        """Give launch ``number`` other arguments, for the runs that follow; nothing is recorded anew.

        What the launch waits for stays: whoever hands in other addresses answers for the order.
        """
        ...

    def start(self) -> None:
        """Start all launches once, after everything started before; the host, where it runs them, is done on return."""
        ...

    def profile(self) -> tuple[float, ...]:
        """(optional) Run all launches once and return the nanoseconds of each; absent where they cannot be told."""
        ...


class Backend(Protocol):
    """One kind of device.

    Found through the entry-point group ``nbxtensor.backends``: the module named there has a function ``backend()``
    that returns the object.

    Attributes:
        name: What devices are called by.

    Where other libraries share the devices' memory, a backend also has ``dlpack_device``, the number that DLPack gives
    to such devices. Where work is ordered by streams, it has ``stream(index)``, the handle of its own;
    ``wait_for(stream, index)`` and ``let_wait(stream, index)``, which order its own after another library's and the
    other way round; and ``copy_between(target_index, target, source_index, source, nbytes)``. Where launches need more
    compiled code than the kernels, ``runtime(arch)`` returns it and ``use_runtime(compiled)`` takes it in a process
    that cannot compile; where code of one target runs on others, ``runs(target)`` says so.
    """

    name: str

    def count(self) -> int:
        """Return the number of devices."""
        ...

    def target(self, index: int = 0) -> Target:
        """Return what kernels are chosen and compiled for on device ``index``."""
        ...

    def memory(self, index: int = 0) -> DeviceMemory:
        """Return the memory of device ``index``."""
        ...

    def compile(self, request: KernelRequest, target: Target) -> Compiled:
        """Compile a kernel, or take it from the cache on disk; raises CompileError."""
        ...

    def load(self, compiled: Compiled, index: int = 0) -> LoadedKernel:
        """Make a compiled kernel ready to launch on device ``index``."""
        ...

    def launch(self, bound: Bound, index: int = 0) -> None:
        """Run one launch; on return its results may be read through `DeviceMemory.copy_out`."""
        ...

    def starter(self, bound: Bound, varying: Sequence[int], index: int = 0) -> Callable[[Sequence[int]], None]:
        """(optional) Return what starts a launch with other addresses, any number of times and from any thread.

        It takes the values of the arguments at the places ``varying``, which are pointers; everything else is checked
        and laid out now. It fails as `launch` does.
        """
        ...

    def record(
        self, launches: Sequence[Bound], index: int = 0, dependencies: Sequence[Sequence[int]] | None = None
    ) -> Replay:
        """Return the launches as one object that replays them without allocating.

        ``dependencies`` has, for each launch, the earlier ones that it has to wait for: others may run beside it.
        None: each waits for the one before it. A backend may run them in the order given whatever it says.
        """
        ...

    def synchronize(self, index: int = 0) -> None:
        """Wait until everything launched on device ``index`` is done."""
        ...


def adjacent(places: Sequence[int]) -> slice | None:
    """Return the slice that ``places`` are, in order; None where they are none.

    >>> adjacent([2, 3, 4]), adjacent([3, 2])
    (slice(2, 5, None), None)
    """
    first = places[0] if places else 0
    return slice(first, first + len(places)) if list(places) == list(range(first, first + len(places))) else None
