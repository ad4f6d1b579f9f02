"""A device in use: its backend, its target and its allocator."""

from __future__ import annotations

import functools
import threading
from typing import Any

from nbxtensor.backend.contract import Backend
from nbxtensor.backend.registry import backend as find_backend
from nbxtensor.backend.registry import parse_device
from nbxtensor.errors import ArgumentError, UnsupportedError
from nbxtensor.memory.allocator import Allocator
from nbxtensor.op import Target

__all__ = ["Device", "device"]

_opening = threading.Lock()


class Device:
    """One opened device.

    Attributes:
        backend: What drives it.
        index: Its number among the backend's devices.
        target: What kernels are chosen and compiled for, and the facts they are priced by.
        allocator: Its memory.
    """

    __slots__ = ("allocator", "backend", "index", "target")

    target: Target

    def __init__(self, backend: Backend, index: int) -> None:
        self.backend: Backend = backend
        self.index: int = index
        self.allocator: Allocator = Allocator(f"{backend.name}:{index}", backend.memory(index))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle and copy make the device of again: its name, opened where it is read."""
        return device, (self.name,)

    def __getattr__(self, name: str) -> Target:
        """Return the target, which is looked up when it is first asked for: whoever loads a bundle never does."""
        if name != "target":
            raise AttributeError(f"a device has no {name!r}.")
        self.target = self.backend.target(self.index)
        return self.target

    def measure(self, *, anew: bool = False) -> Target:
        """Return the target with facts measured on this machine: bandwidths, rates, launch cost.

        They are measured once (about half a second of full load, on a GPU some seconds) and kept in the cache
        directory; plans made from now on are priced by them.

        Args:
            anew: Whether to measure again what is kept.

        Raises:
            UnsupportedError: The backend cannot measure its devices.
        """
        measured = getattr(self.backend, "measured_facts", None)
        if measured is None:
            raise UnsupportedError(f"measure: {self} cannot be measured. Its facts are those of its device file.")
        found = measured(self.index, create=True, anew=anew)
        self.target = self.backend.target(self.index)
        keep = getattr(self.backend, "keep_facts", None)
        if keep is not None and not any(name.startswith("rates.matrix.") for name in found):
            from nbxtensor.run.measuring import kernel_rates

            keep(self.index, kernel_rates(self))
            self.target = self.backend.target(self.index)
        return self.target

    @property
    def name(self) -> str:
        """The device's name, as `device` takes it: "cpu", "cuda:1"."""
        return self.backend.name if self.backend.count() == 1 else f"{self.backend.name}:{self.index}"

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    def __str__(self) -> str:
        return self.name


def device(name: str | Device = "cpu") -> Device:
    """Return the device called ``name`` ("cpu", "cuda", "cuda:1"), opened once per process.

    Raises:
        MissingFactError: No backend of that name is installed, or it has no such device.
        ArgumentError: The name does not read as kind and index, or is no name.
    """
    if isinstance(name, Device):
        return name
    if not isinstance(name, str):
        raise ArgumentError(f"device: a name or a Device. Got {type(name).__name__}. 'cpu' and 'cuda:1' are names.")
    with _opening:
        return _open(*parse_device(name))


@functools.cache
def _open(kind: str, index: int) -> Device:
    return Device(find_backend(kind), index)
