"""The directory of kernel settings that were proven right and measured on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from nbxtensor.settings import cache_directory, replace, settings
from nbxtensor.settings.locations import as_path

__all__ = ["directory", "set_store"]

Store = str | os.PathLike[str] | Callable[[], str | os.PathLike[str]]


def set_store(store: Store | None) -> None:
    """Set where proven settings are kept: a path, or a callable that returns one each time it is asked.

    None: the default, ``certified`` in the library's cache directory.

    Raises:
        SettingError: ``store`` is neither.

    >>> set_store("/tmp/my-proven-settings")
    >>> directory().name
    'my-proven-settings'
    >>> set_store(None)
    """
    replace(store=store if store is None or callable(store) else as_path(store, setting="autotune store"))


def directory() -> Path:
    """Return the directory in force; it need not exist yet.

    Raises:
        SettingError: The callable that was set returned no path.
    """
    store = settings().store
    if store is None:
        return cache_directory() / "certified"
    return as_path(store() if callable(store) else store, setting="autotune store")
