"""The host's memory: what it has, and what can still be taken without swapping."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from nbxtensor.backend import sysctl
from nbxtensor.backend.cgroup import memory_limit
from nbxtensor.errors import MissingFactError

__all__ = ["MemoryState", "memory_state"]


@dataclass(frozen=True, slots=True)
class MemoryState:
    """A reading of the host's memory.

    Attributes:
        total: Bytes that this process may use in all.
        available: Bytes that can be taken now without swapping.
        source: Where the reading came from.
    """

    total: int
    available: int
    source: str


def memory_state() -> MemoryState:
    """Read the host's memory now: the machine's, or less where a control group holds the process to less.

    Raises:
        MissingFactError: The system states its memory in none of the known ways (Linux, macOS).

    >>> state = memory_state()
    >>> 0 < state.available <= state.total
    True
    """
    if sys.platform == "darwin":
        return _macos()
    return linux_memory(Path("/"))


def linux_memory(root: Path) -> MemoryState:
    """Read ``/proc/meminfo`` and the memory control groups, all below ``root``.

    Raises:
        MissingFactError: There is no ``/proc/meminfo`` with MemTotal and MemAvailable.
    """
    path = root / "proc/meminfo"
    try:
        kibibytes = dict(re.findall(r"^(\w+):\s+(\d+) kB$", path.read_text(encoding="ascii"), re.MULTILINE))
        total, available = (int(kibibytes[name]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError):
        raise MissingFactError(
            "the host's free memory", f"It is read from {path} on Linux and from sysctl and vm_stat on macOS."
        ) from None
    held = memory_limit(root)
    if held is None or held[0] >= total:
        return MemoryState(total, available, str(path))
    limit, left, group = held
    return MemoryState(limit, min(available, left), f"{path}, held to {group}")


def _macos() -> MemoryState:
    total = sysctl.integer("hw.memsize")
    if total is None:
        raise MissingFactError("the host's memory", "It is read from sysctl hw.memsize on macOS.")
    import subprocess

    report = subprocess.run(["/usr/bin/vm_stat"], capture_output=True, text=True, check=True).stdout
    return MemoryState(total, min(vm_stat_available(report), total), "sysctl hw.memsize, vm_stat")


def vm_stat_available(report: str) -> int:
    """Return the bytes that a report of macOS's ``vm_stat`` counts as free, inactive, speculative or purgeable.

    Raises:
        MissingFactError: The report states no page size or no free pages.
    """
    size = re.search(r"page size of (\d+) bytes", report)
    pages = dict(re.findall(r"^Pages ([a-z]+):\s+(\d+)\.$", report, re.MULTILINE))
    if size is None or "free" not in pages:
        raise MissingFactError("the host's free memory", "vm_stat did not state its page size and free pages.")
    return int(size[1]) * sum(int(pages.get(name, 0)) for name in ("free", "inactive", "speculative", "purgeable"))
