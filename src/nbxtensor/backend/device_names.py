"""From the name that a driver gives a device to its key and its device file."""

from __future__ import annotations

import functools
import re

from nbxtensor.backend import device_files
from nbxtensor.errors import ArgumentError, MissingFactError

__all__ = ["arch_string", "recognise"]


def arch_string(name: str) -> str:
    """Return the key of a device: its name in lower case, every run of other characters than a-z 0-9 as one hyphen.

    Raises:
        ArgumentError: Nothing of the name is left.

    >>> arch_string("Apple M4 Pro")
    'apple-m4-pro'
    """
    key = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not key:
        raise ArgumentError(f"device name: letters or digits are needed. Got {name!r}.")
    return key


def recognise(name: str) -> tuple[str, str]:
    """Return (vendor, name of the device file) for the name that a driver or the system gives a device.

    A name is taken whole: a sibling with another memory or clock ("NVIDIA H100 PCIe") is another device.

    Raises:
        MissingFactError: No device file lists the name.

    >>> recognise("NVIDIA H200")
    ('nvidia', 'h200')
    """
    key = arch_string(name)
    known = _known()
    if key not in known:
        raise MissingFactError(
            f"the device {name!r}", f"Device files recognise {', '.join(sorted(known))} (backend/devices/)."
        )
    return known[key]


@functools.cache
def _known() -> dict[str, tuple[str, str]]:
    return {
        arch_string(alias): (vendor, name)
        for vendor in device_files.vendors()
        for name in device_files.names(vendor)
        for alias in device_files.fact(vendor, name, "recognised_as")
    }
