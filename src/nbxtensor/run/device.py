"""A device in use: its backend, its target and its allocator."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

from nbxtensor.backend.contract import Backend
from nbxtensor.backend.registry import backend as find_backend
from nbxtensor.backend.registry import parse_device
from nbxtensor.memory.allocator import Allocator
from nbxtensor.op import Target

__all__ = ["Device", "device"]

_opening = threading.Lock()


@dataclass(frozen=True, eq=False, slots=True)
class Device:
    """One opened device.

    Attributes:
        backend: What drives it.
        index: Its number among the backend's devices.
        target: What kernels are chosen and compiled for.
        allocator: Its memory.
    """

    backend: Backend
    index: int
    target: Target
    allocator: Allocator

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
        ArgumentError: The name does not read as kind and index.
    """
    if isinstance(name, Device):
        return name
    with _opening:
        return _open(*parse_device(name))


@functools.cache
def _open(kind: str, index: int) -> Device:
    found = find_backend(kind)
    return Device(found, index, found.target(index), Allocator(f"{kind}:{index}", found.memory(index)))
