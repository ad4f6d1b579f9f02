"""Bit patterns of the floats that numpy lacks: read exactly, written with one rounding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nbxtensor.dtype.itemsize import facts
from nbxtensor.dtype.limits import max_code
from nbxtensor.dtype.table import FloatFormat
from nbxtensor.errors import DtypeError

__all__ = ["nan_code", "read", "write"]


def _layout(name: str) -> FloatFormat:
    layout = facts(name).format
    if layout is None:
        raise DtypeError(f"float_bits: the dtype is a float. Got {name}, a {facts(name).kind}.")
    return layout


def nan_code(name: str) -> int | None:
    """Return the pattern of a float's positive quiet NaN, or None where every pattern is a number.

    >>> hex(nan_code("bfloat16")), hex(nan_code("float8_e4m3fnuz"))
    ('0x7fc0', '0x80')
    """
    layout = _layout(name)
    if layout.nan == "none":
        return None
    if layout.nan == "negative_zero":
        return 1 << layout.exponent + layout.mantissa
    if layout.nan == "all_ones":
        return (1 << layout.exponent + layout.mantissa) - 1
    # Exponent all ones and the top bit of the mantissa.
    return ((2 << layout.exponent) - 1) << layout.mantissa - 1


@cache
def _values(name: str) -> npt.NDArray[np.float32]:
    """The value of each of 256 bytes; the bits above a narrower element are ignored."""
    layout = _layout(name)
    width = facts(name).bits
    code = np.arange(256, dtype=np.int64) & ((1 << width) - 1)
    field = code >> layout.mantissa & (1 << layout.exponent) - 1
    fraction = (code & (1 << layout.mantissa) - 1) / (1 << layout.mantissa)
    subnormal = layout.zero & (field == 0)
    value = np.ldexp(np.where(subnormal, fraction, 1 + fraction), np.maximum(field, int(layout.zero)) - layout.bias)
    if layout.sign:
        value = np.where(code >> width - 1, -value, value)
    magnitude = code & (1 << layout.exponent + layout.mantissa) - 1
    if layout.nan == "negative_zero":
        value[code == nan_code(name)] = np.nan
    elif layout.nan != "none":
        value[magnitude > max_code(layout)] = np.nan
    if layout.inf:
        infinite = magnitude == max_code(layout) + 1
        value[infinite] = np.where(code[infinite] >> width - 1, -np.inf, np.inf)
    table = value.astype(np.float32)
    table.setflags(write=False)
    return table


def read(bits: npt.NDArray[Any], name: str) -> npt.NDArray[np.float32]:
    """Return the values of bit patterns as float32, exactly.

    Args:
        bits: Patterns of bfloat16 (uint16), of a float of eight bits (uint8), or of a narrower one (uint8,
            one element per byte, in the low bits).
        name: Their dtype.
    """
    if name == "bfloat16":
        wide = bits.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    # Every byte is within the table: "clip" only spares numpy the check that it is.
    return np.take(_values(name), bits, mode="clip")


@dataclass(frozen=True, slots=True)
class _Rounding:
    """Constants that round a float32 or float64 to a narrower format, all in the wide format's integers."""

    unsigned: type[np.unsignedinteger[Any]]
    magnitude: Any
    shift: Any
    half: Any
    one: Any
    rebias: Any
    normal: Any
    quantum: Any
    sign_shift: Any
    sign: Any
    largest: Any
    over: Any
    nan: Any


@cache
def _rounding(name: str, wide: str) -> _Rounding:
    narrow, source = _layout(name), _layout(wide)
    unsigned = np.uint32 if wide == "float32" else np.uint64
    shift = source.mantissa - narrow.mantissa
    sign = 1 << narrow.exponent + narrow.mantissa
    largest = max_code(narrow)
    nan = nan_code(name)
    # A format with infinities overflows to them, one with only NaN to NaN, one with neither to its largest.
    over = largest + 1 if narrow.inf else (largest if nan is None else nan)
    return _Rounding(
        unsigned=unsigned,
        magnitude=unsigned((1 << source.exponent + source.mantissa) - 1),
        shift=unsigned(shift),
        half=unsigned((1 << shift - 1) - 1),
        one=unsigned(1),
        rebias=unsigned((source.bias - narrow.bias) << narrow.mantissa),
        normal=unsigned((source.bias - narrow.bias + 1) << source.mantissa),
        # Its last bit weighs what the narrow format's smallest subnormal weighs.
        quantum=np.ldexp(np.dtype(wide).type(1), source.mantissa - narrow.mantissa + 1 - narrow.bias),
        sign_shift=unsigned(facts(wide).bits - 1 - narrow.exponent - narrow.mantissa),
        sign=unsigned(sign),
        largest=unsigned(largest),
        over=unsigned(over),
        nan=unsigned(largest if nan is None else nan),
    )


def _write_scale(values: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """The nearest power of two, ties up (to the even significand); below the least, the least."""
    bits = values.astype(np.float64).view(np.int64)
    code = ((bits >> 51) + 1 >> 1) - (1023 - 127)
    np.maximum(code, 0, out=code)
    # Zero, negative values (their sign bit makes bits negative), overflow, infinities and NaN.
    code[(bits <= 0) | (code > 254)] = 255
    np.copyto(out, code, casting="unsafe")


def write(values: npt.NDArray[Any], name: str, out: npt.NDArray[Any]) -> None:
    """Write values as bit patterns, rounded once, to nearest with ties to even.

    Args:
        values: float32 or float64.
        name: bfloat16, or a float of eight bits or fewer.
        out: Where the patterns go (the dtype's carrier, the shape of ``values``).
    """
    if name == "float8_e8m0fnu":
        _write_scale(values, out)
        return
    k = _rounding(name, values.dtype.name)
    pattern = values.view(k.unsigned)
    # With the wide format's own exponents, the sign, subnormals and the overflow to infinity come along.
    code = _round_rebiased(values, pattern, k) if k.rebias else _round(pattern, k)
    np.copyto(code, k.nan, where=np.isnan(values))
    np.copyto(out, code, casting="unsafe")


def _round(pattern: npt.NDArray[Any], k: _Rounding) -> npt.NDArray[Any]:
    """The upper bits of patterns, rounded to nearest by the lower ones, ties to even."""
    code = pattern >> k.shift
    code &= k.one
    code += k.half
    code += pattern
    code >>= k.shift
    return code


def _round_rebiased(values: npt.NDArray[Any], pattern: npt.NDArray[Any], k: _Rounding) -> npt.NDArray[Any]:
    magnitude = pattern & k.magnitude
    code = _round(magnitude, k)
    code -= k.rebias
    small = magnitude < k.normal
    if small.any():
        # The addition rounds at the weight of the sum's last bit; what it leaves there is the pattern.
        lifted = (magnitude.view(values.dtype) + k.quantum).view(k.unsigned)
        lifted -= k.quantum.view(k.unsigned)
        np.copyto(code, lifted, where=small)
    np.copyto(code, k.over, where=code > k.largest)
    sign = pattern >> k.sign_shift
    sign &= k.sign
    if k.nan == k.sign:
        # The pattern of -0 is NaN: zero has no sign, and NaN has no other.
        sign[(code == 0) | (code == k.nan)] = 0
    code |= sign
    return code
