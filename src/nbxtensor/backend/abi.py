"""GPU drivers by what their functions do: one table of signatures, filled with names by each driver interface."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from nbxtensor.errors import DriverError, MissingFactError, UnsupportedError

__all__ = ["SIGNATURES", "Abi", "Driver"]

_INT, _UINT, _SIZE, _WORD = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64
_POINTER = ctypes.c_void_p  # a handle, or the address of what the driver fills in
_ADDRESS = ctypes.c_uint64  # an address on the device

SIGNATURES: Mapping[str, tuple[type[Any], ...]] = MappingProxyType(
    {
        "initialise": (_UINT,),
        "error_name": (_INT, _POINTER),
        "error_text": (_INT, _POINTER),
        "driver_version": (_POINTER,),
        "device_count": (_POINTER,),
        "device": (_POINTER, _INT),
        "device_name": (_POINTER, _INT, _INT),
        "device_memory": (_POINTER, _INT),
        "device_attribute": (_POINTER, _INT, _INT),
        "retain_context": (_POINTER, _INT),
        "use_context": (_POINTER,),
        "allocate": (_POINTER, _SIZE),
        "free": (_ADDRESS,),
        "memory_info": (_POINTER, _POINTER),
        "copy_in": (_ADDRESS, _POINTER, _SIZE, _POINTER),
        "copy_out": (_POINTER, _ADDRESS, _SIZE, _POINTER),
        "copy": (_ADDRESS, _ADDRESS, _SIZE, _POINTER),
        "allocate_host": (_POINTER, _SIZE, _UINT),
        "free_host": (_POINTER,),
        "can_reach": (_POINTER, _INT, _INT),
        "reach": (_POINTER, _UINT),
        "copy_peer": (_ADDRESS, _POINTER, _ADDRESS, _POINTER, _SIZE, _POINTER),
        "address_attribute": (_POINTER, _INT, _ADDRESS),
        "fill": (_ADDRESS, ctypes.c_ubyte, _SIZE, _POINTER),
        "make_stream": (_POINTER, _UINT),
        "wait_stream": (_POINTER,),
        "make_event": (_POINTER, _UINT),
        "record_event": (_POINTER, _POINTER),
        "wait_event": (_POINTER,),
        "hold_stream": (_POINTER, _POINTER, _UINT),
        "stream_state": (_POINTER,),
        "elapsed": (_POINTER, _POINTER, _POINTER),
        "destroy_event": (_POINTER,),
        "load_module": (_POINTER, _POINTER),
        "unload_module": (_POINTER,),
        "function": (_POINTER, _POINTER, ctypes.c_char_p),
        "function_attribute": (_POINTER, _INT, _POINTER),
        "set_function_attribute": (_POINTER, _INT, _INT),
        "launch": (_POINTER, _POINTER, _POINTER, _POINTER),
        "make_graph": (_POINTER, _UINT),
        "destroy_graph": (_POINTER,),
        "add_kernel": (_POINTER, _POINTER, _POINTER, _SIZE, _POINTER),
        "add_event": (_POINTER, _POINTER, _POINTER, _SIZE, _POINTER),
        "add_edges": (_POINTER, _POINTER, _POINTER, _POINTER, _SIZE),
        "set_kernel": (_POINTER, _POINTER, _POINTER),
        "instantiate": (_POINTER, _POINTER, _WORD),
        "destroy_instance": (_POINTER,),
        "upload": (_POINTER, _POINTER),
        "launch_graph": (_POINTER, _POINTER),
    }
)
"""Argument types of every operation. CUDA's driver interface and HIP's agree on them; each returns a status, 0 where
all went well."""


@dataclass(frozen=True, slots=True)
class Abi:
    """A driver interface.

    Attributes:
        name: Name of the backend that uses it.
        library: Shared library that has the functions.
        symbols: Name of the function for each operation of `SIGNATURES`.
        out_of_memory: Status of an allocation that does not fit.
        driver: What a user calls the driver, in messages.
    """

    name: str
    library: str
    symbols: Mapping[str, str]
    out_of_memory: int
    driver: str


class Driver:
    """The functions of one driver, looked up when first used; the library is opened by the first.

    Attributes:
        abi: The interface.
    """

    def __init__(self, abi: Abi, open_library: Callable[[str], Any] = ctypes.CDLL) -> None:
        self.abi = abi
        self._open_library = open_library
        self._opening = threading.Lock()
        self._library: Any = None
        self._functions: dict[str, Callable[..., int]] = {}

    def function(self, operation: str) -> Callable[..., int]:
        """Return the function for ``operation``, which returns its status.

        Raises:
            MissingFactError: The library cannot be loaded: the machine has no such driver.
            UnsupportedError: The driver has no such function.
        """
        found = self._functions.get(operation)
        return found if found is not None else self._bound(operation)

    def call(self, operation: str, *arguments: Any) -> None:
        """Call the function for ``operation``.

        Raises:
            MissingFactError: As `function`.
            UnsupportedError: As `function`.
            DriverError: The driver reports a failure, of this call or of work started before it.
        """
        status = self.function(operation)(*arguments)
        if status:
            raise self.error(operation, status)

    def error(self, operation: str, status: int) -> DriverError:
        """Return the error for a status, with the driver's own name for it and what the driver says of it."""
        name, text = self._said("error_name", status), self._said("error_text", status)
        return DriverError(self.abi.name, self.abi.symbols[operation], status, name or f"status {status}", text)

    def integer(self, operation: str, *arguments: Any) -> int:
        """Return the int that a function writes to its first argument.

        Raises:
            DriverError: As `call`.
        """
        cell = ctypes.c_int()
        self.call(operation, ctypes.byref(cell), *arguments)
        return cell.value

    def size(self, operation: str, *arguments: Any) -> int:
        """Return the number of bytes that a function writes to its first argument.

        Raises:
            DriverError: As `call`.
        """
        cell = ctypes.c_size_t()
        self.call(operation, ctypes.byref(cell), *arguments)
        return cell.value

    def handle(self, operation: str, *arguments: Any) -> int:
        """Return the handle that a function writes to its first argument.

        Raises:
            DriverError: As `call`.
        """
        cell = ctypes.c_void_p()
        self.call(operation, ctypes.byref(cell), *arguments)
        return cell.value or 0

    def _said(self, operation: str, status: int) -> str:
        cell = ctypes.c_char_p()
        if self.function(operation)(status, ctypes.byref(cell)) or cell.value is None:
            return ""
        return cell.value.decode()

    def _bound(self, operation: str) -> Callable[..., int]:
        symbol = self.abi.symbols[operation]
        try:
            found = getattr(self._opened(), symbol)
        except AttributeError:
            raise UnsupportedError(
                f"{self.abi.name}: the driver has the function {symbol}. Got one without it. A newer driver has it."
            ) from None
        found.argtypes = SIGNATURES[operation]
        found.restype = ctypes.c_int
        self._functions[operation] = found
        return found

    def _opened(self) -> Any:
        with self._opening:
            if self._library is None:
                try:
                    self._library = self._open_library(self.abi.library)
                except OSError as error:
                    raise MissingFactError(
                        f"the {self.abi.driver} driver",
                        f"{self.abi.library} is part of it and cannot be loaded here: {error}.",
                    ) from None
            return self._library
