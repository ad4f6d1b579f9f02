"""What was measured on this kind of processor: one file beside the compiled kernels."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbxtensor.backend.cpu import levels
from nbxtensor.backend.kept_facts import keep_facts, kept_facts, kept_path

__all__ = ["facts_path", "processor_name", "stored_facts", "write_facts"]


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
    return kept_path(f"{processor_name()}-{workers}")


def stored_facts(workers: int) -> Mapping[str, Any]:
    """Return the facts that `write_facts` kept for this processor and number of workers; empty when there are none."""
    return kept_facts(f"{processor_name()}-{workers}", {"level": levels.detect()})


def write_facts(facts: Mapping[str, Any], workers: int) -> None:
    """Keep facts for `stored_facts`, with the date and the versions that measured them.

    Raises:
        OSError: The cache directory cannot be written.
    """
    about = {"processor": processor_name(), "level": levels.detect(), "workers": workers}
    keep_facts(f"{processor_name()}-{workers}", about, facts)
