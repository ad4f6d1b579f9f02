"""Triton kernels that move elements."""

import triton
import triton.language as tl

from nbxtensor.lang.moving import copy_kernel  # noqa: F401  launched by name


@triton.jit
def fill_kernel(
    y, value, n1, n2, n3, rows, inner, y0, y1, y2, y3, y_inner,
    DTYPE: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Set every element of a strided region to one value."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i3 = row % n3
    i2 = (row // n3) % n2
    i1 = (row // (n3 * n2)) % n1
    i0 = row // (n3 * n2 * n1)
    if WIDE:
        i0 = i0.to(tl.int64)
        i1 = i1.to(tl.int64)
        i2 = i2.to(tl.int64)
        i3 = i3.to(tl.int64)
        lane = lane.to(tl.int64)
    mask = (row < rows)[:, None] & (lane < inner)[None, :]
    target = (i0 * y0 + i1 * y1 + i2 * y2 + i3 * y3)[:, None] + lane[None, :] * y_inner
    tl.store(y + target, tl.full((ROWS, BLOCK), value, DTYPE), mask=mask)
