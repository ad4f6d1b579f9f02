"""Triton kernels of the matrix products."""

import triton
import triton.language as tl


@triton.jit
def bias_add(acc, bias):
    return acc + bias


@triton.jit
def scaled_sum(acc, addend, alpha, beta):
    return alpha * acc + beta * addend


@triton.jit
def extra_block(pointer, batch, rows, cols, stride_row, stride_col, mask):
    """One block of an operand that the epilogue reads, at the place of the result's block."""
    return tl.load(pointer + batch + rows[:, None] * stride_row + cols[None, :] * stride_col, mask=mask)


@triton.jit
def finish(
    acc, at0, at1, at2, at3, rows, cols, mask,
    e0, e0_row, e0_col, e1, e1_row, e1_col, e2, e2_row, e2_col, e3, e3_row, e3_col,
    s0, s1, s2, s3, EPILOGUE: tl.constexpr, EXTRAS: tl.constexpr,
):  # fmt: skip
    """Apply the epilogue to an accumulator; operands it does not have are 0."""
    v1 = 0.0
    v2 = 0.0
    v3 = 0.0
    v4 = 0.0
    if EXTRAS > 0:
        v1 = extra_block(e0, at0, rows, cols, e0_row, e0_col, mask)
    if EXTRAS > 1:
        v2 = extra_block(e1, at1, rows, cols, e1_row, e1_col, mask)
    if EXTRAS > 2:
        v3 = extra_block(e2, at2, rows, cols, e2_row, e2_col, mask)
    if EXTRAS > 3:
        v4 = extra_block(e3, at3, rows, cols, e3_row, e3_col, mask)
    return EPILOGUE(acc, v1, v2, v3, v4, s0, s1, s2, s3)


@triton.jit
def store_block(
    acc, c, i0, i1, i2, rows, cols, mask,
    e0, e0_b0, e0_b1, e0_b2, e0_row, e0_col, e1, e1_b0, e1_b1, e1_b2, e1_row, e1_col,
    e2, e2_b0, e2_b1, e2_b2, e2_row, e2_col, e3, e3_b0, e3_b1, e3_b2, e3_row, e3_col,
    s0, s1, s2, s3, c_b0, c_b1, c_b2, c_row, c_col, EPILOGUE: tl.constexpr, EXTRAS: tl.constexpr,
):  # fmt: skip
    """Apply the epilogue to a block of the product at three batch indices, and store it."""
    at0 = i0 * e0_b0 + i1 * e0_b1 + i2 * e0_b2
    at1 = i0 * e1_b0 + i1 * e1_b1 + i2 * e1_b2
    at2 = i0 * e2_b0 + i1 * e2_b1 + i2 * e2_b2
    at3 = i0 * e3_b0 + i1 * e3_b1 + i2 * e3_b2
    result = finish(
        acc, at0, at1, at2, at3, rows, cols, mask,
        e0, e0_row, e0_col, e1, e1_row, e1_col, e2, e2_row, e2_col, e3, e3_row, e3_col,
        s0, s1, s2, s3, EPILOGUE, EXTRAS,
    )  # fmt: skip
    c_block = c + i0 * c_b0 + i1 * c_b1 + i2 * c_b2 + rows[:, None] * c_row + cols[None, :] * c_col
    tl.store(c_block, result, mask=mask)


