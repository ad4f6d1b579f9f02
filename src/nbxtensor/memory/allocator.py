"""Blocks of device memory with an owner, handed out by one counting, pooling allocator per device."""

from __future__ import annotations

import itertools
import sys
import threading
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable

from nbxtensor.backend.contract import DeviceMemory
from nbxtensor.backend.forks import in_child
from nbxtensor.errors import ArgumentError, OutOfMemoryError
from nbxtensor.memory.limit import limit
from nbxtensor.settings import Settings, settings

__all__ = ["Allocator", "Storage"]

ALIGNMENT = 64  # a cache line, and the widest vector of every declared CPU level
_PARKED_SHARE = 0.25  # of the limit (or of the device) that freed blocks may keep
_SMALL, _WAITING = 1 << 20, 64  # bytes of a block that may wait to be parked, and how many may
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
        allocator = self.allocator
        if allocator is not None and self.owner is None and not _finalizing():
            allocator.returned.append(self.address)  # as `Allocator.give_back` does
            if self.nbytes > _SMALL or len(allocator.returned) > _WAITING:
                allocator.settle()


class Allocator:
    """The memory of one device as the library uses it: counted, limited, with a pool of freed blocks.

    Freed blocks are parked and serve later requests of up to twice less; past a share of the limit the largest are
    returned to the device. What is live and parked together stays within the limit. All methods may be called from
    any thread.

    Attributes:
        device: Name for messages ("cpu:0").
        memory: The raw memory behind it.
        returned: Addresses of blocks that came back and are not taken in yet.
    """

    def __init__(self, device: str, memory: DeviceMemory) -> None:
        self.device: str = device
        self.memory: DeviceMemory = memory
        self._live = self._peak = self._parked = 0
        self._served, self._looks = itertools.count(), 0  # a count that threads share without a lock; reading it counts
        self._total = memory.info().total
        self._sizes: dict[int, int] = {}  # of every block, by address
        self._pool: dict[int, list[int]] = {}  # addresses of what is parked, by size
        self._ladder: list[int] = []  # the sizes in the pool, ascending; some may have no block left
        # A collection may run a Storage's __del__ anywhere, also while this thread holds the lock: an address that
        # comes back is queued, and whoever holds the lock, or gets it next, takes the queue in. Small blocks wait there
        # for the next request: most often it is for the same size.
        self.returned: deque[int] = deque()
        self._forget()
        in_child(self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()  # after a fork a thread that is gone may hold the old one

    @property
    def live(self) -> int:
        """Bytes handed out and not given back, each block rounded up to 64."""
        self.settle()
        return self._live

    @property
    def peak(self) -> int:
        """Highest value of ``live`` since `reset_peak`."""
        return self._peak

    @property
    def parked(self) -> int:
        """Bytes in the pool."""
        self.settle()
        return self._parked

    @property
    def requests(self) -> int:
        """Blocks handed out so far."""
        self._looks += 1
        return next(self._served) - self._looks + 1

    def allocate(self, nbytes: int) -> Storage:
        """Return a block of ``nbytes`` bytes, aligned to 64; its contents are undefined (poisoned where set).

        Raises:
            ArgumentError: ``nbytes`` is negative.
            OutOfMemoryError: The limit in force, or the device, cannot hold it.
        """
        if nbytes < 0:
            raise ArgumentError(f"allocate: a size is zero or more bytes. Got {nbytes}.")
        wanted = (nbytes + ALIGNMENT - 1) & -ALIGNMENT or ALIGNMENT
        current, returned = settings(), self.returned
        if returned and current.memory_limit is None and not current.poison:
            # What came back last most often has the size: it goes out again, and what is live stays the same.
            try:
                address = returned.pop()
            except IndexError:  # another thread has it
                address = 0
            if self._sizes.get(address) == wanted:
                next(self._served)
                return Storage(address, nbytes, self)
            if address:
                returned.append(address)
        return Storage(self._taken(nbytes, wanted, current), nbytes, self)

    def _taken(self, nbytes: int, wanted: int, current: Settings) -> int:
        """Return the address of a block of ``wanted`` bytes or more, out of the pool or new, and count it."""
        ceiling = current.memory_limit
        try:
            with self._lock:
                self._take_in()
                parked = self._pool.get(wanted)
                if parked and (ceiling is None or self._live + wanted <= ceiling):
                    address, size = parked.pop(), wanted
                    self._parked -= size
                else:
                    address, size = self._found(nbytes, wanted, ceiling)
                self._live += size
                self._peak = max(self._peak, self._live)
                next(self._served)
        finally:
            self.settle()
        if current.poison:
            self.memory.fill(address, _POISON, size)
        return address

    def give_back(self, address: int) -> None:
        """Take a block back: it is parked, or returned to the device when enough is parked already."""
        returned = self.returned
        returned.append(address)
        if len(returned) > _WAITING or self._sizes[address] > _SMALL:
            self.settle()

    def trim(self) -> int:
        """Return every parked block to the device; return the bytes that were parked."""
        with self._lock:
            self._take_in()
            parked = self._parked
            self._shrink(0)
        self.settle()
        return parked

    def reset_peak(self) -> None:
        """Let ``peak`` start again from what is live now."""
        with self._lock:
            self._take_in()
            self._peak = self._live
        self.settle()

    def refusal(self, nbytes: int, limit: int | None, source: str, *, most: int | None = None) -> OutOfMemoryError:
        """Return the error for a request that cannot be served.

        Args:
            nbytes: What was asked for.
            limit: Bytes that ``source`` holds; None: what is live and what the device has free.
            source: What has no room.
            most: What the device would have served, where it says so.
        """
        info = self.memory.info()
        return OutOfMemoryError(
            self.device,
            requested=nbytes,
            live=self._live,
            pooled=self._parked,
            limit=self._live + info.free if limit is None else limit,
            free=info.free,
            total=info.total,
            source=source,
            granule=ALIGNMENT,
            most=most,
        )

    def settle(self) -> None:
        """Take in what is queued, unless another thread holds the lock, which will; called without the lock."""
        while self.returned and self._lock.acquire(blocking=False):
            try:
                self._take_in()
            finally:
                self._lock.release()

    # ---- under the lock

    def _take_in(self) -> None:
        """Park what has come back."""
        while self.returned:
            try:
                address = self.returned.popleft()
            except IndexError:  # another thread took it as it is
                return
            size = self._sizes[address]
            self._live -= size
            self._parked += size
            parked = self._pool.get(size)
            if parked is None:
                self._pool[size] = [address]
                insort(self._ladder, size)
            else:
                parked.append(address)
            ceiling = limit()
            most = int(_PARKED_SHARE * (ceiling or self._total))
            if ceiling is not None:  # lowered, maybe, below what was live
                most = max(min(most, ceiling - self._live), 0)
            if self._parked > most:
                self._shrink(most)

    def _found(self, nbytes: int, wanted: int, ceiling: int | None) -> tuple[int, int]:
        """Return the address and the size of a block that holds ``wanted`` bytes, the limit kept."""
        if ceiling is not None and self._live + wanted > ceiling:
            raise self.refusal(nbytes, ceiling, "the limit set")
        room = 2 * wanted if ceiling is None else min(2 * wanted, ceiling - self._live)
        for size in self._ladder[bisect_left(self._ladder, wanted) : bisect_right(self._ladder, room)]:
            parked = self._pool[size]
            if parked:
                self._parked -= size
                return parked.pop(), size
        if ceiling is not None:
            self._shrink(ceiling - self._live - wanted)
        address = self._fresh(nbytes, wanted)
        self._sizes[address] = wanted
        return address, wanted

    def _fresh(self, nbytes: int, size: int) -> int:
        """Return the address of a new block, the pool emptied where the device has no other room for it."""
        try:
            return self.memory.allocate(size, ALIGNMENT)
        except OutOfMemoryError:
            self._shrink(0)
        try:
            return self.memory.allocate(size, ALIGNMENT)
        except OutOfMemoryError as error:
            raise self.refusal(nbytes, None, "the device", most=error.fits) from None

    def _shrink(self, nbytes: int) -> None:
        """Return the largest parked blocks to the device until ``nbytes`` or less are parked."""
        while self._parked > nbytes:
            size = self._ladder[-1]
            parked = self._pool[size]
            if parked:
                address = parked.pop()
                self._parked -= size
                del self._sizes[address]
                self.memory.free(address)
            else:
                del self._pool[self._ladder.pop()]
