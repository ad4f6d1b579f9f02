"""Blocks of device memory with an owner, handed out by one counting, pooling allocator per device."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort

from nbxtensor.backend.contract import DeviceMemory
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
        self.address = address
        self.nbytes = nbytes
        self.allocator = allocator
        self.owner = owner
        self.readonly = readonly

    def __del__(self) -> None:
        """Give the block back."""
        if self.owner is None and self.allocator is not None:
            self.allocator.give_back(self.address)


class Allocator:
    """The memory of one device as the library uses it: counted, limited, with a pool of freed blocks.

    Freed blocks are parked and serve later requests of up to twice less; past a share of the limit the largest are
    returned to the device. All methods may be called from any thread.

    Attributes:
        device: Name for messages ("cpu:0").
        memory: The raw memory behind it.
        live: Bytes handed out and not given back.
        peak: Highest value of ``live`` since `reset_peak`.
        requests: Blocks handed out so far.
    """

    def __init__(self, device: str, memory: DeviceMemory) -> None:
        self.device = device
        self.memory = memory
        self.live = 0
        self.peak = 0
        self.requests = 0
        self._sizes: dict[int, int] = {}
        self._parked: list[tuple[int, int]] = []  # (size, address), ascending
        self._parked_nbytes = 0
        self._lock = threading.RLock()  # a collection inside may run a Storage's __del__

    def allocate(self, nbytes: int) -> Storage:
        """Return a block of ``nbytes`` bytes, aligned to 64; its contents are undefined (poisoned where set).

        Raises:
            ArgumentError: ``nbytes`` is negative.
            OutOfMemoryError: The limit in force, or the device, cannot hold it.
        """
        if nbytes < 0:
            raise ArgumentError(f"allocate: a size is zero or more bytes. Got {nbytes}.")
        size = max(-(-nbytes // ALIGNMENT), 1) * ALIGNMENT
        with self._lock:
            ceiling = limit()
            if ceiling is not None and self.live + size > ceiling:
                raise OutOfMemoryError(
                    self.device, requested=nbytes, live=self.live, limit=ceiling, source="the limit set"
                )
            address, size = self._take(size) or self._fresh(nbytes, size)
            self._sizes[address] = size
            self.live += size
            self.peak = max(self.peak, self.live)
            self.requests += 1
        if settings().poison:
            self.memory.fill(address, _POISON, size)
        return Storage(address, nbytes, self)

    def give_back(self, address: int) -> None:
        """Take a block back: it is parked, or returned to the device when enough is parked already."""
        with self._lock:
            size = self._sizes.pop(address)
            self.live -= size
            insort(self._parked, (size, address))
            self._parked_nbytes += size
            allowed = int(_PARKED_SHARE * (limit() or self.memory.info().total))
            while self._parked_nbytes > allowed and self._parked:
                self._release(len(self._parked) - 1)

    def trim(self) -> int:
        """Return every parked block to the device; return the bytes that were parked."""
        with self._lock:
            parked = self._parked_nbytes
            while self._parked:
                self._release(len(self._parked) - 1)
            return parked

    def reset_peak(self) -> None:
        """Let ``peak`` start again from what is live now."""
        with self._lock:
            self.peak = self.live

    def _take(self, size: int) -> tuple[int, int] | None:
        place = bisect_left(self._parked, (size, 0))
        if place < len(self._parked) and self._parked[place][0] <= 2 * size:
            found, address = self._parked.pop(place)
            self._parked_nbytes -= found
            return address, found
        return None

    def _fresh(self, nbytes: int, size: int) -> tuple[int, int]:
        try:
            return self.memory.allocate(size, ALIGNMENT), size
        except OutOfMemoryError:
            if not self.trim():
                raise
        try:
            return self.memory.allocate(size, ALIGNMENT), size
        except OutOfMemoryError:
            info = self.memory.info()
            raise OutOfMemoryError(
                self.device, requested=nbytes, live=self.live, limit=self.live + info.free, source="the device"
            ) from None

    def _release(self, place: int) -> None:
        size, address = self._parked.pop(place)
        self._parked_nbytes -= size
        self.memory.free(address)
