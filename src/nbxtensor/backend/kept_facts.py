"""What was measured on a machine's devices: one file each, beside the compiled kernels."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from nbxtensor.backend.device_names import arch_string
from nbxtensor.settings import cache_directory

__all__ = ["keep_facts", "kept_facts", "kept_path"]

_FORMAT = 1


def kept_path(device: str) -> Path:
    """Return the file of what was measured on the devices called ``device``."""
    return cache_directory() / "measured" / f"{arch_string(device)}.yml"


def kept_facts(device: str, about: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts that `keep_facts` kept for ``device`` with the same ``about``; empty when there are none."""
    import yaml  # with what keeping takes, longer to import than a program to load

    try:
        document = yaml.safe_load(kept_path(device).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):  # a file of no use is as good as none
        return {}
    if not isinstance(document, dict):
        return {}
    found = cast("dict[str, Any]", document)
    if found.get("format") != _FORMAT or any(found.get(name) != value for name, value in about.items()):
        return {}
    facts = found.get("facts")
    return cast("dict[str, Any]", facts) if isinstance(facts, dict) else {}


def keep_facts(device: str, about: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Keep facts for `kept_facts`, with the date and the versions that measured them.

    Args:
        device: Name of the device, as its driver or the system gives it, with what else the facts depend on.
        about: What they hold for: the fields have to be the same when they are read.
        facts: The facts.

    Raises:
        OSError: The cache directory cannot be written.
    """
    import datetime
    import importlib.metadata
    import platform

    import yaml

    document = {
        "format": _FORMAT,
        **about,
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        "versions": {"nbxtensor": importlib.metadata.version("nbxtensor"), "system": platform.release()},
        "facts": dict(facts),
    }
    path = kept_path(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{time.monotonic_ns()}")
    temporary.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    temporary.replace(path)
