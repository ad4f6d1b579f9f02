"""Numbers of a card, measured by running it through the backend itself."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbxtensor.backend.contract import Backend, Bound, DeviceMemory, KernelRequest, LoadedKernel
from nbxtensor.dtype.itemsize import triton_type

__all__ = ["measure"]

_MODULE = "nbxtensor.backend.cuda.kernel"
_RUNS = 7  # medians of so many
_LINE = 256  # bytes between links of a chase: no two in one line of any cache, nor in two neighbouring ones
_BLOCK = 8192  # 32-bit numbers that a program of the memory kernels has in flight
_WARPS = 8
_COPIED = 2048  # 32-bit numbers that a program of a copy moves
_PROGRAMS_PER_UNIT = 8  # enough for every program that a unit can hold at once
_STEP = (64, 32)  # rows, and columns, of a block of a product, and its depth
_MOST_PLACES = 400  # that launches take turns on
_MOVED_NBYTES = 4 << 30  # what a recording of memory kernels moves
_WORK_SECONDS = 4e-4  # what a launch of arithmetic takes
_MOST_LONGER = 1000.0  # times that a run is made longer: the first may have seemed to take no time at all
_VECTOR = ("float16", "bfloat16", "float32", "float64", "int32")
_VECTOR_BLOCK, _VECTOR_STEPS = 1024, 16
_FRACTIONS = (8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40)  # sixteenths of the cache that a reading fills
_SMALL_BLOCKS, _SMALL_NBYTES = 512, 16 << 10  # in all more than any driver hands out at once


def measure(backend: Backend, index: int = 0, *, nbytes: int = 2 << 30) -> dict[str, int]:
    """Measure device ``index``, in about a second beside compilation.

    Args:
        backend: What drives it.
        index: Its number.
        nbytes: Bytes that the reading and the copy of device memory go through; several times the shared cache.

    Returns:
        Facts by name, whole numbers. "memory.copy_bandwidth", "memory.read_bandwidth" and "memory.l2_bandwidth" (bytes
        read plus bytes written, per second, of the whole device), "memory.unit_bandwidth" (the most that one unit
        reads from the shared cache), "memory.l2_usable_nbytes" (the largest reading that still comes from that cache
        when it is repeated), "memory.latency_ns" and "memory.l2_latency_ns" (from a load to the next that needs it),
        "memory.begin_ns" (what reading memory takes beyond its bytes and the launch), "memory.step_ns" and
        "memory.l2_step_ns" (of a product of 64 x 64 blocks, 32 deep, operands asked for one step ahead, a program
        alone, from memory and from the cache), "dispatch.programs_per_second" (of a launch of many that do nothing),
        "memory.granule_nbytes" (what the driver hands out memory in), "rates.vector.<dtype>" (multiplications and
        additions per second, not contracted); of a launch of one small program that needs the one before:
        "launch.eager_ns" (started from the host), "launch.recorded_ns" (inside a recording, when the one before is
        done) and "launch.early_ns" (inside a recording, as soon as the one before lets it);
        "launch.round_ns" (of a sum over a program's elements that waits for the one before).

    Raises:
        OutOfMemoryError: There is no room for the readings.
        DriverError: The device fails.
    """
    probe = _Probes(backend, index)
    memory = backend.memory(index)
    facts: dict[str, float] = {"memory.granule_nbytes": _granule(memory)}
    cache = int(backend.target(index).fact("memory.l2_nbytes"))
    block = memory.allocate(nbytes)
    try:
        memory.fill(block, 1, nbytes)
        facts["launch.recorded_ns"] = 1e9 * probe.recorded([probe.counting(block, early=False)], 1000)
        probe.forget()  # the same code, loaded as what it is
        facts["launch.early_ns"] = 1e9 * probe.recorded([probe.counting(block)], 1000)
        facts["launch.round_ns"] = 1e9 * probe.summing(block)
        facts["launch.eager_ns"] = 1e9 * probe.eager(probe.counting(block), 1000)
        facts["dispatch.programs_per_second"] = 1 / probe.dispatching(block)
        half = nbytes // 2
        facts["memory.copy_bandwidth"] = 2 * half / probe.copying(block, block + half, half)
        facts["memory.read_bandwidth"] = nbytes / probe.reading(block, nbytes)
        # What is in the cache takes no longer than starting to read it: the rates are those of twice as many bytes.
        small = cache // 8
        facts["memory.l2_bandwidth"] = small / (probe.reading(block, 2 * small) - probe.reading(block, small))
        copies = (probe.copying(block, block + small, nbytes) for nbytes in (small, small // 2))
        facts["memory.l2_copy_bandwidth"] = small / (next(copies) - next(copies))
        facts["memory.unit_bandwidth"] = cache // 32 / probe.reading(block, cache // 32, units=1)
        facts["memory.begin_ns"] = 1e9 * probe.beginning(block, nbytes, cache // 8)
        facts["memory.l2_step_ns"] = 1e9 * probe.stepping(block, 0)
        facts["memory.step_ns"] = 1e9 * probe.stepping(block, nbytes)
        facts["memory.l2_usable_nbytes"] = probe.usable(block, cache, facts)
        facts["memory.l2_latency_ns"] = 1e9 * probe.chasing(block, cache // 8)
        facts["memory.latency_ns"] = 1e9 * probe.chasing(block, min(8 * cache, nbytes))
        for dtype in _VECTOR:
            facts[f"rates.vector.{dtype}"] = probe.computing(block, dtype)
    finally:
        memory.free(block)
    return {name: round(value) for name, value in facts.items()}


class _Probes:
    """Ways to keep one part of a device busy, each timed."""

    def __init__(self, backend: Backend, index: int) -> None:
        self.backend = backend
        self.index = index
        self.target = backend.target(index)
        self.units = int(self.target.fact("compute.units"))
        self._out = backend.memory(index)
        self._kernels: dict[tuple[Any, ...], LoadedKernel] = {}

    def bound(
        self,
        name: str,
        grid: int,
        arguments: Mapping[str, tuple[str, int | float]],
        *,
        warps: int = 1,
        early: bool = True,
        **constants: int,
    ) -> Bound:
        """Return a launch of a kernel of the module.

        Args:
            name: Name of the kernel.
            grid: Programs.
            arguments: (type, value) by name.
            warps: Warps of a program.
            early: Whether a recording may start it before the launch before it is done.
            constants: Values of the other parameters.
        """
        signature = {key: kind for key, (kind, _) in arguments.items()}
        place = (name, warps, *signature.items(), *constants.items())
        if place not in self._kernels:
            request = KernelRequest(_MODULE, name, "", signature, constants, warps=warps)
            compiled = self.backend.compile(request, self.target)
            if not early:
                compiled = replace(compiled, metadata={**compiled.metadata, "early": False})
            self._kernels[place] = self.backend.load(compiled, self.index)
        kernel = self._kernels[place]
        values = tuple(arguments[parameter][1] for parameter, _ in kernel.compiled.parameters)
        return Bound(kernel, (grid, 1, 1), values)

    def recorded(self, bounds: Sequence[Bound], turns: int) -> float:
        """Return the seconds of each turn of ``bounds`` inside a recording: what twice as many turns take longer."""
        one, two = (self.backend.record(list(bounds) * n, self.index) for n in (turns, 2 * turns))
        for replay in (one, two):
            replay.run()
        return max(statistics.median(_clock(two.run) - _clock(one.run) for _ in range(_RUNS)) / turns, 1e-12)

    def eager(self, bound: Bound, turns: int) -> float:
        """Return the seconds of each of many launches started from the host, the wait at their end included."""

        def run() -> None:
            for _ in range(turns):
                self.backend.launch(bound, self.index)
            self.backend.synchronize(self.index)

        run()
        return statistics.median(_clock(run) for _ in range(_RUNS)) / turns

    def forget(self) -> None:
        """Let go of every kernel."""
        self._kernels.clear()

    def counting(self, address: int, *, early: bool = True) -> Bound:
        return self.bound("count_kernel", 1, {"counter": ("*i32@16", address)}, early=early)

    def summing(self, address: int, turns: int = 200) -> float:
        """Return the seconds of a sum over all elements of a program that waits for the one before."""
        times: list[float] = []
        for count in (turns, 2 * turns):
            arguments = {"x": ("*fp32@16", address), "turns": ("i32", count)}
            times.append(self.recorded([self.bound("sum_kernel", 1, arguments, warps=4, BLOCK=1024)], 20))
        return (times[1] - times[0]) / turns

    def dispatching(self, address: int, programs: int = 1 << 16) -> float:
        """Return the seconds that each program of a launch of many takes, when programs do nothing."""
        bound = self.bound("none_kernel", programs, {"x": ("*i32@16", address)}, warps=4)
        return self.recorded([bound], 10) / programs

    def reading(self, address: int, nbytes: int, *, units: int = 0) -> float:
        """Return the seconds of reading ``nbytes``, one time of many; ``units``: programs, or 0: all there is."""
        turns = _turns(nbytes if not units else nbytes * self.units)
        blocks = nbytes // (4 * _BLOCK)
        programs = min(units or self.units * _PROGRAMS_PER_UNIT, blocks)
        out = address + nbytes - 4 * _BLOCK  # in what the last program reads: a number changes, nothing else
        arguments = {"out": ("*i32@16", out), "x": ("*i32@16", address), "blocks": ("i32", blocks)}
        warps = 4 * _WARPS if units else _WARPS
        bound = self.bound("read_kernel", programs, arguments, warps=warps, BLOCK=_BLOCK)
        return self.recorded([bound], turns)

    def copying(self, target: int, source: int, nbytes: int) -> float:
        """Return the seconds of copying ``nbytes``, one time of many."""
        blocks = nbytes // (4 * _COPIED)
        arguments = {"y": ("*i32@16", target), "x": ("*i32@16", source)}
        bound = self.bound("copy_kernel", blocks, arguments, warps=4, BLOCK=_COPIED)
        return self.recorded([bound], _turns(2 * nbytes))

    def beginning(self, address: int, nbytes: int, part: int) -> float:
        """Return the seconds that reading parts of ``nbytes``, none of them in the cache, takes beyond their bytes.

        What an ordinary launch takes is not counted in.
        """
        took: list[float] = []
        for size in (part, 2 * part):
            blocks = size // (4 * _BLOCK)
            bounds: list[Bound] = []
            for start in range(address, address + nbytes - size + 1, size):
                given = {"out": ("*i32@16", start), "x": ("*i32@16", start), "blocks": ("i32", blocks)}
                programs = min(self.units * _PROGRAMS_PER_UNIT, blocks)
                bounds.append(self.bound("read_kernel", programs, given, warps=_WARPS, BLOCK=_BLOCK))
            took.append(self.recorded(bounds, 2) / max(len(bounds), 1))
        start = self.recorded([self.counting(address)], 100)
        return max(2 * took[0] - took[1] - start, 0.0)

    def stepping(self, address: int, nbytes: int, depth: int = 4096) -> float:
        """Return the seconds of a step of a product whose operands come two steps at a time, in a program alone.

        Args:
            address: Memory.
            nbytes: Bytes that launches take turns on; 0: all on the same operands, in the cache.
            depth: Depth of the longer of two products.
        """
        rows, inner = _STEP
        took: list[float] = []
        for k in (depth // 2, depth):
            size = 2 * rows * k * 2
            bounds: list[Bound] = []
            for start in range(address, address + max(nbytes - 2 * size, 1), 2 * size):
                out = start + size
                given = {"out": ("*fp32@16", out), "a": ("*bf16@16", start), "b": ("*bf16@16", start + size // 2)}
                bounds.append(self.bound("step_kernel", 1, given, warps=4, k=k, BM=rows, BN=rows, BK=inner))
                if len(bounds) == _MOST_PLACES:
                    break
            took.append(self.recorded(bounds, max(1, 200 // len(bounds))) / len(bounds))
        return (took[1] - took[0]) * inner / (depth - depth // 2)

    def usable(self, address: int, cache: int, facts: Mapping[str, float]) -> int:
        """Return the most bytes that are read again at more than the middle between the cache's rate and memory's."""
        middle = (facts["memory.l2_bandwidth"] + facts["memory.read_bandwidth"]) / 2
        start = self.recorded([self.counting(address)], 100)
        held = cache // 4
        for fraction in _FRACTIONS:
            nbytes = cache * fraction // 32
            if nbytes / max(self.reading(address, nbytes) - start, 1e-12) < middle:
                break
            held = nbytes
        return held

    def chasing(self, address: int, nbytes: int, turns: int = 4000) -> float:
        """Return the seconds from a load to one whose address it gives, anywhere in ``nbytes``.

        Each launch goes on where the one before it stopped, so that it finds nothing that was loaded before.
        """
        steps = nbytes // _LINE
        order = np.random.default_rng(0).permutation(steps).astype(np.int64) * (_LINE // 8)
        links = np.zeros(steps * (_LINE // 8), np.int64)
        links[order] = np.roll(order, -1)
        self._out.copy_in(address, links.data.cast("B"))
        times: list[float] = []
        for count in (turns, 2 * turns):
            arguments = {"state": ("*i64@16", address + 8), "table": ("*i64@16", address), "turns": ("i32", count)}
            times.append(self.recorded([self.bound("chase_kernel", 1, arguments)], 3))
        return (times[1] - times[0]) / turns

    def computing(self, address: int, dtype: str) -> float:
        """Return multiplications and additions per second of ``dtype``, every unit full."""
        kind = triton_type(dtype)
        self._out.copy_in(address, np.ones(8, np.uint8).data)  # a factor that keeps every dtype finite
        programs = self.units * _PROGRAMS_PER_UNIT
        rate, turns = 0.0, 64
        for _ in range(2):  # the second time long enough that starting it does not count
            arguments = {
                "out": (f"*{kind}@16", address + _LINE),
                "factor": (f"*{kind}@16", address),
                "turns": ("i32", turns),
            }
            bound = self.bound("vector_kernel", programs, arguments, warps=4, BLOCK=_VECTOR_BLOCK, STEPS=_VECTOR_STEPS)
            work = 2 * programs * _VECTOR_BLOCK * _VECTOR_STEPS * turns
            rate = work / self.recorded([bound], 4)
            longer = min(rate * _WORK_SECONDS / work, _MOST_LONGER)
            turns = max(64, round(turns * longer))
        return rate


def _turns(nbytes: int) -> int:
    """Return how many turns move a few gigabytes."""
    return max(2, min(400, _MOVED_NBYTES // nbytes))


def _clock(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _granule(memory: DeviceMemory) -> int:
    """Return the least by which the device's free memory shrinks, as many small blocks are asked for."""
    held: list[int] = []
    free = [memory.info().free]
    try:
        for _ in range(_SMALL_BLOCKS):
            held.append(memory.allocate(_SMALL_NBYTES))
            free.append(memory.info().free)
    finally:
        for address in held:
            memory.free(address)
    steps = [before - after for before, after in itertools.pairwise(free) if after < before]
    return min(steps, default=_SMALL_NBYTES)
