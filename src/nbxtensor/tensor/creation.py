"""Making tensors: from numpy, from Python numbers, from other libraries, from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.convert import convert
from nbxtensor.dtype.itemsize import canonical, from_numpy, numpy_dtype
from nbxtensor.errors import ArgumentError, DtypeError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Array, Spec
from nbxtensor.run import Device, device
from nbxtensor.tensor.tensor import Tensor

__all__ = ["arange", "asarray", "empty", "eye", "from_dlpack", "from_numpy_array", "full", "linspace", "ones", "zeros"]

Where = str | Device | None


def asarray(obj: Any, /, *, dtype: str | None = None, device: Where = None, copy: bool | None = None) -> Tensor:
    """Return ``obj`` as a tensor.

    Args:
        obj: A tensor, a numpy array (an ml_dtypes array too), a Python number, nested sequences of numbers, or what
            ``numpy.asarray`` or DLPack takes.
        dtype: The dtype; left out, what ``obj`` has. Python floats are float64 and ints int64, as numpy's.
            An integer array given with a dtype that numpy lacks ("bfloat16") is converted by value; bit patterns
            are taken by `from_numpy_array`.
        device: Where it goes; left out, where ``obj`` is, else the CPU.
        copy: True for fresh memory; False to refuse where sharing is impossible; None to share a numpy array's
            memory on the CPU where dtype and device allow.

    Raises:
        DtypeError: The elements are of no dtype of the table.
        ArgumentError: ``copy=False``, and a copy is needed.

    >>> import numpy as np
    >>> asarray(np.arange(3, dtype=np.float32)).dtype
    'float32'
    """
    if isinstance(obj, Tensor):
        result = obj.to(dtype) if dtype else obj
        result = result.to(device) if device is not None else result
        if copy is False and result is not obj:
            raise ArgumentError("asarray: copy=False, but the dtype or the device differs.")
        return result.copy() if copy and result is obj else result
    array = _host_array(obj)
    given = from_numpy(array.dtype)
    wanted = canonical(dtype) if dtype else given
    carried = array.view(numpy_dtype(given)) if array.dtype != numpy_dtype(given) else array
    if wanted != given:
        if copy is False:
            raise ArgumentError(f"asarray: copy=False, but {given} is to become {wanted}.")
        return from_numpy_array(convert(carried, given, wanted), wanted, device=device)
    return from_numpy_array(carried, wanted, device=device, copy=copy)


def from_numpy_array(
    array: Array, dtype: str | None = None, *, device: Where = None, copy: bool | None = None
) -> Tensor:
    """Return a numpy array of carriers as a tensor of ``dtype``: uint16 bit patterns for bfloat16, for one.

    Args:
        array: The elements, in the numpy carrier of ``dtype``; any strides.
        dtype: What they are; left out, what numpy says they are.
        device: Where the tensor goes; left out, the CPU.
        copy: As for `asarray`.

    Raises:
        DtypeError: The array is not in the carrier of ``dtype``.
    """
    name = canonical(dtype) if dtype else from_numpy(array.dtype)
    carrier = np.dtype(numpy_dtype(name))
    if array.dtype != carrier:
        raise DtypeError(f"from_numpy_array: {name} is carried as numpy {carrier}. Got {array.dtype}.")
    where = _device(device)
    memory = where.backend.memory(where.index)
    shareable = hasattr(memory, "view") and all(s % carrier.itemsize == 0 for s in array.strides)
    if copy is False and not shareable:
        raise ArgumentError(f"asarray: copy=False, but the elements cannot be shared with {where}.")
    if shareable and not copy:
        strides = tuple(s // carrier.itemsize for s in array.strides)
        span = array.nbytes if array.flags.c_contiguous else shapes.extent_span(array.shape, strides) * carrier.itemsize
        address = array.__array_interface__["data"][0]
        storage = Storage(address, span, None, array, readonly=not array.flags.writeable)
        return Tensor(storage, Spec(array.shape, name, strides), 0, where)
    packed = np.ascontiguousarray(array)
    storage = where.allocator.allocate(packed.nbytes)
    if packed.nbytes:
        memory.copy_in(storage.address, packed.reshape(-1).view(np.uint8).data)
    return Tensor(storage, Spec(array.shape, name), 0, where)


def from_dlpack(x: Any, /, *, device: Where = None, copy: bool | None = None) -> Tensor:
    """Return what another library exports through DLPack as a tensor that shares its memory (CPU memory only).

    Raises:
        DtypeError: numpy, which reads the capsule, lacks the dtype.
        ArgumentError: ``x`` has no ``__dlpack__``, or lives on another kind of device.
    """
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy)
    if not hasattr(x, "__dlpack__"):
        raise ArgumentError(f"from_dlpack: an object with __dlpack__. Got {type(x).__name__}.")
    try:
        array = np.from_dlpack(x)
    except BufferError as error:
        raise DtypeError(f"from_dlpack: {error}. Dtypes that numpy has are exchanged.") from None
    except RuntimeError as error:
        raise ArgumentError(f"from_dlpack: {error}. Memory the CPU can reach is exchanged.") from None
    return from_numpy_array(array, device=device, copy=copy)


def empty(shape: int | Sequence[int], *, dtype: str = "float32", device: Where = None) -> Tensor:
    """Return a tensor with undefined elements."""
    where = _device(device)
    spec = Spec(shapes.as_shape(shape, op="empty"), canonical(dtype))
    return Tensor(where.allocator.allocate(spec.nbytes), spec, 0, where)


def full(shape: int | Sequence[int], fill_value: float, *, dtype: str | None = None, device: Where = None) -> Tensor:
    """Return a tensor whose elements are all ``fill_value``; its dtype is the number's where none is given."""
    extents = shapes.as_shape(shape, op="full")
    one = asarray(fill_value, dtype=dtype)
    return from_numpy_array(np.full(extents, one.numpy()), one.dtype, device=device)


def zeros(shape: int | Sequence[int], *, dtype: str = "float32", device: Where = None) -> Tensor:
    """Return a tensor of zeros."""
    return full(shape, 0, dtype=dtype, device=device)


def ones(shape: int | Sequence[int], *, dtype: str = "float32", device: Where = None) -> Tensor:
    """Return a tensor of ones."""
    return full(shape, 1, dtype=dtype, device=device)


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: str | None = None, device: Where = None
) -> Tensor:
    """Return ``start, start + step, ...`` below ``stop`` (from 0 below ``start`` where no ``stop`` is given)."""
    first, last = (0, start) if stop is None else (start, stop)
    return asarray(np.arange(first, last, step), dtype=dtype, device=device)


def linspace(
    start: float, stop: float, /, num: int, *, dtype: str | None = None, device: Where = None, endpoint: bool = True
) -> Tensor:
    """Return ``num`` evenly spaced numbers from ``start`` to ``stop``."""
    return asarray(np.linspace(start, stop, num, endpoint=endpoint), dtype=dtype, device=device)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: str = "float32", device: Where = None
) -> Tensor:
    """Return a matrix with ones on its ``k``-th diagonal and zeros elsewhere."""
    return asarray(np.eye(n_rows, n_cols, k), dtype=dtype, device=device)


def _device(where: Where) -> Device:
    return device("cpu") if where is None else device(where)


def _host_array(obj: Any) -> Array:
    array = np.asarray(obj)
    if array.dtype.kind in "OUSmM":
        raise DtypeError(f"asarray: numbers, or nested sequences of them. Got elements of numpy dtype {array.dtype}.")
    return cast("Array", array)
