"""Backends by name, found among the installed packages, and device names."""

from __future__ import annotations

import functools
import importlib
import re
from typing import TYPE_CHECKING

from nbxtensor.backend.contract import Backend
from nbxtensor.errors import ArgumentError, MissingFactError

__all__ = ["GROUP", "backend", "installed", "parse_device"]

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "nbxtensor.backends"
"""Entry-point group: a package offers a backend by naming a module there that has a function ``backend()``."""

# The library's own, which it offers as entry points too: to look through all installed packages takes longer.
_OWN = ("cpu", "cuda", "null")
_DEVICE = re.compile(r"([a-z][a-z0-9_]*)(?::(0|[1-9][0-9]*))?")


@functools.cache
def _entry_points() -> dict[str, EntryPoint]:
    import importlib.metadata

    found: dict[str, EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise ArgumentError(
                f"backend: one package offers each backend. Got {point.name!r} from {other.value} and {point.value}. "
                "Uninstall one of them."
            )
    return found


def installed() -> tuple[str, ...]:
    """Return the names of the installed backends, in alphabetical order; none of them is loaded.

    >>> "cpu" in installed() and "null" in installed()
    True
    """
    return tuple(sorted(_entry_points()))


@functools.cache
def backend(name: str) -> Backend:
    """Return the backend called ``name``, loaded at its first use; one object per process.

    Raises:
        MissingFactError: No installed package offers it.

    >>> backend("null").name
    'null'
    """
    if name in _OWN:
        return importlib.import_module(f"nbxtensor.backend.{name}").backend()
    if name not in _entry_points():
        raise MissingFactError(
            f"backend {name!r}",
            f"Installed: {', '.join(installed()) or 'none'}. A package offers a backend through an entry point of the "
            f"group {GROUP}.",
        )
    return _entry_points()[name].load().backend()


def parse_device(name: str) -> tuple[str, int]:
    """Return the backend's name and the index that a device name stands for; whether they exist is not looked at.

    Raises:
        ArgumentError: ``name`` is not written as a name, or a name, a colon and an index.

    >>> parse_device("cuda:1")
    ('cuda', 1)
    >>> parse_device("cpu")
    ('cpu', 0)
    """
    match = _DEVICE.fullmatch(name)
    if match is None:
        raise ArgumentError(
            f"device: a kind and an index. Got {name!r}. 'cpu', 'cuda' and 'cuda:1' are accepted forms."
        )
    return match[1], int(match[2] or 0)
