"""The tensor: a shape, a dtype and strides over a block of memory, or over a value of a graph being traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits, canonical, itemsize, numpy_dtype
from nbxtensor.errors import (
    ArgumentError,
    CaptureError,
    MissingFactError,
    ShapeError,
    UnknownDtypeError,
    UnsupportedError,
)
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Array, Op, Place, Spec
from nbxtensor.ops.deferred import Deferred
from nbxtensor.run import ALIGNED_NBYTES, Device, Layout, Ready, layout, ready
from nbxtensor.run import device as open_device
from nbxtensor.settings import settings
from nbxtensor.tensor.operators import Operators
from nbxtensor.tensor.values import Values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbxtensor.ops.layout import op as copies
else:
    copies = Deferred("nbxtensor.ops.layout.op")

__all__ = ["Symbol", "Tensor"]

_NUMPY_AXES = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32


@runtime_checkable
class Symbol(Protocol):
    """What stands for memory while a function is traced."""

    def run(self, op: Op, operands: Mapping[str, Tensor], params: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Write the call down and return tensors that stand for its results."""
        ...


class _HostView:
    """Host memory of a tensor as numpy sees it; numpy keeps it, and so the storage, alive."""

    def __init__(self, tensor: Tensor, carrier: np.dtype[Any]) -> None:
        storage = cast("Storage", tensor.storage)
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "typestr": carrier.str,
            "strides": tuple(s * carrier.itemsize for s in tensor.strides),
            "data": (storage.address + tensor.offset * carrier.itemsize, storage.readonly),
        }


@functools.lru_cache(maxsize=16384)
def _spec(shape: tuple[int, ...], dtype: str, strides: tuple[int, ...]) -> Spec:
    """Return the spec of a view; views of few kinds are taken again and again."""
    return Spec(shape, dtype, strides)


