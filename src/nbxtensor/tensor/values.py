"""A tensor's elements on the host: Python numbers, and exchange with other array libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbxtensor.dtype.convert import convert
from nbxtensor.dtype.itemsize import kind as dtype_kind
from nbxtensor.dtype.itemsize import numpy_dtype
from nbxtensor.errors import ArgumentError, DtypeError
from nbxtensor.op import Array
from nbxtensor.tensor.exchange import capsule, cuda_interface, dlpack_device

__all__ = ["Values"]


class Values:
    """What a tensor of known elements can be read as; all of it goes through ``numpy()``."""

    __slots__ = ()

    def __array__(self: Any, dtype: Any = None, copy: bool | None = None) -> Array:  # noqa: FBT001 - numpy's protocol
        """Return the elements for `numpy.asarray`.

        Raises:
            ValueError: ``copy`` is False, and ``dtype`` is another.
        """
        array = self.numpy()
        if copy is False and dtype is not None and np.dtype(dtype) != array.dtype:
            raise ValueError(f"__array__: a conversion makes a copy. Got copy=False and {dtype} for {array.dtype}.")
        return array.astype(array.dtype if dtype is None else dtype, copy=bool(copy))

    def __dlpack__(
        self: Any,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the elements as a DLPack capsule, for the ``from_dlpack`` of another library; the memory is shared.

        Args:
            stream: The reader's stream, on a device that has streams: it waits for all that was started on the tensor.
                None and 1 are the default stream, 2 is that of the calling thread, a larger number a handle; -1 leaves
                the order to the reader. None on the CPU.
            max_version: The newest version of DLPack that the reader knows; left out, it knows none from 1 on.
            dl_device: Where the elements are wanted, as DLPack's kind and index; elsewhere than here, they are copied.
            copy: True for fresh memory, False to refuse a copy.

        Raises:
            ExchangeError: A copy is refused and needed, the memory may only be read and the reader cannot be told so,
                strides are negative, or elements are narrower than a byte.
            ArgumentError: ``stream`` is none of those.
            CaptureError: The tensor is traced.
        """
        return capsule(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self: Any) -> tuple[int, int]:
        """Return DLPack's number for the kind of the device, and the device's index.

        Raises:
            ExchangeError: Other libraries cannot reach the device's memory.
            CaptureError: The tensor is traced.
        """
        return dlpack_device(self)

    @property
    def __cuda_array_interface__(self: Any) -> dict[str, Any]:
        """The memory of a tensor on an NVIDIA GPU, for libraries that share it this way; absent elsewhere."""
        return cuda_interface(self)

    def item(self: Any) -> bool | int | float | complex:
        """Return the one element as a Python number.

        Raises:
            ArgumentError: There is not exactly one element.
        """
        if self.size != 1:
            raise ArgumentError(f"item: a tensor of one element. Got shape {self.shape}.")
        return self.tolist_flat()[0]

    def tolist(self: Any) -> Any:
        """Return the elements as nested lists of Python numbers (a number for no axes)."""
        return self._values().tolist()

    def tolist_flat(self: Any) -> list[Any]:
        """Return the elements in row-major order as a list of Python numbers."""
        return self._values().reshape(-1).tolist()

    def _values(self: Any) -> Array:
        """Return the elements in a numpy dtype that shows their values."""
        array = self.numpy()
        return convert(array, self.dtype, "float32") if self._coded() else array

    def _coded(self: Any) -> bool:
        """Return whether numpy lacks the dtype, and holds its elements as codes."""
        return numpy_dtype(self.dtype).name != self.dtype

    def _text(self: Any, prefix: str) -> str:
        """Return the elements as text that stands after ``prefix``; of many, those at the ends of each axis alone."""
        if not self._coded() or self.size <= np.get_printoptions()["threshold"]:
            return np.array2string(self._values(), separator=", ", prefix=prefix)

        def shown(code: Any) -> str:
            return str(convert(np.asarray(code), self.dtype, "float32"))

        return np.array2string(self.numpy(), separator=", ", prefix=prefix, formatter={"all": shown})

    def __bool__(self: Any) -> bool:
        if self.size != 1:
            raise ArgumentError(f"bool: one element is true or false. Got shape {self.shape}. any() or all() decides.")
        return bool(self.item())

    def __int__(self: Any) -> int:
        return int(self.item())

    def __float__(self: Any) -> float:
        return float(self.item())

    def __complex__(self: Any) -> complex:
        return complex(self.item())

    def __index__(self: Any) -> int:
        if dtype_kind(self.dtype) not in ("int", "uint"):
            raise DtypeError(f"__index__: an integer tensor. Got dtype {self.dtype}.")
        return int(self.item())

    def __contains__(self: Any, value: Any) -> bool:
        return bool((self == value).any())
