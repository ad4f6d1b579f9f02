"""The GPU backend in force: the one that is installed and has a device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from nbxtensor.backend import registry
from nbxtensor.backend.contract import Backend, DeviceMemory
from nbxtensor.errors import ArgumentError, MissingFactError

__all__ = ["GPU_BACKENDS", "backend_table", "device_memory", "gpu_backend", "gpu_runtime", "set_device"]

GPU_BACKENDS = ("cuda", "hip", "metal")
"""Names of GPU backends; where several are installed and have a device, the first is in force."""


class OnDevice(Protocol):
    """What has a device: a tensor."""

    @property
    def device(self) -> object:
        """The device; as a string it reads "cuda" or "cuda:1"."""
        ...


def gpu_backend() -> str:
    """Return the name of the GPU backend in force: "cuda", "hip" or "metal".

    Raises:
        MissingFactError: None is installed, or none of those has a device; names what is installed.
    """
    return gpu_runtime().name


def gpu_runtime() -> Backend:
    """Return the GPU backend in force.

    Raises:
        MissingFactError: None is installed, or none of those has a device; names what is installed.
    """
    installed = registry.installed()
    without: list[str] = []
    for name in GPU_BACKENDS:
        if name in installed:
            found = registry.backend(name)
            if found.count() > 0:
                return found
            without.append(name)
    raise MissingFactError(
        "a GPU backend",
        f"Installed: {', '.join(installed) or 'none'}"
        + (f"; without a device here: {', '.join(without)}" if without else "")
        + f". A package offers one of {', '.join(GPU_BACKENDS)} through an entry point of the group {registry.GROUP}.",
    )


def backend_table() -> Mapping[str, Callable[..., Any]]:
    """Return what the GPU backend in force can be asked, by name, as `contract.Backend` declares it.

    Raises:
        MissingFactError: There is no GPU backend in force.
    """
    runtime = gpu_runtime()
    operations = (name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if not name.startswith("_"))
    return MappingProxyType({name: getattr(runtime, name) for name in operations if hasattr(runtime, name)})


def device_memory(index: int = 0) -> DeviceMemory:
    """Return the memory of one device of the GPU backend in force.

    Raises:
        MissingFactError: There is no GPU backend in force.
        ArgumentError: It has no device of that number.
    """
    runtime = gpu_runtime()
    if not 0 <= index < runtime.count():
        raise ArgumentError(
            f"device: the number is one of the backend's. Got {index}. {runtime.name} has 0 to {runtime.count() - 1}."
        )
    return runtime.memory(index)


def set_device(tensor: OnDevice) -> None:
    """Open the driver on the device of ``tensor``, before a launch from outside the library.

    Launches of the library name their device themselves: no current device is kept.

    Raises:
        MissingFactError: There is no GPU backend in force.
        ArgumentError: The tensor is on no device of it.
    """
    runtime = gpu_runtime()
    kind, index = registry.parse_device(str(tensor.device))
    if kind != runtime.name:
        raise ArgumentError(f"set_device: the tensor is on {tensor.device}. A tensor on {runtime.name} is accepted.")
    device_memory(index)
