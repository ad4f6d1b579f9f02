"""Blocks of device memory with an owner, handed out by one counting, pooling allocator per device."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable

from nbxtensor.backend.contract import DeviceMemory
from nbxtensor.backend.forks import in_child
from nbxtensor.errors import ArgumentError, OutOfMemoryError
from nbxtensor.memory.limit import limit
from nbxtensor.settings import settings

__all__ = ["Allocator", "Storage"]

ALIGNMENT = 64  # a cache line, and the widest vector of every declared CPU level
_PARKED_SHARE = 0.25  # of the limit (or of the device) that freed blocks may keep
_POISON = 0xFF  # NaN in every float format, -1 in every integer: what reading unwritten memory shows in tests


class Storage:
    """A block of device memory; it goes back to its allocator when nothing refers to it any more.

    Attributes:
        address: First byte.
        nbytes: Usable size.
        allocator: Who it came from, or None for memory that somebody else owns.
        owner: What keeps foreign memory alive (a numpy array, another storage).
        readonly: Whether the memory may only be read.
    """

    __slots__ = ("__weakref__", "address", "allocator", "nbytes", "owner", "readonly")

    def __init__(
        self, address: int, nbytes: int, allocator: Allocator | None, owner: object = None, *, readonly: bool = False
    ) -> None:
        self.address: int = address
        self.nbytes: int = nbytes
        self.allocator: Allocator | None = allocator
        self.owner: object = owner
        self.readonly: bool = readonly

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Give the block back; not while the interpreter ends, when the names of modules are gone already."""
        if self.owner is None and self.allocator is not None and not _finalizing():
            self.allocator.give_back(self.address)


class Allocator:
    """The memory of one device as the library uses it: counted, limited, with a pool of freed blocks.

    Freed blocks are parked and serve later requests of up to twice less; past a share of the limit the largest are
    returned to the device. What is live and parked together stays within the limit. All methods may be called from
    any thread.

    Attributes:
        device: Name for messages ("cpu:0").
        memory: The raw memory behind it.
        live: Bytes handed out and not given back, each block rounded up to 64.
        peak: Highest value of ``live`` since `reset_peak`.
        parked: Bytes in the pool.
        requests: Blocks handed out so far.
    """

    def __init__(self, device: str, memory: DeviceMemory) -> None:
        self.device: str = device
        self.memory: DeviceMemory = memory
        self.live: int = 0
        self.peak: int = 0
        self.parked: int = 0
        self.requests: int = 0
        self._total = memory.info().total
        self._sizes: dict[int, int] = {}  # of the blocks handed out, by address
        self._pool: list[tuple[int, int]] = []  # (size, address), ascending
        # A collection may run a Storage's __del__ anywhere, also while this thread holds the lock: an address that
        # comes back is queued, and whoever holds the lock, or gets it next, takes the queue in.
        self._returned: deque[int] = deque()
        self._forget()
        in_child(self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()  # after a fork a thread that is gone may hold the old one

    def allocate(self, nbytes: int) -> Storage:
        """Return a block of ``nbytes`` bytes, aligned to 64; its contents are undefined (poisoned where set).

        Raises:
            ArgumentError: ``nbytes`` is negative.
            OutOfMemoryError: The limit in force, or the device, cannot hold it.
        """
        if nbytes < 0:
            raise ArgumentError(f"allocate: a size is zero or more bytes. Got {nbytes}.")
        wanted = max(-(-nbytes // ALIGNMENT), 1) * ALIGNMENT
        try:
            with self._lock:
                self._take_in()
                address, size = self._found(nbytes, wanted)
                self._sizes[address] = size
                self.live += size
                self.peak = max(self.peak, self.live)
                self.requests += 1
        finally:
            self._settle()
        if settings().poison:
            self.memory.fill(address, _POISON, size)
        return Storage(address, nbytes, self)

    def give_back(self, address: int) -> None:
        """Take a block back: it is parked, or returned to the device when enough is parked already."""
        self._returned.append(address)
        self._settle()

    def trim(self) -> int:
        """Return every parked block to the device; return the bytes that were parked."""
        with self._lock:
            self._take_in()
            parked = self.parked
            self._shrink(0)
        self._settle()
        return parked

    def reset_peak(self) -> None:
        """Let ``peak`` start again from what is live now."""
        with self._lock:
            self._take_in()
            self.peak = self.live
        self._settle()

    # ---- under the lock

    def _take_in(self) -> None:
        """Park what has come back."""
        while self._returned:
            address = self._returned.popleft()
            size = self._sizes.pop(address)
            self.live -= size
            insort(self._pool, (size, address))
            self.parked += size
            self._shrink(int(_PARKED_SHARE * (limit() or self._total)))

    def _found(self, nbytes: int, wanted: int) -> tuple[int, int]:
        """Return the address and the size of a block that holds ``wanted`` bytes, the limit kept."""
        ceiling = limit()
        if ceiling is not None and self.live + wanted > ceiling:
            raise OutOfMemoryError(self.device, requested=nbytes, live=self.live, limit=ceiling, source="the limit set")
        room = 2 * wanted if ceiling is None else min(2 * wanted, ceiling - self.live)
        place = bisect_left(self._pool, (wanted, 0))
        if place < len(self._pool) and self._pool[place][0] <= room:
            size, address = self._pool.pop(place)
            self.parked -= size
            return address, size
        if ceiling is not None:
            self._shrink(ceiling - self.live - wanted)
        return self._fresh(nbytes, wanted), wanted

    def _fresh(self, nbytes: int, size: int) -> int:
        """Return the address of a new block, the pool emptied where the device has no other room for it."""
        try:
            return self.memory.allocate(size, ALIGNMENT)
        except OutOfMemoryError:
            self._shrink(0)
        try:
            return self.memory.allocate(size, ALIGNMENT)
        except OutOfMemoryError:
            most = self.live + self.memory.info().free
            raise OutOfMemoryError(
                self.device, requested=nbytes, live=self.live, limit=most, source="the device"
            ) from None

    def _shrink(self, nbytes: int) -> None:
        """Return the largest parked blocks to the device until ``nbytes`` or less are parked."""
        while self.parked > nbytes:
            size, address = self._pool.pop()
            self.parked -= size
            self.memory.free(address)

    def _settle(self) -> None:
        """Take in what was queued while the lock was held; called without the lock."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._take_in()
            finally:
                self._lock.release()
