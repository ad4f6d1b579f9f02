"""What launches take on a device of many units: starts, waves of programs, chains of loads, shared bandwidths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from nbxtensor.op import Launch, Round

__all__ = ["Bound", "Moved", "Stated", "Work", "has_waves", "waves"]

Bound = Literal["memory", "vector", "matrix", "launch"]
_NEEDED = (
    "compute.units",
    "dispatch.programs_per_second",
    "launch.round_ns",
    "memory.begin_ns",
    "memory.copy_bandwidth",
    "memory.l2_bandwidth",
    "memory.l2_copy_bandwidth",
    "memory.l2_latency_ns",
    "memory.l2_step_ns",
    "memory.latency_ns",
    "memory.read_bandwidth",
    "memory.step_ns",
    "memory.unit_bandwidth",
)
_FULL_THREADS = (
    512  # of a unit: four warps for each of its four schedulers, which arithmetic that waits for itself needs
)
_WARP = 32
# How much faster than the readings of `nbxtensor device measure` the steps of all units' products come out of the cache
# they share: at 11.2 and 11.7 TB/s, not 7.6, in bfloat16 products of 128 and 512 x 4096 x 4096 on an H200.
_STEPS_FASTER = 1.6
_OVERLAP = 6.0  # the norm in which times that overlap are added; of 600 ways to make products on an H200


class Stated(Protocol):
    """The numbers of a device by name."""

    def has(self, name: str) -> bool:
        """Say whether there is a number called ``name``."""
        ...

    def __call__(self, name: str) -> float:
        """Return the number called ``name``."""
        ...


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that a call moves.

    Attributes:
        read: From memory.
        written: To memory.
        cached_read: From the cache that all units share.
        cached_written: To that cache.
    """

    read: int
    written: int
    cached_read: int
    cached_written: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a call computes.

    Attributes:
        flops: Operations of its units.
        unit: "matrix" or "vector": the units that do them.
        rate: Operations per second of these units of the whole device; asked for where it counts.
        beside: Operations that vector units do beside a matrix unit.
        vector_rate: Operations per second of the vector units; asked for where it counts.
    """

    flops: int
    unit: Bound
    rate: Callable[[], float]
    beside: int = 0
    vector_rate: Callable[[], float] = lambda: 1.0


def has_waves(known: Stated) -> bool:
    """Say whether a device states all that `waves` needs."""
    return all(known.has(name) for name in _NEEDED) and (known.has("launch.early_ns") or known.has("launch.seconds"))


def waves(launches: Sequence[Launch], moved: Moved, work: Work, known: Stated) -> tuple[float, Bound]:
    """Return the seconds that a call takes among others inside a recording, and what most of them go to.

    A call takes the time of starting its launches and then the longest of what follows, or a little more:

    - bytes of memory at the rates of reading and of writing it, and bytes of the shared cache at those of the cache;
    - the bytes of the busiest unit at the rate that one unit reaches;
    - arithmetic: the rate of the device where every unit is full, that of the units in use where programs are few;
    - the rounds of a program (`Launch.rounds`), each waiting for the one before;
    - where rounds are steps of a product (`Launch.round`), waves of as many programs as a unit holds, whose rounds wait
      for their operands or share the unit's arithmetic, and no less than the operations at the rate that large products
      reach;
    - starting the programs.

    What is read from memory and not from the cache begins later, once, by up to ``memory.begin_ns``. All of a call's
    bytes and arithmetic are taken to be those of its launch of most programs; the others take their rounds.

    Args:
        launches: The call's launches, at least one.
        moved: What the call moves.
        work: What it computes.
        known: The numbers of the device.

    Raises:
        MissingFactError: The device does not state a number that is needed.
    """
    start = known("launch.early_ns") * 1e-9 if known.has("launch.early_ns") else known("launch.seconds")
    largest = max(launches, key=lambda launch: math.prod(launch.grid))
    programs, units = max(math.prod(largest.grid), 1), known("compute.units")
    each = -(-programs // int(units))  # programs of the busiest unit
    spans: dict[Bound, float] = {"launch": programs / known("dispatch.programs_per_second")}
    spans["launch"] = max(spans["launch"], (largest.rounds - 1) * known("launch.round_ns") * 1e-9)
    nbytes = moved.read + moved.written + moved.cached_read + moved.cached_written
    spans["memory"] = max(_moving(moved, known), each * nbytes / programs / known("memory.unit_bandwidth"))
    threads = min(each * _WARP * largest.warps, _FULL_THREADS)
    busy = each * units / programs * _FULL_THREADS / threads  # how much longer than on a device that is full evenly
    if largest.round is not None:
        spans["launch"] = programs / known("dispatch.programs_per_second")
        used = min(programs, int(units))
        steps = _multiplying(largest, largest.round, each, used, known, cold=bool(moved.read))
        spans[work.unit] = max(steps, work.flops / work.rate())  # what large products reach, none exceeds
    elif work.flops:
        spans[work.unit] = busy * work.flops / work.rate()
    if work.beside:
        spans[work.unit] = spans.get(work.unit, 0.0) + busy * work.beside / work.vector_rate()
    limit = max(spans, key=lambda name: spans[name])
    spent = _joined(*spans.values())
    others = sum(launch.rounds - 1 for launch in launches if launch is not largest) * known("launch.round_ns") * 1e-9
    late = _late(moved, known)
    began = len(launches) * start + late + others
    return began + spent, "launch" if began > spent else limit


def _joined(*seconds: float) -> float:
    """Return how long what overlaps takes: where two take as long, a little more than either."""
    return sum(each**_OVERLAP for each in seconds) ** (1 / _OVERLAP)


def _late(moved: Moved, known: Stated) -> float:
    """Return the seconds by which what is read from memory begins later than from the cache.

    That is the wait for its first bytes, and for many bytes also the time in which the memory's pipes fill and drain.
    """
    if not moved.read:
        return 0.0
    first = max(known("memory.latency_ns") - known("memory.l2_latency_ns"), 0.0)
    whole = max(known("memory.begin_ns"), first)
    filled = min(1e9 * moved.read / known("memory.read_bandwidth") / whole, 1.0)
    return 1e-9 * (first + (whole - first) * filled)


def _multiplying(launch: Launch, step: Round, each: int, used: int, known: Stated, *, cold: bool) -> float:
    """Return the seconds of a unit that has ``each`` programs of a product, whose operands come from memory if cold.

    A step waits for its operands, of which as many as the launch has stages are on their way; the programs beside each
    other share the unit, what it reads of the cache, and what it writes; the ``used`` units share the cache.
    """
    beside = min(step.resident, each)
    arriving = known("memory.step_ns" if cold else "memory.l2_step_ns")
    waiting = 1e-9 * arriving / max(launch.stages - 1, 1)
    rate = step.rate * min(beside * _WARP * launch.warps / step.threads, 1.0)
    shared = _STEPS_FASTER * known("memory.l2_bandwidth") / used
    loading = beside * step.nbytes / min(known("memory.unit_bandwidth"), shared)
    each_round = _joined(waiting, loading, beside * step.flops / rate) + 1e-9 * beside * step.nanoseconds
    storing = beside * step.stored * _written(known, "memory.l2_bandwidth", "memory.l2_copy_bandwidth")
    storing *= known("compute.units")
    return -(-each // step.resident) * (launch.rounds * each_round + 1e-9 * step.between + storing)


def _moving(moved: Moved, known: Stated) -> float:
    """Return the seconds of moving bytes."""
    seconds = 0.0
    for read, written, reading, copying in (
        (moved.read, moved.written, "memory.read_bandwidth", "memory.copy_bandwidth"),
        (moved.cached_read, moved.cached_written, "memory.l2_bandwidth", "memory.l2_copy_bandwidth"),
    ):
        seconds += read / known(reading) + (written * _written(known, reading, copying) if written else 0.0)
    return seconds


def _written(known: Stated, reading: str, copying: str) -> float:
    """Return the seconds of writing a byte: what a copy takes beyond the reading in it."""
    return max(2 / known(copying) - 1 / known(reading), 1 / known(copying))