def _extents(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Return extents given one by one, or as one sequence."""
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given


def _placed(array: Array, dtype: str, where: Device | str) -> Tensor:
    """Return a copy of an array of carriers as a tensor of ``dtype`` on a device."""
    host, where = np.ascontiguousarray(array), open_device(where)
    storage = where.allocator.allocate(host.nbytes)
    if host.nbytes:
        where.backend.memory(where.index).copy_in(storage.address, host.reshape(-1).view(np.uint8).data)
    return Tensor(storage, Spec(array.shape, dtype), 0, where)


def _running(prepared: Ready, device: Device, places: Sequence[Place]) -> Callable[[Sequence[Any]], Any]:
    """Return what runs a prepared call on the values of a call, whose operands are at ``places``."""
    outputs, run, start, allocate = prepared.outputs, prepared.run, prepared.start, device.allocator.allocate
    found, spec, nbytes = outputs[0], outputs[0].spec, outputs[0].spec.nbytes

    def several(values: Sequence[Any]) -> Any:
        given = [(values[place] if member is None else values[place][member]).__address__ for place, member in places]
        tensors = tuple(_fresh(s, out, device) for s, out in zip(run(given), outputs, strict=True))
        return tensors[0] if len(tensors) == 1 else tensors

    flat = [place for place, member in places if member is None]
    if start is None or len(flat) != len(places):
        return several
    x, y, count = flat[0], flat[-1], len(flat)

    def single(values: Sequence[Any]) -> Tensor:  # as `several` does, without what one launch does not need
        if settings().launch_observer is not None:
            return several(values)
        storage = allocate(nbytes)
        address = storage.address
        if count == 2:  # without a loop: most calls are such
            start((address, values[x].__address__, values[y].__address__))
        else:
            start((address, *[values[place].__address__ for place in flat]))
        tensor = Tensor(storage, spec, 0, device)
        tensor.__key__ = found
        tensor.__address__ = address
        return tensor

    return single


def _fresh(storage: Storage, found: Layout, device: Device) -> Tensor:
    tensor = Tensor(storage, found.spec, 0, device)
    tensor.__key__ = found
    tensor.__address__ = storage.address
    return tensor


class Tensor(Operators, Values):
    """An n-dimensional array on a device.

    A tensor is a view: shape, dtype and strides (in elements) over a storage that several tensors may share. It is
    never written to once made. Make one with `asarray`, `zeros` and the like; the constructor takes the parts.
    """

    __slots__ = ("__address__", "__key__", "_device", "_offset", "_spec", "_storage")
    __address__: int
    __key__: Layout | None
    __array_priority__ = 1000  # numpy leaves operators with a tensor to the tensor

    def __init__(self, storage: Storage | Symbol, spec: Spec, offset: int = 0, device: Device | None = None) -> None:
        self._storage = storage
        self._spec = spec
        self._offset = offset
        self._device = device
        self.__key__ = None  # found when first needed, and the address with it

    # ---- what it is

    @property
    def spec(self) -> Spec:
        """Shape, dtype and strides as plain data."""
        return self._spec

    @property
    def storage(self) -> Storage | Symbol:
        """The memory behind it."""
        return self._storage

    @property
    def offset(self) -> int:
        """Elements from the start of the storage to the first element."""
        return self._offset

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of each axis."""
        return self._spec.shape

    @property
    def dtype(self) -> str:
        """Name of the dtype, as the dtype table spells it."""
        return self._spec.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements (not bytes) between neighbours along each axis."""
        return self._spec.strides

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._spec.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._spec.numel

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, packed."""
        return self._spec.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of one element; refused by name for dtypes narrower than a byte."""
        return itemsize(self._spec.dtype)

    @property
    def device(self) -> Device:
        """The device its memory is on.

        Raises:
            CaptureError: The tensor stands for a value of a graph.
        """
        if self._device is None:
            raise CaptureError("device: a traced tensor is on no device yet. A plan is made for one.")
        return self._device

    @property
    def device_or_none(self) -> Device | None:
        """The device, or None for a traced tensor."""
        return self._device

    def is_contiguous(self) -> bool:
        """Return whether the elements lie row-major without gaps."""
        return self._spec.is_contiguous

    # ---- running ops

    def __run__(self, op: Op, operands: Mapping[str, Tensor], params: Mapping[str, Any]) -> Any:
        """Run ``op`` where the operands live: traced if any of them is, else on their common device."""
        for operand in operands.values():
            if not isinstance(operand.storage, Storage):
                results = operand.storage.run(op, operands, params)
                return results[0] if len(results) == 1 else results
        given = tuple(operands.values())
        return self.__prepare__(op, operands, params, [(place, None) for place in range(len(given))])(given)

    def __prepare__(
        self, op: Op, operands: Mapping[str, Tensor], params: Mapping[str, Any], places: Sequence[Place]
    ) -> Callable[[Sequence[Any]], Any]:
        """Return what runs ``op`` on the values of a call, the operands at ``places`` laid out as these are."""
        device = self.device
        for name, operand in operands.items():
            if operand.device is not device:
                raise ArgumentError(
                    f"{op.name}: operands share a device. Got {device} and {operand.device} for {name}. "
                    "Tensor.to(device) copies."
                )
        layouts = {name: operand.__key__ or operand.__keyed__() for name, operand in operands.items()}
        return _running(ready(op, cast("Mapping[str, Layout]", layouts), params, device), device, places)

    def __keyed__(self) -> Layout | None:
        """Find and keep the layout and the address of the elements; None for a traced tensor."""
        storage = self._storage
        if not isinstance(storage, Storage) or self._device is None:
            return None
        self.__address__ = storage.address + self._offset * bits(self._spec.dtype) // 8
        self.__key__ = layout(self._spec, self._device, aligned=self.__address__ % ALIGNED_NBYTES == 0)
        return self.__key__

    # ---- values on the host

    def numpy(self) -> Array:
        """Return the elements as a numpy array that shares the memory where the host can reach it.

        A dtype numpy lacks comes as its carrier: bfloat16 as uint16 bit patterns, float8 as uint8.

        Raises:
            CaptureError: The tensor is traced and has no values.
            UnsupportedError: Elements are narrower than a byte, or there are more axes than numpy takes.
        """
        storage = self._storage
        if not isinstance(storage, Storage):
            raise CaptureError("numpy: a traced tensor has no values. Run the program and read its outputs.")
        carrier = np.dtype(numpy_dtype(self.dtype))
        if bits(self.dtype) < 8:
            raise UnsupportedError(f"numpy: {self.dtype} elements are narrower than a byte. Cast it first.")
        if not self.size:
            return np.empty(self.shape, carrier)
        memory = self.device.backend.memory(self.device.index)
        if self.ndim > _NUMPY_AXES:
            raise UnsupportedError(f"numpy: at most {_NUMPY_AXES} axes. Got {self.ndim}. reshape merges them.")
        if hasattr(memory, "view"):
            return np.asarray(_HostView(self, carrier))
        low = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True) if s < 0)
        host = np.empty(shapes.extent_span(self.shape, self.strides), carrier)
        memory.copy_out(host.view(np.uint8).data, storage.address + (self._offset + low) * carrier.itemsize)
        strides = tuple(s * carrier.itemsize for s in self.strides)
        return np.lib.stride_tricks.as_strided(host[-low:], self.shape, strides)

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len: a tensor with at least one axis. Got none.")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle and copy make the tensor of again: its elements, packed, on the CPU."""
        return _placed, (np.array(self.numpy()), self.dtype, "cpu")

    def __repr__(self) -> str:
        if not isinstance(self._storage, Storage):
            return f"Tensor(traced, shape={self.shape}, dtype={self.dtype})"
        return f"Tensor({self._text('Tensor(')}, dtype={self.dtype}, device={self.device})"

    # ---- views

    def _view(self, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Tensor:
        spec = _spec(tuple(shape), self._spec.dtype, tuple(strides))
        return Tensor(self._storage, spec, self._offset + offset, self._device)

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """Return the elements in row-major order under another shape; a view where strides allow, else a copy.

        One extent may be -1: it is what the others leave.

        Raises:
            ShapeError: The shapes differ in their number of elements.
        """
        wanted = shapes.infer_shape(self.shape, _extents(shape))
        strides = shapes.view_strides(self.shape, self.strides, wanted)
        return self.copy().reshape(wanted) if strides is None else self._view(wanted, strides)

    def view(self, *shape: int | Sequence[int]) -> Tensor:
        """Return `reshape` where it needs no copy.

        Raises:
            ShapeError: It would need one, or the numbers of elements differ.
        """
        wanted = shapes.infer_shape(self.shape, _extents(shape))
        strides = shapes.view_strides(self.shape, self.strides, wanted)
        if strides is None:
            raise ShapeError(
                f"view: shape {wanted} needs a copy of shape {self.shape} with strides {self.strides}. reshape copies."
            )
        return self._view(wanted, strides)

    def permute(self, *axes: int | Sequence[int]) -> Tensor:
        """Return the view whose axis i is axis ``axes[i]`` of this tensor."""
        shape, strides = shapes.permute(self.shape, self.strides, _extents(axes))
        return self._view(shape, strides)

    def transpose(self, first: int, second: int) -> Tensor:
        """Return the view with two axes exchanged."""
        order = list(range(self.ndim))
        i = shapes.normalize_axis(first, self.ndim, op="transpose")
        j = shapes.normalize_axis(second, self.ndim, op="transpose")
        order[i], order[j] = order[j], order[i]
        return self.permute(order)

    @property
    def T(self) -> Tensor:  # noqa: N802 - the standard's name
        """The transposed view of a matrix.

        Raises:
            ShapeError: There are not two axes.
        """
        if self.ndim != 2:
            raise ShapeError(f"T: a tensor of two axes. Got shape {self.shape}. mT or permute take others.")
        return self.permute(1, 0)

    @property
    def mT(self) -> Tensor:  # noqa: N802 - the standard's name
        """The view with the last two axes exchanged."""
        if self.ndim < 2:
            raise ShapeError(f"mT: a tensor of two axes or more. Got shape {self.shape}.")
        return self.transpose(-1, -2)

    def narrow(self, axis: int, start: int, length: int) -> Tensor:
        """Return the view of ``length`` neighbours along ``axis`` from ``start`` on."""
        shape, strides, offset = shapes.narrow(self.shape, self.strides, axis, start, length)
        return self._view(shape, strides, offset)

    def select(self, axis: int, index: int) -> Tensor:
        """Return the view at ``index`` of ``axis``, which is dropped."""
        shape, strides, offset = shapes.select(self.shape, self.strides, axis, index)
        return self._view(shape, strides, offset)

    def expand(self, *shape: int | Sequence[int]) -> Tensor:
        """Return the view broadcast to ``shape``, where -1 keeps an extent; repeated elements share their memory.

        Raises:
            ShapeError: The tensor does not broadcast to it.
        """
        wanted, strides = shapes.expand(self.shape, self.strides, _extents(shape))
        return self._view(wanted, strides)

    def unsqueeze(self, axis: int) -> Tensor:
        """Return the view with an axis of extent 1 inserted before ``axis``."""
        place = shapes.normalize_axis(axis, self.ndim + 1, op="unsqueeze")
        shape, strides = list(self.shape), list(self.strides)
        shape.insert(place, 1)
        strides.insert(place, 1)
        return self._view(shape, strides)

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Tensor:
        """Return the view without the named axes of extent 1 (every such axis for None).

        Raises:
            ShapeError: A named axis has another extent.
        """
        named = (
            tuple(i for i, n in enumerate(self.shape) if n == 1)
            if axis is None
            else shapes.normalize_axes(axis, self.ndim, op="squeeze")
        )
        for i in named:
            if self.shape[i] != 1:
                raise ShapeError(f"squeeze: an axis of extent 1. Got axis {i} of shape {self.shape}.")
        kept = [i for i in range(self.ndim) if i not in named]
        return self._view([self.shape[i] for i in kept], [self.strides[i] for i in kept])

    def flatten(self, start: int = 0, stop: int = -1) -> Tensor:
        """Return the axes ``start`` to ``stop`` (inclusive) merged into one.

        Raises:
            BoundsError: There is no such axis.
            ArgumentError: ``stop`` comes before ``start``.
        """
        if not self.ndim:
            return self.reshape(1)
        first = shapes.normalize_axis(start, self.ndim, op="flatten")
        last = shapes.normalize_axis(stop, self.ndim, op="flatten")
        if last < first:
            raise ArgumentError(f"flatten: the first axis comes before the last. Got {start} and {stop}.")
        merged = shapes.numel(self.shape[first : last + 1])
        return self.reshape((*self.shape[:first], merged, *self.shape[last + 1 :]))

    def __getitem__(self, key: Any) -> Tensor:
        """Return a view by ints, slices of step 1, Ellipsis and None (a new axis).

        Raises:
            UnsupportedError: A slice has another step, or an index is an array.
            BoundsError: An index is outside its axis, or there are more indices than axes.
        """
        keys = list(key) if isinstance(key, tuple) else [key]
        consumed = sum(1 for k in keys if k is not None and k is not Ellipsis)
        if sum(1 for k in keys if k is Ellipsis) > 1:
            raise ArgumentError("indexing: at most one Ellipsis. Got more.")
        if consumed > self.ndim:
            raise ArgumentError(f"indexing: at most {self.ndim} indices for shape {self.shape}. Got {consumed}.")
        if not any(k is Ellipsis for k in keys):
            keys.append(Ellipsis)
        place = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys[place : place + 1] = [slice(None)] * (self.ndim - consumed)
        result, axis = self, 0
        for k in keys:
            if k is None:
                result = result.unsqueeze(axis)
                axis += 1
            elif isinstance(k, slice):
                if k.step not in (None, 1):
                    raise UnsupportedError(f"indexing: slices have step 1. Got step {k.step}. narrow takes a range.")
                low, high = shapes.slice_bounds(k.start, k.stop, result.shape[axis])
                result = result.narrow(axis, low, high - low)
                axis += 1
            elif isinstance(k, (bool, np.bool_)) or not hasattr(k, "__index__") or getattr(k, "ndim", 0):
                raise UnsupportedError(
                    f"indexing: ints, slices of step 1, Ellipsis and None. Got {type(k).__name__}. "
                    "take gathers along an axis."
                )
            else:
                result = result.select(axis, k.__index__())
        return result

    # ---- copies

    def copy(self) -> Tensor:
        """Return the elements in fresh memory, packed row-major."""
        return copies.copy(self)

    def contiguous(self) -> Tensor:
        """Return the tensor itself where its elements are packed row-major, else `copy`."""
        return self if self.is_contiguous() else self.copy()

    def to(self, target: str | Device) -> Tensor:
        """Return the tensor in another dtype, or on another device; itself where nothing changes.

        Args:
            target: A dtype name or alias, or a device ("cpu", "cuda:1", a `Device`).

        Raises:
            MissingFactError: ``target`` is neither a dtype of the table nor a device of an installed backend.
        """
        if isinstance(target, Device):
            return self._moved(target)
        try:
            name = canonical(target)
        except UnknownDtypeError as unknown:
            try:
                where = open_device(target)
            except (ArgumentError, MissingFactError) as absent:
                raise MissingFactError(f"{target!r}", f"As a dtype: {unknown} As a device: {absent}") from None
            return self._moved(where)
        return self if name == self.dtype else self.astype(name)

    def _moved(self, where: Device) -> Tensor:
        if self.device is where:
            return self
        between = getattr(where.backend, "copy_between", None)
        if between is None or self.device.backend is not where.backend:
            return _placed(self.numpy(), self.dtype, where)
        packed = self.contiguous()
        source, target = cast("Storage", packed.storage), where.allocator.allocate(packed.nbytes)
        start = packed.offset * bits(self.dtype) // 8
        between(where.index, target.address, self.device.index, source.address + start, packed.nbytes)
        return Tensor(target, Spec(self.shape, self.dtype), 0, where)
