"""Devices that are described and not there: launches are recorded, never run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nbxtensor.backend.contract import Bound, Compiled, KernelRequest
from nbxtensor.backend.launch_order import predecessors, rebound
from nbxtensor.backend.null.memory import NullMemory
from nbxtensor.errors import ArgumentError, MissingFactError
from nbxtensor.op import Target

__all__ = ["NullBackend", "NullKernel", "NullReplay"]


@dataclass(frozen=True, slots=True)
class NullKernel:
    """A kernel that is named and not there.

    Attributes:
        compiled: Its name and parameters; the code is empty.
    """

    compiled: Compiled


@dataclass(frozen=True, slots=True)
class _Device:
    target: Target
    memory: NullMemory
    launches: list[Bound] = field(default_factory=list[Bound])


@dataclass(slots=True)
class NullReplay:
    """A recorded sequence of launches.

    Attributes:
        launches: The launches, in order.
    """

    launches: tuple[Bound, ...]
    _log: list[Bound]

    def run(self) -> None:
        """Record all launches once more."""
        self._log.extend(self.launches)

    def start(self) -> None:
        """Record all launches once more, as `run` does."""
        self.run()

    def rebind(self, number: int, arguments: Sequence[int | float]) -> None:
        """Give launch ``number`` other arguments, for the runs that follow.

        Raises:
            ArgumentError: There is no such launch, or not one value per parameter.
        """
        launches = rebound(self.launches, number, arguments)
        _check(launches[number])
        self.launches = launches


class NullBackend:
    """Stands in for devices that are only described: plans, dry runs and captures of any device, anywhere.

    It has no device until `add` declares one. Memory is accounted and checked but holds nothing, a compiled kernel is
    its name and parameters, and a launch is recorded and not executed.

    Attributes:
        name: "null".

    >>> null = NullBackend()
    >>> index = null.add(Target("cuda", "sm_90", frozenset({"bfloat16"})), nbytes=80 << 30)
    >>> null.target(index).arch
    'sm_90'
    """

    name = "null"

    def __init__(self) -> None:
        self._devices: list[_Device] = []

    def add(self, target: Target, nbytes: int | None = None) -> int:
        """Declare a device and return its index.

        Args:
            target: What kernels are chosen for; of any backend (`described_target` makes one from a device file).
            nbytes: Bytes of memory it has; left out, the target's fact "memory.bytes".

        Raises:
            ArgumentError: ``nbytes`` is negative.
            MissingFactError: It is left out, and the target does not state it.
        """
        if nbytes is None:
            nbytes = int(target.fact("memory.bytes"))
        if nbytes < 0:
            raise ArgumentError(f"null: a device has zero or more bytes. Got {nbytes}.")
        index = len(self._devices)
        self._devices.append(_Device(target, NullMemory(f"null:{index} ({target.backend} {target.arch})", nbytes)))
        return index

    def count(self) -> int:
        """Return the number of devices declared."""
        return len(self._devices)

    def target(self, index: int = 0) -> Target:
        """Return the target that device ``index`` was declared with.

        Raises:
            MissingFactError: No such device was declared.
        """
        return self._device(index).target

    def memory(self, index: int = 0) -> NullMemory:
        """Return the memory of device ``index``.

        Raises:
            MissingFactError: No such device was declared.
        """
        return self._device(index).memory

    def compile(self, request: KernelRequest, target: Target) -> Compiled:
        """Return the kernel's name and parameters, with no code."""
        return Compiled(request.name, b"", tuple(request.signature.items()), {"arch": target.arch})

    def load(self, compiled: Compiled, index: int = 0) -> NullKernel:
        """Return the kernel as one of device ``index``.

        Raises:
            MissingFactError: No such device was declared.
        """
        self._device(index)
        return NullKernel(compiled)

    def launch(self, bound: Bound, index: int = 0) -> None:
        """Record one launch.

        Raises:
            MissingFactError: No such device was declared.
            ArgumentError: A kernel of another backend, a negative grid, or not one value per parameter.
        """
        _check(bound)
        self._device(index).launches.append(bound)

    def launches(self, index: int = 0) -> tuple[Bound, ...]:
        """Return every launch recorded on device ``index``, those of replays included, in order.

        Raises:
            MissingFactError: No such device was declared.
        """
        return tuple(self._device(index).launches)

    def record(
        self, launches: Sequence[Bound], index: int = 0, dependencies: Sequence[Sequence[int]] | None = None
    ) -> NullReplay:
        """Return the launches as one object that records them again whenever it is run.

        Raises:
            MissingFactError: No such device was declared.
            ArgumentError: As `launch`, or ``dependencies`` that name no earlier launch.
        """
        predecessors(len(launches), dependencies)
        for bound in launches:
            _check(bound)
        return NullReplay(tuple(launches), self._device(index).launches)

    def synchronize(self, index: int = 0) -> None:
        """Return at once.

        Raises:
            MissingFactError: No such device was declared.
        """
        self._device(index)

    def _device(self, index: int) -> _Device:
        if not 0 <= index < len(self._devices):
            raise MissingFactError(
                f"null device {index}", f"{len(self._devices)} are declared. NullBackend.add declares one."
            )
        return self._devices[index]


def _check(bound: Bound) -> None:
    name, parameters = bound.kernel.compiled.name, bound.kernel.compiled.parameters
    if not isinstance(bound.kernel, NullKernel):
        raise ArgumentError(
            f"{name}: a launch on a null device is of a kernel it loaded. Got {type(bound.kernel).__name__}."
        )
    if min(bound.grid) < 0:
        raise ArgumentError(f"{name}: a grid counts programs. Got {bound.grid}. Zero or more along each axis.")
    if len(bound.arguments) != len(parameters):
        wanted = ", ".join(f"{parameter}: {kind}" for parameter, kind in parameters)
        raise ArgumentError(f"{name}: one value per parameter. Got {len(bound.arguments)}. It takes ({wanted}).")
