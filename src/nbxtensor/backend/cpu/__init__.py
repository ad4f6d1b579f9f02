"""The CPU backend: Triton kernels compiled to machine code and run by the threads of this process."""

from __future__ import annotations

import functools

from nbxtensor.backend.cpu.device import CpuBackend

__all__ = ["CpuBackend", "backend"]


@functools.cache
def backend() -> CpuBackend:
    """Return the backend of this process's processor, one object per process."""
    return CpuBackend()
