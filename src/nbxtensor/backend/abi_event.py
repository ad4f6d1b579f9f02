"""Points in the work of a stream that the host, or another stream, can wait for."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from nbxtensor.backend.abi import Driver

__all__ = ["Event", "join"]

_UNTIMED = 2  # the flag of an event that notes no time


class Event:
    """A point in the work of a stream, set anew by each `record`; before the first, it counts as reached."""

    __slots__ = ("__weakref__", "_driver", "_enter", "_handle")

    def __init__(self, driver: Driver, enter: Callable[[], None]) -> None:
        """Make an event.

        Args:
            driver: The driver.
            enter: Makes the device the calling thread's current one.

        Raises:
            DriverError: The driver fails.
        """
        enter()
        self._driver = driver
        self._enter = enter
        self._handle = driver.handle("make_event", _UNTIMED)
        weakref.finalize(self, _destroy, driver, enter, self._handle).atexit = False

    def record(self, stream: int) -> None:
        """Set the point behind everything started on ``stream`` so far.

        Raises:
            DriverError: The driver fails.
        """
        self._enter()
        self._driver.call("record_event", self._handle, stream)

    def wait(self) -> None:
        """Wait, on the host, until the point is reached.

        Raises:
            DriverError: The driver fails, or work before the point has failed.
        """
        self._enter()
        self._driver.call("wait_event", self._handle)

    def hold(self, stream: int) -> None:
        """Let what is started on ``stream`` from now on, of this device or another, begin past the point.

        The device of ``stream`` is the calling thread's current one.

        Raises:
            DriverError: The driver fails.
        """
        self._driver.call("hold_stream", stream, self._handle, 0)


def join(driver: Driver, enter: Callable[[], None], first: int, then: int) -> None:
    """Let what is started on the stream ``then`` from now on wait for all that ``first`` has; the host does not wait.

    Raises:
        DriverError: The driver fails.
    """
    event = Event(driver, enter)
    event.record(first)
    event.hold(then)


def _destroy(driver: Driver, enter: Callable[[], None], handle: int) -> None:
    enter()
    driver.call("destroy_event", handle)
