"""The representation int4-g128-asym: 4-bit codes with a float16 scale and minimum per group of 128."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nbxtensor.dtype.convert import pack, unpack
from nbxtensor.errors import DtypeError, ShapeError

__all__ = ["GROUP", "Int4G128Asym", "dequantise", "quantise"]

GROUP = 128
"""Values of one group: consecutive along the last axis, which they fill exactly."""

_LARGEST_CODE = 15


@dataclass(frozen=True, eq=False, slots=True)
class Int4G128Asym:
    """A packed weight of shape ``(..., k)``, with ``k`` a multiple of 128: value = code * scale + minimum.

    Attributes:
        codes: Two codes a byte, the first of a pair in the low half: uint8, shape ``(..., k // 2)``.
        scale: float16, above 0 or 0 for a group of equal values, shape ``(..., k // 128)``.
        minimum: float16, shape ``(..., k // 128)``.

    Raises:
        DtypeError: A part is not of its dtype.
        ShapeError: The parts are not of one weight.
    """

    codes: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.float16]
    minimum: npt.NDArray[np.float16]

    def __post_init__(self) -> None:
        """Check that the parts belong together."""
        dtypes = (self.codes.dtype, self.scale.dtype, self.minimum.dtype)
        if dtypes != (np.uint8, np.float16, np.float16):
            raise DtypeError(
                f"int4-g128-asym: codes are uint8, scale and minimum float16. Got {', '.join(map(str, dtypes))}."
            )
        groups = self.scale.shape
        if self.minimum.shape != groups or self.codes.shape != (*groups[:-1], groups[-1] * GROUP // 2) or not groups:
            raise ShapeError(
                f"int4-g128-asym: a group of {GROUP} has {GROUP // 2} bytes of codes, a scale and a minimum. "
                f"Got codes {self.codes.shape}, scale {groups}, minimum {self.minimum.shape}."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return (*self.scale.shape[:-1], self.scale.shape[-1] * GROUP)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts: what ``representation_bytes("int4-g128-asym", numel)`` states."""
        return self.codes.nbytes + self.scale.nbytes + self.minimum.nbytes

    def unpacked(self) -> npt.NDArray[np.uint8]:
        """Return the codes, one a byte, in the weight's shape."""
        return unpack(np.ascontiguousarray(self.codes), 2 * self.codes.size).reshape(self.shape)


def quantise(weight: npt.NDArray[np.float32]) -> Int4G128Asym:
    """Round a float32 weight to the representation.

    Scale and minimum are rounded outwards, so that every group spans its values and no value is off by more than half
    its group's scale (and a float32 rounding).

    Args:
        weight: float32 of shape ``(..., k)``, with ``k`` a multiple of 128.

    Raises:
        DtypeError: ``weight`` is not float32, or holds what the representation cannot: a NaN, an infinity, or a group
            whose minimum or scale passes float16's largest number.
        ShapeError: The last axis is not made of whole groups.

    >>> weight = np.linspace(-1, 1, 256, dtype=np.float32).reshape(1, 256)
    >>> packed = quantise(weight)
    >>> packed.nbytes
    136
    >>> bool(np.abs(dequantise(packed) - weight).max() <= packed.scale.max() / 2)
    True
    """
    if weight.dtype != np.float32:
        raise DtypeError(f"quantise: the weight is float32. Got {weight.dtype}. Convert it to float32.")
    if weight.ndim == 0 or weight.shape[-1] % GROUP:
        raise ShapeError(
            f"quantise: the last axis is made of groups of {GROUP}. Got shape {weight.shape}. "
            f"A last extent that {GROUP} divides."
        )
    *outer, last = weight.shape
    grouped = weight.reshape(*outer, last // GROUP, GROUP)
    lowest, highest = grouped.min(axis=-1), grouped.max(axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):
        minimum = _rounded(lowest, towards=-np.inf)
        scale = _rounded((highest - minimum.astype(np.float32)) / np.float32(_LARGEST_CODE), towards=np.inf)
    if not (np.isfinite(minimum).all() and np.isfinite(scale).all()):
        raise DtypeError(
            "quantise: a group has a finite minimum and scale. Got a weight with a NaN, an infinity, or a group that "
            f"passes float16's largest number, {np.finfo(np.float16).max}."
        )
    step = np.where(scale > 0, scale, np.float16(1)).astype(np.float32)[..., None]
    codes = np.rint((grouped - minimum.astype(np.float32)[..., None]) / step).clip(0, _LARGEST_CODE)
    packed = pack(codes.astype(np.uint8)).reshape(*outer, last // 2)
    return Int4G128Asym(packed, scale, minimum)


def dequantise(packed: Int4G128Asym, out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """Return the values of a packed weight, ``code * scale + minimum`` in float32.

    Args:
        packed: The weight.
        out: Where the values go: float32 of the weight's shape; a new array when left out.

    Raises:
        ShapeError: ``out`` has another shape.
        DtypeError: ``out`` is not float32.
    """
    if out is None:
        out = np.empty(packed.shape, dtype=np.float32)
    if out.shape != packed.shape:
        raise ShapeError(f"dequantise: out has the weight's shape. Got {out.shape} for {packed.shape}.")
    if out.dtype != np.float32:
        raise DtypeError(f"dequantise: out is float32. Got {out.dtype}.")
    groups = (*packed.scale.shape, GROUP)
    values = packed.unpacked().reshape(groups) * packed.scale.astype(np.float32)[..., None]
    np.add(values, packed.minimum.astype(np.float32)[..., None], out=values)
    out[...] = values.reshape(packed.shape)
    return out


def _rounded(values: npt.NDArray[np.float32], *, towards: float) -> npt.NDArray[np.float16]:
    """Return the float16 neighbours of float32 values on the side of ``towards``."""
    nearest = values.astype(np.float16)
    short = nearest > values if towards < 0 else nearest < values
    return np.where(short, np.nextafter(nearest, np.float16(towards)), nearest)
