"""How many cores this process may compute on."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path

from nbxtensor.backend import sysctl
from nbxtensor.backend.cgroup import cpu_quota

__all__ = ["measured_cores"]


def measured_cores() -> int:
    """Return the number of cores that work of this process can run on at once, at least 1.

    Linux: the cores of the processors in the process's affinity mask (two hardware threads of one core count
    once), and no more than the whole processors of its control groups' quota. Apple silicon: the performance
    cores.
    """
    performance = sysctl.integer("hw.perflevel0.physicalcpu")
    if performance:
        return performance
    if hasattr(os, "sched_getaffinity"):
        return linux_cores(frozenset(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


@functools.lru_cache(maxsize=8)
def linux_cores(processors: frozenset[int], root: Path = Path("/")) -> int:
    """Return the cores among ``processors``, held to the quota of the control groups below ``root``."""
    quota = cpu_quota(root)
    cores = len(_cores(processors, root))
    return max(1, cores if quota is None else min(cores, int(quota)))


def _cores(processors: Iterable[int], root: Path) -> set[str]:
    """Return one name for each core: the list of its hardware threads, or the processor where that is not told."""
    found: set[str] = set()
    for processor in processors:
        path = root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        try:
            found.add(path.read_text(encoding="ascii").strip())
        except OSError:
            found.add(str(processor))
    return found
