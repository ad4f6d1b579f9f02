"""Where the library keeps files of its own, from a setting or from the environment."""

from __future__ import annotations

import os
from pathlib import Path

from nbxtensor.errors import SettingError
from nbxtensor.settings.holder import replace, settings

__all__ = ["as_path", "cache_directory", "set_cache_directory"]


def set_cache_directory(path: str | os.PathLike[str] | None) -> None:
    """Set the directory of everything the library keeps; None stands for the default of `cache_directory`.

    Raises:
        SettingError: ``path`` is no path, or is empty.
    """
    replace(cache_directory=None if path is None else as_path(path, setting="cache directory"))


def as_path(path: str | os.PathLike[str], *, setting: str) -> Path:
    """Return ``path`` as a path with the user's home filled in.

    Raises:
        SettingError: ``path`` is no path, or is empty; names ``setting``.
    """
    try:
        found = Path(path)
    except TypeError:
        found = None
    if found is None or not os.fspath(path):
        raise SettingError(f"{setting}: a path is needed. Got {path!r}. A path, or None for the default.")
    return found.expanduser()


def cache_directory() -> Path:
    """Return the directory of everything the library keeps; it need not exist yet.

    The first of: what `set_cache_directory` set, the environment's ``NBX_CACHE_DIR``, ``nbxtensor`` under the
    environment's ``XDG_CACHE_HOME`` (where absolute, as the XDG Base Directory Specification asks),
    ``~/.cache/nbxtensor``.
    """
    chosen = settings().cache_directory
    if chosen is not None:
        return chosen
    own = os.environ.get("NBX_CACHE_DIR", "")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if shared and Path(shared).is_absolute():
        return Path(shared) / "nbxtensor"
    return Path.home() / ".cache" / "nbxtensor"
