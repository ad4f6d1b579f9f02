"""The Triton kernel that copies elements between two layouts of one shape, and what kernels like it share."""

import triton
import triton.language as tl


@triton.jit
def tile_places(n1, n2, n3, WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Where a program works: its rows, their four outer indices, and its places along the inner axis.

    Programs lie along the rows and then along the inner axis; WIDE: in 64 bits.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i3 = row % n3
    i2 = (row // n3) % n2
    i1 = (row // (n3 * n2)) % n1
    i0 = row // (n3 * n2 * n1)
    block = tl.program_id(1)
    if WIDE:
        i0 = i0.to(tl.int64)
        i1 = i1.to(tl.int64)
        i2 = i2.to(tl.int64)
        i3 = i3.to(tl.int64)
        block = block.to(tl.int64)
    return row, i0, i1, i2, i3, block * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def tile_offsets(i0, i1, i2, i3, lane, s0, s1, s2, s3, s_inner):
    """The offsets of a tile of rows by places along the inner axis, under those strides."""
    return (i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3)[:, None] + lane[None, :] * s_inner


@triton.jit
def copy_kernel(
    y, x, n1, n2, n3, rows, inner,
    y0, y1, y2, y3, y_inner, x0, x1, x2, x3, x_inner,
    WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy elements between two layouts of one shape: four outer axes and an inner one, any strides."""
    row, i0, i1, i2, i3, lane = tile_places(n1, n2, n3, WIDE, ROWS, BLOCK)
    mask = (row < rows)[:, None] & (lane < inner)[None, :]
    source = tile_offsets(i0, i1, i2, i3, lane, x0, x1, x2, x3, x_inner)
    target = tile_offsets(i0, i1, i2, i3, lane, y0, y1, y2, y3, y_inner)
    tl.store(y + target, tl.load(x + source, mask=mask), mask=mask)
