"""Recorded launches: one table, replayed by one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nbxtensor.backend.contract import Bound
from nbxtensor.backend.cpu.host_kernel import HostKernel
from nbxtensor.backend.cpu.launch_table import host_kernel, launch_table
from nbxtensor.backend.cpu.native import Native
from nbxtensor.backend.cpu.pages import Pages
from nbxtensor.backend.cpu.team import Scratch, Team
from nbxtensor.backend.launch_order import rebound

__all__ = ["HostReplay"]

_NOWHERE = ctypes.c_void_p()  # scratch of launches that need none


@dataclass(frozen=True, slots=True)
class _Cut:
    workers: int
    table: Pages
    split: bool


class HostReplay:
    """A recorded sequence of launches.

    Its arguments are fixed addresses: two threads may replay two recordings at once, not the same one.
    """

    def __init__(
        self, launches: Sequence[Bound], native: Native, team: Team, scratch: Scratch, workers: Callable[[], int]
    ) -> None:
        self._launches = tuple(launches)
        self._kernels: tuple[HostKernel, ...] = tuple(host_kernel(bound) for bound in launches)  # keeps them loaded
        self._scratch_nbytes = max((kernel.scratch_nbytes for kernel in self._kernels), default=0)
        self._native = native
        self._team = team
        self._scratch = scratch
        self._workers = workers
        self._cut = self._cut_for(self._launches, workers())

    def run(self) -> None:
        """Run all launches once, in order, and wait until they are done.

        Nothing is allocated, unless the number of threads was changed since the last run. Ctrl-C during a run is
        raised after its end.
        """
        cut = self._current()
        if cut.split:
            self._team.run(cut.table.pointer, cut.workers, self._scratch_nbytes)
        else:
            scratch = self._scratch.pointer(self._scratch_nbytes) if self._scratch_nbytes else _NOWHERE
            self._native.inline(cut.table.pointer, scratch)

    def start(self) -> None:
        """Run all launches once, as `run` does: the host has nobody to leave them to."""
        self.run()

    def rebind(self, number: int, arguments: Sequence[int | float]) -> None:
        """Give launch ``number`` other arguments, for the runs that follow.

        Raises:
            ArgumentError: There is no such launch, or values that its kernel does not take.
        """
        launches = rebound(self._launches, number, arguments)
        self._cut = self._cut_for(launches, self._workers())
        self._launches = launches

    def profile(self) -> tuple[float, ...]:
        """Run all launches once and return the nanoseconds of each: wall time, the wait for other workers included."""
        cut = self._current()
        times = (ctypes.c_int64 * (len(self._launches) + 1))()
        pointer = ctypes.c_void_p(ctypes.addressof(times))
        if cut.split:
            self._team.run_timed(cut.table.pointer, cut.workers, self._scratch_nbytes, pointer)
        else:
            scratch = self._scratch.pointer(self._scratch_nbytes)
            self._native.inline_timed(cut.table.pointer, scratch, pointer, self._native.clock)
        return tuple(float(times[i + 1] - times[i]) for i in range(len(self._launches)))

    def _current(self) -> _Cut:
        workers = self._workers()
        if workers != self._cut.workers:
            self._cut = self._cut_for(self._launches, workers)
        return self._cut

    def _cut_for(self, launches: tuple[Bound, ...], workers: int) -> _Cut:
        data, split = launch_table(launches, workers)
        table = Pages(len(data))
        table.view[: len(data)] = data
        return _Cut(workers, table, split)
