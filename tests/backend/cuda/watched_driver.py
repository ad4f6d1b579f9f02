"""The real driver with its launches written down as they reach it."""

import ctypes
import struct

from nbxtensor.backend.abi import Driver
from nbxtensor.backend.cuda.device import CudaBackend
from nbxtensor.backend.cuda.libcuda import CUDA

GRID = struct.Struct("@3I")
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)


def address(pointer):
    """The address that a pointer argument of ctypes has."""
    if isinstance(pointer, int):
        return pointer
    return ctypes.cast(pointer, ctypes.c_void_p).value


class Watched:
    """A function of the library that tells a listener of its arguments before or after it is called."""

    def __init__(self, function, heard):
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_heard", heard)

    def __setattr__(self, name, value):
        setattr(self._function, name, value)

    def __call__(self, *arguments):
        status = self._function(*arguments)
        if not status:
            self._heard(*arguments)
        return status


class Library:
    """libcuda; ``launches`` has the name and the grid of every kernel that was started by itself."""

    def __init__(self):
        self.names, self.launches = {}, []
        self._real = ctypes.CDLL(CUDA.library)

    def __getattr__(self, symbol):
        function = getattr(self._real, symbol)
        if symbol == "cuModuleGetFunction":
            return Watched(function, self._named)
        if symbol == "cuLaunchKernelEx":  # called through its address
            function.argtypes = [ctypes.c_void_p] * 4
            return LAUNCH(Watched(function, self._started))
        return function

    def _named(self, out, module, name):
        self.names[ctypes.c_void_p.from_address(address(out)).value] = name.decode()

    def _started(self, config, function, table, extra):
        grid = GRID.unpack(ctypes.string_at(address(config), GRID.size))
        self.launches.append((self.names[function], grid))


def watched():
    """A backend of its own on the real driver, and the library that writes down."""
    library = Library()
    return CudaBackend(Driver(CUDA, lambda _: library)), library
