"""A dry run: an application's observer sees every launch in place of the device."""

from __future__ import annotations

from typing import Any, Protocol, cast

from nbxtensor.errors import SettingError
from nbxtensor.settings import replace, settings

__all__ = ["LaunchObserver", "launch_observer", "set_launch_observer"]


class LaunchObserver(Protocol):
    """What watches launches; while it is active, no launch runs."""

    def active(self) -> bool:
        """Say whether launches are to be recorded instead of run."""
        ...

    def record(self, tuned: bool, key: Any) -> None:  # noqa: FBT001 - the order is part of the contract
        """Take the key of one launch, and whether a proven setting was chosen for it by that key."""
        ...

    def shadow_run(self, *launch: Any) -> None:
        """Stand in for the run of a launch, given what the device would have been given."""
        ...


class _NoObserver:
    """The default: every launch runs."""

    def active(self) -> bool:
        return False

    def record(self, tuned: bool, key: Any) -> None:  # noqa: FBT001
        """Nothing is kept."""

    def shadow_run(self, *launch: Any) -> None:
        """Nothing is run."""


_none = _NoObserver()


def set_launch_observer(observer: LaunchObserver | None) -> None:
    """Install ``observer`` for every launch of the process; None: none, every launch runs.

    Raises:
        SettingError: ``observer`` lacks one of the three methods.
    """
    if observer is not None:
        lacking = [name for name in ("active", "record", "shadow_run") if not callable(getattr(observer, name, None))]
        if lacking:
            raise SettingError(
                f"launch observer: a method is missing. Got {observer!r} without {', '.join(lacking)}. "
                "An object with active(), record(tuned, key) and shadow_run(...), or None."
            )
    replace(launch_observer=observer)


def launch_observer() -> LaunchObserver:
    """Return the observer in force; with none installed, one that is never active.

    >>> launch_observer().active()
    False
    """
    observer = settings().launch_observer
    return _none if observer is None else cast("LaunchObserver", observer)
