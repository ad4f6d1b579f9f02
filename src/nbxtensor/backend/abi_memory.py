"""Memory of a device behind a driver interface, checked block by block."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nbxtensor.backend.abi import Driver
from nbxtensor.backend.abi_event import Event
from nbxtensor.backend.abi_staging import HostBlock, Staging
from nbxtensor.backend.contract import MemoryInfo
from nbxtensor.errors import ArgumentError, OutOfMemoryError

__all__ = ["AbiMemory"]

_GRANULE = 256  # bytes: what every driver aligns a block to
_MAPPED = 2 << 20  # bytes: what a driver maps for a block that no other shares
# Bytes that a driver reports as free and may need for the tables of a large block: on an H200, of 71,314.6 free pages
# all 71,314 were given out in one run and refused in another.
_TABLES = 2 * _MAPPED


@dataclass(frozen=True, slots=True)
class _Block:
    """A block in use: where the driver's own starts, and how many bytes were asked for."""

    base: int
    nbytes: int


class AbiMemory:
    """The memory of one device, all its copies and fills in the order of one stream.

    A range that starts in a block has to end in it. A range outside every block (memory of another library on the
    device) is taken as it is: whoever hands in its address answers for it. All methods may be called from any thread.
    """

    def __init__(self, driver: Driver, device: str, stream: int, enter: Callable[[], None]) -> None:
        """Take what is needed to reach the memory.

        Args:
            driver: The driver.
            device: Name of the device, for messages.
            stream: Handle of the stream that everything is ordered by.
            enter: Makes the device the calling thread's current one.
        """
        self._driver = driver
        self._device = device
        self._stream = stream
        self._enter = enter
        self._staging = Staging(driver, stream, enter)
        # Single operations on a dict are whole, whatever thread does them: no lock that a collection could run into.
        self._blocks: dict[int, _Block] = {}

    def allocate(self, nbytes: int, alignment: int = 64) -> int:
        """Return the address of a new block, its contents undefined.

        Raises:
            ArgumentError: ``nbytes`` is negative, or ``alignment`` is no power of two.
            OutOfMemoryError: The device has no room for it.
            DriverError: The driver fails for another reason.
        """
        if nbytes < 0 or alignment < 1 or alignment & (alignment - 1):
            raise ArgumentError(
                f"allocate: a block has zero or more bytes and an alignment that is a power of two. "
                f"Got {nbytes} bytes aligned to {alignment}."
            )
        self._enter()
        cell = ctypes.c_uint64()
        room = max(nbytes, 1) + (alignment if alignment > _GRANULE else 0)
        status = self._driver.function("allocate")(ctypes.byref(cell), room)
        if status == self._driver.abi.out_of_memory:
            live = sum(block.nbytes for block in list(self._blocks.values()))
            info = self.info()
            raise OutOfMemoryError(
                self._device,
                requested=nbytes,
                live=live,
                limit=live + info.free,
                free=info.free,
                total=info.total,
                source="the driver",
                granule=_MAPPED,
                most=max(info.free - _TABLES, 0),
            )
        if status:
            raise self._driver.error("allocate", status)
        address = -(-cell.value // alignment) * alignment
        self._blocks[address] = _Block(cell.value, nbytes)
        return address

    def free(self, address: int) -> None:
        """Give the block that starts at ``address`` back once everything started before is done.

        Raises:
            ArgumentError: No block starts there.
            DriverError: The driver fails.
        """
        block = self._blocks.pop(address, None)
        if block is None:
            raise ArgumentError(
                f"free: an address is the start of a block in use. Got {address:#x}. "
                "What allocate() returned and free() has not yet taken is accepted."
            )
        self._wait()
        self._driver.call("free", block.base)

    def copy_in(self, address: int, source: memoryview) -> None:
        """Copy contiguous host bytes to ``address``; on return ``source`` may be changed.

        Raises:
            ArgumentError: ``source`` is not contiguous, or the range leaves its block.
            DriverError: The driver fails.
        """
        nbytes = _contiguous("copy_in", source)
        self.check("copy_in", address, nbytes)
        if nbytes:
            self._enter()
            host = np.frombuffer(source, np.uint8).ctypes.data
            if nbytes < self._staging.least_nbytes:
                self._driver.call("copy_in", address, host, nbytes, self._stream)
            else:
                self._staging.copy_in(address, host, nbytes)
            self._driver.call("wait_stream", self._stream)

    def copy_out(self, target: memoryview, address: int) -> None:
        """Copy the bytes at ``address`` into contiguous, writable host memory, after everything started before.

        Raises:
            ArgumentError: ``target`` is not contiguous or not writable, or the range leaves its block.
            DriverError: The driver fails.
        """
        nbytes = _contiguous("copy_out", target)
        if target.readonly:
            raise ArgumentError("copy_out: the target is writable. Got read-only memory.")
        self.check("copy_out", address, nbytes)
        if nbytes:
            self._enter()
            host = np.frombuffer(target, np.uint8).ctypes.data
            if nbytes < self._staging.least_nbytes:
                self._driver.call("copy_out", host, address, nbytes, self._stream)
                self._driver.call("wait_stream", self._stream)
            else:
                self._staging.copy_out(host, address, nbytes)

    def allocate_host(self, nbytes: int) -> HostBlock:
        """Return host memory that the device copies from and to on its own: see `start_copy_in`.

        Raises:
            ArgumentError: ``nbytes`` is negative.
            DriverError: There is no memory to pin, or the driver fails otherwise.
        """
        if nbytes < 0:
            raise ArgumentError(f"allocate_host: a block has zero or more bytes. Got {nbytes}.")
        return HostBlock(self._driver, self._enter, nbytes)

    def start_copy_in(self, address: int, source: HostBlock, nbytes: int) -> Event:
        """Start a copy of the first ``nbytes`` bytes of ``source`` to ``address``; return when it is done, to wait for.

        Until then ``source`` is held by the caller and stays as it is. What is started later on the device sees the
        bytes.

        Raises:
            ArgumentError: The range leaves its block, or ``source`` is smaller.
            DriverError: The driver fails.
        """
        self._check_host("start_copy_in", source, nbytes)
        self.check("start_copy_in", address, nbytes)
        return self._started("copy_in", address, source.address, nbytes)

    def start_copy_out(self, target: HostBlock, address: int, nbytes: int) -> Event:
        """Start a copy of ``nbytes`` bytes at ``address`` to the start of ``target``; see `start_copy_in`.

        Raises:
            ArgumentError: The range leaves its block, or ``target`` is smaller.
            DriverError: The driver fails.
        """
        self._check_host("start_copy_out", target, nbytes)
        self.check("start_copy_out", address, nbytes)
        return self._started("copy_out", target.address, address, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy ``nbytes`` bytes from ``source`` to ``target``.

        Raises:
            ArgumentError: A range leaves its block, or they overlap.
            DriverError: The driver fails.
        """
        self.check("copy", target, nbytes)
        self.check("copy", source, nbytes)
        if nbytes and abs(target - source) < nbytes:
            raise ArgumentError(f"copy: the ranges do not overlap. Got {source:#x} and {target:#x}, {nbytes} bytes.")
        if nbytes:
            self._enter()
            self._driver.call("copy", target, source, nbytes, self._stream)

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Set ``nbytes`` bytes to ``value`` (0 to 255).

        Raises:
            ArgumentError: ``value`` is no byte, or the range leaves its block.
            DriverError: The driver fails.
        """
        if not 0 <= value <= 255:
            raise ArgumentError(f"fill: a value is one byte. Got {value}. 0 to 255 is accepted.")
        self.check("fill", address, nbytes)
        if nbytes:
            self._enter()
            self._driver.call("fill", address, value, nbytes, self._stream)

    def info(self) -> MemoryInfo:
        """Return the bytes the device has, and those no process uses.

        Raises:
            DriverError: The driver fails.
        """
        self._enter()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._driver.call("memory_info", ctypes.byref(free), ctypes.byref(total))
        return MemoryInfo(free=free.value, total=total.value)

    def _started(self, operation: str, target: int, source: int, nbytes: int) -> Event:
        event = Event(self._driver, self._enter)
        if nbytes:
            self._driver.call(operation, target, source, nbytes, self._stream)
        event.record(self._stream)
        return event

    def _check_host(self, name: str, block: HostBlock, nbytes: int) -> None:
        if not 0 <= nbytes <= block.nbytes:
            raise ArgumentError(f"{name}: host memory holds the bytes. Got {nbytes} for a block of {block.nbytes}.")

    def _wait(self) -> None:
        self._enter()
        self._driver.call("wait_stream", self._stream)

    def check(self, name: str, address: int, nbytes: int) -> None:
        """Refuse, in the name of an operation, a range that leaves the block it starts in.

        Raises:
            ArgumentError: It does, or is no range.
        """
        if nbytes < 0 or address < 1:
            raise ArgumentError(f"{name}: a range has an address and a size. Got {nbytes} bytes at {address:#x}.")
        whole = self._blocks.get(address)
        if whole is not None and nbytes <= whole.nbytes:
            return
        blocks = sorted((start, block.nbytes) for start, block in list(self._blocks.items()))
        place = bisect_right(blocks, address, key=lambda entry: entry[0])
        if place:
            start, size = blocks[place - 1]
            if (address < start + size or address == start) and address + nbytes > start + size:
                raise ArgumentError(
                    f"{name}: a range ends in the block it starts in. Got {nbytes} bytes at {address:#x}, "
                    f"{start + size - address} bytes before the end of its block."
                )
        if place < len(blocks) and address + nbytes > blocks[place][0]:
            raise ArgumentError(f"{name}: a range ends in the block it starts in. Got {nbytes} bytes at {address:#x}.")


def _contiguous(name: str, memory: memoryview) -> int:
    if not memory.c_contiguous:
        raise ArgumentError(f"{name}: host memory is contiguous. Got strides {memory.strides} of shape {memory.shape}.")
    return memory.nbytes
