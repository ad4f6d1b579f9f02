"""Tensors to and from other array libraries, on the CPU and on GPUs: the memory is shared, no element is copied."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.backend import registry
from nbxtensor.backend.contract import Backend
from nbxtensor.dtype.itemsize import bits, dlpack_code, from_dlpack, from_numpy, numpy_dtype
from nbxtensor.errors import ArgumentError, CaptureError, DtypeError, ExchangeError, UnknownDtypeError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Spec
from nbxtensor.run import Device
from nbxtensor.run import device as open_device
from nbxtensor.tensor.capsules import VERSION, Lent, borrow, lend

__all__ = ["capsule", "cuda_interface", "dlpack_device", "from_cuda_interface", "from_exchange"]

_ON_HOST = (1, 3)  # kDLCPU, kDLCUDAHost: memory that the host reaches as its own
_CUDA = 2  # kDLCUDA
_DEFAULT_STREAM = 1  # the legacy default stream, as DLPack and the CUDA array interface spell it
_NO_ORDER = -1
_ADDRESSABLE = 1 << 57  # bytes: more than any processor gives addresses to


def dlpack_device(tensor: Any) -> tuple[int, int]:
    """Return DLPack's number for the kind of a tensor's device, and the device's index.

    Raises:
        ExchangeError: Other libraries cannot reach the device's memory.
        CaptureError: The tensor is traced and has no memory.
    """
    _storage(tensor)
    kind = _kind(tensor.device.backend)
    if kind is None:
        raise ExchangeError(f"__dlpack_device__: memory that other libraries reach. Got a tensor on {tensor.device}.")
    return kind, tensor.device.index


def capsule(
    tensor: Any,
    *,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """Return a tensor as a DLPack capsule; see `Tensor.__dlpack__`."""
    here = dlpack_device(tensor)
    if bits(tensor.dtype) < 8:
        raise ExchangeError(f"__dlpack__: elements of a byte or more. Got {tensor.dtype}.")
    wanted = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    copied = bool(copy) or wanted != here
    if copied and copy is False:
        raise ExchangeError(f"__dlpack__: copy=False, but device {wanted} was asked for. The tensor is on {here}.")
    if wanted != here:
        tensor = tensor.to(_device_of(wanted))
    elif copied:
        tensor = tensor.copy()
    if tensor.size and any(s < 0 for n, s in zip(tensor.shape, tensor.strides, strict=True) if n > 1):
        raise ExchangeError(
            f"__dlpack__: strides of zero or more. Got {tensor.strides} for shape {tensor.shape}. copy() packs."
        )
    storage, where = _storage(tensor), tensor.device
    versioned = max_version is not None and max_version[0] >= VERSION[0]
    lent = Lent(
        address=storage.address + tensor.offset * tensor.itemsize if tensor.size else 0,
        device=wanted,
        code=dlpack_code(tensor.dtype),
        shape=tensor.shape,
        strides=tensor.strides,
        readonly=storage.readonly,
        copied=copied,
    )
    _order(where, stream)
    return lend(lent, _Returned(storage, where), versioned=versioned)


class _Returned:
    """What another library holds: the memory, until that library is done."""

    __slots__ = ("storage", "where")

    def __init__(self, storage: Storage, where: Device) -> None:
        self.storage: Storage = storage
        self.where: Device = where

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Let what is started here from now on, in the same memory maybe, wait for the default stream.

        What the other library has started there may still use the memory.
        """
        wait_for = getattr(self.where.backend, "wait_for", None)
        if wait_for is not None and not _finalizing():
            wait_for(_DEFAULT_STREAM, self.where.index)


def from_exchange(x: Any) -> tuple[Storage, Spec, Device]:
    """Return the memory that ``x`` exports through DLPack, what lies there, and the device.

    Raises:
        ExchangeError: ``x`` cannot export it, or it cannot be used here.
        DtypeError: Elements of no dtype of the table.
        MissingFactError: It is on a device that no installed backend drives.
    """
    try:
        kind, index = (int(part) for part in x.__dlpack_device__())
    except (BufferError, ValueError) as refusal:  # a device that the library itself has no number for
        raise ExchangeError(f"from_dlpack: {refusal}") from refusal
    where = _device_of((kind, index))
    options: dict[str, Any] = {}
    if hasattr(where.backend, "stream"):
        options["stream"] = cast("Any", where.backend).stream(where.index)
    try:
        try:
            given = x.__dlpack__(max_version=VERSION, **options)
        except TypeError:  # a library older than DLPack 1
            given = x.__dlpack__(**options)
    except BufferError as refusal:
        raise ExchangeError(f"from_dlpack: {refusal}") from refusal
    borrowed = borrow(given)
    lent = borrowed.lent
    busy = getattr(where.backend, "busy", None)
    if busy is not None:

        def settle() -> None:
            if busy(where.index):
                where.backend.synchronize(where.index)

        borrowed.before = settle
    try:
        dtype = from_dlpack(*lent.code)
    except UnknownDtypeError as unknown:
        raise DtypeError(f"from_dlpack: {unknown}") from None
    return _taken("from_dlpack", lent, dtype, where, borrowed)


