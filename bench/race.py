"""Contenders timed in turns, so that what disturbs the machine disturbs them alike."""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# A pool of another library spins for a while after its work (OpenBLAS for 2**26 cycles): it must be asleep before
# the next contender starts, or that one is measured with a core less.
_CALM_SECONDS = 0.08
_WAIT_SECONDS = 0.5  # the longest wait for a moment in which nothing else runs
_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else frozenset[int]()
_STATE = Path("/proc/stat")
_TURN_SECONDS = 0.004  # what a turn is filled up to with calls


@dataclass(frozen=True)
class Contender:
    """One way to compute the same thing.

    Attributes:
        name: What its figures are kept under.
        run: Computes once, into memory that was allocated before where its library can.
        value: From what ``run`` returns to the result as numpy, to compare with the others'.
        note: How it differs from the others (its policy of memory, its layout).
    """

    name: str
    run: Callable[[], Any]
    value: Callable[[Any], np.ndarray]
    note: str = ""


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one contender.

    Attributes:
        figure: What counts: the median over the turns on one thread, the least on several.
        median: The median over the turns.
        least: The least of them.
    """

    figure: float
    median: float
    least: float


def race(contenders: Sequence[Contender], *, threads: int, turns: int, seconds: float) -> dict[str, Timing]:
    """Return the timing of each contender, each given one turn in each round, the order reversed every other round.

    A turn is one call that does not count and then as many as fill some milliseconds. Its sample is their mean in the
    processor time of the calling thread; with several threads, which only wall time covers, each turn waits for a
    moment in which nothing else runs, and its sample is the shortest call.

    Args:
        contenders: Who runs.
        threads: How many threads each was told to use.
        turns: Most rounds.
        seconds: No further round starts once this much wall time went by (three rounds are always run).
    """
    turn = _turn if threads == 1 else _wall_turn
    calls = {c.name: _calls(c) for c in contenders}
    samples: dict[str, list[float]] = {c.name: [] for c in contenders}
    begun = time.perf_counter()
    gc.collect()
    gc.disable()
    spread = threads > 1 and _goes_first()
    if spread:
        _keep_to_cores(apart=True)
    try:
        for number in range(turns):
            if number >= 3 and time.perf_counter() - begun > seconds:
                break
            for contender in contenders if number % 2 == 0 else reversed(contenders):
                samples[contender.name].append(turn(contender.run, calls[contender.name]))
    finally:
        gc.enable()
        if spread:
            _keep_to_cores(apart=False)
    pick = statistics.median if threads == 1 else min
    return {name: Timing(pick(took), statistics.median(took), min(took)) for name, took in samples.items()}


def _calls(contender: Contender) -> int:
    """Return how many calls fill a turn; runs it a few times, which also warms it up."""
    contender.run()
    took = min(_turn(contender.run, 1) for _ in range(2))
    return max(1, min(100_000, round(_TURN_SECONDS / max(took, 1e-8))))


def _turn(run: Callable[[], Any], calls: int) -> float:
    run()
    begun = time.thread_time()
    for _ in range(calls):
        run()
    return (time.thread_time() - begun) / calls


def _wall_turn(run: Callable[[], Any], calls: int) -> float:
    time.sleep(_CALM_SECONDS)
    waited = 0.0
    while waited < _WAIT_SECONDS and _others_disturb():
        time.sleep(0.002)
        waited += 0.002
    run()
    shortest = float("inf")
    for _ in range(max(2, calls)):
        begun = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - begun)
    return shortest


def _goes_first() -> bool:
    """Return whether this process runs before all others."""
    return os.getpriority(os.PRIO_PROCESS, 0) < 0


def _keep_to_cores(*, apart: bool) -> None:
    """Keep the calling thread to the first core and every other thread to the others, or let all run anywhere.

    On a busy machine the scheduler puts threads that sleep between calls on one core, however many there are.
    """
    cores = sorted(_CORES)
    if len(cores) < 2:
        return
    for task in Path("/proc/self/task").iterdir():
        here = {cores[0]} if int(task.name) == threading.get_native_id() else set(cores[1:])
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(task.name), here if apart else cores)


def _others_disturb() -> bool:
    """Return whether anything but the asking thread wants to run now, unless this process goes before all others."""
    if not _STATE.exists() or _goes_first():
        return False
    running = next((line for line in _STATE.read_text().splitlines() if line.startswith("procs_running")), "x 1")
    return int(running.split()[1]) > 1


def agree(contenders: Sequence[Contender], *, rtol: float) -> None:
    """Raise unless every contender gives what the first one gives.

    Args:
        contenders: Who runs; the first one is ours.
        rtol: Largest difference accepted, relative to the largest magnitude in the result.

    Raises:
        ValueError: One differs; names it and by how much.
    """
    want = None
    for contender in contenders:
        got = np.asarray(contender.value(contender.run()), np.float64)
        if want is None:
            want = got
            continue
        scale = float(np.abs(want).max(initial=0.0)) or 1.0
        error = float(np.abs(got.reshape(want.shape) - want).max(initial=0.0)) / scale
        if not error <= rtol:
            raise ValueError(f"{contender.name} computes something else: off by {error:.2e} of the largest result.")
