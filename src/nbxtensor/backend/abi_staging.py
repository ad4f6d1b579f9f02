"""Host memory that a device copies from and to by itself, and large copies of other host memory through it."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nbxtensor.backend.abi import Driver
from nbxtensor.backend.abi_event import Event

__all__ = ["HostBlock", "Staging"]

_PORTABLE = 1  # the flag of memory that is pinned for every device of the process
# Chosen on an H200 with 16 cores of its host: 512 MiB go in at 43 GB/s and out at 39 GB/s (9 and 18 through the driver
# alone, which stages the bytes on one thread; 55 from pinned memory); smaller copies want fewer threads, and below
# 32 MiB the driver alone is as fast.
_WORKERS = 8
_SLOT_NBYTES = 4 << 20
_PIECES = 4  # that a thread is worth
_LEAST_NBYTES = 32 << 20


class HostBlock:
    """A block of host memory that stays where it is ("pinned"), so that the device can copy on its own.

    It goes back when nothing refers to it any more; whoever starts a copy holds it until the copy is done.

    Attributes:
        address: Its first byte.
        nbytes: Its size.
    """

    __slots__ = ("__weakref__", "address", "nbytes")

    def __init__(self, driver: Driver, enter: Callable[[], None], nbytes: int) -> None:
        """Take a block; its contents are undefined.

        Raises:
            DriverError: The driver has no memory to pin, or fails otherwise.
        """
        enter()
        self.nbytes: int = nbytes
        self.address: int = driver.handle("allocate_host", max(nbytes, 1), _PORTABLE)
        weakref.finalize(self, _free, driver, enter, self.address).atexit = False

    @property
    def view(self) -> memoryview:
        """The memory, writable; the view holds the block."""
        bytes_: Any = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        bytes_.block = self
        return memoryview(bytes_).cast("B")


class _Slot:
    """A pinned block and the point at which the copy that uses it is done."""

    __slots__ = ("block", "event")

    def __init__(self, driver: Driver, enter: Callable[[], None], nbytes: int) -> None:
        self.block = HostBlock(driver, enter, nbytes)
        self.event = Event(driver, enter)


class Staging:
    """Copies between ordinary host memory and a device, in pieces through pinned blocks, by several threads at once.

    The blocks are taken at the first copy that is large enough, and kept.
    """

    def __init__(
        self,
        driver: Driver,
        stream: int,
        enter: Callable[[], None],
        *,
        workers: int | None = None,
        slot_nbytes: int = _SLOT_NBYTES,
        least_nbytes: int = _LEAST_NBYTES,
    ) -> None:
        """Take what is needed to copy.

        Args:
            driver: The driver.
            stream: The stream that the copies are ordered by.
            enter: Makes the device the calling thread's current one.
            workers: Most threads that copy; each has two blocks. None: 8, or as many as there are processors.
            slot_nbytes: Size of a block.
            least_nbytes: Smallest copy that is worth it.
        """
        self._driver = driver
        self._stream = stream
        self._enter = enter
        self._workers = workers or min(_WORKERS, os.cpu_count() or 1)
        self._slot_nbytes = slot_nbytes
        self.least_nbytes: int = least_nbytes
        self._turn = threading.Lock()
        self._slots: list[tuple[_Slot, _Slot]] = []

    def copy_in(self, address: int, source: int, nbytes: int) -> None:
        """Copy from host memory at ``source`` to the device at ``address``; the last pieces may be under way on return.

        Raises:
            DriverError: The driver fails.
        """

        def work(slots: tuple[_Slot, _Slot], pieces: range) -> None:
            for turn, start in enumerate(pieces):
                slot, size = slots[turn % 2], min(self._slot_nbytes, nbytes - start)
                slot.event.wait()
                ctypes.memmove(slot.block.address, source + start, size)
                self._driver.call("copy_in", address + start, slot.block.address, size, self._stream)
                slot.event.record(self._stream)

        self._spread(work, nbytes)

    def copy_out(self, target: int, address: int, nbytes: int) -> None:
        """Copy from the device at ``address`` to host memory at ``target``; on return all is there.

        Raises:
            DriverError: The driver fails.
        """

        def work(slots: tuple[_Slot, _Slot], pieces: range) -> None:
            for turn in range(len(pieces) + 1):
                if turn < len(pieces):
                    slot, start = slots[turn % 2], pieces[turn]
                    size = min(self._slot_nbytes, nbytes - start)
                    self._driver.call("copy_out", slot.block.address, address + start, size, self._stream)
                    slot.event.record(self._stream)
                if turn:
                    slot, start = slots[(turn - 1) % 2], pieces[turn - 1]
                    slot.event.wait()
                    ctypes.memmove(target + start, slot.block.address, min(self._slot_nbytes, nbytes - start))

        self._spread(work, nbytes)

    def _spread(self, work: Callable[[tuple[_Slot, _Slot], range], None], nbytes: int) -> None:
        """Have each worker do every so manieth piece."""
        workers = max(min(self._workers, nbytes // (_PIECES * self._slot_nbytes)), 1)
        step = workers * self._slot_nbytes

        def run(worker: int) -> None:
            self._enter()
            work(self._slots[worker], range(worker * self._slot_nbytes, nbytes, step))

        with self._turn:
            while len(self._slots) < workers:
                first, second = (_Slot(self._driver, self._enter, self._slot_nbytes) for _ in range(2))
                self._slots.append((first, second))
            if workers == 1:
                run(0)
                return
            with ThreadPoolExecutor(workers, "nbxtensor-copy") as pool:  # left once all are done
                copies = [pool.submit(run, worker) for worker in range(workers)]
            for copy in copies:
                copy.result()


def _free(driver: Driver, enter: Callable[[], None], address: int) -> None:
    enter()
    driver.call("free_host", address)
