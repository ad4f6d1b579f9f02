"""The threads of the BLAS that numpy calls, held to the cores that the pool uses."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nbxtensor.errors import ArgumentError

__all__ = ["BlasState", "hold", "piece", "region", "state"]

# Spellings of OpenBLAS's two functions: of the builds in numpy's and scipy's wheels, and of others.
_OPENBLAS = [f"{prefix}openblas_{{}}_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")]
# <vecLib/thread_api.h>, from macOS 15 on: the choice holds for the calling thread.
_ACCELERATE_SET, _ACCELERATE_GET = "BLASSetThreading", "BLASGetThreading"
_ACCELERATE_SINGLE = 1  # BLAS_THREADING_SINGLE_THREADED


@dataclass(frozen=True, slots=True)
class BlasState:
    """Which BLAS numpy calls, and what is known of its threads.

    Attributes:
        library: "openblas", "accelerate", or "unknown": one that is used as it is, its threads not held.
        path: File it was loaded from, or "".
        scope: What a change of its threads reaches: "process", "thread", or "none".
        threads: Threads it uses now, or None where that is not known.
    """

    library: str
    path: str
    scope: str
    threads: int | None


@dataclass(frozen=True, slots=True)
class _Control:
    library: str
    path: str
    scope: str
    get: Callable[[], int]
    set: Callable[[int], object]


def state() -> BlasState:
    """Return which BLAS numpy calls and how many threads it uses now.

    >>> state().library in ("openblas", "accelerate", "unknown")
    True
    """
    control = _control()
    if control is None:
        return BlasState("unknown", "", "none", None)
    threads = control.get() if control.scope == "process" else None
    return BlasState(control.library, control.path, control.scope, threads)


def hold(threads: int) -> None:
    """Let the BLAS use ``threads`` threads outside the pool; nothing happens where that cannot be set.

    Raises:
        ArgumentError: ``threads`` is below 1.
    """
    if threads < 1:
        raise ArgumentError(f"blas: a thread count is at least 1. Got {threads}.")
    _regions.outside(threads)


@contextmanager
def region(threads: int) -> Generator[None]:
    """Hold the BLAS of the process to one thread, because several threads call it; then to ``threads`` again."""
    _regions.enter()
    try:
        yield
    finally:
        _regions.leave(threads)


@contextmanager
def piece() -> Generator[None]:
    """Hold the BLAS to one thread in the calling thread, where it is set for each thread."""
    control = _control()
    if control is None or control.scope != "thread":
        yield
        return
    before = control.get()
    control.set(_ACCELERATE_SINGLE)
    try:
        yield
    finally:
        control.set(before)


class _Regions:
    """The regions that are open: the count of the process is 1 while there is one, and restored by the last."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew, as a child process must after a fork: the threads of open regions are gone."""
        self._lock = threading.Lock()
        self._open = 0

    def enter(self) -> None:
        with self._lock:
            self._open += 1
            if self._open == 1:
                _set_process(1)

    def leave(self, threads: int) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                _set_process(threads)

    def outside(self, threads: int) -> None:
        with self._lock:
            if self._open == 0:
                _set_process(threads)


_regions = _Regions()
os.register_at_fork(after_in_child=_regions.forget)


def _set_process(threads: int) -> None:
    control = _control()
    if control is not None and control.scope == "process" and control.get() != threads:
        control.set(threads)


@functools.cache
def _control() -> _Control | None:
    """Find the BLAS among the libraries of this process, those that came with numpy first."""
    importlib.import_module("numpy.linalg")  # loads it
    paths = [path for path in _loaded_libraries() if re.search(r"openblas|libBLAS|vecLib|Accelerate", path)]
    for path in sorted(paths, key=lambda path: "numpy" not in path):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for spelling in _OPENBLAS:
            if hasattr(library, spelling.format("set")):
                getter, setter = (getattr(library, spelling.format(verb)) for verb in ("get", "set"))
                setter.restype = None
                return _Control("openblas", path, "process", getter, setter)
        if hasattr(library, _ACCELERATE_SET):
            return _Control(
                "accelerate", path, "thread", getattr(library, _ACCELERATE_GET), getattr(library, _ACCELERATE_SET)
            )
    return None


def _loaded_libraries() -> tuple[str, ...]:
    if sys.platform == "darwin":
        images = ctypes.CDLL(None)
        images._dyld_get_image_name.restype = ctypes.c_char_p  # noqa: SLF001 - the system's own name
        count = images._dyld_image_count()  # noqa: SLF001
        return tuple(os.fsdecode(images._dyld_get_image_name(index)) for index in range(count))  # noqa: SLF001
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ()
    return tuple(dict.fromkeys(line[line.index("/") :] for line in maps.splitlines() if "/" in line))
