"""Register-blocked matrix products, written as LLVM IR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.microkernel_arithmetic import NBYTES, Arithmetic, Matrix, arithmetic, at, offset, tiles
from nbxtensor.backend.cpu.microkernel_blocks import Rows, Strip, multiply_rows, row_blocks, strip_vectors
from nbxtensor.backend.cpu.microkernel_copies import (
    copied_row_nbytes,
    copy_rows,
    copy_strip,
    excess_rows,
    strip_copy,
)
from nbxtensor.backend.cpu.microkernel_tiles import SHAPE_NBYTES, STRIP_WIDTH, multiply_tiles
from nbxtensor.errors import ArgumentError

__all__ = ["Matrix", "arithmetic_of", "gemm", "scratch_nbytes"]

_FEW_ROWS = 6  # up to here a product is as fast as W is read: it is widened, not copied
_NARROW_ROW_NBYTES = 1024  # a row of W up to this long is walked in place: few pages, no two rows in one cache set


def scratch_nbytes(
    m: int, n: int, k: int, elements: tuple[str, str], level: str, features: frozenset[str] = frozenset()
) -> int:
    """Return the bytes of scratch that :func:`gemm` of this extent may write, whatever its strides.

    Args:
        m: Rows of A and C (the largest, where ``gemm`` is given a count known at run time).
        n: Columns of W and C.
        k: Columns of A, rows of W.
        elements: Elements of A and W.
        level: "x86-64-v3", "x86-64-v4" or "aarch64-neon".
        features: LLVM's names of what the processor has beyond the level.

    Raises:
        UnsupportedError: When no arithmetic covers ``elements`` at ``level``.
        ArgumentError: When an extent is not positive.

    >>> scratch_nbytes(128, 128, 256, ("float", "float"), "x86-64-v4")
    65536
    """
    _check_extents(m, n, k)
    ways = {arithmetic_of(rows, elements, level, features) for rows in (m, "")}
    return max(_copied_nbytes(how, n, k) + m * _nbytes_of_row(how, k, elements[0]) for how in ways)


def arithmetic_of(
    m: int | str, elements: tuple[str, str], level: str, features: frozenset[str] = frozenset()
) -> Arithmetic:
    """Return what :func:`gemm` multiplies with; W that comes interleaved by its ``depth`` is not copied.

    Few rows are multiplied as fast as W is read, so their bfloat is widened, exactly, where more rows take pairs or
    tiles.

    Args:
        m: Rows of A and C, "" where they are known at run time.
        elements: Elements of A and W.
        level: Level of the instruction set.
        features: LLVM's names of what the processor has beyond the level.

    Raises:
        UnsupportedError: When no arithmetic covers ``elements`` at ``level``.

    >>> arithmetic_of(64, ("bfloat", "bfloat"), "x86-64-v4", frozenset({"avx512bf16"})).depth
    2
    """
    if isinstance(m, int) and m <= _FEW_ROWS:
        return arithmetic(elements, level, features - {"avx512bf16"})
    return tiles(elements, level, features) or arithmetic(elements, level, features)


def gemm(
    b: Builder,
    m: int | str,
    n: int,
    k: int,
    a: Matrix,
    w: Matrix,
    c: Matrix,
    *,
    level: str,
    features: frozenset[str] = frozenset(),
    scratch: str,
) -> None:
    """Write ``C[m, n] += A[m, k] @ W[k, n]``.

    C is float for float, half and bfloat operands (float by half and float by bfloat among them), double for
    double, i32 (wrapping) for i8. It is read before and written after the loop over k, so a caller may add one
    product per block of k. A, W, C and the scratch do not overlap. Sums run along k in order, one fused multiply-add
    a step; where a block holds fewer than eight vectors of C they are split into interleaved partial sums, added
    pairwise at the end.

    Args:
        b: The function being written.
        m: Rows: an int, or an i64 operand for a count known at run time.
        n: Columns of W and C.
        k: Columns of A, rows of W.
        a: Read in place, or copied once when its elements are not those that are multiplied.
        w: Read in place when its rows are short or m is small, else copied to scratch strip by strip.
        c: The sums.
        level: "x86-64-v3", "x86-64-v4" or "aarch64-neon".
        features: LLVM's names of what the processor has beyond the level. All are used: none is detected.
        scratch: ptr operand, aligned to 64 bytes, of :func:`scratch_nbytes` bytes.

    Raises:
        UnsupportedError: When no arithmetic covers the elements at ``level``.
        ArgumentError: When an extent is not positive, or C has another element than the sums.
    """
    _check_extents(1 if isinstance(m, str) else m, n, k)
    how = arithmetic_of(m, (a.element, w.element), level, features)
    if c.element != how.sum:
        raise ArgumentError(
            f"gemm: C holds the sums of {a.element} by {w.element}. Got {c.element}. {how.sum} is accepted."
        )
    if w.depth not in (1, how.depth):
        raise ArgumentError(
            f"gemm: rows of W are interleaved as they are multiplied. Got {w.depth}. 1 or {how.depth} are accepted."
        )
    rows = _rows(b, how, m, k, a, c, at(b, scratch, "i8", str(_copied_nbytes(how, n, k))))

    def strip(column: str, width: int) -> list[str]:
        there = offset(b, (column, str(w.depth)))
        source = replace(w, pointer=at(b, w.pointer, w.element, there))
        following = replace(w, pointer=at(b, w.pointer, w.element, _following(b, n, k, w, column, width)))
        part = Strip(width, source, following)
        if how.padded > 1 and (w.depth != how.depth or k % (how.depth * how.padded)):
            part = replace(part, w=copy_strip(b, how, k, source, width, scratch))
        elif _copies_w(how, m, width, rows.a, w):
            if isinstance(m, str):
                part = replace(part, w=copy_strip(b, how, k, source, width, scratch))
            else:
                part = replace(part, copy=strip_copy(how, width, scratch))
        beside = replace(rows, c=replace(c, pointer=at(b, c.pointer, c.element, column)))
        if how.padded > 1:
            multiply_tiles(b, how, m, k, beside, part, at(b, scratch, "i8", str(_strip_nbytes(how, n, k))))
        else:
            multiply_rows(b, how, m, k, beside, part)
        return []

    _each_strip(b, n, _widths(how, n), strip)


def _rows(b: Builder, how: Arithmetic, m: int | str, k: int, a: Matrix, c: Matrix, scratch: str) -> Rows:
    """Return the rows as they are multiplied, copied to ``scratch`` where they must be."""
    excess = ""
    if how.w == "u8":
        kept = copied_row_nbytes(how, k) if _copies_a(how, k, a.element) else 0
        excess = at(b, scratch, "i8", offset(b, (str(m), str(kept))))
        excess_rows(b, m, k, a, excess)
    if _copies_a(how, k, a.element):
        a = copy_rows(b, how, m, k, a, scratch)
    return Rows(a, c, excess)


def _each_strip(b: Builder, n: int, widths: list[int], write: Callable[[str, int], list[str]]) -> None:
    """Write all strips: loops over those of one width, the last cut off at ``n`` columns."""
    column = 0
    for width in dict.fromkeys(widths):
        whole = widths.count(width) - (width == widths[-1] and sum(widths) > n)
        if whole > 1:
            end = column + whole * width
            b.loop(str(column), str(end), str(width), lambda i, _, width=width: write(i, width))
            column = end
        elif whole:
            write(str(column), width)
            column += width
    if column < n:
        write(str(column), n - column)


def _widths(how: Arithmetic, n: int) -> list[int]:
    if how.padded > 1:
        return [STRIP_WIDTH] * -(-n // STRIP_WIDTH)
    return [vectors * how.lanes for vectors in strip_vectors(how, n)]


def _check_extents(m: int, n: int, k: int) -> None:
    if min(m, n, k) < 1:
        raise ArgumentError(f"gemm: extents are positive. Got m={m}, n={n}, k={k}. 1 and more are accepted.")


def _strip_nbytes(how: Arithmetic, n: int, k: int) -> int:
    widest = min(max(_widths(how, n)), -(-n // how.lanes) * how.lanes)
    return how.steps(k) * widest * how.depth * NBYTES[how.w]


def _copied_nbytes(how: Arithmetic, n: int, k: int) -> int:
    return _strip_nbytes(how, n, k) + (SHAPE_NBYTES if how.padded > 1 else 0)


def _nbytes_of_row(how: Arithmetic, k: int, element: str) -> int:
    copied = copied_row_nbytes(how, k) if _copies_a(how, k, element) else 0
    return copied + (NBYTES["i32"] if how.w == "u8" else 0)


def _following(b: Builder, n: int, k: int, w: Matrix, column: str, width: int) -> str:
    """Return the offset in W of the strip that is read after the one at ``column``.

    It is the one to the right, and after the last of them the first of the next block of k (in a packed panel also the
    next panel).
    """
    next_column = offset(b, (column, "1"), ("1", str(width)))
    right, below = offset(b, (next_column, str(w.depth))), offset(b, (str(k // w.depth), w.row))
    if next_column.isdigit():
        return right if int(next_column) < n else below
    inside = b.pure(f"icmp slt i64 {next_column}, {n}")
    return b.pure(f"select i1 {inside}, i64 {right}, i64 {below}")


def _copies_a(how: Arithmetic, k: int, element: str) -> bool:
    return element != how.a or k % (how.depth * how.padded) != 0


def _copies_w(how: Arithmetic, m: int | str, width: int, a: Matrix, w: Matrix) -> bool:
    if how.padded > 1 or (isinstance(m, int) and len(row_blocks(how, m, width, a)) == 1):
        return False
    if w.element != how.w or w.depth != how.depth or not w.row.isdigit():
        return True
    return int(w.row) * NBYTES[w.element] > _NARROW_ROW_NBYTES
