"""Memory of a device behind a driver interface, checked block by block."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nbxtensor.backend.abi import Driver
from nbxtensor.backend.contract import MemoryInfo
from nbxtensor.errors import ArgumentError, OutOfMemoryError

__all__ = ["AbiMemory"]

_GRANULE = 256  # bytes: what every driver aligns a block to


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
            limit = live + self.info().free
            raise OutOfMemoryError(self._device, requested=nbytes, live=live, limit=limit, source="the driver")
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
        self._check("copy_in", address, nbytes)
        if nbytes:
            self._enter()
            self._driver.call("copy_in", address, np.frombuffer(source, np.uint8).ctypes.data, nbytes, self._stream)
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
        self._check("copy_out", address, nbytes)
        if nbytes:
            self._enter()
            self._driver.call("copy_out", np.frombuffer(target, np.uint8).ctypes.data, address, nbytes, self._stream)
            self._driver.call("wait_stream", self._stream)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy ``nbytes`` bytes from ``source`` to ``target``.

        Raises:
            ArgumentError: A range leaves its block, or they overlap.
            DriverError: The driver fails.
        """
        self._check("copy", target, nbytes)
        self._check("copy", source, nbytes)
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
        self._check("fill", address, nbytes)
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

    def _wait(self) -> None:
        self._enter()
        self._driver.call("wait_stream", self._stream)

    def _check(self, name: str, address: int, nbytes: int) -> None:
        """Refuse a range that leaves the block it starts in."""
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
