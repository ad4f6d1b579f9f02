"""Services that an application passes to the library: none is left, and `SERVICES` names what took their place."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["SERVICES"]

SERVICES: Mapping[str, str] = MappingProxyType(
    {
        "the device description": "nbxtensor.backend.device_files.read",
        "the operand decisions of the matrix unit and of attention": "nbxtensor.op.Kernel",
        "where a backend's builds live": "nbxtensor.settings.set_cache_directory",
    }
)
"""Each service that the specification lists, and the public name of what decides it in the library.

The device description is a file of the package; which operands a kernel takes is part of its declaration; compiled
kernels live in the library's cache directory, which an application may set.
"""
