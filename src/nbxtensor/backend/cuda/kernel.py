"""Triton kernels that measure a card: each is bound by one thing alone."""

import triton
import triton.language as tl


@triton.jit
def count_kernel(counter):
    """Add one to a number: what a launch costs when it does nothing but wait for the one before."""
    tl.store(counter, tl.load(counter) + 1)


@triton.jit
def none_kernel(x):
    """Do nothing: what starting a program costs."""


@triton.jit
def chase_kernel(state, table, turns):
    """Follow ``turns`` links of a table from where ``state`` is, past the first cache: each load waits for another."""
    at = tl.load(state)
    for _ in range(turns):
        at = tl.load(table + at, cache_modifier=".cg")
    tl.store(state, at)


@triton.jit
def sum_kernel(x, turns, BLOCK: tl.constexpr):
    """Sum a block ``turns`` times, each time of what the last sum made of it."""
    lanes = tl.arange(0, BLOCK)
    kept = tl.load(x + lanes)
    for _ in range(turns):
        kept = kept - tl.sum(kept, axis=0) * 0.001
    tl.store(x + lanes, kept)


@triton.jit
def step_kernel(out, a, b, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Multiply a [BM, k] and the transpose of b [BN, k] in steps of BK: one program of a product."""
    rows, columns, inner = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    x = a + rows[:, None] * k + inner[None, :]
    y = b + columns[None, :] * k + inner[:, None]
    kept = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        kept = tl.dot(tl.load(x + start), tl.load(y + start), kept)
    tl.store(out + rows[:, None] * BN + columns[None, :], kept)


@triton.jit
def read_kernel(out, x, blocks, BLOCK: tl.constexpr):
    """Read ``blocks`` blocks, shared among all programs; each writes one number that depends on all it read."""
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    kept = tl.zeros((BLOCK,), tl.int32)
    for block in range(program, blocks, tl.num_programs(0)):
        kept ^= tl.load(x + block.to(tl.int64) * BLOCK + lanes, cache_modifier=".cg")
    tl.store(out + program, tl.xor_sum(kept, axis=0))


@triton.jit
def copy_kernel(y, x, BLOCK: tl.constexpr):
    """Copy one block in each program."""
    lanes = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + lanes, tl.load(x + lanes))


@triton.jit
def vector_kernel(out, factor, turns, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """Multiply and add a block with numbers of its dtype, ``turns`` times ``STEPS`` of each."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    by = tl.load(factor)
    kept = lanes.to(out.dtype.element_ty)
    for _ in range(turns):
        for _ in tl.static_range(STEPS):
            kept = kept * by + by
    tl.store(out + lanes, kept)