def cuda_interface(tensor: Any) -> dict[str, Any]:
    """Return what describes a tensor on an NVIDIA GPU to libraries that read version 3 of the CUDA array interface.

    Raises:
        AttributeError: The tensor is on another device, or numpy lacks its dtype.
    """
    where = tensor.device_or_none
    if where is None or _kind(where.backend) != _CUDA:
        raise AttributeError("__cuda_array_interface__: of a tensor on an NVIDIA GPU.")
    carrier = np.dtype(numpy_dtype(tensor.dtype))
    if carrier.name != tensor.dtype:
        raise AttributeError(f"__cuda_array_interface__: dtypes that numpy has. Got {tensor.dtype}.")
    storage = _storage(tensor)
    return {
        "version": 3,
        "shape": tensor.shape,
        "typestr": carrier.str,
        "data": (storage.address + tensor.offset * carrier.itemsize if tensor.size else 0, storage.readonly),
        "strides": tuple(s * carrier.itemsize for s in tensor.strides),
        "stream": where.backend.stream(where.index),
    }


def from_cuda_interface(x: Any) -> tuple[Storage, Spec, Device]:
    """Return the memory that ``x`` describes by ``__cuda_array_interface__``, what lies there, and the device.

    Raises:
        ExchangeError: It is masked, or cannot be used here.
        DtypeError: Elements of no dtype of the table.
        MissingFactError: There is no NVIDIA GPU here.
    """
    found: Mapping[str, Any] = x.__cuda_array_interface__
    if found.get("mask") is not None:
        raise ExchangeError("__cuda_array_interface__: an array without a mask. Got one with a mask.")
    dtype = np.dtype(found["typestr"])
    address, readonly = found["data"]
    shape = tuple(int(n) for n in found["shape"])
    strides = found.get("strides") or Spec(shape, from_numpy(dtype)).strides
    if found.get("strides"):
        if any(s % dtype.itemsize for s in strides):
            raise ExchangeError(f"__cuda_array_interface__: strides of whole elements. Got {strides} of {dtype}.")
        strides = tuple(s // dtype.itemsize for s in strides)
    driver: Any = _backend_of(_CUDA)
    where = open_device(f"{driver.name}:{driver.device_of(address) if address else 0}")
    if found.get("stream") is not None:
        driver.wait_for(int(found["stream"]), where.index)
    name = from_numpy(dtype)
    lent = Lent(address, (_CUDA, where.index), dlpack_code(name), shape, tuple(strides), bool(readonly))
    return _taken("__cuda_array_interface__", lent, name, where, _Held(x, where.backend.synchronize, where.index))


class _Held:
    """An object of another library whose memory is used; the device is done with it before it goes."""

    __slots__ = ("_index", "_synchronize", "owner")

    def __init__(self, owner: Any, synchronize: Callable[[int], None], index: int) -> None:
        self.owner: Any = owner
        self._synchronize = synchronize
        self._index = index

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing():
            self._synchronize(self._index)


def _taken(name: str, lent: Lent, dtype: str, where: Device, owner: object) -> tuple[Storage, Spec, Device]:
    spec = Spec(lent.shape, dtype, lent.strides)
    width = bits(dtype) // 8
    if spec.numel and lent.address % width and not hasattr(where.backend.memory(where.index), "view"):
        raise ExchangeError(f"{name}: an address that is a multiple of {width}. Got {lent.address:#x}, of {dtype}.")
    nbytes = shapes.extent_span(spec.shape, spec.strides) * width
    if nbytes > _ADDRESSABLE:  # some libraries write a negative stride as a huge one
        raise ExchangeError(f"{name}: strides that stay in memory. Got {spec.strides} for shape {spec.shape}.")
    return Storage(lent.address, nbytes, None, owner, readonly=lent.readonly), spec, where


def _order(where: Device, stream: int | None) -> None:
    """Let a stream of whoever reads the memory wait for what was started on it here."""
    let_wait = getattr(where.backend, "let_wait", None)
    if let_wait is None:
        if stream is not None:
            raise ArgumentError(f"__dlpack__: stream is None for memory of {where}. Got {stream!r}.")
        return
    handle = _DEFAULT_STREAM if stream is None else stream
    if isinstance(handle, bool) or not isinstance(handle, int) or handle < _NO_ORDER or not handle:
        raise ArgumentError(
            f"__dlpack__: a stream is None, -1 for no order, 1 for the default stream, 2 for that of the thread, or a "
            f"handle. Got {stream!r}."
        )
    if handle != _NO_ORDER:
        let_wait(handle, where.index)


def _kind(backend: Backend) -> int | None:
    return getattr(backend, "dlpack_device", None)


def _device_of(pair: tuple[int, int]) -> Device:
    """Return the device that DLPack calls by a number of its kind and an index."""
    kind, index = pair
    if kind in _ON_HOST:
        return open_device("cpu")
    return open_device(f"{_backend_of(kind).name}:{index}")


def _backend_of(kind: int) -> Backend:
    for name in registry.installed():
        if _kind(registry.backend(name)) == kind:
            return registry.backend(name)
    raise ExchangeError(f"DLPack: a device that a backend drives. Got one of kind {kind}.")


def _storage(tensor: Any) -> Storage:
    storage = tensor.storage
    if not isinstance(storage, Storage):
        raise CaptureError("__dlpack__: a traced tensor has no values. Run the program and exchange its outputs.")
    return storage
