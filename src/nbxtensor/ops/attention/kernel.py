"""Triton kernel of attention."""

import triton
import triton.language as tl


@triton.jit
def attention_kernel(
    out, q, k, v, mask,
    heads, group, length_q, length_k, width, width_v, scale,
    q_batch, q_head, q_row, q_col, k_batch, k_head, k_row, k_col, v_batch, v_head, v_row, v_col,
    o_batch, o_head, o_row, o_col, m_batch, m_head, m_row, m_col,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, COMPUTE: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One program per block of query rows of one head; keys in blocks, softmax kept running."""
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    dims = tl.arange(0, BD)
    dims_v = tl.arange(0, BV)
    if WIDE:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        dims = dims.to(tl.int64)
        dims_v = dims_v.to(tl.int64)
    q_at = q + batch * q_batch + head * q_head
    k_at = k + batch * k_batch + (head // group) * k_head
    v_at = v + batch * v_batch + (head // group) * v_head
    in_rows = rows < length_q
    queries = tl.load(
        q_at + rows[:, None] * q_row + dims[None, :] * q_col,
        mask=in_rows[:, None] & (dims < width)[None, :],
        other=0,
    )
    queries = queries.to(COMPUTE)
    peak = tl.full((BM,), -float("inf"), ACC)
    total = tl.zeros((BM,), ACC)
    acc = tl.zeros((BM, BV), ACC)
    stop = length_k
    if CAUSAL:
        stop = tl.minimum(length_k, (tl.program_id(0) + 1) * BM)
    for start in range(0, stop, BN):
        keys = start + cols
        in_keys = keys < length_k
        key = tl.load(
            k_at + dims[:, None] * k_col + keys[None, :] * k_row,
            mask=(dims < width)[:, None] & in_keys[None, :],
            other=0,
        ).to(COMPUTE)
        scores = tl.dot(queries, key, input_precision="ieee", out_dtype=ACC) * scale
        seen = in_rows[:, None] & in_keys[None, :]
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        if MASK == "bool":
            at = mask + batch * m_batch + head * m_head + rows[:, None] * m_row + keys[None, :] * m_col
            seen = seen & (tl.load(at, mask=in_rows[:, None] & in_keys[None, :], other=0) != 0)
        if MASK == "float":
            at = mask + batch * m_batch + head * m_head + rows[:, None] * m_row + keys[None, :] * m_col
            scores += tl.load(at, mask=in_rows[:, None] & in_keys[None, :], other=0).to(ACC)
        scores = tl.where(seen, scores, -float("inf"))
        top = tl.maximum(peak, tl.max(scores, 1))
        # a row that has seen nothing yet keeps its peak at -inf: shift by 0 there, so that no inf - inf arises
        shift = tl.where(top == -float("inf"), 0.0, top)
        weights = tl.exp(scores - shift[:, None])
        fade = tl.exp(peak - shift)
        total = total * fade + tl.sum(weights, 1)
        value = tl.load(
            v_at + keys[:, None] * v_row + dims_v[None, :] * v_col,
            mask=in_keys[:, None] & (dims_v < width_v)[None, :],
            other=0,
        ).to(COMPUTE)
        acc = acc * fade[:, None]
        acc = tl.dot(weights.to(COMPUTE), value, acc, input_precision="ieee", out_dtype=ACC)
        peak = top
    result = acc / tl.where(total == 0, 1.0, total)[:, None]
    target = out + batch * o_batch + head * o_head + rows[:, None] * o_row + dims_v[None, :] * o_col
    tl.store(target, result, mask=in_rows[:, None] & (dims_v < width_v)[None, :])
