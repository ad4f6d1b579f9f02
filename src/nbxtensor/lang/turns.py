"""Sines and cosines of angles in turns, for kernels: fixed point, so that no whole turn costs accuracy.

A count of turns is an integer of 64 bits in units of 2**-64: products with integers wrap around whole turns by
themselves, and what is left is exact. Sines and cosines are off by less than 1e-7.
"""

import triton
import triton.language as tl

# 2**64 / (2 pi) as A * 2**24 + B
_A = tl.constexpr(174992710547)
_B = tl.constexpr(9504074)
_RADIANS = tl.constexpr(1.4629180792671596e-09)  # in a 2**-32 of a turn


@triton.jit
def from_radians(x):
    """Return float32 angles in 2**-64 of a turn, to 2**-60 of themselves; subnormals count as 0."""
    raw = x.to(tl.int32, bitcast=True)
    exponent = (raw >> 23) & 0xFF
    mantissa = ((raw & 0x7FFFFF) | 0x800000).to(tl.int64)
    turns = mantissa * _A + ((mantissa * _B) >> 24)  # of the mantissa times 2**-126
    less = tl.minimum(tl.maximum(126 - exponent, 0), 63).to(tl.int64)
    more = tl.minimum(tl.maximum(exponent - 126, 0), 63).to(tl.int64)
    turns = tl.where(exponent == 0, 0, (turns >> less) << more)
    return tl.where(raw < 0, -turns, turns)


@triton.jit
def cos_sin(turns):
    """Return the float32 cosine and sine of angles in 2**-64 of a turn."""
    phase = (turns >> 32).to(tl.int32)
    quarter = (phase + 0x20000000) >> 30  # the sum wraps around, as angles do
    x = (phase - (quarter << 30)).to(tl.float32) * _RADIANS  # within pi/4 of the quarter
    # Taylor's series
    z = x * x
    sine = x + x * z * (-1 / 6 + z * (1 / 120 + z * (-1 / 5040 + z * (1 / 362880))))
    cosine = 1 + z * (-1 / 2 + z * (1 / 24 + z * (-1 / 720 + z * (1 / 40320 + z * (-1 / 3628800)))))
    odd = (quarter & 1) != 0
    cos = tl.where(odd, sine, cosine)
    sin = tl.where(odd, cosine, sine)
    return tl.where(((quarter + 1) & 2) != 0, -cos, cos), tl.where((quarter & 2) != 0, -sin, sin)
