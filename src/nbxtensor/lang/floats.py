"""Float32 and float64 blocks as numbers in bits: typed constants, polynomials, signs, powers of two, exact division.

Every function takes either width and uses explicit fused multiply-adds, so that all devices give the same bits.
"""

import triton
import triton.language as tl


@triton.jit
def wide(x):
    """Return the half formats as float32, float32 and float64 as they are."""
    tl.static_assert(x.dtype.is_floating(), "an elementary function takes floats")
    if x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)


@triton.jit
def constant(x, VALUE: tl.constexpr):
    """Return a number in the type of x."""
    return tl.full((), VALUE, x.dtype)


@triton.jit
def polynomial(x, C: tl.constexpr):
    """Return the sum of C[k] x**k, by Horner's rule."""
    result = constant(x, C[len(C) - 1])
    for k in tl.static_range(2, len(C) + 1):
        result = tl.fma(result, x, constant(x, C[len(C) - k]))
    return result


@triton.jit
def bits(x):
    """Return the bits of a float as an integer of its width."""
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True)
    else:
        return x.to(tl.int32, bitcast=True)


@triton.jit
def from_bits(k):
    """Return the float whose bits an integer holds."""
    if k.dtype == tl.int64:
        return k.to(tl.float64, bitcast=True)
    else:
        return k.to(tl.float32, bitcast=True)


@triton.jit
def copysign(size, sign):
    """Return size, which is not negative, with the sign bit of another number."""
    if size.dtype == tl.float64:
        return from_bits(bits(size) | (bits(sign) & -0x8000000000000000))
    else:
        return from_bits(bits(size) | (bits(sign) & -0x80000000))


@triton.jit
def quotient(x, y):
    """Return x / y rounded to nearest."""
    if x.dtype == tl.float64:
        return x / y
    else:
        return tl.div_rn(x, y)


@triton.jit
def root(x):
    """Return the square root rounded to nearest."""
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def power_of_two(n):
    """Return 2**n for an integer n (int32 for float32, int64 for float64) of a normal result."""
    if n.dtype == tl.int64:
        return from_bits((n + 1023) << 52)
    else:
        return from_bits((n + 127) << 23)


@triton.jit
def scaled(x, n):
    """Return x * 2**n for x near 1, rounded once where the result overflows or is subnormal."""
    half = n >> 1
    return x * power_of_two(half) * power_of_two(n - half)


@triton.jit
def rounded(x, FACTOR: tl.constexpr):
    """Return FACTOR * x rounded to an integer, as a float and as an integer of its width; |result| < 2**21."""
    if x.dtype == tl.float64:
        t = tl.fma(x, constant(x, FACTOR), constant(x, 6755399441055744.0))
        return t - 6755399441055744.0, bits(t) - 0x4338000000000000
    else:
        t = tl.fma(x, constant(x, FACTOR), constant(x, 12582912.0))
        return t - 12582912.0, bits(t) - 0x4B400000
