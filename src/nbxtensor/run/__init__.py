"""Where an op meets a device: kernel choice, compilation, launches."""

from nbxtensor.run.binding import ALIGNED_NBYTES, Prepared, prepare
from nbxtensor.run.device import Device, device
from nbxtensor.run.eager import View, execute, launch

__all__ = ["ALIGNED_NBYTES", "Device", "Prepared", "View", "device", "execute", "launch", "prepare"]
