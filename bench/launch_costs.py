"""What it costs to start a small kernel on any device: eagerly, bound, replayed, and as one more of a recording."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import nbxtensor as nbx

__all__ = ["costs"]

_SMALL = 16  # elements: nothing but the launch takes time
_BLOCK = 400  # calls that a device's queue takes without waiting
_MANY = 1000  # launches of the long recording


def costs(device: str, *, turns: int = 25) -> Mapping[str, tuple[float, float]]:
    """Return (median, least) wall nanoseconds of blocks of calls by name, each block ended by a wait for the device.

    "eager op": ``nbx.add`` of two small float32 tensors, its result allocated. "bound launch": `Backend.launch` of a
    launch of the same kernel. "replay": a recording of one launch, waited for each time. "graph node": one further
    launch of a recording.

    Args:
        device: Name of the device.
        turns: Blocks of each, taken in turn.
    """
    where = nbx.device(device)
    x, y = (nbx.asarray(np.ones(_SMALL, np.float32)).to(where) for _ in range(2))
    one, many = _program(where, 1), _program(where, _MANY)
    (bound,) = one.launches
    backend, index = where.backend, where.index
    recorded, long = one.capture(), many.capture()
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "eager op": (lambda: nbx.add(x, y), _BLOCK),
        "bound launch": (lambda: backend.launch(bound, index), _BLOCK),
        "replay": (recorded.replay, _BLOCK),
        "graph node": (long.replay, 1),
    }
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns + 1):  # the first to warm up
        for name, (call, count) in calls.items():
            took[name].append(_block(call, count, lambda: backend.synchronize(index)))
    found = {name: (statistics.median(each[1:]), min(each[1:])) for name, each in took.items()}
    replay, node = found["replay"], found["graph node"]
    found["graph node"] = ((node[0] - replay[0]) / (_MANY - 1), (node[1] - replay[1]) / (_MANY - 1))
    return found


def _program(where: nbx.Device, count: int) -> Any:
    """Return a program of ``count`` launches of a kernel that adds a handful of numbers."""

    def fn(x: Any, y: Any) -> Any:
        for _ in range(count):
            x = nbx.add(x, y)
        return x

    spec = nbx.Spec((_SMALL,), "float32")
    program = nbx.plan(nbx.trace(fn, spec, spec), device=where, optimize=False).load({})
    if len(program.launches) != count:
        raise ValueError(f"a program of {count} launches was meant. Got {len(program.launches)}.")
    return program


def _block(call: Callable[[], Any], count: int, wait: Callable[[], None]) -> float:
    """Return the nanoseconds of one of ``count`` calls and the wait after them."""
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter_ns() - begin) / count


if __name__ == "__main__":
    for device in sys.argv[1:] or ["cpu"]:
        for name, (median, least) in costs(device).items():
            print(f"{device:8} {name:14} {median:8.0f} ns  (least {least:.0f})")
