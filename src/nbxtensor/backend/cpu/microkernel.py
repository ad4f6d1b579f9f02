"""Register-blocked matrix products, written as LLVM IR."""

from __future__ import annotations

from dataclasses import replace

from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.microkernel_arithmetic import NBYTES, Arithmetic, Matrix, arithmetic, at, offset
from nbxtensor.backend.cpu.microkernel_blocks import Strip, multiply_rows, row_blocks, strip_vectors
from nbxtensor.backend.cpu.microkernel_copies import (
    copied_row_nbytes,
    copied_strip_nbytes,
    copy_rows,
    copy_strip,
)
from nbxtensor.errors import ArgumentError

__all__ = ["Matrix", "gemm", "scratch_nbytes"]

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
        level: "x86-64-v3" or "x86-64-v4".
        features: LLVM's names of what the processor has beyond the level.

    Raises:
        UnsupportedError: When no arithmetic covers ``elements`` at ``level``.
        ArgumentError: When an extent is not positive.

    >>> scratch_nbytes(128, 128, 256, ("float", "float"), "x86-64-v4")
    65536
    """
    _check_extents(m, n, k)
    how = arithmetic(elements, level, features)
    return _strip_nbytes(how, n, k) + (m * copied_row_nbytes(how, k) if _copies_a(how, k, elements[0]) else 0)


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
        level: "x86-64-v3" or "x86-64-v4".
        features: LLVM's names of what the processor has beyond the level. All are used: none is detected.
        scratch: ptr operand, aligned to 64 bytes, of :func:`scratch_nbytes` bytes.

    Raises:
        UnsupportedError: When no arithmetic covers the elements at ``level``.
        ArgumentError: When an extent is not positive, or C has another element than the sums.
    """
    _check_extents(1 if isinstance(m, str) else m, n, k)
    how = arithmetic((a.element, w.element), level, features)
    if c.element != how.sum:
        raise ArgumentError(
            f"gemm: C holds the sums of {a.element} by {w.element}. Got {c.element}. {how.sum} is accepted."
        )
    if _copies_a(how, k, a.element):
        a = copy_rows(b, how, m, k, a, at(b, scratch, "i8", str(_strip_nbytes(how, n, k))))

    def strip(column: str, width: int) -> list[str]:
        copies = _copies_w(how, m, width, w)
        source = replace(w, pointer=at(b, w.pointer, w.element, column))
        part = Strip(
            width, source, replace(w, pointer=at(b, w.pointer, w.element, _following(b, n, k, w, column, width)))
        )
        if copies and (how.depth > 1 or isinstance(m, str)):
            part = replace(part, w=copy_strip(b, how, k, source, width, scratch))
        elif copies:
            part = replace(part, copy=Matrix(scratch, str(-(-width // how.lanes) * how.lanes), how.w))
        multiply_rows(b, how, m, k, a, part, replace(c, pointer=at(b, c.pointer, c.element, column)))
        return []

    column = 0
    widths = [vectors * how.lanes for vectors in strip_vectors(how, n)]
    for width in dict.fromkeys(widths):
        whole = widths.count(width) - (width == widths[-1] and sum(widths) > n)
        if whole > 1:
            end = column + whole * width
            b.loop(str(column), str(end), str(width), lambda i, _, width=width: strip(i, width))
            column = end
        elif whole:
            strip(str(column), width)
            column += width
    if column < n:
        strip(str(column), n - column)


def _check_extents(m: int, n: int, k: int) -> None:
    if min(m, n, k) < 1:
        raise ArgumentError(f"gemm: extents are positive. Got m={m}, n={n}, k={k}. 1 and more are accepted.")


def _strip_nbytes(how: Arithmetic, n: int, k: int) -> int:
    return copied_strip_nbytes(how, k, max(strip_vectors(how, n)))


def _following(b: Builder, n: int, k: int, w: Matrix, column: str, width: int) -> str:
    """Return the offset of the strip that is read after the one at ``column``.

    It is the one to the right, and after the last of them the first of the next block of k (in a packed panel also the
    next panel).
    """
    right, below = offset(b, (column, "1"), ("1", str(width))), offset(b, (str(k), w.row))
    if right.isdigit():
        return right if int(right) < n else below
    inside = b.pure(f"icmp slt i64 {right}, {n}")
    return b.pure(f"select i1 {inside}, i64 {right}, i64 {below}")


def _copies_a(how: Arithmetic, k: int, element: str) -> bool:
    return element != how.a or k % how.depth != 0


def _copies_w(how: Arithmetic, m: int | str, width: int, w: Matrix) -> bool:
    if how.depth > 1:
        return True
    if isinstance(m, int) and len(row_blocks(how, m, width)) == 1:
        return False
    return w.element != how.w or not w.row.isdigit() or int(w.row) * NBYTES[w.element] > _NARROW_ROW_NBYTES
