"""Host work over a large array: one contiguous piece for each core, threads that sleep between calls."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbxtensor.backend.cpu import blas
from nbxtensor.backend.cpu.cores import measured_cores
from nbxtensor.errors import ArgumentError, SettingError
from nbxtensor.settings import replace, settings
from nbxtensor.shape import integer

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Body", "Probe", "measured_threads", "parallel_for", "set_threads", "threads", "threshold"]

Body = Callable[[int, int], object]
"""Work on the elements from a start to a stop."""
Probe = Callable[[int], Body]
"""From a number of elements to a body that does work of the kind on so many."""

_MEASURED_SECONDS = 200e-6  # a run at least this long tells the cost of an element
_LARGEST_PROBE = 1 << 22  # elements


def measured_threads() -> int:
    """Return the number of cores this process may compute on: see `cores.measured_cores`."""
    return measured_cores()


def threads() -> int:
    """Return the size of the pool in force: what `set_threads` set, else `measured_threads`."""
    return settings().threads or measured_threads()


def set_threads(count: int | None) -> None:
    """Set the size of the pool, the calling thread included; None: as measured.

    The BLAS that numpy calls is held to the same number.

    Raises:
        SettingError: ``count`` is not a whole number above 0.

    >>> set_threads(2)
    >>> threads()
    2
    >>> set_threads(None)
    """
    if count is not None:
        try:
            found = integer(count)
        except TypeError:
            found = 0
        if found < 1:
            raise SettingError(f"threads: a whole number above 0 is needed. Got {count!r}. Or None: as measured.")
        count = found
    replace(threads=count)
    blas.hold(threads())


def parallel_for(n: int, body: Body, kind: str, probe: Probe | None = None) -> None:
    """Run ``body(start, stop)`` over 0 to ``n``, on the pool where that is faster than in the calling thread.

    The pool runs one contiguous piece per thread, the calling thread the first; pieces come in no order. How many
    elements are worth it is measured for each kind of work when it first occurs: by ``probe(n)``, which returns a
    body to time, else on the first elements of the call. A call from inside a piece runs inline, as does everything
    where the pool has one thread. Meanwhile a BLAS call from a piece uses one thread.

    Args:
        n: Number of elements.
        body: The work; it lets go of the interpreter lock for most of its time, as numpy does.
        kind: Name of the kind of work ("exp", "to_bf16_bits"), by which its cost is remembered.
        probe: From a number of elements to a body that may be run on them any number of times.

    Raises:
        ArgumentError: ``n`` is negative.
        BaseException: What a piece raised, of the first such piece, after all pieces have ended.

    >>> import numpy as np
    >>> out = np.empty(8)
    >>> parallel_for(8, lambda start, stop: np.sqrt(np.arange(start, stop), out=out[start:stop]), "doctest")
    >>> float(out[4])
    2.0
    """
    if n < 0:
        raise ArgumentError(f"parallel_for: a number of elements is zero or more. Got {n}.")
    if n == 0:
        return
    size = threads()
    if size == 1 or n == 1 or _inside.piece:
        body(0, n)
        return
    if probe is not None and kind not in _costs:
        _costs[kind] = _probed_cost(probe)
    start = 0
    if kind not in _costs:
        start = _run_until_measured(n, body, kind)
    if start == n:
        return
    if n - start >= threshold(kind):
        _run_pieces(start, n, body, size)
    else:
        body(start, n)


def threshold(kind: str) -> int:
    """Return the number of elements of ``kind`` from which the pool is used, or 0 where it was not measured yet.

    It is where the time that the other threads take over is twice the time of a hand-over to them.
    """
    cost = _costs.get(kind)
    size = threads()
    if cost is None or size == 1:
        return 0
    return max(2, round(2 * _handover(size) / (cost * (1 - 1 / size))))


class _Inside(threading.local):
    """Whether the calling thread is in a piece."""

    piece = False


_inside = _Inside()
_costs: dict[str, float] = {}  # kind -> seconds per element on one thread, as measured


class _Workers:
    """The sleeping threads beside the calling one; made when first needed, anew when their number changes."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew, as a child process must after a fork: its threads are gone."""
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._size = 0

    def submit(self, size: int, tasks: list[Callable[[], None]]) -> list[Future[None]]:
        from concurrent.futures import ThreadPoolExecutor  # with logging: only who uses the pool pays

        with self._lock:
            if self._executor is None or self._size != size:
                if self._executor is not None:
                    self._executor.shutdown(wait=False)
                self._executor = ThreadPoolExecutor(size, thread_name_prefix="nbxtensor")
                self._size = size
            return [self._executor.submit(task) for task in tasks]


_workers = _Workers()
os.register_at_fork(after_in_child=_workers.forget)


def _run_pieces(start: int, stop: int, body: Body, size: int) -> None:
    from concurrent.futures import wait

    count = min(size, stop - start)
    bounds = [start + (stop - start) * index // count for index in range(count + 1)]
    with blas.region(size):
        tasks = [functools.partial(_run_piece, body, *pair) for pair in itertools.pairwise(bounds[1:])]
        others = _workers.submit(size - 1, tasks)
        try:
            _run_piece(body, bounds[0], bounds[1])
        finally:
            wait(others)
    for other in others:
        other.result()


def _run_piece(body: Body, start: int, stop: int) -> None:
    _inside.piece = True
    try:
        with blas.piece():
            body(start, stop)
    finally:
        _inside.piece = False


def _probed_cost(probe: Probe) -> float:
    count = 1 << 10
    while True:
        body = probe(count)
        seconds = min(_timed(body, 0, count) for _ in range(3))
        if seconds >= _MEASURED_SECONDS or count >= _LARGEST_PROBE:
            return max(seconds / count, 1e-13)
        count *= 4


def _run_until_measured(n: int, body: Body, kind: str) -> int:
    """Run the first elements of a call, ever more at a time, until a run is long enough to time; return the next."""
    start, count = 0, 1 << 10
    while start < n:
        stop = min(start + count, n)
        seconds = _timed(body, start, stop)
        if seconds >= _MEASURED_SECONDS:
            _costs[kind] = seconds / (stop - start)
            return stop
        start, count = stop, count * 4
    return start


@functools.lru_cache(maxsize=8)
def _handover(size: int) -> float:
    """Return the seconds that a call of the pool takes when there is nothing to do."""
    return min(_timed(lambda start, stop: _run_pieces(start, stop, _nothing, size), 0, size) for _ in range(20))


def _nothing(start: int, stop: int) -> None:
    """Do nothing with the elements from ``start`` to ``stop``."""


def _timed(body: Body, start: int, stop: int) -> float:
    began = time.perf_counter()
    body(start, stop)
    return time.perf_counter() - began
