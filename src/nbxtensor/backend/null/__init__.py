"""A backend without devices of its own: it stands in for any device, keeps account of it, and executes nothing."""

from __future__ import annotations

import functools

from nbxtensor.backend.null.description import described_target
from nbxtensor.backend.null.device import NullBackend, NullKernel, NullReplay
from nbxtensor.backend.null.memory import NullMemory

__all__ = ["NullBackend", "NullKernel", "NullMemory", "NullReplay", "backend", "described_target"]


@functools.cache
def backend() -> NullBackend:
    """Return the process's null backend, one object per process."""
    return NullBackend()
