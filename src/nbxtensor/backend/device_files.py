"""The descriptions of devices: one file each, ``devices/<vendor>/<name>.yml`` in the package."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nbxtensor.backend.device_schema import check, leaves, sources_of
from nbxtensor.errors import FormatError, MissingFactError

__all__ = ["fact", "facts", "names", "read", "source", "vendors"]

_FOLDER = Path(__file__).with_name("devices")


def vendors() -> tuple[str, ...]:
    """Return the vendors that have device files.

    >>> vendors()
    ('amd', 'apple', 'cpu', 'nvidia')
    """
    return tuple(sorted(entry.name for entry in _FOLDER.iterdir() if entry.is_dir()))


@functools.cache
def names(vendor: str) -> tuple[str, ...]:
    """Return the names of a vendor's device files.

    Raises:
        MissingFactError: There is no such vendor.

    >>> "h200" in names("nvidia")
    True
    """
    if vendor not in vendors():
        raise MissingFactError(f"the vendor {vendor!r}", f"Device files are those of {', '.join(vendors())}.")
    return tuple(sorted(file.stem for file in (_FOLDER / vendor).glob("*.yml")))


def read(vendor: str, name: str) -> dict[str, Any]:
    """Return the description of one device, nested as in its file; the copy is the caller's.

    Each field is described in `device_schema.FIELDS`; ``sources`` names where every number comes from.

    Raises:
        MissingFactError: There is no such device file.
        FormatError: The file breaks the schema.

    >>> read("apple", "apple_m4_pro")["memory"]["max_shared_memory_per_block"]
    32768
    """
    return copy.deepcopy(_description(vendor, name))


def fact(vendor: str, name: str, path: str) -> Any:
    """Return one field of a device by its path.

    Raises:
        MissingFactError: The file does not state it: nobody knows, and nothing is guessed.

    >>> fact("nvidia", "h200", "memory.bandwidth")
    4800000000000
    """
    found = facts(vendor, name)
    if path not in found:
        raise MissingFactError(
            f"{path} of {vendor} {name}", f"It would stand in backend/devices/{vendor}/{name}.yml, with its source."
        )
    value = found[path]
    return list(value) if isinstance(value, list) else value


@functools.cache
def facts(vendor: str, name: str) -> Mapping[str, Any]:
    """Return every field of a device by its path, read-only.

    Raises:
        MissingFactError: There is no such device file.
    """
    description = read(vendor, name)
    del description["sources"]
    return MappingProxyType(dict(leaves(description)))


def source(vendor: str, name: str, path: str) -> str:
    """Return where the number at ``path`` comes from.

    Raises:
        MissingFactError: The file states no such number.

    >>> source("nvidia", "h200", "memory.copy_bandwidth")[:8]
    'measured'
    """
    fact(vendor, name, path)
    sources = sources_of(_description(vendor, name), where=f"{vendor}/{name}.yml")
    for given, text in sources.items():
        if path == given or path.startswith(given + "."):
            return text
    raise MissingFactError(f"the source of {path} of {vendor} {name}", "Only numbers have one.")


@functools.cache
def _description(vendor: str, name: str) -> dict[str, Any]:
    if name not in names(vendor):
        raise MissingFactError(f"the device {vendor} {name!r}", f"Device files of it: {', '.join(names(vendor))}.")
    import yaml  # longer to import than a program to load

    where = f"devices/{vendor}/{name}.yml"
    description = yaml.safe_load((_FOLDER / vendor / f"{name}.yml").read_text(encoding="utf-8"))
    check(description, where=where)
    if description["vendor"] != vendor:
        raise FormatError(f"{where}: the vendor is the folder's name. Got {description['vendor']!r}.")
    return description
