"""Triton kernels of rotary position embeddings."""

import triton
import triton.language as tl

from nbxtensor.lang.moving import copy_kernel
from nbxtensor.lang.turns import cos_sin, from_radians

__all__ = ["copy_kernel", "rope_kernel", "rope_update_kernel"]


@triton.jit
def rotations(positions, frequencies, pairs, TURNS: tl.constexpr, BP: tl.constexpr):
    """Cosines and sines for a block of positions: a row each, a column for each pair."""
    pair = tl.arange(0, BP)
    turns = tl.load(frequencies + pair, mask=pair < pairs, other=0)
    if not TURNS:
        turns = from_radians(turns)
    return cos_sin(positions.to(tl.int64)[:, None] * turns[None, :])


@triton.jit
def rotate(
    o_rows, x_rows, cos, sin, inside, pairs, width, o_col, x_col,
    INTERLEAVED: tl.constexpr, BP: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Rotate the pairs of a block of rows and copy what lies behind them."""
    pair = tl.arange(0, BP)[None, :]
    first = pair * 2 if INTERLEAVED else pair
    second = first + 1 if INTERLEAVED else first + pairs
    mask = inside[:, None] & (pair < pairs)
    x = tl.load(x_rows[:, None] + first * x_col, mask=mask, other=0).to(tl.float32)
    y = tl.load(x_rows[:, None] + second * x_col, mask=mask, other=0).to(tl.float32)
    tl.store(o_rows[:, None] + first * o_col, x * cos - y * sin, mask=mask)
    tl.store(o_rows[:, None] + second * o_col, y * cos + x * sin, mask=mask)
    if BT > 0:
        move(o_rows, x_rows, inside, 2 * pairs, width, o_col, x_col, BT)


@triton.jit
def move(o_rows, x_rows, inside, start, width, o_col, x_col, BT: tl.constexpr):
    """Copy a block of rows from column ``start`` on."""
    col = start + tl.arange(0, BT)[None, :]
    mask = inside[:, None] & (col < width)
    tl.store(o_rows[:, None] + col * o_col, tl.load(x_rows[:, None] + col * x_col, mask=mask), mask=mask)


@triton.jit
def rope_kernel(
    out, x, positions, frequencies, heads, tokens, pairs, width,
    o_batch, o_head, o_row, o_col, x_batch, x_head, x_row, x_col, p_batch, p_row,
    FOLLOW: tl.constexpr, TURNS: tl.constexpr, INTERLEAVED: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, HEADS: tl.constexpr, BP: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """One program per block of tokens and some heads. FOLLOW: positions count on from the one given."""
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < tokens
    if FOLLOW:
        places = tl.load(positions + batch * p_batch) + row
    else:
        places = tl.load(positions + batch * p_batch + row * p_row, mask=inside, other=0)
    cos, sin = rotations(places, frequencies, pairs, TURNS, BP)
    if WIDE:
        row = row.to(tl.int64)
    first = tl.program_id(1) * HEADS
    for head in range(first, tl.minimum(first + HEADS, heads)):
        o_rows = out + batch * o_batch + head.to(tl.int64) * o_head + row * o_row
        x_rows = x + batch * x_batch + head.to(tl.int64) * x_head + row * x_row
        rotate(o_rows, x_rows, cos, sin, inside, pairs, width, o_col, x_col, INTERLEAVED, BP, BT)


@triton.jit
def rope_update_kernel(
    q, k, v, x, position, frequencies, heads, groups, tokens, length, pairs, width,
    x_batch, x_row, x_col, q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col,
    v_batch, v_head, v_row, v_col, p_batch,
    TURNS: tl.constexpr, INTERLEAVED: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, BP: tl.constexpr, BT: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """One program per block of tokens and some slots of their rows: each is a query, a key or a value."""
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < tokens
    place = tl.load(position + batch * p_batch)
    start = tl.maximum(tl.minimum(place, length - tokens), 0)
    places = place + row
    if WIDE:
        row = row.to(tl.int64)
        start = start.to(tl.int64)
    cos, sin = rotations(places, frequencies, pairs, TURNS, BP)
    first = tl.program_id(1) * SLOTS
    for index in range(first, tl.minimum(first + SLOTS, heads + 2 * groups)):
        slot = index.to(tl.int64)
        x_rows = x + batch * x_batch + slot * width * x_col + row * x_row
        if index < heads:
            q_rows = q + batch * q_batch + slot * q_head + row * q_row
            rotate(q_rows, x_rows, cos, sin, inside, pairs, width, q_col, x_col, INTERLEAVED, BP, BT)
        elif index < heads + groups:
            k_rows = k + batch * k_batch + (slot - heads) * k_head + (start + row) * k_row
            rotate(k_rows, x_rows, cos, sin, inside, pairs, width, k_col, x_col, INTERLEAVED, BP, BT)
        else:
            v_rows = v + batch * v_batch + (slot - heads - groups) * v_head + (start + row) * v_row
            move(v_rows, x_rows, inside, 0, width, v_col, x_col, BW)
