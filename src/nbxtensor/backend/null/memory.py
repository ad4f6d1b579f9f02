"""Memory that is counted and checked, and holds nothing."""

from __future__ import annotations

from bisect import bisect_right, insort

from nbxtensor.backend.contract import MemoryInfo
from nbxtensor.errors import ArgumentError, OutOfMemoryError

__all__ = ["NullMemory"]

_FIRST = 1 << 32  # no address of a null device is a small number, a shape or a stride


class NullMemory:
    """The memory of a null device: addresses from a counter, never handed out twice, and no bytes behind them.

    Attributes:
        total: Bytes the device has.
        live: Bytes in blocks now.
    """

    def __init__(self, device: str, total: int) -> None:
        self.total = total
        self.live: int = 0
        self._device = device
        self._next = _FIRST
        self._blocks: dict[int, int] = {}
        self._starts: list[int] = []

    def allocate(self, nbytes: int, alignment: int = 64) -> int:
        """Return the address of a new block.

        Raises:
            ArgumentError: ``nbytes`` is negative, or ``alignment`` is no power of two.
            OutOfMemoryError: The device has less left.
        """
        if nbytes < 0 or alignment < 1 or alignment & (alignment - 1):
            raise ArgumentError(
                f"allocate: a block has zero or more bytes and an alignment that is a power of two. "
                f"Got {nbytes} bytes aligned to {alignment}."
            )
        if self.live + nbytes > self.total:
            raise OutOfMemoryError(
                self._device,
                requested=nbytes,
                live=self.live,
                limit=self.total,
                free=self.total - self.live,
                total=self.total,
                source="the device's description",
            )
        address = -(-self._next // alignment) * alignment
        self._next = address + max(nbytes, 1)
        self._blocks[address] = nbytes
        insort(self._starts, address)
        self.live += nbytes
        return address

    def free(self, address: int) -> None:
        """Take back the block that starts at ``address``.

        Raises:
            ArgumentError: No block starts there.
        """
        if address not in self._blocks:
            raise ArgumentError(
                f"free: an address is the start of a block in use. Got {address:#x}. "
                "What allocate() returned and free() has not yet taken is accepted."
            )
        self.live -= self._blocks.pop(address)
        del self._starts[bisect_right(self._starts, address) - 1]

    def copy_in(self, address: int, source: memoryview) -> None:
        """Check that ``source`` would fit; its bytes go nowhere.

        Raises:
            ArgumentError: ``source`` is not contiguous, or the range leaves its block.
        """
        self._check("copy_in", address, _contiguous("copy_in", source))

    def copy_out(self, target: memoryview, address: int) -> None:
        """Fill ``target`` with zeros: what a device that has computed nothing holds.

        Raises:
            ArgumentError: ``target`` is not contiguous or not writable, or the range leaves its block.
        """
        nbytes = _contiguous("copy_out", target)
        if target.readonly:
            raise ArgumentError("copy_out: the target is writable. Got read-only memory.")
        self._check("copy_out", address, nbytes)
        if nbytes:
            target.cast("B")[:] = bytes(nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Check both ranges.

        Raises:
            ArgumentError: A range leaves its block, or they overlap.
        """
        self._check("copy", target, nbytes)
        self._check("copy", source, nbytes)
        if nbytes and abs(target - source) < nbytes:
            raise ArgumentError(f"copy: the ranges do not overlap. Got {source:#x} and {target:#x}, {nbytes} bytes.")

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Check the range and the value.

        Raises:
            ArgumentError: ``value`` is no byte, or the range leaves its block.
        """
        if not 0 <= value <= 255:
            raise ArgumentError(f"fill: a value is one byte. Got {value}. 0 to 255 is accepted.")
        self._check("fill", address, nbytes)

    def info(self) -> MemoryInfo:
        """Return the device's size and what its blocks leave of it."""
        return MemoryInfo(free=self.total - self.live, total=self.total)

    def _check(self, name: str, address: int, nbytes: int) -> None:
        place = bisect_right(self._starts, address)
        start = self._starts[place - 1] if place else None
        if nbytes < 0 or start is None or address + nbytes > start + self._blocks[start]:
            raise ArgumentError(
                f"{name}: a range lies in one block in use. Got {nbytes} bytes at {address:#x}. "
                "Addresses in what allocate() returned are accepted."
            )


def _contiguous(name: str, memory: memoryview) -> int:
    if not memory.c_contiguous:
        raise ArgumentError(f"{name}: host memory is contiguous. Got strides {memory.strides} of shape {memory.shape}.")
    return memory.nbytes
