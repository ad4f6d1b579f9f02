"""The settings in force, and their one holder."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbxtensor.errors import SettingError

__all__ = ["Settings", "replace", "settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything an application may set; None stands for the default that the reader of a field states.

    Each field is validated by the function that sets it, next to the code it steers.

    Attributes:
        cache_directory: Where the library keeps what it makes (`set_cache_directory`).
        memory_limit: Bytes that a device behaves as having (`nbxtensor.memory.set_limit`).
        threads: Size of the CPU pool (`nbxtensor.backend.cpu.pool.set_threads`).
        tiling: Split sizes in place of the library's file (`nbxtensor.ops.tiling_policy.set_tiling`).
        store: Directory of proven kernel settings, or what returns it
            (`nbxtensor.ops.autotune_settings.set_store`).
        launch_observer: What watches launches (`nbxtensor.ops.launch_observer.set_launch_observer`).
        poison: Whether fresh memory is filled with 0xFF, so that reading unwritten memory shows.
    """

    cache_directory: Path | None = None
    memory_limit: int | None = None
    threads: int | None = None
    tiling: Mapping[str, Any] | None = None
    store: Path | Callable[[], Path | str] | None = None
    launch_observer: object | None = None
    poison: bool = False


_NAMES = frozenset(field.name for field in dataclasses.fields(Settings))


class _Holder:
    """The settings in force; a reader sees either all of a change or none of it."""

    def __init__(self) -> None:
        self.current = Settings()
        self._changing = threading.Lock()

    def change(self, changes: Mapping[str, Any]) -> Settings:
        with self._changing:
            before = self.current
            self.current = dataclasses.replace(before, **changes)
        return before


_holder = _Holder()


def settings() -> Settings:
    """Return the settings in force.

    >>> settings().poison
    False
    """
    return _holder.current


def replace(**changes: Any) -> Settings:
    """Put new values in place of the fields named, and return the settings that were in force before.

    The values are taken as they are: an application uses the ``set_*`` functions, which check them.

    Raises:
        SettingError: A name that is no field of `Settings`.

    >>> before = replace(poison=True)
    >>> settings().poison
    True
    >>> _ = replace(poison=before.poison)
    """
    unknown = changes.keys() - _NAMES
    if unknown:
        raise SettingError(
            f"settings: no such setting. Got {', '.join(sorted(unknown))}. One of {', '.join(sorted(_NAMES))}."
        )
    return _holder.change(changes)
