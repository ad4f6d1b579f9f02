"""DLPack's structures in memory and the capsules that carry them: made, and read."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from nbxtensor.errors import ExchangeError

__all__ = ["READ_ONLY", "VERSION", "Borrowed", "Lent", "borrow", "lend"]

# Layouts and numbers: include/dlpack/dlpack.h, version 1.1.
VERSION = (1, 1)
"""The version of DLPack that is written; every version 1 is read."""
READ_ONLY = 1
"""The flag of memory that may only be read."""
IS_COPIED = 2
_NUMPY_HAS_VERSIONS = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Legacy(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


@dataclass(frozen=True, slots=True)
class Lent:
    """What a capsule says of memory.

    Attributes:
        address: First element; 0 where there is none.
        device: DLPack's number of the kind of device, and the device's index.
        code: DLPack's type code and bits of an element; the lanes are 1.
        shape: Extents.
        strides: Elements between neighbours along each axis.
        readonly: Whether the memory may only be read.
        copied: Whether it is a copy made for the capsule.
    """

    address: int
    device: tuple[int, int]
    code: tuple[int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    readonly: bool = False
    copied: bool = False


def _api(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_NAMES: Mapping[Any, tuple[bytes, bytes]] = MappingProxyType(
    {
        _Versioned: (b"dltensor_versioned", b"used_dltensor_versioned"),
        _Legacy: (b"dltensor", b"used_dltensor"),
    }
)
_is_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


class _Carried:
    """Memory, wherever it is, as numpy sees the place and the strides of an array that it never reads."""

    def __init__(self, lent: Lent, owner: object) -> None:
        width = lent.code[1] // 8
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": lent.shape,
            "typestr": np.dtype(f"u{width}" if width <= 8 else f"c{width}").str,
            "strides": tuple(s * width for s in lent.strides),
            "data": (lent.address or id(self), lent.readonly),
        }


def lend(lent: Lent, owner: object, *, versioned: bool) -> Any:
    """Return a capsule.

    numpy writes it, for an array at that place: what deletes the capsule and what it carries has to be
    compiled code, since it may be called while an exception is under way. The device and the dtype are then made right.

    Args:
        lent: The memory.
        owner: What holds the memory; it is let go when nobody needs the memory any more.
        versioned: Whether the reader knows DLPack 1, which tells what may only be read; else the capsule is of those
            before.

    Raises:
        ExchangeError: The memory may only be read, and the capsule cannot tell.
    """
    array: Any = np.asarray(_Carried(lent, owner))
    versioned = versioned and _NUMPY_HAS_VERSIONS
    if lent.readonly and not versioned:
        raise ExchangeError(
            "__dlpack__: a capsule that says that memory may only be read. Got a reader of a version before 1, or "
            "numpy before 2.1. copy() makes memory that may be written."
        )
    capsule = array.__dlpack__(max_version=VERSION) if versioned else array.__dlpack__()
    layout: Any = _Versioned if versioned else _Legacy
    managed = layout.from_address(_pointer(capsule, _NAMES[layout][0]))
    managed.tensor.device = _Device(*lent.device)
    managed.tensor.dtype = _DataType(*lent.code, 1)
    if not lent.address:
        managed.tensor.data = None
    if versioned:
        managed.flags = READ_ONLY * lent.readonly + IS_COPIED * lent.copied
    return capsule


class Borrowed:
    """Memory of another library; it gives the memory back when nothing refers to it any more.

    Attributes:
        lent: What the capsule says of it.
        before: Called first, so that nothing uses the memory any more.
    """

    __slots__ = ("__weakref__", "_delete", "_managed", "before", "lent")

    def __init__(self, lent: Lent, managed: int, deleter: int | None) -> None:
        self.lent: Lent = lent
        self.before: Callable[[], None] | None = None
        self._managed = managed
        self._delete = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(deleter) if deleter else None

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Give the memory back; not while the interpreter ends, when the other library may be gone already."""
        if _finalizing():
            return
        if self.before is not None:
            self.before()
        if self._delete is not None:
            self._delete(self._managed)


def borrow(capsule: Any) -> Borrowed:
    """Return what a capsule carries; the capsule is used up.

    Raises:
        ExchangeError: It is no capsule of DLPack, was taken before, or is of a version that is not read.
    """
    for layout, (name, used) in _NAMES.items():
        if not _is_valid(capsule, name):
            continue
        managed = layout.from_address(_pointer(capsule, name))
        versioned = layout is _Versioned
        if versioned and managed.major != VERSION[0]:  # the rest of the structure may be another
            raise ExchangeError(
                f"from_dlpack: a capsule of DLPack {VERSION[0]}. Got version {managed.major}.{managed.minor}."
            )
        flags = managed.flags if versioned else 0
        borrowed = Borrowed(_read(managed.tensor, flags), ctypes.addressof(managed), managed.deleter)
        _rename(capsule, used)
        if managed.tensor.dtype.lanes != 1:
            raise ExchangeError(f"from_dlpack: elements of one lane. Got {managed.tensor.dtype.lanes}.")
        return borrowed
    raise ExchangeError(f"from_dlpack: a DLPack capsule that nobody has taken. Got {capsule!r}.")


def _read(tensor: Any, flags: int) -> Lent:
    count = tensor.ndim
    shape = tuple((ctypes.c_int64 * count).from_address(tensor.shape)) if count else ()
    if tensor.strides and count:
        strides = tuple((ctypes.c_int64 * count).from_address(tensor.strides))
    else:  # row-major without gaps
        strides, step = (), 1
        for extent in reversed(shape):
            strides, step = (step, *strides), step * max(extent, 1)
    return Lent(
        address=(tensor.data or 0) + tensor.byte_offset,
        device=(tensor.device.kind, tensor.device.index),
        code=(tensor.dtype.code, tensor.dtype.bits),
        shape=shape,
        strides=strides,
        readonly=bool(flags & READ_ONLY),
        copied=bool(flags & IS_COPIED),
    )
