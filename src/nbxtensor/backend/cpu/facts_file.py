"""What was measured on this kind of processor: one file beside the compiled kernels."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nbxtensor.backend.cpu import levels
from nbxtensor.settings import cache_directory

__all__ = ["facts_path", "processor_name", "stored_facts", "write_facts"]

_FORMAT = 1


def processor_name() -> str:
    """Return what this processor calls itself, or the name of its architecture where it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def facts_path(workers: int) -> Path:
    """Return the file of what was measured on this kind of processor with so many workers."""
    name = re.sub(r"[^a-z0-9]+", "-", processor_name().lower()).strip("-")
    return cache_directory() / "measured" / f"{name}-{workers}.yml"


def stored_facts(workers: int) -> Mapping[str, Any]:
    """Return the facts that `write_facts` kept for this processor and number of workers; empty when there are none."""
    try:
        text = facts_path(workers).read_text(encoding="utf-8")
        document = yaml.safe_load(text)
    except (OSError, yaml.YAMLError):
        return {}
    if not isinstance(document, dict) or document.get("format") != _FORMAT or document.get("level") != levels.detect():
        return {}
    return document["facts"]


def write_facts(facts: Mapping[str, Any], workers: int) -> None:
    """Keep facts for `stored_facts`, with the date and the versions that measured them.

    Raises:
        OSError: The cache directory cannot be written.
    """
    document = {
        "format": _FORMAT,
        "processor": processor_name(),
        "level": levels.detect(),
        "workers": workers,
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        "versions": {"nbxtensor": importlib.metadata.version("nbxtensor"), "system": platform.release()},
        "facts": dict(facts),
    }
    path = facts_path(workers)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{time.monotonic_ns()}")
    temporary.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    temporary.replace(path)
