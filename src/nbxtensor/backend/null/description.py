"""Targets of devices that are only described, from their device files."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from nbxtensor.backend import device_files
from nbxtensor.op import Target

__all__ = ["described_target"]

_BACKENDS = MappingProxyType({"nvidia": "cuda", "amd": "hip", "apple": "metal", "cpu": "cpu"})


def described_target(vendor: str, name: str) -> Target:
    """Return the target of a device file: what it compiles for, and everything it states as facts.

    Features are the dtypes that the device computes, and on a CPU nothing beyond its level.

    Raises:
        MissingFactError: There is no such device file.

    >>> described_target("nvidia", "h200").arch
    'sm_90'
    """
    facts: dict[str, Any] = dict(device_files.facts(vendor, name))
    features = frozenset[str]() if vendor == "cpu" else frozenset[str](facts["dtypes.computed"])
    return Target(_BACKENDS[vendor], facts["compute_capability"], features, MappingProxyType(facts))
