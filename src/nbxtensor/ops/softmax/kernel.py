"""Device functions of softmax and log_softmax, over tiles of rows that lie along dimension DIM.

Elements past the end of a row are -inf. A row of nothing but -inf gives NaN, as does one with a NaN or with +inf.
"""

import triton
import triton.language as tl


@triton.jit
def highest(v, DIM: tl.constexpr):
    """Largest element of each row."""
    return tl.max(v, DIM, keep_dims=True)


@triton.jit
def weight(v, high, DIM: tl.constexpr):
    """Sum over each row of exponentials relative to its largest element."""
    return tl.sum(tl.exp(v - high), DIM, keep_dims=True)


@triton.jit
def join(high, total, v, DIM: tl.constexpr):
    """Take one more tile into the largest elements and the sums relative to them."""
    new = tl.maximum(high, tl.max(v, DIM, keep_dims=True))
    base = tl.where(new == float("-inf"), 0.0, new)  # nothing but -inf so far: the sums stay 0
    total = total * tl.exp(high - base) + tl.sum(tl.exp(v - base), DIM, keep_dims=True)
    return new, total


@triton.jit
def softmax(v, high, total):
    return tl.exp(v - high) * (1.0 / total)


@triton.jit
def log_softmax(v, high, total):
    return (v - high) - tl.log(total)
