"""Where the library keeps files of its own, from a setting or from the environment."""

from __future__ import annotations

import os
from pathlib import Path

from nbxtensor.errors import SettingError
from nbxtensor.settings.holder import replace, settings

__all__ = ["cache_directory", "set_cache_directory"]


def set_cache_directory(path: str | os.PathLike[str] | None) -> None:
    """Set the directory of everything the library keeps (compiled kernels, proven settings); None: the default.

    Raises:
        SettingError: ``path`` is no path, or is empty.
    """
    if path is None:
        replace(cache_directory=None)
        return
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise SettingError(
            f"cache directory: a path is needed. Got {path!r}. A path, or None for the default."
        )
    replace(cache_directory=Path(path).expanduser())


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
