"""One NVIDIA GPU in use: its primary context, the stream that orders all work on it, and its memory."""

from __future__ import annotations

import threading

from nbxtensor.backend.abi import Driver
from nbxtensor.backend.abi_event import join
from nbxtensor.backend.abi_memory import AbiMemory
from nbxtensor.backend.cuda.libcuda import EARLY_START, NON_BLOCKING, NOT_READY, REACHED_ALREADY
from nbxtensor.errors import UnsupportedError
from nbxtensor.op import Target

__all__ = ["Card", "forked"]


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
        forked: Whether this is the forked child of the process that opened it: the driver does not work there.
        starts_early: Whether recordings may start a launch before those it waits for are done, if it waits by itself.
    """

    def __init__(self, driver: Driver, index: int, target: Target) -> None:
        """Open the device.

        Raises:
            DriverError: The driver fails.
        """
        self.index = index
        self.forked: bool = False
        self.driver = driver
        self.target = target
        self._device = driver.integer("device", index)
        self._context = driver.handle("retain_context", self._device)
        self._reached: set[int] = set()  # contexts that this one may read on its own
        self._reaching = threading.Lock()
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

    def busy(self) -> bool:
        """Return whether the stream has work that is not done.

        Raises:
            DriverError: Work on the device has failed.
        """
        self.enter()
        status = self.driver.function("stream_state")(self.stream)
        if status not in (0, NOT_READY):
            raise self.driver.error("stream_state", status)
        return status == NOT_READY

    def wait_for(self, stream: int) -> None:
        """Let what is started from now on wait for all that another stream of the device has.

        Raises:
            DriverError: The driver fails.
        """
        join(self.driver, self.enter, stream, self.stream)

    def let_wait(self, stream: int) -> None:
        """Let what is started from now on on another stream of the device wait for all that has been started here.

        Raises:
            DriverError: The driver fails.
        """
        join(self.driver, self.enter, self.stream, stream)

    def copy_from(self, source_card: Card, target: int, source: int, nbytes: int) -> None:
        """Copy from another card; it starts when both are done with what was started before, and both wait for it.

        Raises:
            ArgumentError: A range leaves its block.
            DriverError: The driver fails.
        """
        self.memory.check("copy", target, nbytes)
        source_card.memory.check("copy", source, nbytes)
        if not nbytes:
            return
        self._reach(source_card)
        join(self.driver, source_card.enter, source_card.stream, self.stream)
        self.enter()
        contexts = self._context, source_card._context
        self.driver.call("copy_peer", target, contexts[0], source, contexts[1], nbytes, self.stream)
        join(self.driver, self.enter, self.stream, source_card.stream)

    def _reach(self, other: Card) -> None:
        """Let the card read the memory of another by itself, where the machine allows it; else the driver copies."""
        with self._reaching:
            if other._context in self._reached:
                return
            if self.driver.integer("can_reach", self._device, other._device):
                self.enter()
                status = self.driver.function("reach")(other._context, 0)
                if status not in (0, REACHED_ALREADY):
                    raise self.driver.error("reach", status)
            self._reached.add(other._context)


def forked() -> UnsupportedError:
    """Return the error for a use of the driver in a forked child."""
    return UnsupportedError(
        "cuda: the driver works in the process that first used it. Got its forked child. A child that was started anew "
        "(multiprocessing's 'spawn'), or forked before the first use, is accepted."
    )
