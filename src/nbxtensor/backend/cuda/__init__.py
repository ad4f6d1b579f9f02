"""The CUDA backend: Triton kernels compiled to machine code and run on NVIDIA GPUs through the driver alone."""

from __future__ import annotations

import functools

from nbxtensor.backend.cuda.device import CudaBackend

__all__ = ["CudaBackend", "backend"]


@functools.cache
def backend() -> CudaBackend:
    """Return the backend of this machine's NVIDIA GPUs, one object per process; the driver is not loaded yet."""
    return CudaBackend()
