"""Facts that macOS states through sysctl, read in this process."""

from __future__ import annotations

import ctypes
import functools
import sys

__all__ = ["integer", "text"]


def text(name: str) -> str | None:
    """Return the string called ``name``, or None where the system has none of that name (or no sysctl)."""
    found = _bytes(name)
    return None if found is None else found.rstrip(b"\0").decode()


def integer(name: str) -> int | None:
    """Return the whole number called ``name``, or None where the system has none of that name (or no sysctl)."""
    found = _bytes(name)
    return None if found is None else int.from_bytes(found, sys.byteorder, signed=True)


def _bytes(name: str) -> bytes | None:
    if sys.platform != "darwin":
        return None
    size = ctypes.c_size_t(0)
    key = name.encode()
    if _library().sysctlbyname(key, None, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    value = ctypes.create_string_buffer(size.value)
    if _library().sysctlbyname(key, value, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return value.raw[: size.value]


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)
