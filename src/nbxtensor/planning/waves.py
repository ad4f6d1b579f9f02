"""What launches take on a device of many units: starts, waves of programs, chains of loads, shared bandwidths."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from nbxtensor.op import Launch, Round

__all__ = ["Bound", "Moved", "Stated", "has_waves", "waves"]

Bound = Literal["memory", "vector", "matrix", "launch"]
_NEEDED = (
    "compute.units",
    "dispatch.programs_per_second",
    "launch.round_ns",
    "memory.copy_bandwidth",
    "memory.l2_bandwidth",
    "memory.l2_copy_bandwidth",
    "memory.l2_latency_ns",
    "memory.latency_ns",
    "memory.read_bandwidth",
    "memory.unit_bandwidth",
)
_FULL_THREADS = (
    512  # of a unit: four warps for each of its four schedulers, which arithmetic that waits for itself needs
)
_WARP = 32


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


def has_waves(known: Stated) -> bool:
    """Say whether a device states all that `waves` needs."""
    return all(known.has(name) for name in _NEEDED) and (known.has("launch.early_ns") or known.has("launch.seconds"))


def waves(
    launches: Sequence[Launch], moved: Moved, flops: int, rate: Callable[[], float], unit: Bound, known: Stated
) -> tuple[float, Bound]:
    """Return the seconds that a call takes among others inside a recording, and what most of them go to.

    A call takes the time of starting its launches and then the longest of:

    - bytes of memory at the rates of reading and of writing it, and bytes of the shared cache at those of the cache;
    - the bytes of the busiest unit at the rate that one unit reaches;
    - arithmetic: the rate of the device where every unit is full, that of the units in use where programs are few;
    - the rounds of a program (`Launch.rounds`), each waiting for the one before;
    - where rounds are steps of a product (`Launch.round`), waves of as many programs as a unit holds, whose rounds wait
      for their operands or share the unit's arithmetic;
    - starting the programs.

    What is read from memory and not from the cache arrives later by the difference of their latencies, once. All of
    a call's bytes and arithmetic are taken to be those of its launch of most programs; the others take their rounds.

    Args:
        launches: The call's launches, at least one.
        moved: What the call moves.
        flops: Its arithmetic operations.
        rate: Operations per second of the whole device in the dtype the call computes in; asked for where it counts.
        unit: The units that compute.
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
    if largest.round is not None:
        spans["launch"] = programs / known("dispatch.programs_per_second")
        spans[unit] = _multiplying(largest, largest.round, each, known, cold=bool(moved.read))
    elif flops:
        threads = min(each * _WARP * largest.warps, _FULL_THREADS)
        spans[unit] = each * flops / programs / (rate() / units * threads / _FULL_THREADS)
    limit = max(spans, key=lambda name: spans[name])
    others = sum(launch.rounds - 1 for launch in launches if launch is not largest) * known("launch.round_ns") * 1e-9
    late = (known("memory.latency_ns") - known("memory.l2_latency_ns")) * 1e-9 if moved.read else 0.0
    began = len(launches) * start + late + others
    return began + spans[limit], "launch" if began > spans[limit] else limit


def _multiplying(launch: Launch, step: Round, each: int, known: Stated, *, cold: bool) -> float:
    """Return the seconds of a unit that has ``each`` programs of a product, whose operands come from memory if cold.

    A step waits for its operands, of which as many as the launch has stages are on their way, and for its program to
    meet; the programs beside each other share the unit.
    """
    beside = min(step.resident, each)
    arriving = known("memory.latency_ns" if cold else "memory.l2_latency_ns")
    waiting = 1e-9 * ((arriving + known("launch.round_ns")) / max(launch.stages - 1, 1) + known("launch.round_ns"))
    return -(-each // step.resident) * launch.rounds * max(waiting, beside * step.flops / step.rate)


def _moving(moved: Moved, known: Stated) -> float:
    """Return the seconds of moving bytes; writing alone takes what a copy takes beyond the reading in it."""
    seconds = 0.0
    for read, written, reading, copying in (
        (moved.read, moved.written, "memory.read_bandwidth", "memory.copy_bandwidth"),
        (moved.cached_read, moved.cached_written, "memory.l2_bandwidth", "memory.l2_copy_bandwidth"),
    ):
        seconds += read / known(reading)
        if written:
            seconds += written * max(2 / known(copying) - 1 / known(reading), 1 / known(copying))
    return seconds
