"""Making tensors: from numpy, from Python numbers, from other libraries, from nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.convert import convert
from nbxtensor.dtype.itemsize import bits, canonical, from_numpy, numpy_dtype
from nbxtensor.dtype.itemsize import kind as dtype_kind
from nbxtensor.dtype.limits import iinfo
from nbxtensor.errors import ArgumentError, DtypeError, ShapeError, UnsupportedError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Array, Spec
from nbxtensor.run import Device, device
from nbxtensor.tensor.exchange import from_cuda_interface, from_exchange
from nbxtensor.tensor.tensor import Tensor

__all__ = ["arange", "asarray", "empty", "eye", "from_dlpack", "from_numpy_array", "full", "linspace", "ones", "zeros"]

Where = str | Device | None


def asarray(obj: Any, /, *, dtype: str | None = None, device: Where = None, copy: bool | None = None) -> Tensor:
    """Return ``obj`` as a tensor.

    Args:
        obj: A tensor, a numpy array (an ml_dtypes array too), a Python number, nested sequences of numbers, or what
            ``numpy.asarray``, DLPack or the CUDA array interface takes.
        dtype: The dtype; left out, what ``obj`` has. Python floats are float64 and ints int64, as numpy's.
            An integer array given with a dtype that numpy lacks ("bfloat16") is converted by value; bit patterns
            are taken by `from_numpy_array`.
        device: Where it goes; left out, where ``obj`` is, else the CPU.
        copy: True for fresh memory; False to refuse where sharing is impossible; None to share a numpy array's
            memory on the CPU where dtype and device allow.

    Raises:
        DtypeError: The elements are of no dtype of the table.
        ShapeError: Nested sequences differ in length.
        ArgumentError: ``copy=False``, and a copy is needed; ``copy`` is none of True, False and None; Python ints
            outside the range of ``dtype``; or ``device`` is no device's name.
        MissingFactError: There is no such device.

    >>> import numpy as np
    >>> asarray(np.arange(3, dtype=np.float32)).dtype
    'float32'
    """
    _check_copy(copy)
    device = None if device is None else _device(device)
    if isinstance(obj, Tensor):
        result = obj if dtype is None else obj.to(canonical(dtype))
        result = result.to(device) if device is not None else result
        if copy is False and result is not obj:
            raise ArgumentError("asarray: copy=False, but the dtype or the device differs.")
        return result.copy() if copy and result is obj else result
    if hasattr(obj, "__dlpack__") and not isinstance(obj, np.ndarray):
        return asarray(from_dlpack(obj), dtype=dtype, device=device, copy=copy)
    if hasattr(obj, "__cuda_array_interface__"):
        storage, spec, where = from_cuda_interface(obj)
        return asarray(Tensor(storage, spec, 0, where), dtype=dtype, device=device, copy=copy)
    array = _host_array(obj)
    given = from_numpy(array.dtype)
    wanted = given if dtype is None else canonical(dtype)
    if array.size and isinstance(obj, (int, list, tuple, range)) and dtype_kind(given) in ("int", "uint"):
        _check_range("asarray", int(array.min()), int(array.max()), wanted)
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
        UnsupportedError: Elements of ``dtype`` are narrower than a byte.
        ArgumentError: ``array`` is no numpy array, or ``copy`` is none of True, False and None.
    """
    _check_copy(copy)
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"from_numpy_array: a numpy array. Got {type(array).__name__}. asarray takes all else.")
    name = from_numpy(array.dtype) if dtype is None else canonical(dtype)
    _check_whole_bytes("from_numpy_array", name)
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
    """Return what another library exports through DLPack as a tensor that shares its memory, on the CPU or a GPU.

    What the other library has started on the memory is done before anything here uses it. The memory is given back
    when nothing refers to it any more, and nothing that was started here uses it.

    Args:
        x: An array of another library.
        device: Where it goes; left out, where it is.
        copy: True for fresh memory, False to refuse a copy, None to copy where ``device`` is another.

    Raises:
        DtypeError: The elements are of no dtype of the table.
        ExchangeError: The other library refuses, or the memory cannot be used as it is.
        ArgumentError: ``x`` has no ``__dlpack__``, or ``copy=False`` and ``device`` is another.
        MissingFactError: It is on a device that no installed backend drives.
    """
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy)
    if not hasattr(x, "__dlpack__"):
        raise ArgumentError(f"from_dlpack: an object with __dlpack__. Got {type(x).__name__}.")
    storage, spec, where = from_exchange(x)
    return asarray(Tensor(storage, spec, 0, where), device=device, copy=copy)


def empty(shape: int | Sequence[int], *, dtype: str = "float32", device: Where = None) -> Tensor:
    """Return a tensor with undefined elements."""
    where = _device(device)
    spec = Spec(shapes.as_shape(shape, op="empty"), canonical(dtype))
    return Tensor(where.allocator.allocate(spec.nbytes), spec, 0, where)


def full(shape: int | Sequence[int], fill_value: float, *, dtype: str | None = None, device: Where = None) -> Tensor:
    """Return a tensor whose elements are all ``fill_value``; its dtype is the number's where none is given.

    Raises:
        ArgumentError: ``fill_value`` is not one number, or an int outside the range of ``dtype``.
        OutOfMemoryError: The device, or the limit set, cannot hold it.
    """
    return _filled("full", shape, fill_value, dtype, device)