@triton.jit
def matmul_kernel(
    c, a, b,
    e0, e0_b0, e0_b1, e0_b2, e0_row, e0_col, e1, e1_b0, e1_b1, e1_b2, e1_row, e1_col,
    e2, e2_b0, e2_b1, e2_b2, e2_row, e2_col, e3, e3_b0, e3_b1, e3_b2, e3_row, e3_col,
    s0, s1, s2, s3,
    m, n, k, b1, b2,
    a_b0, a_b1, a_b2, a_row, a_col, b_b0, b_b1, b_b2, b_row, b_col, c_b0, c_b1, c_b2, c_row, c_col,
    EPILOGUE: tl.constexpr, EXTRAS: tl.constexpr, COMPUTE: tl.constexpr, ACC: tl.constexpr, MATRIX: tl.constexpr,
    WIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C[batch] = EPILOGUE(A[batch] @ B[batch]): one program per block of C; three batch axes with any strides."""
    batch = tl.program_id(2)
    i2 = batch % b2
    i1 = (batch // b2) % b1
    i0 = batch // (b2 * b1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    if WIDE:
        i0 = i0.to(tl.int64)
        i1 = i1.to(tl.int64)
        i2 = i2.to(tl.int64)
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        inner = inner.to(tl.int64)
    a_block = a + i0 * a_b0 + i1 * a_b1 + i2 * a_b2 + rows[:, None] * a_row + inner[None, :] * a_col
    b_block = b + i0 * b_b0 + i1 * b_b1 + i2 * b_b2 + inner[:, None] * b_row + cols[None, :] * b_col
    acc = tl.zeros((BM, BN), dtype=ACC)
    for start in range(0, k, BK):
        depth = start + inner < k
        x = tl.load(a_block, mask=(rows < m)[:, None] & depth[None, :], other=0).to(COMPUTE)
        y = tl.load(b_block, mask=depth[:, None] & (cols < n)[None, :], other=0).to(COMPUTE)
        if MATRIX:
            acc = tl.dot(x, y, acc, input_precision="ieee", out_dtype=ACC)
        else:
            acc += tl.sum(x[:, :, None].to(ACC) * y[None, :, :].to(ACC), axis=1)
        a_block += BK * a_col
        b_block += BK * b_row
    mask = (rows < m)[:, None] & (cols < n)[None, :]
    store_block(
        acc, c, i0, i1, i2, rows, cols, mask,
        e0, e0_b0, e0_b1, e0_b2, e0_row, e0_col, e1, e1_b0, e1_b1, e1_b2, e1_row, e1_col,
        e2, e2_b0, e2_b1, e2_b2, e2_row, e2_col, e3, e3_b0, e3_b1, e3_b2, e3_row, e3_col,
        s0, s1, s2, s3, c_b0, c_b1, c_b2, c_row, c_col, EPILOGUE, EXTRAS,
    )  # fmt: skip


@triton.jit
def matvec_kernel(
    c, a, b,
    e0, e0_row, e0_col, e1, e1_row, e1_col, e2, e2_row, e2_col, e3, e3_row, e3_col,
    s0, s1, s2, s3,
    m, n, k, a_row, b_col, c_row, c_col,
    EPILOGUE: tl.constexpr, EXTRAS: tl.constexpr, COMPUTE: tl.constexpr, ACC: tl.constexpr,
    WIDE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C = EPILOGUE(A @ B) for few rows of A and a B whose columns lie along memory: sums along the depth."""
    row = tl.program_id(0)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    if WIDE:
        row = row.to(tl.int64)
        cols = cols.to(tl.int64)
        inner = inner.to(tl.int64)
    acc = tl.zeros((BN,), dtype=ACC)
    for start in range(0, k, BK):
        depth = start + inner
        x = tl.load(a + row * a_row + depth, mask=depth < k, other=0).to(COMPUTE).to(ACC)
        mask = (cols < n)[:, None] & (depth < k)[None, :]
        y = tl.load(b + cols[:, None] * b_col + depth[None, :], mask=mask, other=0).to(COMPUTE).to(ACC)
        acc += tl.sum(y * x[None, :], axis=1)
    rows = row + tl.zeros((1,), dtype=cols.dtype)
    mask = (rows < m)[:, None] & (cols < n)[None, :]
    result = finish(
        acc[None, :], 0, 0, 0, 0, rows, cols, mask,
        e0, e0_row, e0_col, e1, e1_row, e1_col, e2, e2_row, e2_col, e3, e3_row, e3_col,
        s0, s1, s2, s3, EPILOGUE, EXTRAS,
    )  # fmt: skip
    tl.store(c + rows[:, None] * c_row + cols[None, :] * c_col, result, mask=mask)


@triton.jit
def panel_kernel(
    c, a, panels,
    e0, e0_row, e0_col, e1, e1_row, e1_col, e2, e2_row, e2_col, e3, e3_row, e3_col,
    s0, s1, s2, s3,
    m, n, k, a_row, c_row, c_col,
    EPILOGUE: tl.constexpr, EXTRAS: tl.constexpr, COMPUTE: tl.constexpr, ACC: tl.constexpr,
    WIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C = EPILOGUE(A @ W) with W as panels [columns / BN, k, BN]: one program per block of C, one panel each."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    panel = tl.program_id(1)
    lanes = tl.arange(0, BN)
    cols = panel * BN + lanes
    inner = tl.arange(0, BK)
    if WIDE:
        rows = rows.to(tl.int64)
        panel = panel.to(tl.int64)
        cols = cols.to(tl.int64)
    a_block = a + rows[:, None] * a_row + inner[None, :]
    w_block = panels + panel * (k * BN) + inner[:, None] * BN + lanes[None, :]
    acc = tl.zeros((BM, BN), dtype=ACC)
    for start in range(0, k, BK):
        depth = start + inner < k
        x = tl.load(a_block, mask=(rows < m)[:, None] & depth[None, :], other=0).to(COMPUTE)
        y = tl.load(w_block, mask=depth[:, None], other=0).to(COMPUTE)
        acc = tl.dot(x, y, acc, input_precision="ieee", out_dtype=ACC)
        a_block += BK
        w_block += BK * BN
    mask = (rows < m)[:, None] & (cols < n)[None, :]
    result = finish(
        acc, 0, 0, 0, 0, rows, cols, mask,
        e0, e0_row, e0_col, e1, e1_row, e1_col, e2, e2_row, e2_col, e3, e3_row, e3_col,
        s0, s1, s2, s3, EPILOGUE, EXTRAS,
    )  # fmt: skip
    tl.store(c + rows[:, None] * c_row + cols[None, :] * c_col, result, mask=mask)


@triton.jit
def three_parts(x):
    """Three bfloat16 blocks whose sum is the float32 block ``x`` exactly, but for what is smaller than bfloat16.

    The first is the upper half of the bits, so that no finite number overflows; an infinity is all in it.
    """
    first = (x.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    value = first.to(tl.float32)
    rest = tl.where(x == value, 0.0, x - value)
    second = rest.to(tl.bfloat16)
    return first, second, (rest - second.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def tile_product(x, y, acc, ACC: tl.constexpr, PARTS: tl.constexpr):
    """acc + x @ y; PARTS is 3 for float32 blocks that are multiplied as bfloat16 parts, else 1.

    Of the nine products of parts those that can reach 2**-23 of the whole are summed, small ones first, and apart
    from the accumulator: the matrix unit rounds what it adds up toward zero.
    """
    if PARTS == 1:
        acc = tl.dot(x, y, acc, input_precision="ieee", out_dtype=ACC)
    else:
        x0, x1, x2 = three_parts(x)
        y0, y1, y2 = three_parts(y)
        part = tl.dot(x0, y2, out_dtype=ACC)
        part = tl.dot(x2, y0, part, out_dtype=ACC)
        part = tl.dot(x1, y1, part, out_dtype=ACC)
        part = tl.dot(x0, y1, part, out_dtype=ACC)
        part = tl.dot(x1, y0, part, out_dtype=ACC)
        acc += tl.dot(x0, y0, part, out_dtype=ACC)
    return acc


@triton.jit
def plain_sum(a, b, a_col, b_row, row_mask, col_mask, first, last, acc):
    """The block of A @ B over the depth from ``first`` to ``last``, one rank after the other; ``acc`` is zeros."""
    for depth in range(first, last):
        x = tl.load(a + depth * a_col, mask=row_mask, other=0).to(acc.dtype)
        y = tl.load(b + depth * b_row, mask=col_mask, other=0).to(acc.dtype)
        acc += x * y
    return acc


@triton.jit
def tile_kernel(
    c, a, b, partial,
    e0, e0_b0, e0_b1, e0_b2, e0_row, e0_col, e1, e1_b0, e1_b1, e1_b2, e1_row, e1_col,
    e2, e2_b0, e2_b1, e2_b2, e2_row, e2_col, e3, e3_b0, e3_b1, e3_b2, e3_row, e3_col,
    s0, s1, s2, s3,
    m, n, k, b1, b2,
    a_b0, a_b1, a_b2, a_row, a_col, b_b0, b_b1, b_b2, b_row, b_col, c_b0, c_b1, c_b2, c_row, c_col,
    EPILOGUE: tl.constexpr, EXTRAS: tl.constexpr, COMPUTE: tl.constexpr, ACC: tl.constexpr, PARTS: tl.constexpr,
    WIDE: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, SPLITS: tl.constexpr,
    GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C[batch] = EPILOGUE(A[batch] @ B[batch]): one program per block of C and share of the depth.

    Programs that run at once share rows and columns: the blocks of C are walked in bands of GROUP rows of blocks. With
    SPLITS > 1 a program sums one share of the depth, and its sums go to ``partial`` [SPLITS, batch, m, n], for
    `combine_kernel` to add up.
    """
    across = tl.cdiv(n, BN)
    down = tl.cdiv(m, BM)
    program = tl.program_id(0)
    place = program // (down * across)
    program = program % (down * across)
    band = program // (GROUP * across)
    height = tl.minimum(down - band * GROUP, GROUP)
    within = program % (GROUP * across)
    row_block = band * GROUP + within % height
    col_block = within // height
    share = place % SPLITS
    batch = place // SPLITS
    i2 = batch % b2
    i1 = (batch // b2) % b1
    i0 = batch // (b2 * b1)
    rows = row_block * BM + tl.arange(0, BM)
    cols = col_block * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    steps = tl.cdiv(tl.cdiv(k, BK), SPLITS)
    first = share * steps * BK
    if WIDE:
        i0 = i0.to(tl.int64)
        i1 = i1.to(tl.int64)
        i2 = i2.to(tl.int64)
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        inner = inner.to(tl.int64)
        first = first.to(tl.int64)
    a_block = a + i0 * a_b0 + i1 * a_b1 + i2 * a_b2 + rows[:, None] * a_row + (first + inner)[None, :] * a_col
    b_block = b + i0 * b_b0 + i1 * b_b1 + i2 * b_b2 + (first + inner)[:, None] * b_row + cols[None, :] * b_col
    row_mask = (rows < m)[:, None]
    col_mask = (cols < n)[None, :]
    acc = tl.zeros((BM, BN), dtype=ACC)
    for step in range(tl.maximum(steps, 1)):  # known to be entered, so that sums stay in the matrix unit's registers
        if EVEN_K:
            if EVEN_M:
                x = tl.load(a_block).to(COMPUTE)
            else:
                x = tl.load(a_block, mask=row_mask, other=0).to(COMPUTE)
            if EVEN_N:
                y = tl.load(b_block).to(COMPUTE)
            else:
                y = tl.load(b_block, mask=col_mask, other=0).to(COMPUTE)
        else:
            depth = inner < k - first - step * BK
            x = tl.load(a_block, mask=row_mask & depth[None, :], other=0).to(COMPUTE)
            y = tl.load(b_block, mask=depth[:, None] & col_mask, other=0).to(COMPUTE)
        acc = tile_product(x, y, acc, ACC, PARTS)
        a_block += BK * a_col
        b_block += BK * b_row
    if PARTS > 1:
        # An infinity times a part that is 0 is a NaN that the whole number would not give: such a block is made again.
        if tl.max(tl.max((acc != acc).to(tl.int32), 1), 0) > 0:
            a_line = a + i0 * a_b0 + i1 * a_b1 + i2 * a_b2 + rows[:, None] * a_row
            b_line = b + i0 * b_b0 + i1 * b_b1 + i2 * b_b2 + cols[None, :] * b_col
            last = tl.minimum(first + steps * BK, k)
            acc = plain_sum(
                a_line, b_line, a_col, b_row, row_mask, col_mask, first, last, tl.zeros((BM, BN), dtype=ACC)
            )
    mask = row_mask & col_mask
    if SPLITS > 1:
        batches = tl.num_programs(0) // (down * across * SPLITS)
        start = (share.to(tl.int64) * batches + batch) * m * n
        tl.store(partial + start + rows[:, None] * n + cols[None, :], acc, mask=mask)
    else:
        store_block(
            acc, c, i0, i1, i2, rows, cols, mask,
            e0, e0_b0, e0_b1, e0_b2, e0_row, e0_col, e1, e1_b0, e1_b1, e1_b2, e1_row, e1_col,
            e2, e2_b0, e2_b1, e2_b2, e2_row, e2_col, e3, e3_b0, e3_b1, e3_b2, e3_row, e3_col,
            s0, s1, s2, s3, c_b0, c_b1, c_b2, c_row, c_col, EPILOGUE, EXTRAS,
        )  # fmt: skip


@triton.jit
def combine_kernel(
    c, partial,
    e0, e0_b0, e0_b1, e0_b2, e0_row, e0_col, e1, e1_b0, e1_b1, e1_b2, e1_row, e1_col,
    e2, e2_b0, e2_b1, e2_b2, e2_row, e2_col, e3, e3_b0, e3_b1, e3_b2, e3_row, e3_col,
    s0, s1, s2, s3,
    batches, m, n, b1, b2, c_b0, c_b1, c_b2, c_row, c_col,
    EPILOGUE: tl.constexpr, EXTRAS: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """C[batch] = EPILOGUE(the sum of ``partial`` [SPLITS, batch, m, n] over its first axis, in order)."""
    across = tl.cdiv(n, BN)
    down = tl.cdiv(m, BM)
    batch = tl.program_id(0) // (down * across)
    program = tl.program_id(0) % (down * across)
    i2 = batch % b2
    i1 = (batch // b2) % b1
    i0 = batch // (b2 * b1)
    rows = (program // across) * BM + tl.arange(0, BM)
    cols = (program % across) * BN + tl.arange(0, BN)
    if WIDE:
        i0 = i0.to(tl.int64)
        i1 = i1.to(tl.int64)
        i2 = i2.to(tl.int64)
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
    mask = (rows < m)[:, None] & (cols < n)[None, :]
    size = m * n
    block = partial + batch.to(tl.int64) * size + rows[:, None] * n + cols[None, :]
    acc = tl.zeros((BM, BN), dtype=ACC)
    for share in tl.static_range(SPLITS):
        acc += tl.load(block + tl.cast(share, tl.int64) * batches * size, mask=mask, other=0)
    store_block(
        acc, c, i0, i1, i2, rows, cols, mask,
        e0, e0_b0, e0_b1, e0_b2, e0_row, e0_col, e1, e1_b0, e1_b1, e1_b2, e1_row, e1_col,
        e2, e2_b0, e2_b1, e2_b2, e2_row, e2_col, e3, e3_b0, e3_b1, e3_b2, e3_row, e3_col,
        s0, s1, s2, s3, c_b0, c_b1, c_b2, c_row, c_col, EPILOGUE, EXTRAS,
    )  # fmt: skip


@triton.jit
def row_kernel(
    c, a, b, partial,
    e0, e0_row, e0_col, e1, e1_row, e1_col, e2, e2_row, e2_col, e3, e3_row, e3_col,
    s0, s1, s2, s3,
    n, k, a_row, b_col, c_row, c_col,
    EPILOGUE: tl.constexpr, EXTRAS: tl.constexpr, COMPUTE: tl.constexpr, ACC: tl.constexpr, WIDE: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, SPLITS: tl.constexpr, UNROLL: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, EARLY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """C = EPILOGUE(A @ B) for single rows of A and a B whose columns lie along memory, like a weight [outputs, inputs].

    A program sums BN columns of one row along a share of the depth. With EARLY, B is memory that no launch writes: its
    first block is asked for before the launches before this one are done.
    """
    across = tl.cdiv(n, BN)
    row = tl.program_id(0) // across
    cols = (tl.program_id(0) % across) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    share = tl.program_id(1)
    steps = tl.cdiv(tl.cdiv(k, BK), SPLITS)
    first = share * steps * BK
    if WIDE:
        row = row.to(tl.int64)
        cols = cols.to(tl.int64)
        inner = inner.to(tl.int64)
        first = first.to(tl.int64)
    col_mask = (cols < n)[:, None]
    line = a + row * a_row
    block = b + cols[:, None] * b_col + (first + inner)[None, :]
    if PDL and not EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if EVEN_K and EVEN_N:
        ahead = tl.load(block, eviction_policy="evict_first")
    else:
        ahead = tl.load(block, mask=col_mask & (first + inner < k)[None, :], other=0, eviction_policy="evict_first")
    if PDL and EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.load(line + first + inner, mask=first + inner < k, other=0).to(COMPUTE).to(ACC)
    acc = ahead.to(COMPUTE).to(ACC) * part[None, :]
    for step in tl.range(1, steps, loop_unroll_factor=UNROLL):
        start = first + step * BK
        if EVEN_K:
            x = tl.load(line + start + inner).to(COMPUTE).to(ACC)
            if EVEN_N:
                y = tl.load(block + step * BK, eviction_policy="evict_first")
            else:
                y = tl.load(block + step * BK, mask=col_mask, other=0, eviction_policy="evict_first")
        else:
            depth = start + inner < k
            x = tl.load(line + start + inner, mask=depth, other=0).to(COMPUTE).to(ACC)
            mask = col_mask & depth[None, :]
            y = tl.load(block + step * BK, mask=mask, other=0, eviction_policy="evict_first")
        acc = tl.fma(y.to(COMPUTE).to(ACC), tl.broadcast_to(x[None, :], (BN, BK)), acc)
    total = tl.sum(acc, axis=1)
    if SPLITS > 1:
        tl.store(partial + share.to(tl.int64) * n + cols, total, mask=cols < n)
    else:
        rows = row + tl.zeros((1,), dtype=cols.dtype)
        mask = (rows >= 0)[:, None] & (cols < n)[None, :]
        result = finish(
            total[None, :], 0, 0, 0, 0, rows, cols, mask,
            e0, e0_row, e0_col, e1, e1_row, e1_col, e2, e2_row, e2_col, e3, e3_row, e3_col,
            s0, s1, s2, s3, EPILOGUE, EXTRAS,
        )  # fmt: skip
        tl.store(c + rows[:, None] * c_row + cols[None, :] * c_col, result, mask=mask)
