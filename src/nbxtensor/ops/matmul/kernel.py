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
