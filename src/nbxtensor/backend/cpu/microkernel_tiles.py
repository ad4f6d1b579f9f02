"""Matrix products on a tile unit: 16 by 16 sums in one register."""

from __future__ import annotations

from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.microkernel_arithmetic import NBYTES, Arithmetic, Matrix, at, offset
from nbxtensor.backend.cpu.microkernel_blocks import Rows, Strip, lines_of_following, prefetch
from nbxtensor.backend.cpu.microkernel_copies import group_of_rows

__all__ = ["SHAPE_NBYTES", "STRIP_WIDTH", "multiply_tiles"]

STRIP_WIDTH = 64
SHAPE_NBYTES = 64  # of scratch: what ldtilecfg reads
_TILE = 16  # rows of a tile, and columns of its sums
_ROW_NBYTES = 64
# Tile registers: four of sums, two of A, two of W. Intel SDM volume 1, chapter 18.
_SUMS, _A, _W = (0, 1, 2, 3), (4, 5), (6, 7)
_FEWEST_SHARING_BLOCKS = 2


def multiply_tiles(b: Builder, how: Arithmetic, m: int | str, k: int, rows: Rows, strip: Strip, scratch: str) -> None:
    """Write the product of ``m`` rows of A by a strip of columns of W into the columns of C beside it.

    Rows of A are padded to whole groups of :attr:`Arithmetic.padded`, and W is a padded copy or packed like one.
    """
    pair = 2 * _TILE
    whole = str(m // pair * pair) if isinstance(m, int) else b.pure(f"and i64 {m}, {-pair}")
    halves = -(-strip.width // pair)
    count = int(whole) // pair if isinstance(m, int) else 0

    def half(column: int) -> None:
        width = min(pair, strip.width - column)

        def full(i: str, _: list[str]) -> list[str]:
            ahead: list[str] = []
            if count * halves >= _FEWEST_SHARING_BLOCKS:
                number = offset(b, (b.pure(f"sdiv i64 {i}, {pair}"), "1"), (str(column // pair), str(count)))
                w = strip.following
                ahead = lines_of_following(b, how, w, strip.width, number, count * halves, _TILE)
            _block(b, how, k, rows.starting(b, i), strip, column, width, 2, ahead)
            return []

        def rest(i: str, _: list[str]) -> list[str]:
            left = offset(b, (str(m), "1"), ("-1", i))
            few = b.pure(f"icmp slt i64 {left}, {_TILE}")
            used = b.pure(f"select i1 {few}, i64 {left}, i64 {_TILE}")
            _configure(b, [used], width, scratch)
            _block(b, how, k, rows.starting(b, i), strip, column, width, 1, [])
            return []

        if whole != "0":
            _configure(b, [str(_TILE)] * 2, width, scratch)
            b.loop("0", whole, str(pair), full)
        if whole != str(m):
            b.loop(whole, str(m), str(_TILE), rest)

    for column in range(0, strip.width, pair):
        half(column)
    b.call("void", "llvm.x86.tilerelease", [])


def _configure(b: Builder, rows: list[str], width: int, scratch: str) -> None:
    """Write the shapes of all tile registers: ``rows`` of each tile of A, ``width`` columns of sums in one or two."""
    b.do(f"store <64 x i8> zeroinitializer, ptr {scratch}, align 64")
    b.do(f"store i8 1, ptr {scratch}, align 64")  # palette 1

    def shape(tile: int, row: str, nbytes: int) -> None:
        b.do(f"store i16 {nbytes}, ptr {at(b, scratch, 'i8', str(16 + 2 * tile))}, align 2")
        count = row if row.isdigit() else b.op(f"trunc i64 {row} to i8")
        b.do(f"store i8 {count}, ptr {at(b, scratch, 'i8', str(48 + tile))}, align 1")

    columns = [min(_TILE, width), width - _TILE]
    for j in range(2 if width > _TILE else 1):
        shape(_W[j], str(_TILE), columns[j] * 4)
        for i, row in enumerate(rows):
            shape(_SUMS[2 * i + j], row, columns[j] * 4)
    for i, row in enumerate(rows):
        shape(_A[i], row, _ROW_NBYTES)
    b.call("void", "llvm.x86.ldtilecfg", [("ptr", scratch)])


def _block(
    b: Builder,
    how: Arithmetic,
    k: int,
    rows: Rows,
    strip: Strip,
    column: int,
    width: int,
    tiles: int,
    ahead: list[str],
) -> None:
    """Write one or two tiles of rows by one or two tiles of columns."""
    cells = [(i, j) for j in range(2 if width > _TILE else 1) for i in range(tiles)]

    def stride(x: Matrix) -> str:
        return offset(b, (x.row, str(NBYTES[x.element])))

    def call(name: str, tile: int, place: str, step: str) -> None:
        b.call("void", f"llvm.x86.{name}64", [("i8", str(tile)), ("ptr", place), ("i64", step)])

    sums = {
        (i, j): at(b, rows.starting(b, str(i * _TILE)).c.pointer, how.sum, str(column + j * _TILE)) for i, j in cells
    }
    for i, j in cells:
        call("tileloadd", _SUMS[2 * i + j], sums[i, j], stride(rows.c))
    starts = [rows.starting(b, str(i * _TILE)).a for i in range(tiles)]

    def turn(index: str, _: list[str]) -> list[str]:
        prefetch(b, how, strip.following, ahead, index)
        line = group_of_rows(b, how, strip.w, index)
        loaded: set[int] = set()
        for i, j in cells:
            if _W[j] not in loaded:
                place = at(b, line, strip.w.element, str((column + j * _TILE) * how.depth))
                call("tileloadd", _W[j], place, stride(strip.w))
            if _A[i] not in loaded:
                place = at(b, starts[i].pointer, how.a, offset(b, (index, str(how.depth))))
                call("tileloadd", _A[i], place, stride(starts[i]))
            loaded |= {_W[j], _A[i]}
            b.call("void", how.instruction, [("i8", str(x)) for x in (_SUMS[2 * i + j], _A[i], _W[j])])
        return []

    b.loop("0", str(how.steps(k)), str(_TILE), turn)
    for i, j in cells:
        call("tilestored", _SUMS[2 * i + j], sums[i, j], stride(rows.c))
