"""NVIDIA GPUs as devices: kernels compiled ahead of time, launched by the driver, recorded as CUDA graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast
from weakref import WeakValueDictionary

from nbxtensor.backend.abi import Driver
from nbxtensor.backend.abi_memory import AbiMemory
from nbxtensor.backend.contract import Backend, Bound, Compiled, KernelRequest
from nbxtensor.backend.cuda.card import Card, forked
from nbxtensor.backend.cuda.compiling import compile_kernel, compile_options
from nbxtensor.backend.cuda.facts import card_target, driver_text
from nbxtensor.backend.cuda.graph import CudaReplay
from nbxtensor.backend.cuda.libcuda import CUDA, DEVICE_OF_ADDRESS
from nbxtensor.backend.cuda.loaded import CudaKernel, Fixed, cuda_kernel
from nbxtensor.backend.forks import in_child
from nbxtensor.backend.kept_facts import keep_facts, kept_facts
from nbxtensor.backend.kernel_cache import KernelCache
from nbxtensor.backend.kernel_source import kernel_key
from nbxtensor.errors import ArgumentError, DriverError, MissingFactError
from nbxtensor.op import Target

__all__ = ["CudaBackend"]

_GENERATOR = ("nbxtensor.backend.cuda.compiling",)


class CudaBackend:
    """The NVIDIA GPUs of this machine, through the driver's library alone; it is loaded at the first question.

    Launches and copies on one device run in the order they were started, whatever threads start them. A launch may
    still run when `launch` returns; whatever reads its results through the device's memory waits for it.

    Attributes:
        name: "cuda".
        dlpack_device: What DLPack calls such devices.
    """

    name = "cuda"
    dlpack_device = 2  # kDLCUDA of dlpack.h

    def __init__(self, driver: Driver | None = None) -> None:
        self._driver = driver or Driver(CUDA)
        self._cache = KernelCache()
        self._compiled: dict[tuple[str, str], Compiled] = {}
        self._loaded: WeakValueDictionary[tuple[object, ...], CudaKernel] = WeakValueDictionary()
        self._found: tuple[int, str] | None = None  # devices, and why there are none
        self._targets: dict[int, Target] = {}
        self._cards: dict[int, Card] = {}
        self._forked = False
        self._opening, self._compiling = threading.Lock(), threading.Lock()
        in_child(self._forget)

    def _forget(self) -> None:
        # The driver does not work in the child of a process that has used it; locks may be held by threads that are
        # gone.
        self._forked = bool(self._found and self._found[0])
        for card in self._cards.values():
            card.forked = True
        self._opening, self._compiling = threading.Lock(), threading.Lock()

    def count(self) -> int:
        """Return the number of devices; 0 where there is no driver, or none of its devices can be used."""
        return self._devices()[0]

    def target(self, index: int = 0) -> Target:
        """Return the compute capability of a device, the dtypes it computes, and what is known of it.

        Raises:
            MissingFactError: There is no such device; says why where there is none at all.
            DriverError: The driver fails.
        """
        self._check(index)
        found = self._targets.get(index)
        if found is None:
            found = card_target(self._driver, self._driver.integer("device", index))
            facts = {**found.facts, **kept_facts(str(found.fact("name")), {"arch": found.arch})}
            found = self._targets[index] = replace(found, facts=MappingProxyType(facts))
        return found

    def measured_facts(self, index: int = 0, *, create: bool = False, anew: bool = False) -> Mapping[str, Any]:
        """Return the numbers measured on the kind of card that a device is; empty where that has not happened.

        They are measured once and kept in the cache directory; `target` has them from then on.

        Args:
            index: The device.
            create: Whether to measure what was not measured before, which keeps the device busy for some seconds.
            anew: Whether to measure again what was.

        Raises:
            MissingFactError: There is no such device.
            DriverError: The driver fails.
        """
        target = self.target(index)
        name, about = str(target.fact("name")), {"arch": target.arch}
        facts = kept_facts(name, about)
        if anew or (create and not facts):
            from nbxtensor.backend.cuda.measure import measure

            facts = measure(cast("Backend", self), index)
            keep_facts(name, about, facts)
            self._targets.pop(index, None)
        return facts

    def keep_facts(self, index: int, facts: Mapping[str, Any]) -> None:
        """Keep more numbers measured on a device, beside those that `measured_facts` has.

        Raises:
            MissingFactError: There is no such device.
            OSError: The cache directory cannot be written.
        """
        target = self.target(index)
        name, about = str(target.fact("name")), {"arch": target.arch}
        keep_facts(name, about, {**kept_facts(name, about), **facts})
        self._targets.pop(index, None)

    def driver_version(self) -> str:
        """Return the release of the driver, as far as it is told.

        Raises:
            MissingFactError: There is no driver.
            DriverError: The driver fails.
        """
        self._check(0)
        return driver_text(self._driver)

    def memory(self, index: int = 0) -> AbiMemory:
        """Return the memory of a device.

        Raises:
            MissingFactError: There is no such device.
            DriverError: The driver fails.
        """
        return self._card(index).memory

    def compile(self, request: KernelRequest, target: Target) -> Compiled:
        """Compile a kernel, or take it from memory or from the cache on disk, which needs no Triton loaded.

        No device is needed.

        Raises:
            ArgumentError: The target is one of another backend, or the request does not fit the kernel.
            CompileError: The kernel cannot be found or compiled.
            UnsupportedError: Its code needs memory that no plan knows of.
        """
        if target.backend != self.name:
            raise ArgumentError(f"{request.name}: compiled for a target of CUDA. Got one of {target.backend!r}.")
        place = (repr(request), target.arch)
        found = self._compiled.get(place)
        if found is None:
            key = kernel_key(request, Target(self.name, target.arch), _GENERATOR, compile_options(request))
            found = self._cache.read(key)
            if found is None:
                with self._compiling:
                    found = compile_kernel(request, target)
                self._cache.write(key, found)
            self._compiled[place] = found
        return found

    def load(self, compiled: Compiled, index: int = 0) -> CudaKernel:
        """Make a compiled kernel ready to launch; as long as it is held, loading it again returns the same.

        Raises:
            MissingFactError: There is no such device.
            UnsupportedError: It was compiled for another architecture, or takes more than the device has.
            CompileError: Its code cannot be loaded.
            DriverError: The driver fails.
        """
        card = self._card(index)
        place = (index, compiled.name, compiled.binary, compiled.parameters)
        kernel = self._loaded.get(place)
        if kernel is None:
            kernel = self._loaded[place] = CudaKernel(compiled, card)
        return kernel

    def launch(self, bound: Bound, index: int = 0) -> None:
        """Start one launch.

        Raises:
            MissingFactError: There is no such device.
            ArgumentError: A kernel that was not loaded on the device, a grid that it does not allow, or values that
                the kernel does not take.
            DriverError: The driver fails, or work started before has failed.
        """
        kept = bound.kept
        if type(kept) is not Fixed or kept.card is not self._cards.get(index) or kept.card.forked:
            kernel = cuda_kernel(bound, self._card(index))
            if 0 in bound.grid:
                return
            kept = kernel.fixed(bound.grid, bound.arguments)
            object.__setattr__(bound, "kept", kept)
        status = kept.call()
        if status:
            kept.again(status)

    def starter(self, bound: Bound, varying: Sequence[int], index: int = 0) -> Callable[[Sequence[int]], None]:
        """Return what starts a launch with other addresses at the places ``varying``.

        Raises:
            MissingFactError: There is no such device.
            ArgumentError: As `launch`.
        """
        kernel = cuda_kernel(bound, self._card(index))
        return _nothing if 0 in bound.grid else kernel.starter(bound.grid, bound.arguments, varying)

    def record(
        self, launches: Sequence[Bound], index: int = 0, dependencies: Sequence[Sequence[int]] | None = None
    ) -> CudaReplay:
        """Return the launches as one object that replays them without allocating, independent ones side by side.

        Raises:
            MissingFactError: There is no such device.
            ArgumentError: As `launch`, or ``dependencies`` that name no earlier launch.
            DriverError: The driver fails.
        """
        return CudaReplay(launches, self._card(index), dependencies)

    def synchronize(self, index: int = 0) -> None:
        """Wait until everything started on a device is done.

        Raises:
            MissingFactError: There is no such device.
            DriverError: The driver fails, or work on the device has failed.
        """
        self._card(index).wait()

    def stream(self, index: int = 0) -> int:
        """Return the handle of the stream that everything on a device is ordered by, for other libraries to wait for.

        Raises:
            MissingFactError: There is no such device.
            DriverError: The driver fails.
        """
        return self._card(index).stream

    def busy(self, index: int = 0) -> bool:
        """Return whether anything started on a device is not done.

        Raises:
            MissingFactError: There is no such device.
            DriverError: Work on the device has failed.
        """
        return self._card(index).busy()

    def wait_for(self, stream: int, index: int = 0) -> None:
        """Let what is started on a device from now on wait for all that another library's stream of it has.

        Args:
            stream: Its handle; 1 is the default stream, 2 that of the calling thread.
            index: The device.

        Raises:
            MissingFactError: There is no such device.
            DriverError: The driver fails.
        """
        self._card(index).wait_for(stream)

    def let_wait(self, stream: int, index: int = 0) -> None:
        """Let what is started on another library's stream from now on wait for all that has been started on a device.

        Raises:
            MissingFactError: There is no such device.
            DriverError: The driver fails.
        """
        self._card(index).let_wait(stream)

    def device_of(self, address: int) -> int:
        """Return the index of the device that has an address.

        Raises:
            MissingFactError: There is no device.
            DriverError: No device has it, or the driver fails.
        """
        self._card(0).enter()
        return self._driver.integer("address_attribute", DEVICE_OF_ADDRESS, address)

    def copy_between(self, target_index: int, target: int, source_index: int, source: int, nbytes: int) -> None:
        """Copy from one device to another, without the host.

        The copy waits for what was started on both before, and what is started on either from now on waits for it.

        Raises:
            MissingFactError: There is no such device.
            ArgumentError: A range leaves its block.
            DriverError: The driver fails.
        """
        self._card(target_index).copy_from(self._card(source_index), target, source, nbytes)

    def _card(self, index: int) -> Card:
        card = self._cards.get(index)
        if card is None or self._forked:
            self._check(index)
            target = self.target(index)
            with self._opening:
                card = self._cards.get(index)
                if card is None:
                    card = self._cards[index] = Card(self._driver, index, target)
        return card

    def _check(self, index: int) -> None:
        if self._forked:
            raise forked()
        count, why = self._devices()
        if not 0 <= index < count:
            raise MissingFactError(f"device cuda:{index}", why or f"There are cuda:0 to cuda:{count - 1}.")

    def _devices(self) -> tuple[int, str]:
        if self._found is None:
            try:
                self._driver.call("initialise", 0)
                count = self._driver.integer("device_count")
                self._found = (count, "" if count else "The NVIDIA driver reports no device here.")
            except (MissingFactError, DriverError) as error:
                self._found = (0, f"There is none here: {error}")
        return self._found


def _nothing(_: Sequence[int]) -> None:
    """Stand for a launch of no programs."""
