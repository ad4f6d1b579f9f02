"""The CPU as a device: kernels compiled to machine code, run by a team of threads on host memory."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from nbxtensor.backend import device_files
from nbxtensor.backend.contract import Bound, Compiled, KernelRequest, adjacent
from nbxtensor.backend.cpu import levels, pool
from nbxtensor.backend.cpu.facts_file import stored_facts, write_facts
from nbxtensor.backend.cpu.host import HostMemory
from nbxtensor.backend.cpu.host_kernel import HostKernel
from nbxtensor.backend.cpu.host_replay import HostReplay
from nbxtensor.backend.cpu.launch_table import host_kernel, launch_table, programs, workers_for
from nbxtensor.backend.cpu.native import Native
from nbxtensor.backend.cpu.runtime import has_futex, runtime_text
from nbxtensor.backend.cpu.team import Scratch, Team
from nbxtensor.backend.cpu.tile_unit import usable
from nbxtensor.backend.forks import in_child
from nbxtensor.backend.kernel_cache import KernelCache
from nbxtensor.backend.launch_order import predecessors
from nbxtensor.errors import ArgumentError, MissingFactError, UnsupportedError
from nbxtensor.op import Target
from nbxtensor.settings import settings

__all__ = ["GENERATOR", "CpuBackend"]

GENERATOR = ("nbxtensor.backend.cpu.frontend", "nbxtensor.backend.cpu.codegen")
"""Modules that turn a kernel into code: their source is part of what names a kernel on disk."""


class CpuBackend:
    """The processor this process runs on, as one device.

    A launch is done when it returns. It runs on the calling thread alone, or, where that pays, its programs are cut
    into one contiguous range per thread of the pool (`pool.threads`); results do not depend on the cut. Two threads may
    launch at once: what one thread runs alone goes on beside it, split launches take turns.

    Attributes:
        name: "cpu".
        dlpack_device: What DLPack calls such devices.
    """

    name = "cpu"
    dlpack_device = 1  # kDLCPU of dlpack.h

    def __init__(self) -> None:
        self._memory = HostMemory()
        self._cache = KernelCache()
        self._compiled: dict[tuple[str, str, frozenset[str]], Compiled] = {}
        self._loaded: WeakValueDictionary[tuple[object, ...], HostKernel] = WeakValueDictionary()
        self._scratch = Scratch()
        self._forget()
        in_child(self._forget)
        self._runtime: tuple[Native, Team] | None = None
        self._cores = pool.measured_threads()  # asking takes longer than a launch

    def _forget(self) -> None:
        # After a fork a thread that is gone may hold the old ones. One thread compiles at a time: Triton does not say
        # that more may.
        self._starting, self._compiling = threading.Lock(), threading.Lock()

    def count(self) -> int:
        """Return 1."""
        return 1

    def target(self, index: int = 0) -> Target:
        """Return the level and the features of this processor; its facts are the level's and what was measured on it.

        Raises:
            MissingFactError: ``index`` is not 0, or the processor has no level that kernels are compiled for.
        """
        self._only(index)
        level = levels.detect()
        facts = {**device_files.facts(self.name, level.replace("-", "_")), **self.measured_facts()}
        return Target(self.name, level, usable(levels.features()), MappingProxyType(facts))

    def measured_facts(self, index: int = 0, *, create: bool = False, anew: bool = False) -> Mapping[str, Any]:
        """Return the numbers measured on this kind of processor with the pool's number of threads.

        They are measured once and kept in the cache directory; empty where that has not happened.

        Args:
            index: 0.
            create: Whether to measure what was not measured before, which keeps the processor busy for half a second.
            anew: Whether to measure again what was.

        Raises:
            MissingFactError: ``index`` is not 0.
        """
        self._only(index)
        workers = self._threads()
        facts = stored_facts(workers)
        if anew or (create and not facts):
            from nbxtensor.backend.cpu.codegen import object_code
            from nbxtensor.backend.cpu.measure import measure

            facts = measure(workers, object_code, self.load, self.record)
            write_facts(facts, workers)
        return facts

    def keep_facts(self, index: int, facts: Mapping[str, Any]) -> None:
        """Keep more numbers measured on this kind of processor, beside those that `measured_facts` has.

        Raises:
            MissingFactError: ``index`` is not 0.
            OSError: The cache directory cannot be written.
        """
        self._only(index)
        workers = self._threads()
        write_facts({**stored_facts(workers), **facts}, workers)

    def memory(self, index: int = 0) -> HostMemory:
        """Return the host's memory.

        Raises:
            MissingFactError: ``index`` is not 0.
        """
        self._only(index)
        return self._memory

    def compile(self, request: KernelRequest, target: Target) -> Compiled:
        """Compile a kernel, or take it from memory or from the cache on disk, which needs no Triton loaded.

        The target need not be this machine's.

        Raises:
            ArgumentError: The target is one of another backend, or the request does not fit the kernel.
            CompileError: The kernel cannot be found or compiled.
        """
        if target.backend != self.name:
            raise ArgumentError(f"{request.name}: compiled for a target of the CPU. Got one of {target.backend!r}.")
        request = _unmarked(request)
        place = (repr(request), target.arch, target.features)
        found = self._compiled.get(place)
        if found is None:
            from nbxtensor.backend.kernel_source import kernel_key  # a saved program never asks for a kernel

            key = kernel_key(request, target, GENERATOR)
            found = self._cache.read(key)
            if found is None:
                with self._compiling:
                    found = _compile(request, target)
                self._cache.write(key, found)
            self._compiled[place] = found
        return found

    def load(self, compiled: Compiled, index: int = 0) -> HostKernel:
        """Make a compiled kernel ready to launch; as long as it is held, loading it again returns the same.

        Raises:
            MissingFactError: ``index`` is not 0.
            UnsupportedError: It was compiled for instructions that this processor lacks.
            CompileError: Its code is no object of this architecture.
        """
        self._only(index)
        arch, wanted = str(compiled.metadata["arch"]), frozenset[str](compiled.metadata["features"])
        place = (compiled.name, compiled.binary, compiled.parameters)
        kernel = self._loaded.get(place)
        if kernel is None:
            _check_runs(compiled.name, arch, wanted)
            kernel = self._loaded[place] = HostKernel(compiled)
        return kernel

    def launch(self, bound: Bound, index: int = 0) -> None:
        """Run one launch and wait until it is done.

        Raises:
            MissingFactError: ``index`` is not 0.
            ArgumentError: A kernel of another backend, a negative grid, or values the kernel does not take.
        """
        kept = bound.kept
        if kept is None or kept[0] is not self or index != 0:
            start = self.starter(bound, (), index)
            object.__setattr__(bound, "kept", (self, start))
            start(())
        else:
            kept[1](())

    def starter(self, bound: Bound, varying: Sequence[int], index: int = 0) -> Callable[[Sequence[int]], None]:
        """Return what runs a launch with other addresses at the places ``varying``, and waits until it is done.

        Raises:
            MissingFactError: ``index`` is not 0.
            ArgumentError: As `launch`.
        """
        self._only(index)
        kernel, scratch, current, cores = host_kernel(bound), self._scratch, settings, self._cores
        programs(bound)
        words, places, pack = kernel.words(bound.grid, bound.arguments, varying)
        run = adjacent(places)
        native, team = self._runtime or self._start()
        scratch_nbytes, nothing = kernel.scratch_nbytes, ctypes.c_void_p()
        whole, cut, other = pack(*words), (1, 1), replace(bound)  # not itself, which may keep what is returned

        def start(addresses: Sequence[int]) -> None:
            nonlocal cut
            table = whole
            if addresses:
                values = words.copy()
                if run is None:
                    for place, address in zip(places, addresses, strict=True):
                        values[place] = address
                else:
                    values[run] = addresses
                table = pack(*values)
            workers = current().threads or cores
            if workers != cut[0]:
                cut = (workers, workers_for(bound, workers))
            if cut[1] == 1:
                native.inline(table, scratch.pointer(scratch_nbytes) if scratch_nbytes else nothing)
            else:
                team.run(launch_table((other.at(varying, addresses),), workers)[0], workers, scratch_nbytes)

        return start

    def record(
        self, launches: Sequence[Bound], index: int = 0, dependencies: Sequence[Sequence[int]] | None = None
    ) -> HostReplay:
        """Return the launches as one object that replays them without allocating, in the order given.

        Raises:
            MissingFactError: ``index`` is not 0.
            ArgumentError: As `launch`, or ``dependencies`` that name no earlier launch.
        """
        self._only(index)
        predecessors(len(launches), dependencies)
        native, team = self._runtime or self._start()
        return HostReplay(launches, native, team, self._scratch, self._threads)

    def synchronize(self, index: int = 0) -> None:
        """Return at once: a launch is done when it returns.

        Raises:
            MissingFactError: ``index`` is not 0.
        """
        self._only(index)

    def runs(self, target: Target) -> bool:
        """Return whether this processor has the instructions of a target."""
        return not _missing(target.arch, target.features)

    def runtime(self, arch: str = "") -> Compiled:
        """Return the compiled loops that run launches: a bundle carries them, for a process that cannot compile.

        Args:
            arch: The level they are for; left out, this processor's.
        """
        from nbxtensor.backend.kernel_source import generator_digest

        text = runtime_text(futex=has_futex())
        arch = arch or levels.detect()
        key = hashlib.sha256("\n".join((text, arch, generator_digest(GENERATOR))).encode()).hexdigest()
        found = self._cache.read(key)
        if found is None:
            from nbxtensor.backend.cpu.codegen import object_code

            found = Compiled("nbxtensor runtime", object_code(text, arch), (), {"arch": arch, "features": []})
            self._cache.write(key, found)
        return found

    def use_runtime(self, compiled: Compiled) -> None:
        """Run launches by these loops, which `runtime` returned in another process, unless they are loaded already.

        Raises:
            UnsupportedError: They were compiled for instructions that this processor lacks.
        """
        _check_runs(compiled.name, str(compiled.metadata["arch"]), frozenset())
        with self._starting:
            if self._runtime is None:
                self._runtime = self._with_team(compiled)

    def _start(self) -> tuple[Native, Team]:
        with self._starting:
            if self._runtime is None:
                self._runtime = self._with_team(self.runtime())
            return self._runtime

    def _with_team(self, compiled: Compiled) -> tuple[Native, Team]:
        native = Native(compiled.binary, futex=has_futex())
        return native, Team(native)

    def _threads(self) -> int:
        return settings().threads or self._cores

    def _only(self, index: int) -> None:
        if index != 0:
            raise MissingFactError(f"device cpu:{index}", "The CPU is one device, cpu:0.")


def _unmarked(request: KernelRequest) -> KernelRequest:
    """Return a request without marks of alignment: a vector may lie anywhere, so that they would change no code."""
    return replace(request, signature={name: kind.partition("@")[0] for name, kind in request.signature.items()})


def _compile(request: KernelRequest, target: Target) -> Compiled:
    from nbxtensor.backend.cpu import codegen, frontend  # only a cold start pays for the code generator
    from nbxtensor.backend.kernel_source import constant_values, early_start, kernel_function

    function = kernel_function(request)
    constants = constant_values(request) | early_start(function, device_has_it=False)
    text = frontend.ttir(function, dict(request.signature) | dict.fromkeys(constants, "constexpr"), constants)
    made = codegen.compile_ttir(text, target.arch, target.features, request.grid)
    metadata = {
        "arch": target.arch,
        "features": sorted(target.features),
        "scratch_nbytes": made.scratch_nbytes,
    }
    parameters = tuple((name, request.signature[name]) for name in function.arg_names if name in request.signature)
    return Compiled(made.name, made.object, parameters, metadata)


def _check_runs(name: str, arch: str, wanted: frozenset[str]) -> None:
    missing = _missing(arch, wanted)
    if missing:
        raise UnsupportedError(
            f"{name}: code runs on a processor that has its instructions. Got {missing}; this one is "
            f"{levels.detect()}. Compile it for this processor's target."
        )


def _missing(arch: str, wanted: frozenset[str]) -> str:
    """Return what this processor lacks for code of a level with features, or ""."""
    here = levels.detect()
    order = list(levels.LEVELS)
    runs = arch in order and order.index(arch) >= order.index(here) and arch.partition("-")[0] == here.partition("-")[0]
    lacking = wanted - usable(levels.features()) if wanted else wanted
    return ", ".join(sorted(lacking)) or ("" if runs else arch)
