"""Operands of a product in the layout that its inner loop reads, in registers or copied to memory."""

from __future__ import annotations

from collections.abc import Callable

from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.microkernel_arithmetic import (
    NBYTES,
    Arithmetic,
    Matrix,
    at,
    convert,
    load,
    offset,
    store,
)

__all__ = [
    "copied_row_nbytes",
    "copy_rows",
    "copy_strip",
    "excess_rows",
    "factor",
    "group_of_rows",
    "store_factor",
    "strip_copy",
]

_ALIGNMENT = 64
_EXCESS = 128  # what "u8" has more than the i8 it stands for


def copied_row_nbytes(how: Arithmetic, k: int) -> int:
    """Return the bytes between rows of a copied A: whole groups, whole cache lines."""
    return -(-how.steps(k) * how.depth * NBYTES[how.a] // _ALIGNMENT) * _ALIGNMENT


def copy_rows(b: Builder, how: Arithmetic, m: int | str, k: int, a: Matrix, target: str) -> Matrix:
    """Write ``target[i, 0:k] = A[i, 0:k]`` as the elements that are multiplied, zeros up to whole groups.

    Returns the copy.
    """
    row = copied_row_nbytes(how, k) // NBYTES[how.a]

    def piece(i: str, column: str, width: int) -> None:
        lanes = 0 if width == 1 else width
        value = load(b, at(b, a.pointer, a.element, offset(b, (i, a.row), (column, "1"))), a.element, lanes, lanes)
        place = at(b, target, how.a, offset(b, (i, str(row)), (column, "1")))
        store(b, convert(b, value, lanes, a.element, how.a), place, how.a, lanes, lanes)

    def one_row(i: str, _: list[str]) -> list[str]:
        pieces(b, k, lambda column, width: piece(i, column, width))
        for column in range(k, how.steps(k) * how.depth):
            place = at(b, target, how.a, offset(b, (i, str(row)), (str(column), "1")))
            store(b, "0" if how.a[0] == "i" else "zeroinitializer", place, how.a, 0, 0)
        return []

    b.loop("0", str(m), "1", one_row)
    return Matrix(target, str(row), how.a)


def pieces(b: Builder, k: int, write: Callable[[str, int], None], lanes: int = 32) -> None:
    """Write something for all of ``k`` columns: in vectors of ``lanes``, then in halves of them."""
    whole = k // lanes * lanes

    def turn(column: str, _: list[str]) -> list[str]:
        write(column, lanes)
        return []

    if whole:
        b.loop("0", str(whole), str(lanes), turn)
    while whole < k:
        width = 1 << ((k - whole).bit_length() - 1)
        write(str(whole), width)
        whole += width


def excess_rows(b: Builder, m: int | str, k: int, a: Matrix, target: str) -> None:
    """Write ``target[i] = -128 * sum(A[i, 0:k])`` as i32: what undoes the 128 that "u8" adds to every element of W."""

    def one_row(i: str, _: list[str]) -> list[str]:
        lanes = 16
        whole = k // lanes * lanes

        def part(column: str, width: int) -> str:
            value = load(b, at(b, a.pointer, "i8", offset(b, (i, a.row), (column, "1"))), "i8", width, width)
            return convert(b, value, width, "i8", "i32")

        def turn(column: str, sums: list[str]) -> list[str]:
            return [b.op(f"add <{lanes} x i32> {sums[0]}, {part(column, lanes)}")]

        kind = f"<{lanes} x i32>"
        sums = "zeroinitializer"
        if whole:
            (sums,) = b.loop("0", str(whole), str(lanes), turn, [(kind, sums)])
        total = b.call("i32", f"llvm.vector.reduce.add.v{lanes}i32", [(kind, sums)])
        for column in range(whole, k):
            total = b.op(f"add i32 {total}, {part(str(column), 0)}")
        b.do(f"store i32 {b.op(f'mul i32 {total}, {-_EXCESS}')}, ptr {at(b, target, 'i32', i)}, align 4")
        return []

    b.loop("0", str(m), "1", one_row)


def strip_copy(how: Arithmetic, width: int, target: str) -> Matrix:
    """Return how ``width`` columns of W lie when they are copied: [steps][columns][depth], whole vectors."""
    return Matrix(target, str(-(-width // how.lanes) * how.lanes * how.depth), how.w, how.depth)


def copy_strip(b: Builder, how: Arithmetic, k: int, w: Matrix, width: int, target: str) -> Matrix:
    """Write the first ``width`` columns of W as :func:`strip_copy` says, zeros where W has none; return the copy."""
    copy = strip_copy(how, width, target)
    vectors = -(-width // how.lanes)

    def step(index: str, rows: int) -> list[str]:
        line = group_of_rows(b, how, w, index)
        place = group_of_rows(b, how, copy, index)
        for j in range(vectors):
            used = min(how.lanes, width - j * how.lanes)
            value = factor(b, how, w, line, j, used=used, rows=rows) if rows else "zeroinitializer"
            store_factor(b, how, value, place, j)
        return []

    whole = k // how.depth
    if whole:
        b.loop("0", str(whole), "1", lambda index, _: step(index, how.depth))
    if k % how.depth:
        step(str(whole), k % how.depth)
    filled = -(-k // how.depth)
    if how.steps(k) > filled:
        b.loop(str(filled), str(how.steps(k)), "1", lambda index, _: step(index, 0))
    return copy


def group_of_rows(b: Builder, how: Arithmetic, w: Matrix, index: str, beyond: int = 0) -> str:
    """Return the address of the rows of W that meet group ``index + beyond`` of A."""
    rows = offset(b, (str(how.depth // w.depth), w.row))
    start = at(b, w.pointer, w.element, offset(b, (index, rows)))
    if rows.isdigit():
        return at(b, start, w.element, offset(b, (str(beyond), rows)))
    for _ in range(beyond):  # from one to the next: multiples of the stride would take a register each
        start = at(b, start, w.element, rows)
    return start


def factor(b: Builder, how: Arithmetic, w: Matrix, line: str, j: int, *, used: int, rows: int) -> str:
    """Write the ``j``-th vector of W that meets a group of A: ``used`` columns of ``rows`` rows from ``line`` on.

    Columns and rows that W has not are zero.
    """
    size = how.lanes * how.depth
    if w.depth == how.depth:
        value = load(b, at(b, line, w.element, str(j * size)), w.element, size, used * how.depth)
        return convert(b, value, size, w.element, how.w)
    bits = NBYTES[how.w] * 8
    groups = f"<{how.lanes} x i32>"
    value = ""
    for d in range(rows):
        place = at(b, line, w.element, offset(b, (str(d), w.row), (str(j * how.lanes), "1")))
        part = load(b, place, w.element, how.lanes, used)
        if how.w == "i16":
            part = convert(b, part, how.lanes, w.element, how.w)
        raw = b.op(f"bitcast <{how.lanes} x {'i8' if how.w == 'u8' else how.w}> {part} to <{how.lanes} x i{bits}>")
        wide = b.op(f"zext <{how.lanes} x i{bits}> {raw} to {groups}")
        if d:
            wide = b.op(f"shl {groups} {wide}, {b.splat(str(d * bits), 'i32', how.lanes)}")
        value = b.op(f"or {groups} {value}, {wide}") if value else wide
    factors = f"<{size} x {'i8' if how.w == 'u8' else how.w}>"
    value = b.op(f"bitcast {groups} {value} to {factors}")
    return convert(b, value, size, "i8", "u8") if how.w == "u8" else value


def store_factor(b: Builder, how: Arithmetic, value: str, place: str, j: int) -> None:
    """Write a vector of W into a group of rows of a copy."""
    size = how.lanes * how.depth
    store(b, value, at(b, place, how.w, str(j * size)), how.w, size, size)
