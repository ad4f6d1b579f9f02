"""Triton kernels that read and write at places that are data."""

import triton
import triton.language as tl

from nbxtensor.lang.moving import copy_kernel, tile_offsets, tile_places

__all__ = ["copy_kernel", "slice_kernel", "take_along_kernel", "take_lanes_kernel", "take_rows_kernel"]


@triton.jit
def take_rows_kernel(
    y, x, indices, count, extent, inner, i_stride, x_outer, x_axis, x_inner, y_outer,
    MISSING: tl.constexpr, WIDE: tl.constexpr, INDEX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y[outer, i, :] = x[outer, indices[i], :]: one program per row and block of it."""
    row = tl.program_id(0)
    outer = row // count
    place = row % count
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        outer = outer.to(tl.int64)
        place = place.to(tl.int64)
        lane = lane.to(tl.int64)
    at = tl.load(indices + place * i_stride).to(INDEX)
    at = tl.where(at < 0, at + extent, at)
    inside = (at >= 0) & (at < extent)
    target = y + outer * y_outer + place * inner + lane
    source = x + outer * x_outer + tl.where(inside, at, 0) * x_axis + lane * x_inner
    mask = lane < inner
    tl.store(target, tl.load(source, mask=mask & inside, other=MISSING), mask=mask)


@triton.jit
def take_lanes_kernel(
    y, x, indices, count, extent, i_stride, x_outer, x_axis, y_outer,
    MISSING: tl.constexpr, WIDE: tl.constexpr, INDEX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y[outer, i] = x[outer, indices[i]]: blocks of places."""
    outer = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    if WIDE:
        outer = outer.to(tl.int64)
        place = place.to(tl.int64)
    at = tl.load(indices + place * i_stride, mask=mask, other=0).to(INDEX)
    at = tl.where(at < 0, at + extent, at)
    inside = (at >= 0) & (at < extent)
    source = x + outer * x_outer + tl.where(inside, at, 0) * x_axis
    tl.store(y + outer * y_outer + place, tl.load(source, mask=mask & inside, other=MISSING), mask=mask)


@triton.jit
def take_along_kernel(
    y, x, indices, extent, n1, n2, inner,
    x_axis, x0, x1, x2, x_inner, i0_stride, i1_stride, i2_stride, i_inner, y0, y1, y2,
    MISSING: tl.constexpr, WIDE: tl.constexpr, INDEX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y[p] = x[p with the axis replaced by indices[p]]: three outer axes and an inner one, any strides."""
    row = tl.program_id(0)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i2 = row % n2
    i1 = (row // n2) % n1
    i0 = row // (n2 * n1)
    mask = lane < inner
    if WIDE:
        i0 = i0.to(tl.int64)
        i1 = i1.to(tl.int64)
        i2 = i2.to(tl.int64)
        lane = lane.to(tl.int64)
    where = indices + i0 * i0_stride + i1 * i1_stride + i2 * i2_stride + lane * i_inner
    at = tl.load(where, mask=mask, other=0).to(INDEX)
    at = tl.where(at < 0, at + extent, at)
    inside = (at >= 0) & (at < extent)
    source = x + i0 * x0 + i1 * x1 + i2 * x2 + lane * x_inner + tl.where(inside, at, 0) * x_axis
    value = tl.load(source, mask=mask & inside, other=MISSING)
    tl.store(y + i0 * y0 + i1 * y1 + i2 * y2 + lane, value, mask=mask)


@triton.jit
def slice_kernel(
    y, x, position, extent, length, n1, n2, n3, rows, inner,
    y_axis, y0, y1, y2, y3, y_inner, x0, x1, x2, x3, x_inner, p0, p1, p2, p3, p_inner,
    EACH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write x into y from ``position`` on along an axis, or as far in as fits: four outer axes and an inner one.

    EACH: the position has strides of its own.
    """
    row, i0, i1, i2, i3, lane = tile_places(n1, n2, n3, WIDE, ROWS, BLOCK)
    mask = (row < rows)[:, None] & (lane < inner)[None, :]
    if EACH:
        places = tile_offsets(i0, i1, i2, i3, lane, p0, p1, p2, p3, p_inner)
        start = tl.load(position + places, mask=mask, other=0)
    else:
        start = tl.load(position)
    start = tl.maximum(tl.minimum(start, extent - length), 0)
    if WIDE:
        start = start.to(tl.int64)
    source = tile_offsets(i0, i1, i2, i3, lane, x0, x1, x2, x3, x_inner)
    target = tile_offsets(i0, i1, i2, i3, lane, y0, y1, y2, y3, y_inner)
    tl.store(y + start * y_axis + target, tl.load(x + source, mask=mask), mask=mask)
