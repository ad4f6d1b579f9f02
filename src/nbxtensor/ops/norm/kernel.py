"""Device functions of the normalisations."""

import triton
import triton.language as tl


@triton.jit
def row_mean(v, n, DIM: tl.constexpr):
    """Mean of each row of n elements of a tile; what is past their end is 0."""
    return tl.sum(v, DIM, keep_dims=True) / tl.cast(n, v.dtype)


@triton.jit
def tile_mean(v, n):
    """Mean of the n elements of a whole tile; what is past their end is 0."""
    rows = tl.sum(v, 1, keep_dims=True)
    return tl.sum(rows, 0, keep_dims=True) / tl.cast(n, v.dtype)


@triton.jit
def scale(square, eps):
    """What deviations of mean square ``square`` are multiplied by."""
    return tl.rsqrt(square + eps)
