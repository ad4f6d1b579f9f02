"""Where an op meets a device: kernel choice, compilation, launches."""

from nbxtensor.run.binding import ALIGNED_NBYTES, Prepared, prepare
from nbxtensor.run.device import Device, device
from nbxtensor.run.eager import Layout, Ready, launch, layout, ready

__all__ = ["ALIGNED_NBYTES", "Device", "Layout", "Prepared", "Ready", "device", "launch", "layout", "prepare", "ready"]
