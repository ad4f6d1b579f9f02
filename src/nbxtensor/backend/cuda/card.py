"""One NVIDIA GPU in use: its primary context, the stream that orders all work on it, and its memory."""

from __future__ import annotations

from nbxtensor.backend.abi import Driver
from nbxtensor.backend.abi_memory import AbiMemory
from nbxtensor.backend.cuda.libcuda import EARLY_START, NON_BLOCKING
from nbxtensor.op import Target

__all__ = ["Card"]


class Card:
    """An opened device.

    It uses the device's primary context, as the CUDA runtime does, so that memory is shared with other libraries of
    the process. Everything is ordered by one stream that does not wait for the legacy default stream.

    Attributes:
        index: Its number.
        driver: The driver.
        target: What kernels are chosen and compiled for.
        stream: Handle of the stream.
        memory: Its memory.
        most_programs: The largest grid.
        most_shared_nbytes: Bytes of shared memory that a program may have.
        starts_early: Whether recordings may start a launch before those it waits for are done, if it waits by itself.
    """

    def __init__(self, driver: Driver, index: int, target: Target) -> None:
        """Open the device.

        Raises:
            DriverError: The driver fails.
        """
        self.index = index
        self.driver = driver
        self.target = target
        self._context = driver.handle("retain_context", driver.integer("device", index))
        self._use_context = driver.function("use_context")
        self.enter()
        self.stream: int = driver.handle("make_stream", NON_BLOCKING)
        self.memory: AbiMemory = AbiMemory(driver, f"{driver.abi.name}:{index}", self.stream, self.enter)
        x, y, z = target.fact("dispatch.max_grid")
        self.most_programs: tuple[int, int, int] = (int(x), int(y), int(z))
        self.most_shared_nbytes: int = int(target.fact("memory.max_shared_memory_per_block"))
        self.starts_early: bool = driver.integer("driver_version") >= EARLY_START

    def enter(self) -> None:
        """Make the device the calling thread's current one; the driver keeps one for each thread.

        Raises:
            DriverError: The driver fails.
        """
        status = self._use_context(self._context)
        if status:
            raise self.driver.error("use_context", status)

    def wait(self) -> None:
        """Wait until all work on the stream is done.

        Raises:
            DriverError: The driver fails, or work on the device has failed.
        """
        self.enter()
        self.driver.call("wait_stream", self.stream)
