"""The inner loops of a matrix product: how rows and columns are split into register blocks, and one block."""

from __future__ import annotations

from nbxtensor.backend.cpu.ir import Builder, vector_type
from nbxtensor.backend.cpu.microkernel_arithmetic import (
    NBYTES,
    Arithmetic,
    Matrix,
    add,
    at,
    convert,
    load,
    multiply,
    offset,
    store,
)
from nbxtensor.backend.cpu.microkernel_copies import excess_of

__all__ = ["STREAMED_ROWS", "multiply_rows", "strip_vectors"]

STREAMED_ROWS = 8  # up to here W is read once: every row of A is in the block
_LINE_NBYTES = 64
_FEWEST_PREFETCHING_BLOCKS = 3  # with fewer, prefetches would crowd out the loads that are waited for
_UNROLL = 4  # steps of k in one turn of the inner loop
_FEWEST_SUMS = 8  # latency of a multiply-add times the units that do it
# Rows of a block by the vectors of W beside it: the sums, those vectors and a group of A fit the registers.
_ROWS = {32: {1: 14, 2: 12, 3: 8, 4: 6}, 16: {1: 8, 2: 6}}
_STREAMED_SUMS = {32: 24, 16: 12}


def strip_vectors(how: Arithmetic, m: int | str, n: int) -> list[int]:
    """Return the vectors of W in each strip of columns that a product walks: equal ones first, none tiny."""
    vectors = -(-n // how.lanes)
    widest = max(_ROWS[how.registers])
    if isinstance(m, int) and m <= STREAMED_ROWS:
        widest = min(2 * widest, _STREAMED_SUMS[how.registers] // m)
    count = -(-vectors // widest)
    low, more = divmod(vectors, count)
    return [low + 1] * more + [low] * (count - more)


def multiply_rows(
    b: Builder, how: Arithmetic, m: int | str, k: int, a: Matrix, w: Matrix, c: Matrix, width: int, following: Matrix
) -> None:
    """Write the product of all rows of A by a strip of ``width`` columns of W into C.

    The strip of W that is read after this one is expected at ``following`` and brought to the second-level cache
    meanwhile, a few lines at each turn of the inner loop. Nothing depends on what is there.
    """
    vectors = -(-width // how.lanes)
    most = _ROWS[how.registers].get(vectors, STREAMED_ROWS)
    if isinstance(m, int) and m <= STREAMED_ROWS:
        most = max(most, m)

    line = _LINE_NBYTES // NBYTES[following.element]
    lines = -(-width // line)
    slots = _UNROLL * how.depth * lines  # lines of W that one turn of the inner loop uses up
    count = -(-m // most) if isinstance(m, int) else slots

    def run(low: str, high: str, rows: int, first: int = 0) -> None:
        def turn(i: str, _: list[str]) -> list[str]:
            ahead: list[Matrix] = []
            if count >= _FEWEST_PREFETCHING_BLOCKS:
                number = offset(b, (b.pure(f"sdiv i64 {offset(b, (i, '1'), ('-1', low))}, {rows}"), "1"), (str(first), "1"))
                per = -(-slots // count)
                for q in range(per):
                    slot = offset(b, (number, str(per)), (str(q), "1"))
                    place = offset(
                        b,
                        (b.pure(f"sdiv i64 {slot}, {lines}"), following.row),
                        (b.pure(f"srem i64 {slot}, {lines}"), str(line)),
                    )
                    ahead.append(Matrix(at(b, following.pointer, following.element, place), following.row, following.element))
            _block(b, how, rows, k, _from_row(b, a, i), w, _from_row(b, c, i), width, ahead)
            return []

        if low.isdigit() and high.isdigit() and int(high) - int(low) == rows:
            turn(low, [])
        else:
            b.loop(low, high, str(rows), turn)

    if isinstance(m, int):
        rows, more = divmod(m, count)
        if more:
            run("0", str(more * (rows + 1)), rows + 1)
        run(str(more * (rows + 1)), str(m), rows, more)
        return
    done = "0"
    for rows in dict.fromkeys((most, -(-most // 3), 1)):
        left = b.pure(f"sub nsw i64 {m}, {done}")
        end = offset(b, (done, "1"), (b.pure(f"sub nsw i64 {left}, {b.pure(f'srem i64 {left}, {rows}')}"), "1"))
        run(done, end, rows)
        done = end


def _from_row(b: Builder, x: Matrix, i: str) -> Matrix:
    return Matrix(at(b, x.pointer, x.element, offset(b, (i, x.row))), x.row, x.element)


def _block(b: Builder, how: Arithmetic, rows: int, k: int, a: Matrix, w: Matrix, c: Matrix, width: int, ahead: list[Matrix]) -> None:
    """Write ``rows`` rows of C by ``width`` columns: its sums stay in registers through the loop over k."""
    vectors = -(-width // how.lanes)
    used = [min(how.lanes, width - j * how.lanes) for j in range(vectors)]
    kind = vector_type(how.sum, how.lanes)
    cells = [(i, j) for i in range(rows) for j in range(vectors)]
    if rows < vectors:  # a vector of W is used up before the next is loaded
        cells.sort(key=lambda cell: cell[1])
    splits = 1
    while len(cells) * splits < _FEWEST_SUMS:
        splits *= 2
    starts = [_from_row(b, a, str(i)).pointer for i in range(rows)]
    places = {
        (i, j): at(b, _from_row(b, c, str(i)).pointer, how.sum, str(j * how.lanes))
        for i in range(rows)
        for j in range(vectors)
    }
    sums = [load(b, places[i, j], how.sum, how.lanes, used[j]) for i, j in cells]
    if how.a == "u8":
        excess = [excess_of(b, how, k, w, j) for j in range(vectors)]
        sums = [add(b, how.sum, how.lanes, total, excess[j]) for total, (_, j) in zip(sums, cells, strict=True)]
    sums += ["zeroinitializer"] * (len(cells) * (splits - 1))

    def step(index: str, ahead: int, sums: list[str]) -> None:
        line = at(b, w.pointer, w.element, offset(b, (index, w.row)))
        if ahead:
            line = at(b, line, w.element, offset(b, (str(ahead), w.row)))
        factors: dict[int, str] = {}
        groups: dict[int, str] = {}
        for cell, (i, j) in enumerate(cells):
            if i not in groups:
                first = at(
                    b,
                    at(b, starts[i], how.a, offset(b, (index, str(how.depth)))),
                    how.a,
                    str(ahead * how.depth),
                )
                groups[i] = b.splat(b.op(f"load {how.group}, ptr {first}, align {NBYTES[how.a]}"), how.group, how.lanes)
            if j not in factors:
                size = how.lanes * how.depth
                place = at(b, line, w.element, str(j * size))
                factors[j] = convert(
                    b,
                    load(b, place, w.element, size, used[j] if w.element != how.w or how.depth == 1 else size),
                    size,
                    w.element,
                    how.w,
                )
            slot = cell + len(cells) * (ahead % splits)
            sums[slot] = multiply(b, how, sums[slot], groups[i], factors[j])

    def turn(index: str, sums: list[str]) -> list[str]:
        sums = list(sums)
        for x in ahead:
            place = at(b, x.pointer, x.element, offset(b, (offset(b, (index, str(how.depth))), x.row)))
            b.call("void", "llvm.prefetch.p0", [("ptr", place), ("i32", "0"), ("i32", "2"), ("i32", "1")])
        for u in range(unroll):
            step(index, u, sums)
        return sums

    unroll = max(_UNROLL, splits)
    steps = how.steps(k)
    whole = steps - steps % unroll
    if whole:
        sums = b.loop("0", str(whole), str(unroll), turn, [(kind, total) for total in sums])
    for ahead in range(steps - whole):
        step(str(whole), ahead, sums)
    while splits > 1:
        splits //= 2
        half = len(cells) * splits
        sums = [add(b, how.sum, how.lanes, x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
    for total, (i, j) in zip(sums, cells, strict=True):
        store(b, total, places[i, j], how.sum, how.lanes, used[j])