def zeros(shape: int | Sequence[int], *, dtype: str = "float32", device: Where = None) -> Tensor:
    """Return a tensor of zeros."""
    return _filled("zeros", shape, 0, canonical(dtype), device)


def ones(shape: int | Sequence[int], *, dtype: str = "float32", device: Where = None) -> Tensor:
    """Return a tensor of ones."""
    return _filled("ones", shape, 1, canonical(dtype), device)


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: str | None = None, device: Where = None
) -> Tensor:
    """Return ``start, start + step, ...`` below ``stop`` (from 0 below ``start`` where no ``stop`` is given).

    Raises:
        ArgumentError: A bound is no finite number, ``step`` is 0, or an int is outside the range of ``dtype``.
        OutOfMemoryError: There are more than the device holds.
    """
    first, last = (0, start) if stop is None else (start, stop)
    given = (first, last, step)
    _check_numbers("arange", *given)
    if not step:
        raise ArgumentError(f"arange: a step other than 0. Got {step!r}.")
    count = max(math.ceil((last - first) / step), 0)
    _check_room(count * 8, device)
    if count and dtype is not None and all(isinstance(n, (int, np.integer)) for n in given):
        ends = int(first), int(first) + (count - 1) * int(step)
        _check_range("arange", min(ends), max(ends), canonical(dtype))
    return asarray(np.arange(first, last, step), dtype=dtype, device=device)


def linspace(
    start: float, stop: float, /, num: int, *, dtype: str | None = None, device: Where = None, endpoint: bool = True
) -> Tensor:
    """Return ``num`` evenly spaced numbers from ``start`` to ``stop``.

    Raises:
        ArgumentError: ``num`` is no int, or is negative; or a bound is no finite number.
        OutOfMemoryError: There are more than the device holds.
    """
    _check_numbers("linspace", start, stop)
    count = _count("linspace", num, "num")
    _check_room(count * 8, device)
    return asarray(np.linspace(start, stop, count, endpoint=endpoint), dtype=dtype, device=device)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: str = "float32", device: Where = None
) -> Tensor:
    """Return a matrix with ones on its ``k``-th diagonal and zeros elsewhere.

    Raises:
        ArgumentError: An argument is no int, or an extent is negative.
        OutOfMemoryError: The device, or the limit set, cannot hold it.
    """
    rows = _count("eye", n_rows, "n_rows")
    columns = rows if n_cols is None else _count("eye", n_cols, "n_cols")
    diagonal = shapes.as_index(k, op="eye", name="k")
    _check_room(rows * columns * 8, device)
    return asarray(np.eye(rows, columns, diagonal), dtype=canonical(dtype), device=device)


def _device(where: Where) -> Device:
    return device("cpu") if where is None else device(where)


def _host_array(obj: Any) -> Array:
    try:
        array = np.asarray(obj)
    except ValueError:
        raise ShapeError("asarray: nested sequences of one length at every level. Got ones that differ.") from None
    if array.dtype.kind in "OUSmM":
        raise DtypeError(
            f"asarray: numbers, ints of at most 64 bits, or nested sequences of them. Got {type(obj).__name__}, "
            f"to numpy of dtype {array.dtype}."
        )
    return cast("Array", array)


def _filled(op: str, shape: int | Sequence[int], value: float, dtype: str | None, where: Where) -> Tensor:
    extents, one = shapes.as_shape(shape, op=op), _host_array(value)
    if one.ndim:
        raise ArgumentError(f"{op}: one number to fill with. Got an array of shape {one.shape}. broadcast_to repeats.")
    number = asarray(value, dtype=dtype)
    result = empty(extents, dtype=number.dtype, device=where)
    if hasattr(result.device.backend.memory(result.device.index), "view"):
        result.numpy()[...] = number.numpy()
        return result
    return from_numpy_array(np.full(extents, number.numpy()), number.dtype, device=where)


def _check_whole_bytes(op: str, dtype: str) -> None:
    if bits(dtype) < 8:
        raise UnsupportedError(f"{op}: elements of a byte or more. Got {dtype}. nbxtensor.quant packs narrower ones.")


def _check_copy(copy: Any) -> None:
    if copy is not None and not isinstance(copy, (bool, np.bool_)):
        raise ArgumentError(f"asarray: copy is True, False or None. Got {copy!r}.")


def _check_numbers(op: str, *given: Any) -> None:
    if not all(isinstance(n, (int, float, np.number)) and not isinstance(n, bool) and math.isfinite(n) for n in given):
        raise ArgumentError(f"{op}: finite numbers. Got {', '.join(map(repr, given))}. Ints or floats.")


def _check_range(op: str, low: int, high: int, dtype: str) -> None:
    """Refuse ints that an integer ``dtype`` cannot hold."""
    if dtype_kind(dtype) not in ("int", "uint"):
        return
    limits = iinfo(dtype)
    if low < limits.min or high > limits.max:
        raise ArgumentError(
            f"{op}: ints in the range of {dtype}. Got {low if low < limits.min else high}. {limits.min} to "
            f"{limits.max} is accepted."
        )


def _check_room(nbytes: int, where: Where) -> None:
    """Refuse what the whole device could not hold, before the host tries to make it."""
    allocator = _device(where).allocator
    total = allocator.memory.info().total
    if nbytes > total:
        raise allocator.refusal(nbytes, total, "the device")


def _count(op: str, value: int, name: str) -> int:
    count = shapes.as_index(value, op=op, name=name)
    if count < 0:
        raise ArgumentError(f"{op}: {name} is zero or more. Got {count}.")
    return count
