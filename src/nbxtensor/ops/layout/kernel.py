"""Triton kernels that move elements."""

import triton
import triton.language as tl

from nbxtensor.lang.moving import copy_kernel, tile_offsets, tile_places

__all__ = ["copy_kernel", "fill_kernel"]


@triton.jit
def fill_kernel(
    y, value, n1, n2, n3, rows, inner, y0, y1, y2, y3, y_inner,
    DTYPE: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Set every element of a strided region to one value."""
    row, i0, i1, i2, i3, lane = tile_places(n1, n2, n3, WIDE, ROWS, BLOCK)
    mask = (row < rows)[:, None] & (lane < inner)[None, :]
    target = tile_offsets(i0, i1, i2, i3, lane, y0, y1, y2, y3, y_inner)
    tl.store(y + target, tl.full((ROWS, BLOCK), value, DTYPE), mask=mask)
