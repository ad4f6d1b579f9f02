"""What the Linux control groups of this process allow it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpu_quota", "memory_limit"]

# A limit that version 1 writes for "none": the largest multiple of the page size that fits 63 bits.
_UNLIMITED = 1 << 62


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the processors' worth of time the process may use (1.5: one and a half), or None where not limited.

    The smallest of the group's and its ancestors' ``cpu.max`` (version 2) or ``cpu.cfs_quota_us`` (version
    1).
    """
    quotas: list[float] = []
    for group in _groups("cpu", root):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> tuple[int, int, Path] | None:
    """Return (limit, available, file) in bytes of the group with the least memory left, or None where not limited.

    What is available is the limit less the bytes in use, file pages that can be dropped not counted.
    """
    found: list[tuple[int, int, Path]] = []
    for group in _groups("memory", root):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read(group / limit_name), _read(group / used_name)
            if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED:
                droppable = _statistic(_read(group / "memory.stat"), "inactive_file")
                left = int(limit) - max(int(used) - droppable, 0)
                found.append((int(limit), max(left, 0), group / limit_name))
    return min(found, key=lambda entry: entry[1], default=None)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the directories of the process's group and of its ancestors, as they are mounted by convention."""
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = mounts if (mounts / "cgroup.controllers").exists() else mounts / "unified"
        elif controller in controllers.split(","):
            top = mounts / controller
        else:
            continue
        # Inside a container the path may be the host's and not be mounted here: what is missing is passed
        # over.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _statistic(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0
