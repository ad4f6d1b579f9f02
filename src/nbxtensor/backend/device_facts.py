"""Questions that code asks of a device, answered from its device file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbxtensor.backend import device_files
from nbxtensor.backend.cpu.levels import detect
from nbxtensor.backend.device_names import recognise
from nbxtensor.dtype.itemsize import bits
from nbxtensor.op import Target

__all__ = ["computes", "computes_float64", "shares_host_memory", "stores", "target", "target_of", "this_cpu"]

_BACKENDS = {"amd": "hip", "apple": "metal", "cpu": "cpu", "nvidia": "cuda"}  # vendor -> backend that drives it


def this_cpu() -> tuple[str, str]:
    """Return (vendor, name) of the device file of this processor's level.

    Raises:
        MissingFactError: The processor has none of the declared levels.
    """
    return recognise(detect())


def target(vendor: str, name: str) -> Target:
    """Return what kernels are chosen for and priced by on a device that need not be there.

    Its features are the dtypes the device computes, and of a CPU level what all its processors have; its facts are
    those of the device file.

    Raises:
        MissingFactError: There is no such device file.

    >>> h200 = target("nvidia", "h200")
    >>> h200.backend, h200.arch, h200.fact("memory.bandwidth")
    ('cuda', 'sm_90', 4800000000000)
    """
    return target_of(device_files.facts(vendor, name))


def target_of(facts: Mapping[str, Any]) -> Target:
    """Return the target of a device that ``facts`` describe, every field of a device file by its path."""
    features = {*facts["dtypes.computed"], *facts.get("cpu.features", ())}
    return Target(_BACKENDS[facts["vendor"]], facts["compute_capability"], frozenset(features), facts)


def shares_host_memory(vendor: str, name: str) -> bool:
    """Say whether a device and the host use one memory.

    Raises:
        MissingFactError: There is no such device file.

    >>> shares_host_memory("apple", "apple_m4_pro"), shares_host_memory("nvidia", "h200")
    (True, False)
    """
    return bool(device_files.fact(vendor, name, "shares_host_memory"))


def stores(vendor: str, name: str, dtype: str) -> bool:
    """Say whether a device's memory may hold ``dtype``.

    Raises:
        MissingFactError: There is no such device file.
        UnknownDtypeError: The dtype table does not carry ``dtype``.
    """
    bits(dtype)
    return dtype in device_files.fact(vendor, name, "dtypes.stored")


def computes(vendor: str, name: str, dtype: str) -> bool:
    """Say whether a device has arithmetic or matrix instructions for the real dtype ``dtype``.

    Raises:
        MissingFactError: There is no such device file.
        UnknownDtypeError: The dtype table does not carry ``dtype``.

    >>> computes("nvidia", "v100", "bfloat16"), computes("nvidia", "a100", "bfloat16")
    (False, True)
    """
    bits(dtype)
    return dtype in device_files.fact(vendor, name, "dtypes.computed")


def computes_float64(vendor: str, name: str) -> bool:
    """Say whether a device's kernels compute float64.

    Raises:
        MissingFactError: There is no such device file.

    >>> computes_float64("apple", "apple_m1"), computes_float64("nvidia", "t4")
    (False, True)
    """
    return computes(vendor, name, "float64")
