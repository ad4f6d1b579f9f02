"""The threads that share the programs of a launch: asleep between jobs, never spinning."""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from typing import Any

from nbxtensor.backend.cpu.native import Native, set_scratch
from nbxtensor.backend.cpu.pages import Pages
from nbxtensor.backend.forks import in_child

__all__ = ["Scratch", "Team"]


class Scratch(threading.local):
    """Scratch memory of the calling thread, for launches that it runs itself; grows to the largest ever asked for."""

    def __init__(self) -> None:
        self._pages = Pages(0)

    def pointer(self, nbytes: int) -> ctypes.c_void_p:
        """Return a block of at least ``nbytes`` bytes that only this thread uses."""
        if nbytes > self._pages.nbytes:
            self._pages = Pages(nbytes)
        return self._pages.pointer


class Team:
    """A calling thread and its sleeping helpers.

    One job runs at a time: a lock makes a second calling thread wait. The helpers are started by the first job, and
    again in a child process after a fork; they are sent home when the interpreter exits, and whatever is run after
    that runs on its caller alone. A signal that arrives during a job is handled by Python when the job is done.
    """

    def __init__(self, native: Native) -> None:
        self._native = native
        self._closed = False
        self._abandoned: weakref.finalize[..., Team] | None = None
        self._forget()
        in_child(self._forget)
        atexit.register(_close, weakref.ref(self))

    def _forget(self) -> None:
        """Start anew: after a fork the helpers are gone, and the lock may be held by a thread that is gone too."""
        self._lock = threading.Lock()
        self._helpers: list[threading.Thread] = []
        self._scratch: list[Pages] = []
        self._state: Pages | None = None
        if self._abandoned is not None:
            self._abandoned.detach()

    def run(self, table: Any, workers: int, scratch_nbytes: int) -> None:
        """Run a launch table cut for ``workers`` (2 or more), and wait until it is done.

        Args:
            table: Pointer to the table, or its bytes.
            workers: Number of workers, the calling thread among them.
            scratch_nbytes: Scratch each worker needs.
        """
        with self._lock:
            state = self._prepare(workers, scratch_nbytes)
            if state is None:
                self._native.inline(table, self._scratch[0].pointer)
            else:
                self._native.team(state.pointer, table)

    def run_timed(self, table: Any, workers: int, scratch_nbytes: int, times: Any) -> None:
        """Run a launch table as `run` does, writing the clock to ``times`` before and after each record."""
        with self._lock:
            state = self._prepare(workers, scratch_nbytes)
            if state is None:
                self._native.inline_timed(table, self._scratch[0].pointer, times, self._native.clock)
            else:
                self._native.team_timed(state.pointer, table, times, self._native.clock)

    def close(self) -> None:
        """Send the helpers home; what is run from now on runs on its caller alone."""
        with self._lock:
            self._closed = True
            self._stop()

    def _prepare(self, workers: int, scratch_nbytes: int) -> Pages | None:
        """Return the state of a team of ``workers``, started; None once the team is closed."""
        if len(self._scratch) != workers:
            self._stop()
            self._scratch = [Pages(scratch_nbytes) for _ in range(workers)]
        elif self._scratch[0].nbytes < scratch_nbytes:
            self._scratch = [Pages(scratch_nbytes) for _ in range(workers)]
            if self._state is not None:
                set_scratch(self._state, self._scratch)
        if self._state is None and not self._closed:
            self._start(workers)
        return self._state

    def _start(self, workers: int) -> None:
        state = self._native.new_state(self._scratch)
        try:
            for worker in range(1, workers):
                helper = threading.Thread(
                    target=_serve, args=(self._native, state, worker), name=f"nbxtensor-{worker}", daemon=True
                )
                helper.start()
                self._helpers.append(helper)
        except BaseException:
            _dismiss(self._native, state)
            self._helpers = []
            raise
        self._state = state
        self._abandoned = weakref.finalize(self, _dismiss, self._native, state)
        self._abandoned.atexit = False  # there `close` also waits for the helpers

    def _stop(self) -> None:
        if self._state is not None and self._abandoned is not None:
            self._abandoned.detach()  # at exit it would no longer do anything
            _dismiss(self._native, self._state)
            for helper in self._helpers:
                helper.join()
        self._state = None
        self._helpers = []


def _serve(native: Native, state: Pages, worker: int) -> None:
    native.worker(state.pointer, ctypes.c_int64(worker))


def _dismiss(native: Native, state: Pages) -> None:
    native.stop(state.pointer)


def _close(team: weakref.ref[Team]) -> None:
    found = team()
    if found is not None:
        found.close()
