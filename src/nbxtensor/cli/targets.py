"""--device on the command line: a device of this machine, one that is described, or a device file."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from nbxtensor.backend import device_facts, device_files, registry
from nbxtensor.backend.device_schema import check, leaves
from nbxtensor.cli.usage import UsageError, check_readable
from nbxtensor.errors import ArgumentError, FormatError, MissingFactError
from nbxtensor.op import Target
from nbxtensor.run.device import Device, device

__all__ = ["HELP", "described", "here", "is_file", "named", "opened_here", "read"]

HELP = 'a device of this machine ("cpu", "cuda", "cuda:1"), one described ("h200", "nvidia/h200"), or a device file'


def described(name: str) -> tuple[str, str] | None:
    """Return (vendor, name) of the device file that ``name`` or ``vendor/name`` names; None where none is.

    >>> described("h200"), described("nvidia/h200"), described("cpu")
    (('nvidia', 'h200'), ('nvidia', 'h200'), None)
    """
    vendor, slash, last = name.rpartition("/")
    for known in device_files.vendors():
        if (vendor == known or not slash) and last in device_files.names(known):
            return known, last
    return None


def is_file(name: str) -> bool:
    """Return whether a name is that of a device file."""
    return name.endswith((".yml", ".yaml"))


def opened_here(name: str, word: str = "--device", *, or_described: bool = False) -> Device:
    """Return a device of this machine.

    Args:
        name: Its name.
        word: The word of the command line that asks for it.
        or_described: Whether the word takes a described device and a device file too.

    Raises:
        UsageError: There is no such device; says what the word takes.
    """
    try:
        return device(name)
    except (MissingFactError, ArgumentError) as error:
        raise UsageError(f"{word}: no {name!r} here. {_known(name, or_described=or_described)}") from error


def here(name: str, *, or_described: bool = False) -> Device:
    """Return a device of this machine, measured where that is possible and was not done: what plans are priced by.

    Raises:
        UsageError: There is no such device.
    """
    opened = opened_here(name, or_described=or_described)
    if hasattr(opened.backend, "measured_facts"):
        opened.measure()
    return opened


def named(name: str) -> Device | Target:
    """Return the device, or what is known of one that need not be there.

    Raises:
        UsageError: Nothing has that name, or the device file breaks the schema.
    """
    found = described(name)
    if found is not None:
        return device_facts.target(*found)
    if is_file(name):
        return read(Path(name))
    return here(name, or_described=True)


def read(path: Path, word: str = "--device") -> Target:
    """Return the target that a device file describes.

    Raises:
        UsageError: It is no device file; names ``word``, which asked for it.
    """
    check_readable(word, path)
    try:
        description: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{word}: {path}: a device file is YAML in UTF-8. {str(error).splitlines()[0]}.") from None
    if not isinstance(description, dict):
        raise UsageError(f"{word}: {path}: a device file holds fields by name. Got {type(description).__name__}.")
    try:
        check(description, where=str(path))
    except (FormatError, MissingFactError) as error:
        raise UsageError(f"{word}: {error}") from error
    vendors = device_files.vendors()
    if description["vendor"] not in vendors:
        raise UsageError(f"{word}: {path}: the vendor is one of {', '.join(vendors)}. Got {description['vendor']!r}.")
    del description["sources"]
    return device_facts.target_of(MappingProxyType(dict(leaves(description))))


def _known(name: str, *, or_described: bool) -> str:
    """Return what a device could have been called."""
    there = ", ".join(kind for kind in registry.installed() if registry.backend(kind).count())
    there = f"Devices of this machine are {there}"
    if or_described:
        return f"{there}; `nbxtensor device list` has those described; FILE.yml describes one."
    if described(name) is not None or is_file(name):
        return f"That is a device file, which plan and price take. {there}."
    return f"{there}."
