"""The runtime loaded into this process: its entry points, callable without any conversion of arguments."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from nbxtensor.backend.cpu import elf
from nbxtensor.backend.cpu.pages import Pages
from nbxtensor.backend.cpu.runtime import (
    CONDITION_CALLS,
    FUTEX_CALLS,
    STATE_CALLS,
    STATE_COND,
    STATE_MUTEX,
    STATE_SCRATCH,
    STATE_WORKERS,
)

__all__ = ["Native", "entry", "set_scratch", "system_address"]

_libc = ctypes.CDLL(None)


def entry(address: int) -> Callable[..., None]:
    """Return the function at ``address`` as a callable that releases the interpreter's lock while it runs.

    Arguments are ctypes objects or bytes, taken as they are: the call converts and allocates nothing.
    """
    return ctypes.CFUNCTYPE(None)(address)


def system_address(name: str) -> int:
    """Return the address of a function of the C library."""
    address = ctypes.cast(getattr(_libc, name), ctypes.c_void_p).value
    return address or 0


def set_scratch(state: Pages, scratch: Sequence[Pages]) -> None:
    """Put the address of each worker's scratch block into the state of a team that is at rest."""
    struct.pack_into(f"<{len(scratch)}Q", state.view, STATE_SCRATCH, *(block.address for block in scratch))


class Native:
    """The entry points of one loaded runtime (see `runtime.runtime_text`); it keeps the code loaded.

    Attributes:
        inline: ``(table, scratch)``: run a table on the calling thread.
        inline_timed: ``(table, scratch, times, clock)``: the same, writing the clock before and after each record.
        team: ``(state, table)``: run a table on the team of ``state`` and wait for it.
        team_timed: ``(state, table, times, clock)``: the same, writing the clock.
        worker: ``(state, worker)``: serve a team until it is stopped.
        stop: ``(state)``: have every worker return.
        clock: Address of the clock, as the timed entries take it.
    """

    def __init__(self, object: bytes, *, futex: bool) -> None:
        self._module = elf.load(object)
        self._futex = futex
        self.inline: Callable[..., None] = self._entry("nbx_inline")
        self.inline_timed: Callable[..., None] = self._entry("nbx_inline_timed")
        self.team: Callable[..., None] = self._entry("nbx_team")
        self.team_timed: Callable[..., None] = self._entry("nbx_team_timed")
        self.worker: Callable[..., None] = self._entry("nbx_worker")
        self.stop: Callable[..., None] = self._entry("nbx_stop")
        self.clock: Any = ctypes.c_void_p(system_address("clock_gettime"))

    def _entry(self, symbol: str) -> Callable[..., None]:
        return entry(self._module.address(symbol))

    def new_state(self, scratch: Sequence[Pages]) -> Pages:
        """Return the state of a team that has a scratch block per worker; the caller keeps the blocks."""
        state = Pages(STATE_SCRATCH + 8 * len(scratch))
        struct.pack_into("<q", state.view, STATE_WORKERS, len(scratch))
        calls = FUTEX_CALLS if self._futex else CONDITION_CALLS
        struct.pack_into(f"<{len(calls)}Q", state.view, STATE_CALLS, *map(system_address, calls))
        set_scratch(state, scratch)
        if not self._futex:
            _libc.pthread_mutex_init(ctypes.c_void_p(state.address + STATE_MUTEX), None)
            _libc.pthread_cond_init(ctypes.c_void_p(state.address + STATE_COND), None)
        return state
