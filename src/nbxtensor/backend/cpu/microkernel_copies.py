"""Copies of a product's operands in the layout that its inner loop reads."""

from __future__ import annotations

from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.microkernel_arithmetic import (
    NBYTES,
    Arithmetic,
    Matrix,
    at,
    convert,
    load,
    multiply,
    offset,
    store,
)

__all__ = ["copied_row_nbytes", "copied_strip_nbytes", "copy_rows", "copy_strip", "excess_of"]

_ALIGNMENT = 64
_EXCESS = 128  # what "u8" has more than the i8 it stands for


def copied_row_nbytes(how: Arithmetic, k: int) -> int:
    """Return the bytes between rows of a copied A: whole groups, whole cache lines."""
    return _aligned(how.steps(k) * how.depth * NBYTES[how.a])


def copied_strip_nbytes(how: Arithmetic, k: int, vectors: int) -> int:
    """Return the bytes of a copied strip of W of ``vectors`` vectors, with column sums where needed."""
    sums = vectors * how.lanes * NBYTES[how.sum] if how.a == "u8" else 0
    return how.steps(k) * vectors * how.lanes * how.depth * NBYTES[how.w] + sums


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def copy_rows(b: Builder, how: Arithmetic, m: int | str, k: int, a: Matrix, target: str) -> Matrix:
    """Write ``target[i, 0:k] = convert(A[i, 0:k])`` for m rows, zeros up to whole groups; return the copy."""
    row = copied_row_nbytes(how, k) // NBYTES[how.a]
    lanes = 32

    def piece(i: str, column: str, width: int) -> None:
        lanes = 0 if width == 1 else width
        value = load(b, at(b, a.pointer, a.element, offset(b, (i, a.row), (column, "1"))), a.element, lanes, lanes)
        value = convert(b, value, lanes, a.element, how.a)
        store(b, value, at(b, target, how.a, offset(b, (i, str(row)), (column, "1"))), how.a, lanes, lanes)

    def one_row(i: str, _: list[str]) -> list[str]:
        def turn(column: str, _: list[str]) -> list[str]:
            piece(i, column, lanes)
            return []

        done = k // lanes * lanes
        if done:
            b.loop("0", str(done), str(lanes), turn)
        while done < k:
            width = 1 << ((k - done).bit_length() - 1)
            piece(i, str(done), width)
            done += width
        for column in range(k, how.steps(k) * how.depth):
            zero = "0" if how.a in ("i16", "u8") else "zeroinitializer"
            store(b, zero, at(b, target, how.a, offset(b, (i, str(row)), (str(column), "1"))), how.a, 0, 0)
        return []

    b.loop("0", str(m), "1", one_row)
    return Matrix(target, str(row), how.a)


def copy_strip(b: Builder, how: Arithmetic, k: int, w: Matrix, width: int, target: str) -> Matrix:
    """Write the first ``width`` columns of W to ``target`` as [steps][columns][depth], zeros where it has none.

    Returns the copy, one row per step. For "u8" by i8 the vectors of -128 times the column sums follow it.
    """
    vectors = -(-width // how.lanes)
    row = vectors * how.lanes * how.depth

    def step(index: str, rows: int) -> list[str]:
        written: list[str] = []
        for j in range(vectors):
            used = min(how.lanes, width - j * how.lanes)
            parts = [
                convert(
                    b,
                    load(
                        b,
                        at(b, w.pointer, w.element, offset(b, (r, w.row), ("1", str(j * how.lanes)))),
                        w.element,
                        how.lanes,
                        used,
                    ),
                    how.lanes,
                    w.element,
                    how.w,
                )
                for r in (offset(b, (index, str(how.depth)), ("1", str(d))) for d in range(rows))
            ]
            group = parts[0] if how.depth == 1 else _interleaved(b, how, parts)
            kind, size = (how.w, how.lanes) if how.depth == 1 else ("i32", how.lanes)
            place = at(b, target, how.w, offset(b, (index, str(row)), ("1", str(j * how.lanes * how.depth))))
            store(b, group, place, kind, size, size)
            written.append(group)
        return written

    sums = ["zeroinitializer"] * vectors if how.a == "u8" else []

    def counted(index: str, sums: list[str], rows: int) -> list[str]:
        groups = step(index, rows)
        ones = b.splat("16843009", "i32", how.lanes)  # 1 in each byte
        kind = f"<{how.lanes * 4} x i8>"
        return [
            multiply(b, how, total, ones, b.op(f"bitcast <{how.lanes} x i32> {group} to {kind}"))
            for total, group in zip(sums, groups, strict=False)
        ]

    whole = k // how.depth
    if whole:
        sums = b.loop(
            "0",
            str(whole),
            "1",
            lambda i, s: counted(i, s, how.depth),
            [(f"<{how.lanes} x i32>", s) for s in sums],
        )
    if k % how.depth:
        sums = counted(str(whole), sums, k % how.depth)
    for j, total in enumerate(sums):
        scaled = b.op(f"mul <{how.lanes} x i32> {total}, {b.splat(str(-_EXCESS), 'i32', how.lanes)}")
        store(
            b,
            scaled,
            at(b, target, "i8", str(how.steps(k) * row + j * how.lanes * 4)),
            "i32",
            how.lanes,
            how.lanes,
        )
    return Matrix(target, str(row), how.w)


def excess_of(b: Builder, how: Arithmetic, k: int, strip: Matrix, vector: int) -> str:
    """Write the load of what a vector of sums starts from to undo the 128 that "u8" adds to A."""
    place = at(b, strip.pointer, "i8", str(how.steps(k) * int(strip.row) + vector * how.lanes * 4))
    return load(b, place, "i32", how.lanes, how.lanes)


def _interleaved(b: Builder, how: Arithmetic, parts: list[str]) -> str:
    bits = NBYTES[how.w] * 8
    group = ""
    for d, part in enumerate(parts):
        raw = b.op(f"bitcast <{how.lanes} x {how.w}> {part} to <{how.lanes} x i{bits}>")
        wide = b.op(f"zext <{how.lanes} x i{bits}> {raw} to <{how.lanes} x i32>")
        if d:
            wide = b.op(f"shl <{how.lanes} x i32> {wide}, {b.splat(str(d * bits), 'i32', how.lanes)}")
        group = b.op(f"or <{how.lanes} x i32> {group}, {wide}") if group else wide
    return group
