"""One conversion per ordered pair of dtypes, between numpy carriers on the host.

What the conversions hold to, whatever the pair:

* A value is rounded once, from its exact value: to nearest, ties to the even significand.
* NaN stays NaN. Where it is written into a float of fewer mantissa bits, it is that format's positive quiet
  NaN. A format without NaN (float4_e2m1fn) takes its largest value, as PTX ``cvt`` does.
* A finite value past the largest becomes what the format has for it: an infinity (float16, bfloat16,
  float8_e5m2), else NaN (float8_e4m3fn, the fnuz formats, float8_e8m0fnu), else the largest value
  (float4_e2m1fn). An infinity goes the same way.
* float8_e8m0fnu has neither sign nor zero: zero and negative values become NaN, a positive value below the
  least becomes the least.
* A float becomes an integer towards zero; past the range it takes the nearest end, and NaN becomes 0.
* An integer becomes a narrower integer by its low bits.
* A value becomes True unless it equals zero: -0.0 is False, NaN is True. True is 1.
* A real becomes a complex with imaginary part 0. A complex becomes a complex by parts, True unless both parts
  are zero, and nothing else: which part a real should hold is the caller's to say.

An element narrower than a byte is carried one per byte, in the low bits (the high ones are ignored when read
and zero when written); ``pack`` and ``unpack`` go to and from two per byte, the low half first, as in DLPack.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from nbxtensor.dtype import float_bits
from nbxtensor.dtype.itemsize import bits, facts, kind, numpy_dtype
from nbxtensor.dtype.limits import iinfo
from nbxtensor.errors import ArgumentError, DtypeError, ShapeError

__all__ = ["bf16_bits_to_f16", "bf16_bits_to_f32", "convert", "f32_to_bf16_bits", "pack", "unpack"]

Array: TypeAlias = npt.NDArray[Any]

# Elements converted at a time: the intermediates of one piece (up to 8 bytes each) stay in a core's cache.
_PIECE = 1 << 15


def convert(array: Array, source: str, target: str, out: Array | None = None) -> Array:
    """Convert an array from one dtype to another.

    Args:
        array: The carrier of ``source``, of any shape and strides.
        source: The dtype of its elements.
        target: The dtype wanted.
        out: Where the result goes: the carrier of ``target``, shaped as ``array``, sharing no memory with it. A
            caller that splits a large array gives each piece its part of one output.

    Returns:
        ``out``, or a new array.

    Raises:
        UnknownDtypeError: The table has no such dtype.
        DtypeError: An array is not its dtype's carrier, or a complex would become a real.
        ShapeError: ``out`` has another shape.
        ArgumentError: ``out`` shares memory with ``array``.

    >>> convert(np.array([1.0, 1000.0, -0.3], np.float32), "float32", "float8_e4m3fn")
    array([ 56, 127, 170], dtype=uint8)
    """
    _check_carrier("convert: array", array, source)
    if kind(source) == "complex" and kind(target) not in {"complex", "bool"}:
        raise DtypeError(
            f"convert: a complex does not become a real by itself. Got {source} to {target}. "
            "Convert its real or its imaginary part."
        )
    if out is None:
        out = np.empty(array.shape, numpy_dtype(target))
    else:
        _check_carrier("convert: out", out, target)
        if out.shape != array.shape:
            raise ShapeError(f"convert: out has the shape of array. Got {out.shape}. {array.shape} is accepted.")
        if np.may_share_memory(array, out):
            raise ArgumentError("convert: out shares no memory with array. Got two that overlap. Pass another out.")
    if source == target:
        np.copyto(out, array)
        return out
    # Overflow and NaN are decided here, so numpy's warnings about them would say nothing.
    with np.errstate(all="ignore"):
        if array.flags.c_contiguous and out.flags.c_contiguous:
            flat, flat_out = array.reshape(-1), out.reshape(-1)
            for start in range(0, flat.size, _PIECE):
                _store(_values(flat[start : start + _PIECE], source), target, flat_out[start : start + _PIECE])
        else:
            _store(_values(array, source), target, out)
    return out


def f32_to_bf16_bits(array: npt.NDArray[np.float32], out: npt.NDArray[np.uint16] | None = None) -> Array:
    """Round float32 to bfloat16 bit patterns (uint16); every NaN becomes the quiet NaN 0x7FC0.

    Args:
        array: float32, of any shape.
        out: Where the patterns go (see :func:`convert`).

    >>> f32_to_bf16_bits(np.array([1.0, np.nan], np.float32)).tolist() == [0x3F80, 0x7FC0]
    True
    """
    return convert(array, "float32", "bfloat16", out)


def bf16_bits_to_f32(array: npt.NDArray[np.uint16], out: npt.NDArray[np.float32] | None = None) -> Array:
    """Widen bfloat16 bit patterns (uint16) to float32, exactly.

    Args:
        array: uint16, of any shape.
        out: Where the values go (see :func:`convert`).
    """
    return convert(array, "bfloat16", "float32", out)


def bf16_bits_to_f16(array: npt.NDArray[np.uint16], out: npt.NDArray[np.float16] | None = None) -> Array:
    """Convert bfloat16 bit patterns (uint16) to float16, through float32: one rounding, infinity past 65504.

    Args:
        array: uint16, of any shape.
        out: Where the values go (see :func:`convert`).
    """
    return convert(array, "bfloat16", "float16", out)


def pack(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Pack elements of four bits two per byte, the first of a pair in the low half.

    Args:
        codes: uint8, one element per byte, of any shape; taken in C order. The high bits are ignored.

    Returns:
        ``ceil(codes.size / 2)`` bytes; the high half of the last is 0 when the count is odd.

    >>> pack(np.array([1, 2, 3], np.uint8)).tolist() == [0x21, 0x03]
    True
    """
    _check_carrier("pack: codes", codes, "uint4")
    flat = codes.reshape(-1)
    packed = flat[0::2] & np.uint8(15)
    packed[: flat.size // 2] |= flat[1::2] << np.uint8(4)
    return packed


def unpack(packed: npt.NDArray[np.uint8], numel: int) -> npt.NDArray[np.uint8]:
    """Return the first ``numel`` elements of four bits, one per byte, of an array packed two per byte.

    Raises:
        ShapeError: ``packed`` does not hold exactly that many.
    """
    _check_carrier("unpack: packed", packed, "uint4")
    flat = packed.reshape(-1)
    if numel < 0 or flat.size != (numel + 1) // 2:
        raise ShapeError(f"unpack: {numel} elements take {(numel + 1) // 2} bytes. Got {flat.size}. Pass all of them.")
    codes = np.empty(numel, np.uint8)
    codes[0::2] = flat & np.uint8(15)
    codes[1::2] = flat[: numel // 2] >> np.uint8(4)
    return codes


def _check_carrier(what: str, array: Array, name: str) -> None:
    if array.dtype != numpy_dtype(name):
        raise DtypeError(f"{what} is the carrier of {name}. Got {array.dtype}. {numpy_dtype(name)} is accepted.")


def _values(array: Array, source: str) -> Array:
    """The exact values of a carrier, in a numpy dtype of the same kind."""
    row = facts(source)
    if row.carrier == source:
        return array
    if row.kind == "float":
        return float_bits.read(array, source)
    if row.kind == "uint":
        return array & np.uint8(15)
    return (array << np.uint8(4)).view(np.int8) >> np.int8(4)


def _store(values: Array, target: str, out: Array) -> None:
    """Write exact values into the carrier of a dtype."""
    wanted = facts(target).kind
    given = cast("str", values.dtype.kind)
    if wanted == "bool":
        np.not_equal(values, 0, out=out)
    elif wanted == "complex":
        part = facts(target).part or target
        for component in ("real", "imag"):
            _store(getattr(values, component), part, getattr(out, component))
    elif wanted == "float":
        _store_float(values, target, out)
    elif given == "f":
        _float_to_int(values, target, out)
    elif bits(target) < 8:
        np.copyto(out, values & values.dtype.type(15) if given != "b" else values, casting="unsafe")
    else:
        np.copyto(out, values, casting="unsafe")


def _store_float(values: Array, target: str, out: Array) -> None:
    narrows = values.dtype.kind == "f" and values.dtype.itemsize > out.dtype.itemsize
    if facts(target).carrier != target:
        float_bits.write(_as_float(values), target, out)
        return
    np.copyto(out, values, casting="unsafe")
    if narrows:
        np.copyto(out, np.nan, where=np.isnan(values))


def _as_float(values: Array) -> Array:
    """Values as float32 or float64, such that rounding them to a float of 16 bits or fewer rounds once."""
    if values.dtype.kind == "f":
        return values.astype(np.float32) if values.dtype.itemsize < 4 else values
    if values.dtype.itemsize < 4:
        return values.astype(np.float32)
    if values.dtype.itemsize < 8:
        return values.astype(np.float64)
    # 64 bits do not fit float64's 53. Below the rounding position only zero or not zero matters, so the low
    # 11 bits of a large magnitude are gathered into one, and the rest is exact.
    magnitude = np.abs(values).view(np.uint64) if values.dtype.kind == "i" else values
    low = magnitude & np.uint64(0x7FF)
    large = magnitude >> np.uint64(53) != 0
    gathered = (magnitude - low) | np.where(low != 0, np.uint64(0x800), np.uint64(0))
    exact = np.where(large, gathered, magnitude).astype(np.float64)
    return np.where(values < 0, -exact, exact) if values.dtype.kind == "i" else exact


def _float_to_int(values: Array, target: str, out: Array) -> None:
    limits = iinfo(target)
    if values.dtype.itemsize < 4:
        values = values.astype(np.float32)
    # The ends as powers of two, which a float holds exactly.
    over = values >= float(limits.max + 1)
    under = values < float(limits.min)
    inside = np.where(over | under | np.isnan(values), values.dtype.type(0), values)
    if limits.bits < 8:
        inside = inside.astype(np.int8)
        inside &= np.int8(15)
    np.copyto(out, inside, casting="unsafe")
    mask = (1 << limits.bits) - 1
    np.copyto(out, out.dtype.type(limits.max), where=over)
    np.copyto(out, out.dtype.type(limits.min if limits.bits >= 8 else limits.min & mask), where=under)
