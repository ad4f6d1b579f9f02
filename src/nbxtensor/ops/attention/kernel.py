"""Triton kernels of attention."""

import triton
import triton.language as tl

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def keys_that_count(kv_length, most):
    """How many keys a batch has by its entry of ``kv_length``: none to ``most``."""
    return tl.maximum(tl.minimum(tl.load(kv_length).to(tl.int32), most), 0)


@triton.jit
def exponential(x, BASE2: tl.constexpr):
    return tl.exp2(x) if BASE2 else tl.exp(x)


@triton.jit
def attend(
    acc, total, peak, queries, k_at, v_at, mask_at, key_places, value_places, mask_places, in_rows, limits,
    start, stop, length, width, width_v, scale, k_row, v_row, m_col,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr, BASE2: tl.constexpr, PRECISION: tl.constexpr,
    COMPUTE: tl.constexpr, ACC: tl.constexpr, WHOLE: tl.constexpr, WHOLE_V: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Take the keys from ``start`` to ``stop`` into a running softmax.

    EDGE: some of them may lie past the length, or past the limit of some rows. WHOLE: rows fill their blocks.
    """
    cols = tl.arange(0, BN)
    dims = tl.arange(0, BD) < width
    dims_v = tl.arange(0, BV) < width_v
    for first in range(start, stop, BN):
        keys = first + cols
        in_keys = keys < length
        along = first.to(tl.int64)
        if EDGE:
            key = tl.load(k_at + along * k_row + key_places, mask=dims[:, None] & in_keys[None, :], other=0)
        elif WHOLE:
            key = tl.load(k_at + along * k_row + key_places)
        else:
            key = tl.load(k_at + along * k_row + key_places, mask=dims[:, None], other=0)
        scores = tl.dot(queries, key.to(COMPUTE), input_precision=PRECISION, out_dtype=ACC) * scale
        if MASK == "float":
            here = (in_rows & in_keys[None, :]) if EDGE else in_rows
            added = tl.load(mask_at + along * m_col + mask_places, mask=here, other=0).to(ACC)
            scores += added * _LOG2E if BASE2 else added
        if EDGE:
            seen = in_rows & in_keys[None, :]
            if CAUSAL:
                seen = seen & (keys[None, :] <= limits[:, None])
            if MASK == "bool":
                here = in_rows & in_keys[None, :]
                seen = seen & (tl.load(mask_at + along * m_col + mask_places, mask=here, other=0) != 0)
            scores = tl.where(seen, scores, -float("inf"))
        elif MASK == "bool":
            seen = tl.load(mask_at + along * m_col + mask_places, mask=in_rows, other=0) != 0
            scores = tl.where(seen, scores, -float("inf"))
        top = tl.maximum(peak, tl.max(scores, 1))
        # a row that has seen nothing yet keeps its peak at -inf: shift by 0 there, so that no inf - inf arises
        shift = tl.where(top == -float("inf"), 0.0, top)
        weights = exponential(scores - shift[:, None], BASE2)
        fade = exponential(peak - shift, BASE2)
        total = total * fade + tl.sum(weights, 1)
        if EDGE:
            value = tl.load(v_at + along * v_row + value_places, mask=in_keys[:, None] & dims_v[None, :], other=0)
        elif WHOLE_V:
            value = tl.load(v_at + along * v_row + value_places)
        else:
            value = tl.load(v_at + along * v_row + value_places, mask=dims_v[None, :], other=0)
        acc = acc * fade[:, None]
        acc = tl.dot(weights.to(COMPUTE), value.to(COMPUTE), acc, input_precision=PRECISION, out_dtype=ACC)
        peak = top
    return acc, total, peak


@triton.jit
def attention_kernel(
    out, q, k, v, mask, kv_length,
    heads, group, length_q, length_k, width, width_v, scale, l_batch,
    q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col, v_batch, v_head, v_row, v_col,
    o_batch, o_head, o_row, o_col, m_batch, m_head, m_row, m_col,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, LENGTH: tl.constexpr, SPLIT: tl.constexpr, TAIL: tl.constexpr,
    BASE2: tl.constexpr, PRECISION: tl.constexpr, COMPUTE: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr,
    WHOLE: tl.constexpr, WHOLE_V: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One program per block of query rows of one head; keys in blocks, softmax kept running.

    SPLIT: the blocks of keys that all rows see whole come first, in a loop of their own; TAIL: there may be others. The
    last blocks of rows of a causal head see the most keys, so they start first.
    """
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    block = tl.program_id(0)
    if SPLIT and CAUSAL:
        block = tl.num_programs(0) - 1 - block
    rows = block * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    dims = tl.arange(0, BD)
    dims_v = tl.arange(0, BV)
    length = length_k
    limits = rows
    if LENGTH:
        length = keys_that_count(kv_length + batch * l_batch, length_k)
        limits = rows + (length - length_q)
    in_rows = rows < length_q
    stop = length
    if CAUSAL:
        stop = tl.minimum(length, (block + 1) * BM + (length - length_q if LENGTH else 0))
    if WIDE:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        dims = dims.to(tl.int64)
        dims_v = dims_v.to(tl.int64)
    q_at = q + batch * q_batch + head * q_head
    k_at = k + batch * k_batch + (head // group) * k_head
    v_at = v + batch * v_batch + (head // group) * v_head
    queries = tl.load(
        q_at + rows[:, None] * q_row + dims[None, :] * q_col,
        mask=in_rows[:, None] & (dims < width)[None, :],
        other=0,
    )
    queries = queries.to(COMPUTE)
    key_places = dims[:, None] * k_col + cols[None, :] * k_row
    value_places = cols[:, None] * v_row + dims_v[None, :] * v_col
    mask_at = mask
    mask_places = cols[None, :]
    if MASK != "":
        mask_at = mask + batch * m_batch + head * m_head
        mask_places = rows[:, None] * m_row + cols[None, :] * m_col
    if BASE2:
        scale = scale * _LOG2E
    peak = tl.full((BM,), -float("inf"), ACC)
    total = tl.zeros((BM,), ACC)
    acc = tl.zeros((BM, BV), ACC)
    start = 0
    if SPLIT:
        whole = length
        if CAUSAL:
            whole = tl.minimum(length, block * BM + 1 + (length - length_q if LENGTH else 0))
        start = tl.maximum(whole, 0) // BN * BN
        acc, total, peak = attend(
            acc, total, peak, queries, k_at, v_at, mask_at, key_places, value_places, mask_places, in_rows[:, None],
            limits, 0, start, length, width, width_v, scale, k_row, v_row, m_col,
            MASK, CAUSAL, False, BASE2, PRECISION, COMPUTE, ACC, WHOLE, WHOLE_V, BN, BD, BV,
        )  # fmt: skip
    if TAIL:
        acc, total, peak = attend(
            acc, total, peak, queries, k_at, v_at, mask_at, key_places, value_places, mask_places, in_rows[:, None],
            limits, start, stop, length, width, width_v, scale, k_row, v_row, m_col,
            MASK, CAUSAL, True, BASE2, PRECISION, COMPUTE, ACC, WHOLE, WHOLE_V, BN, BD, BV,
        )  # fmt: skip
    result = acc / tl.where(total == 0, 1.0, total)[:, None]
    target = out + batch * o_batch + head * o_head + rows[:, None] * o_row + dims_v[None, :] * o_col
    tl.store(target, result, mask=in_rows[:, None] & (dims_v < width_v)[None, :])


@triton.jit
def decode_kernel(
    out, parts, weights, q, k, v, kv_length,
    groups, group, length_q, length_k, width, width_v, scale, l_batch,
    q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col, v_batch, v_head, v_row, v_col,
    o_batch, o_head, o_row, o_col,
    CAUSAL: tl.constexpr, LENGTH: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr, COMPUTE: tl.constexpr,
    WIDE: tl.constexpr, WHOLE: tl.constexpr, WHOLE_V: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One program per group of heads and stretch of its keys: all queries of the group's heads are rows of one block.

    The stretches are equal shares of the blocks that the length has. Where there are several, each leaves its result
    and the logarithm (of base 2) of its weight.
    """
    split = tl.program_id(0)
    batch = (tl.program_id(1) // groups).to(tl.int64)
    here = (tl.program_id(1) % groups).to(tl.int64)
    rows = tl.arange(0, BM)
    heads = rows // length_q
    places = rows % length_q
    in_rows = heads < group
    cols = tl.arange(0, BN)
    dims = tl.arange(0, BD)
    dims_v = tl.arange(0, BV)
    length = length_k
    limits = places
    if LENGTH:
        length = keys_that_count(kv_length + batch * l_batch, length_k)
        limits = places + (length - length_q)
    if CAUSAL:
        stop = tl.minimum(length, length if LENGTH else length_q)
    else:
        stop = length
    share = tl.cdiv(tl.cdiv(stop, BN), SPLITS) * BN
    start = tl.minimum(split * share, stop)
    stop = tl.minimum(start + share, stop)
    whole = length
    if CAUSAL:
        whole = tl.maximum(tl.minimum(length, (length - length_q if LENGTH else 0) + 1), 0)
    if WIDE:
        cols = cols.to(tl.int64)
        dims = dims.to(tl.int64)
        dims_v = dims_v.to(tl.int64)
    heads = here * group + heads
    q_at = q + batch * q_batch + heads * q_head + places * q_row
    k_at = k + batch * k_batch + here * k_head
    v_at = v + batch * v_batch + here * v_head
    queries = tl.load(
        q_at[:, None] + dims[None, :] * q_col, mask=in_rows[:, None] & (dims < width)[None, :], other=0
    ).to(COMPUTE)
    key_places = dims[:, None] * k_col + cols[None, :] * k_row
    value_places = cols[:, None] * v_row + dims_v[None, :] * v_col
    scale = scale * _LOG2E
    peak = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BV), tl.float32)
    middle = tl.maximum(start, tl.minimum(stop, whole) // BN * BN)
    acc, total, peak = attend(
        acc, total, peak, queries, k_at, v_at, q, key_places, value_places, key_places, in_rows[:, None],
        limits, start, middle, length, width, width_v, scale, k_row, v_row, 0,
        "", CAUSAL, False, True, PRECISION, COMPUTE, tl.float32, WHOLE, WHOLE_V, BN, BD, BV,
    )  # fmt: skip
    acc, total, peak = attend(
        acc, total, peak, queries, k_at, v_at, q, key_places, value_places, key_places, in_rows[:, None],
        limits, middle, stop, length, width, width_v, scale, k_row, v_row, 0,
        "", CAUSAL, True, True, PRECISION, COMPUTE, tl.float32, WHOLE, WHOLE_V, BN, BD, BV,
    )  # fmt: skip
    result = acc / tl.where(total == 0, 1.0, total)[:, None]
    inside = in_rows[:, None] & (dims_v < width_v)[None, :]
    if SPLITS == 1:
        target = out + batch * o_batch + heads * o_head + places * o_row
        tl.store(target[:, None] + dims_v[None, :] * o_col, result, mask=inside)
    else:
        part = (tl.program_id(1).to(tl.int64) * SPLITS + split) * (group * length_q) + rows
        tl.store(weights + part, peak + tl.log2(total), mask=in_rows)
        tl.store(parts + part[:, None] * width_v + dims_v[None, :], result, mask=inside)


@triton.jit
def combine_kernel(
    out, parts, weights, heads, group, length_q, width_v, o_batch, o_head, o_row, o_col,
    SPLITS: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One program per query of a head: the mean of its parts by their weights, in order."""
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    place = tl.program_id(0)
    rows = group * length_q
    splits = tl.arange(0, SPLITS)
    dims_v = tl.arange(0, BV)
    here = batch * (heads // group) + head // group
    part = (here * SPLITS + splits) * rows + (head % group) * length_q + place
    weight = tl.load(weights + part)
    value = tl.load(parts + part[:, None] * width_v + dims_v[None, :], mask=(dims_v < width_v)[None, :], other=0)
    peak = tl.max(weight, 0)
    share = tl.exp2(weight - tl.where(peak == -float("inf"), 0.0, peak))
    total = tl.sum(share, 0)
    result = tl.sum(value * share[:, None], 0) / tl.where(total == 0, 1.0, total)
    target = out + batch * o_batch + head.to(tl.int64) * o_head + place * o_row
    tl.store(target + dims_v * o_col, result, mask=dims_v < width_v)
