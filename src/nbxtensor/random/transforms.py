"""From random words to values, in operations that round alike everywhere: + - * / sqrt and conversions.

The library functions for logarithm and sine differ in their last bits from one machine to the next, so the
ones that a normal draw needs are written here as polynomials; no product is fused with a sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["integer_offsets", "normal32", "normal64", "uniform", "uniform64"]

Words = npt.NDArray[np.uint32]  # shape (elements, words of an element)
Floats = npt.NDArray[Any]  # float32 or float64, alike in and out

_SQRT_HALF = math.sqrt(0.5)
# sin(x) = x * sum((-1)^k x^2k / (2k+1)!) and log(m) = 2 s * sum(s^2k / (2k+1)), s = (m - 1) / (m + 1): with
# |x| <= pi/2 and m within sqrt(2) of 1, the first term left out is below half a unit in the last place.
_SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(11)]
_LOGARITHM = [1 / (2 * k + 1) for k in range(11)]
_TERMS = {np.dtype(np.float32): (7, 6), np.dtype(np.float64): (11, 11)}  # of the sine, of the logarithm


def uniform(words: Words, bits: int) -> npt.NDArray[np.float32]:
    """Return the top ``bits`` (at most 24) of each element's word as a fraction in [0, 1), exactly."""
    return (words[:, 0] >> np.uint32(32 - bits)).astype(np.float32) * np.float32(2.0**-bits)


def uniform64(words: Words) -> npt.NDArray[np.float64]:
    """Return the top 53 bits of each element's two words as a fraction in [0, 1), exactly."""
    return (_joined(words) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal32(words: Words) -> npt.NDArray[np.float32]:
    """Return a standard normal from each element's two words: Box-Muller, ``sqrt(-2 log u) cos(2 pi v)``.

    ``u`` has 32 bits and lies in (0, 1], so that no value is beyond 6.77; ``v`` has 24 bits.
    """
    u = words[:, 0].astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    return _box_muller(u, uniform(words[:, 1:], 24))


def normal64(words: Words) -> npt.NDArray[np.float64]:
    """Return a standard normal from each element's four words, as `normal32` does in float64.

    ``u`` has 64 bits, so that no value is beyond 9.50; ``v`` has 53 bits.
    """
    u = _joined(words).astype(np.float64) * 2.0**-64 + 2.0**-65
    return _box_muller(u, uniform64(words[:, 2:]))


def integer_offsets(words: Words, count: int) -> npt.NDArray[np.uint64]:
    """Return ``floor(w * count / 2**64)`` for each element's 64-bit ``w``, with ``count`` from 1 to 2**64."""
    joined = _joined(words)
    if count == 1 << 64:
        return joined
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a, b = joined >> half, joined & low
    c, d = np.uint64(count >> 32), np.uint64(count & 0xFFFFFFFF)
    middle = a * d + ((b * d) >> half)
    return a * c + (middle >> half) + ((b * c + (middle & low)) >> half)


def _joined(words: Words) -> npt.NDArray[np.uint64]:
    return words[:, 0].astype(np.uint64) | (words[:, 1].astype(np.uint64) << np.uint64(32))


def _box_muller(u: Floats, v: Floats) -> Floats:
    folded = np.abs(v - np.round(v))  # cos has period 1 in turns and is even: [0, 1/2]
    cosine = _sine((0.25 - folded) * (2 * math.pi))
    return np.sqrt(_logarithm(u) * -2.0) * cosine


def _sine(x: Floats) -> Floats:
    return x * _polynomial(_SINE[: _TERMS[x.dtype][0]], x * x)


def _logarithm(u: Floats) -> Floats:
    mantissa, exponent = np.frexp(u)
    low = mantissa < _SQRT_HALF
    mantissa = np.where(low, mantissa + mantissa, mantissa)
    exponent = (exponent - low).astype(u.dtype)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    return exponent * math.log(2.0) + (s + s) * _polynomial(_LOGARITHM[: _TERMS[u.dtype][1]], s * s)


def _polynomial(coefficients: Sequence[float], x: Floats) -> Floats:
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total
