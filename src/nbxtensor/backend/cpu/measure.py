"""Numbers of this processor, measured by running it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nbxtensor.backend.contract import Bound, Compiled, LoadedKernel, Replay
from nbxtensor.backend.cpu import levels
from nbxtensor.backend.cpu.pages import Pages
from nbxtensor.backend.cpu.probes import PRODUCTS, SCRATCH_NBYTES, operations, probe_names, probes_text
from nbxtensor.backend.cpu.tile_unit import usable

__all__ = ["measure"]

_RUN_NS = 3e6  # what one timed run takes, long beside the clock and the start of a team
_RUNS = 4  # the best counts: everything else on the machine only slows a run down
_MEMORY_NBYTES = 256 << 20
_VECTOR = ("float32", "float64")

Record = Callable[[Sequence[Bound]], Replay]


def measure(
    workers: int,
    compile_object: Callable[[str, str, frozenset[str]], bytes],
    load: Callable[[Compiled], LoadedKernel],
    record: Record,
) -> dict[str, Any]:
    """Measure this processor with ``workers`` threads, in about half a second.

    Args:
        workers: Threads that `record` splits launches over.
        compile_object: LLVM IR text, level and features to an object.
        load: A compiled kernel to one that can be launched.
        record: Launches to an object that replays them.

    Returns:
        Facts by name. Of the whole device: "memory.copy_bandwidth" (bytes read plus bytes written, per second),
        "memory.read_bandwidth", "memory.l2_bandwidth", "memory.l2_nbytes" (where the system tells),
        "compute.matrix_flops.<dtype>" and "compute.vector_flops.<dtype>" (operations per second that nothing exceeds,
        those of a multiplication and an addition counting two), "launch.seconds" (of a recorded launch that does
        nothing), "workers".
    """
    level, features = levels.detect(), usable(levels.features())
    probe = _Probes(workers, compile_object(probes_text(level, features), level, features), load, record)
    facts: dict[str, Any] = {"workers": workers}
    for dtype in PRODUCTS:
        facts[f"compute.matrix_flops.{dtype}"] = probe.arithmetic(dtype, operations(dtype, level, features))
    for dtype in _VECTOR:
        facts[f"compute.vector_flops.{dtype}"] = facts[f"compute.matrix_flops.{dtype}"]
    memory = Pages(_MEMORY_NBYTES + SCRATCH_NBYTES)
    memory.advise_huge(0, _MEMORY_NBYTES)
    half = _MEMORY_NBYTES // 2
    facts["memory.copy_bandwidth"] = probe.copying(memory.address, memory.address + half, half)
    facts["memory.read_bandwidth"] = probe.reading(memory.address, _MEMORY_NBYTES)
    cache = _l2_nbytes()
    if cache is not None:
        facts["memory.l2_nbytes"] = cache * workers
        facts["memory.l2_bandwidth"] = probe.copying_in_cache(memory.address, min(cache // 4, half)) * workers
    facts["launch.seconds"] = probe.launching()
    return facts


class _Probes:
    def __init__(self, workers: int, code: bytes, load: Callable[[Compiled], LoadedKernel], record: Record) -> None:
        self.workers = workers
        self.record = record
        metadata = {
            "scratch_nbytes": SCRATCH_NBYTES,
            "arch": levels.detect(),
            "features": sorted(usable(levels.features())),
        }
        forms = {"read": ("*i8", "i64"), "copy": ("*i8", "i64", "*i8"), "nothing": ()}
        self.kernels = {
            name: load(
                Compiled(name, code, tuple((f"p{i}", t) for i, t in enumerate(forms.get(name, ("i64",)))), metadata)
            )
            for name in probe_names()
        }

    def seconds(
        self, name: str, arguments: tuple[int, ...], turns: int = 1, *, workers: int = 0, waiting: bool = False
    ) -> float:
        """Return the least time of ``turns`` launches, each of ``workers`` (left out, all) running one program.

        It is the processor time of a worker, which other processes do not add to; with ``waiting`` it is the time
        that passes, in which workers also wait for each other.
        """
        count = workers or self.workers
        replay = self.record([Bound(self.kernels[name], (count, 1, 1), arguments)] * turns)
        clock, share = (time.perf_counter_ns, 1) if waiting else (time.process_time_ns, count)
        best = float("inf")
        for _ in range(_RUNS):
            began = clock()
            replay.run()
            best = min(best, clock() - began)
        return best * 1e-9 / share

    def arithmetic(self, dtype: str, operations_per_turn: int) -> float:
        turns = 2000
        while True:
            seconds = self.seconds(f"multiply_{dtype}", (turns,))
            if seconds * 1e9 >= _RUN_NS:
                return turns * operations_per_turn * self.workers / seconds
            turns = int(turns * max(2.0, 1.3 * _RUN_NS / (seconds * 1e9)))

    def reading(self, source: int, nbytes: int) -> float:
        part = nbytes // self.workers // 512 * 512
        return part * self.workers / self.seconds("read", (source, part))

    def copying(self, target: int, source: int, nbytes: int) -> float:
        part = nbytes // self.workers // 512 * 512
        return 2 * part * self.workers / self.seconds("copy", (source, part, target))

    def copying_in_cache(self, address: int, nbytes: int) -> float:
        """One worker copies the same bytes again and again; source and target fill half of its cache."""
        part, turns = nbytes // 512 * 512, 50
        return 2 * part * turns / self.seconds("copy", (address, part, address + part), turns, workers=1)

    def launching(self) -> float:
        turns = 500
        return self.seconds("nothing", (), turns, waiting=True) / turns


def _l2_nbytes() -> int | None:
    """Return the bytes of one core's second-level cache, where the system tells."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.fullmatch(r"(\d+)K\s*", text)
    return int(found[1]) * 1024 if found else None
