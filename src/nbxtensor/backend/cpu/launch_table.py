"""Launch tables: bound launches as the bytes that the native loops walk."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from nbxtensor.backend.contract import Bound
from nbxtensor.backend.cpu.host_kernel import HostKernel
from nbxtensor.backend.cpu.runtime import CUTS, HEADER_WORDS
from nbxtensor.errors import ArgumentError

__all__ = ["HANDOFF_NS", "cuts", "host_kernel", "launch_table", "programs", "workers_for"]

HANDOFF_NS = 10_000.0
"""What it costs to have sleeping workers take part in a launch, in nanoseconds.

A meeting of two workers took 2 to 5 microseconds on an Intel Sapphire Rapids guest; a split launch has one before and
one after it.
"""


def host_kernel(bound: Bound) -> HostKernel:
    """Return the kernel of a launch.

    Raises:
        ArgumentError: Another backend loaded it.
    """
    kernel = bound.kernel
    if not isinstance(kernel, HostKernel):
        raise ArgumentError(
            f"{kernel.compiled.name}: a launch on the CPU runs a kernel of the CPU backend. "
            f"Got {type(kernel).__name__}. What its load() returned is accepted."
        )
    return kernel


def programs(bound: Bound) -> int:
    """Return the number of programs of a launch.

    Raises:
        ArgumentError: An axis of the grid is negative.
    """
    gx, gy, gz = bound.grid
    if gx < 0 or gy < 0 or gz < 0:
        raise ArgumentError(
            f"{bound.kernel.compiled.name}: a grid counts programs. Got {bound.grid}. Zero or more along each axis."
        )
    return gx * gy * gz


def cuts(count: int, workers: int) -> tuple[int, ...]:
    """Return where ``count`` programs are cut into one range per worker, whose sizes differ by at most one.

    >>> cuts(10, 4)
    (0, 2, 5, 7, 10)
    """
    return tuple(count * worker // workers for worker in range(workers + 1))


def workers_for(bound: Bound, workers: int) -> int:
    """Return how many of ``workers`` a launch is split over: all, or 1 where splitting costs more than it saves."""
    if workers == 1 or programs(bound) < 2:
        return 1
    saved = bound.nanoseconds * (workers - 1) / workers
    return 1 if 0 < saved < HANDOFF_NS else workers


def launch_table(launches: Sequence[Bound], workers: int) -> tuple[bytes, bool]:
    """Return the table of ``launches`` for ``workers``, and whether any of them is split.

    A launch may read what the one before it wrote, so the workers meet between two launches, unless both run on the
    first worker alone.

    Raises:
        ArgumentError: A launch of another backend, with a negative grid, or with values its kernel does not take.
    """
    counts = [workers_for(bound, workers) for bound in launches]
    packed = [host_kernel(bound).pack(bound.arguments) for bound in launches]
    stride = 8 * (CUTS + workers + 1)
    offset = 8 * HEADER_WORDS + stride * len(launches)
    records = struct.Struct(f"<Q{CUTS + workers}q")
    parts = [struct.pack("<4q", len(launches), stride, workers, 0)]
    for index, (bound, slots) in enumerate(zip(launches, packed, strict=True)):
        meets = index + 1 < len(launches) and max(counts[index : index + 2]) > 1
        count = programs(bound)
        spread = cuts(count, workers) if counts[index] > 1 else (0, *[count] * workers)
        gx, gy, _ = bound.grid
        parts.append(records.pack(host_kernel(bound).address, offset, gx, gy, meets, *spread))
        offset += len(slots)
    return b"".join([*parts, *packed]), max(counts, default=1) > 1
