"""What is known of a card: what its driver reports, and its device file where there is one for its name."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nbxtensor.backend import device_files
from nbxtensor.backend.abi import Driver
from nbxtensor.backend.cuda.libcuda import DEVICE_ATTRIBUTES
from nbxtensor.backend.device_names import recognise
from nbxtensor.errors import MissingFactError
from nbxtensor.op import Target

__all__ = ["card_name", "card_target", "computed", "driver_text"]

_LONGEST_NAME = 256
_RELEASE_FILE = Path("/proc/driver/nvidia/version")
# Dtypes and the compute capability from which on there are instructions for them.
# Source: CUDA C++ Programming Guide, Compute Capabilities; PTX ISA, instructions cvt and mma.
_COMPUTED = (
    (0, "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64"),
    (53, "float16"),
    (80, "bfloat16"),
    (89, "float8_e4m3fn float8_e5m2"),
)


def computed(capability: int) -> frozenset[str]:
    """Return the real dtypes that cards of a compute capability (90 for 9.0) compute.

    >>> "bfloat16" in computed(80), "bfloat16" in computed(75)
    (True, False)
    """
    return frozenset(name for least, names in _COMPUTED if capability >= least for name in names.split())


def card_name(driver: Driver, device: int) -> str:
    """Return the name that the driver gives a card.

    Raises:
        DriverError: The driver fails.
    """
    text = ctypes.create_string_buffer(_LONGEST_NAME)
    driver.call("device_name", text, _LONGEST_NAME, device)
    return text.value.decode(errors="replace")


def driver_text(driver: Driver) -> str:
    """Return the release of the driver, where the system tells, and of the interface that it has.

    Raises:
        DriverError: The driver fails.
    """
    number = driver.integer("driver_version")
    interface = f"CUDA {number // 1000}.{number % 1000 // 10}"
    try:
        text = _RELEASE_FILE.read_text(encoding="utf-8")
    except OSError:
        return interface
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return f"{found[0]} ({interface})" if found else interface


def card_target(driver: Driver, device: int) -> Target:
    """Return what kernels are chosen and compiled for on a card.

    Its facts are those of the device file that lists the card's name, if any, and what the driver reports in place of
    what the file states; its features are the dtypes that it computes.

    Raises:
        DriverError: The driver fails.
    """
    reported = {name: driver.integer("device_attribute", code, device) for name, code in DEVICE_ATTRIBUTES.items()}
    capability = 10 * reported.pop("capability_major") + reported.pop("capability_minor")
    grid = [reported.pop(f"grid_{axis}") for axis in "xyz"]
    name = card_name(driver, device)
    facts: dict[str, Any] = {
        **_described(name),
        **reported,
        "name": name,
        "compute_capability": f"sm_{capability}",
        "memory.bytes": driver.size("device_memory", device),
        "dispatch.max_grid": grid,
        "shares_host_memory": False,
    }
    features = frozenset(facts.get("dtypes.computed", ())) or computed(capability)
    return Target(driver.abi.name, f"sm_{capability}", features, MappingProxyType(facts))


def _described(name: str) -> dict[str, Any]:
    try:
        return dict(device_files.facts(*recognise(name)))
    except MissingFactError:  # a card that nobody has described: what its driver reports is enough to run
        return {}
