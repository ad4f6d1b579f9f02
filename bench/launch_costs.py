"""What it costs to start a small kernel on any device: eagerly, bound, replayed, and as one more of a recording."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import nbxtensor as nbx

__all__ = ["costs"]

_SMALL = 16  # elements: nothing but the launch takes time
_MANY = 1000  # launches of the long recording


def costs(device: str, *, seconds: float = 0.3) -> Mapping[str, float]:
    """Return wall nanoseconds by name, medians of blocks of calls, each ended by a wait for the device.

    "eager op": ``nbx.add`` of two small float32 tensors, its result allocated. "bound launch": `Backend.launch` of a
    launch of the same kernel. "replay": a recording of one launch, waited for each time. "graph node": one further
    launch of a recording.

    Args:
        device: Name of the device.
        seconds: About what each figure may take.
    """
    where = nbx.device(device)
    wait = _waiting(where)
    x, y = (nbx.asarray(np.ones(_SMALL, np.float32)).to(where) for _ in range(2))
    one, many = _program(where, 1), _program(where, _MANY)
    (bound,) = one.launches
    backend, index = where.backend, where.index
    recorded, long = one.capture(), many.capture()
    found = {
        "eager op": _each(lambda: nbx.add(x, y), wait, seconds),
        "bound launch": _each(lambda: backend.launch(bound, index), wait, seconds),
        "replay": _each(recorded.replay, wait, seconds),
    }
    found["graph node"] = (_each(long.replay, wait, seconds) - found["replay"]) / (_MANY - 1)
    return found


def _waiting(where: nbx.Device) -> Callable[[], None]:
    return lambda: where.backend.synchronize(where.index)


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


def _each(call: Callable[[], Any], wait: Callable[[], None], seconds: float) -> float:
    """Return the nanoseconds of one call: the median of ten blocks that take ``seconds`` together."""
    call()
    wait()
    begin = time.perf_counter_ns()
    call()
    wait()
    block = max(int(seconds * 1e8 / (time.perf_counter_ns() - begin)), 1)
    took: list[float] = []
    for _ in range(10):
        begin = time.perf_counter_ns()
        for _ in range(block):
            call()
        wait()
        took.append((time.perf_counter_ns() - begin) / block)
    return statistics.median(took)
