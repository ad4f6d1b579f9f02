"""Moving a tensor to another dtype or another device."""

from __future__ import annotations

from nbxtensor.dtype.itemsize import canonical
from nbxtensor.errors import UnknownDtypeError
from nbxtensor.ops.pointwise.selection import astype
from nbxtensor.run import Device, device
from nbxtensor.tensor.creation import from_numpy_array
from nbxtensor.tensor.tensor import Tensor

__all__ = ["to"]


def to(tensor: Tensor, target: str | Device) -> Tensor:
    """Return ``tensor`` in another dtype or on another device; itself where nothing changes.

    Raises:
        MissingFactError: ``target`` is neither a dtype of the table nor a device of an installed backend.
    """
    if isinstance(target, str):
        try:
            name = canonical(target)
        except UnknownDtypeError:
            return _moved(tensor, device(target))
        return tensor if name == tensor.dtype else astype(tensor, name)
    return _moved(tensor, target)


def _moved(tensor: Tensor, where: Device) -> Tensor:
    if tensor.device is where:
        return tensor
    return from_numpy_array(tensor.contiguous().numpy(), tensor.dtype, device=where, copy=True)
