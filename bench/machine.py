"""What is measured on: the processor, the versions, the load, and the rates that nothing can beat."""

from __future__ import annotations

import ctypes
import datetime
import functools
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import peers
from nbxtensor.backend.cpu import backend, blas, facts_file, levels, measure, pool
from nbxtensor.backend.cpu.codegen import object_code
from nbxtensor.backend.cpu.cores import measured_cores

CACHE = Path(tempfile.gettempdir()) / "nbxtensor-bench"
ROOT = Path(__file__).resolve().parent.parent
# Settings that pin the kernels of numpy's BLAS to another processor than this one.
_PINS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
_UNINSTALLED = "PYTHONDONTWRITEBYTECODE"  # keeps a tree that pip did not install from starting as an installed one
_HUGE_PAGES_OF_TORCH = {"THP_MEM_ALLOC_ENABLE": "1"}  # numpy asks for them by itself, and so do we
_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # mallopt's parameters, from malloc.h


def environment() -> dict[str, str]:
    """Return the environment in which every peer, and we, are at our best."""
    kept = {name: value for name, value in os.environ.items() if name not in (*_PINS, _UNINSTALLED)}
    return kept | _HUGE_PAGES_OF_TORCH | {"PYTHONPYCACHEPREFIX": str(CACHE / "bytecode")}


def start_anew() -> None:
    """Start this process anew where its environment is another: libraries read it when they are loaded."""
    if environment() != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment())


def take_precedence() -> bool:
    """Have this process, and every thread it makes from now on, run before others; False where it is not permitted.

    Where the scheduler weighs sessions against each other, the process becomes a session of its own with that weight.
    """
    group = Path("/proc/self/autogroup")
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        if group.exists():
            if os.getsid(0) != os.getpid():
                os.setsid()
            group.write_text("-20", encoding="ascii")
    except PermissionError:
        return False
    return True


def keep_memory() -> bool:
    """Have malloc keep what is freed, so that no peer pays for fresh pages at each call; False where it cannot."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(_MMAP_MAX, 0) and library.mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def set_threads(count: int) -> None:
    """Hold us, numpy's BLAS and every peer with one number of threads per process to ``count``."""
    pool.set_threads(count)
    blas.hold(count)
    peers.set_threads(count)


def device() -> str:
    """Return what this processor calls itself."""
    return facts_file.processor_name()


def slug() -> str:
    """Return the name of the file that results of this processor are kept in, without its ending."""
    return re.sub(r"[^a-z0-9]+", "-", device().lower()).strip("-")


def load() -> float:
    """Return how many processes wanted to run over the last minute: above the number of cores, wall times suffer."""
    return round(os.getloadavg()[0], 2)


def about() -> dict[str, Any]:
    """Return what stands in every line: device, cores, level, versions, commit, date."""
    return {"device": device(), "cores": measured_cores(), "level": levels.detect(), **_versions()}


@functools.cache
def _versions() -> dict[str, Any]:
    changed = "+changes" if _git("status", "--porcelain", "src") else ""
    return {
        "versions": {
            "nbxtensor": version("nbxtensor"),
            "triton": version("triton"),
            "python": platform.python_version(),
            **peers.versions(),
        },
        "commit": _git("rev-parse", "--short=12", "HEAD") + changed,
        "date": datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


@functools.cache
def rates(threads: int) -> Mapping[str, float]:
    """Return this machine's rates with ``threads`` threads, measured now, once per run (see `measure.measure`)."""
    pool.set_threads(threads)
    device = backend()
    return measure.measure(threads, object_code, device.load, device.record)
