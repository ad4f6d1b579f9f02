"""Device functions of the reductions: what an element contributes, how two totals combine, and the end of it.

``lift(v, index, centre, p)`` turns elements into totals, ``combine(a, b)`` joins two totals, ``finish(total, centre,
p)`` turns a total into the result. ``index`` is the place of an element along the reduced axes in row-major order,
``centre`` the result of the pass before, ``p`` a number of the op.
"""

# ruff: noqa: ARG001 - all functions of a kind have one signature

import triton
import triton.language as tl

from nbxtensor.lang import math as lm

# ---- combine


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def larger(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def smaller(a, b):
    return tl.where((a < b) | (a != a), a, b)


# ---- lift


@triton.jit
def itself(v, index, centre, p):
    return v


@triton.jit
def true(v, index, centre, p):
    """1 where an element is not zero, else 0."""
    return (v != 0).to(tl.int32)


@triton.jit
def nonzero(v, index, centre, p):
    return (v != 0).to(v.dtype)


@triton.jit
def magnitude(v, index, centre, p):
    return tl.abs(v)


@triton.jit
def squared(v, index, centre, p):
    return v * v


@triton.jit
def powered(v, index, centre, p):
    return lm.pow(tl.abs(v), p)


@triton.jit
def deviation(v, index, centre, p):
    """Square of the distance from the mean."""
    away = v - centre
    return away * away


@triton.jit
def exponential(v, index, centre, p):
    """Exponential of an element above the largest one."""
    return tl.exp(v - _finite(centre))


@triton.jit
def place(v, index, centre, p):
    """Where an element is, if it is the extreme one (or a NaN, if there are any); else past every place."""
    found = (v == centre) | ((v != v) & (centre != centre))
    return tl.where(found, index, 9223372036854775807 if index.dtype == tl.int64 else 2147483647)


# ---- finish


@triton.jit
def total_itself(total, centre, p):
    return total


@triton.jit
def divided(total, centre, p):
    return total / p


@triton.jit
def divided_root(total, centre, p):
    return root(total / p, centre, p)


@triton.jit
def root(total, centre, p):
    if total.dtype == tl.float32:
        return tl.sqrt_rn(total)
    else:
        return tl.sqrt(total)


@triton.jit
def powered_root(total, centre, p):
    return lm.pow(total, 1.0 / p)


@triton.jit
def logarithm(total, centre, p):
    return tl.log(total) + _finite(centre)


@triton.jit
def _finite(x):
    """x, or 0 for an infinity."""
    return tl.where(tl.abs(x) == float("inf"), 0.0, x)
