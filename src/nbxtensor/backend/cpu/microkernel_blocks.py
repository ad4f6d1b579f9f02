"""The inner loops of a matrix product: how rows and columns are split into register blocks, and one block."""

from __future__ import annotations

from dataclasses import dataclass, replace

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

__all__ = ["Strip", "multiply_rows", "row_blocks", "strip_vectors"]

_UNROLL = 4  # steps of k in one turn of the inner loop
_FEWEST_SUMS = 8  # latency of a multiply-add times the units that do it
_LINE_NBYTES = 64
_SHARED_NBYTES = 262144  # a strip up to this long is brought to the cache while the one before it is multiplied
_DISTANCE_NBYTES = 16384  # how far it runs ahead: bandwidth of memory times its latency, several times over
# Rows of a block by the vectors of W beside it: the sums, those vectors and a group of A fit the registers.
_ROWS = {32: {1: 14, 2: 12, 3: 8, 4: 6}, 16: {1: 8, 2: 6}}


@dataclass(frozen=True)
class Strip:
    """Some adjacent columns of W.

    Attributes:
        width: How many.
        w: Where they are read.
        following: The strip that is expected next; its lines are brought to the second-level cache meanwhile.
        copy: Where the first block of rows puts what it reads for the other blocks, or None.
    """

    width: int
    w: Matrix
    following: Matrix
    copy: Matrix | None = None


def strip_vectors(how: Arithmetic, n: int) -> list[int]:
    """Return the vectors of W in each strip of columns that a product walks: wider ones first, none tiny."""
    return _balanced(-(-n // how.lanes), max(_ROWS[how.registers]))


def row_blocks(how: Arithmetic, m: int, width: int) -> list[int]:
    """Return the rows of each block beside a strip of ``width`` columns: larger ones first, none tiny."""
    return _balanced(m, _ROWS[how.registers][-(-width // how.lanes)])


def _balanced(total: int, most: int) -> list[int]:
    count = -(-total // most)
    low, more = divmod(total, count)
    return [low + 1] * more + [low] * (count - more)


def multiply_rows(b: Builder, how: Arithmetic, m: int | str, k: int, a: Matrix, strip: Strip, c: Matrix) -> None:
    """Write the product of all rows of A by a strip of columns of W into the columns of C beside it."""
    most = _ROWS[how.registers][-(-strip.width // how.lanes)]
    if isinstance(m, str):
        done = "0"
        for rows in dict.fromkeys((most, -(-most // 3), 1)):
            left = b.pure(f"sub nsw i64 {m}, {done}")
            end = offset(b, (done, "1"), (left, "1"), ("-1", b.pure(f"srem i64 {left}, {rows}")))
            _multiply_blocks(b, how, k, a, strip, c, rows=rows, low=done, high=end)
            done = end
        return
    sizes = row_blocks(how, m, strip.width)
    count = len(sizes)
    done = 0
    if strip.copy is not None:
        rows = sizes.pop(0)
        _multiply_blocks(b, how, k, a, strip, c, rows=rows, low="0", high=str(rows), count=count)
        strip = replace(strip, w=strip.copy, copy=None)
        done = rows
    for rows in dict.fromkeys(sizes):
        high = done + rows * sizes.count(rows)
        first = count - len(sizes) + sizes.index(rows)
        _multiply_blocks(b, how, k, a, strip, c, rows=rows, low=str(done), high=str(high), first=first, count=count)
        done = high


def _multiply_blocks(
    b: Builder,
    how: Arithmetic,
    k: int,
    a: Matrix,
    strip: Strip,
    c: Matrix,
    *,
    rows: int,
    low: str,
    high: str,
    first: int = 0,
    count: int = 0,
) -> None:
    """Write the blocks of ``rows`` rows from ``low`` to ``high``: numbers ``first`` and up of ``count`` in all.

    A count that is known (not 0) shares out the prefetches.
    """

    def turn(i: str, _: list[str]) -> list[str]:
        ahead: list[Matrix] = []
        if shared:
            number = b.pure(f"sdiv i64 {offset(b, (i, '1'), ('-1', low))}, {rows}")
            ahead = _lines(b, how, strip, strip.following, offset(b, (number, "1"), ("1", str(first))), count)
        elif count and first == 0:
            distance = -(-_DISTANCE_NBYTES // (strip.width * NBYTES[strip.w.element]))
            ahead = _lines(b, how, strip, _from_row(b, strip.w, str(distance)), "0", 1)
        _block(b, how, k, _from_row(b, a, i), strip, _from_row(b, c, i), rows=rows, ahead=ahead)
        return []

    nbytes = k * strip.width * NBYTES[strip.following.element]
    shared = count and nbytes <= (_SHARED_NBYTES if count > 1 else 2 * _DISTANCE_NBYTES)
    if low.isdigit() and high.isdigit() and int(high) - int(low) == rows:
        turn(low, [])
    else:
        b.loop(low, high, str(rows), turn)


def _lines(b: Builder, how: Arithmetic, strip: Strip, w: Matrix, number: str, count: int) -> list[Matrix]:
    """Return the lines of W that block ``number`` of ``count`` prefetches at its first turn of the inner loop.

    Every turn moves on by as many rows as it uses up; the blocks together touch every line.
    """
    line = _LINE_NBYTES // NBYTES[w.element]
    lines = -(-strip.width // line)
    slots = _UNROLL * how.depth * lines
    shares = -(-slots // count)
    places: list[Matrix] = []
    for share in range(shares):
        slot = offset(b, (number, str(shares)), ("1", str(share)))
        row, column = (b.pure(f"{operation} i64 {slot}, {lines}") for operation in ("sdiv", "srem"))
        place = at(b, w.pointer, w.element, offset(b, (row, w.row), (column, str(line))))
        places.append(replace(w, pointer=place))
    return places


def _from_row(b: Builder, x: Matrix, i: str) -> Matrix:
    return replace(x, pointer=at(b, x.pointer, x.element, offset(b, (i, x.row))))


def _block(
    b: Builder, how: Arithmetic, k: int, a: Matrix, strip: Strip, c: Matrix, *, rows: int, ahead: list[Matrix]
) -> None:
    """Write ``rows`` rows of C beside a strip of W: the sums stay in registers through the loop over k."""
    w, copy = strip.w, strip.copy
    vectors = -(-strip.width // how.lanes)
    used = [min(how.lanes, strip.width - j * how.lanes) for j in range(vectors)]
    size = how.lanes * how.depth  # elements of W in a vector
    kind = vector_type(how.sum, how.lanes)
    cells = [(i, j) for i in range(rows) for j in range(vectors)]
    if rows < vectors:  # a vector of W is used up before the next is loaded
        cells.sort(key=lambda cell: cell[1])
    splits = 1
    while len(cells) * splits < _FEWEST_SUMS:
        splits *= 2
    starts = [_from_row(b, a, str(i)).pointer for i in range(rows)]
    places = [at(b, _from_row(b, c, str(i)).pointer, how.sum, str(j * how.lanes)) for i, j in cells]
    sums = [load(b, place, how.sum, how.lanes, used[j]) for place, (_, j) in zip(places, cells, strict=True)]
    if how.a == "u8":
        excess = [excess_of(b, how, k, w, j) for j in range(vectors)]
        sums = [add(b, how.sum, how.lanes, total, excess[j]) for total, (_, j) in zip(sums, cells, strict=True)]
    sums += ["zeroinitializer"] * (len(cells) * (splits - 1))

    def line_of(x: Matrix, index: str, beyond: int) -> str:
        line = at(b, x.pointer, x.element, offset(b, (index, x.row)))
        return at(b, line, x.element, offset(b, (str(beyond), x.row)))

    def step(index: str, beyond: int, sums: list[str]) -> None:
        line = line_of(w, index, beyond)
        groups: dict[int, str] = {}
        factors: dict[int, str] = {}
        for cell, (i, j) in enumerate(cells):
            if i not in groups:
                start = at(b, starts[i], how.a, offset(b, (index, str(how.depth))))
                start = at(b, start, how.a, str(beyond * how.depth))
                group = b.op(f"load {how.group}, ptr {start}, align {NBYTES[how.a]}")
                groups[i] = b.splat(group, how.group, how.lanes)
            if j not in factors:
                there = used[j] if how.depth == 1 else size  # only copies have depth, and they are padded
                factor = load(b, at(b, line, w.element, str(j * size)), w.element, size, there)
                factors[j] = convert(b, factor, size, w.element, how.w)
                if copy is not None:
                    place = at(b, line_of(copy, index, beyond), copy.element, str(j * size))
                    store(b, factors[j], place, copy.element, size, size)
            slot = cell + len(cells) * (beyond % splits)
            sums[slot] = multiply(b, how, sums[slot], groups[i], factors[j])

    unroll = max(_UNROLL, splits)
    steps = how.steps(k)
    whole = steps - steps % unroll

    def turn(index: str, carried: list[str]) -> list[str]:
        following = list(carried)
        for x in ahead:
            place = at(b, x.pointer, x.element, offset(b, (offset(b, (index, str(how.depth))), x.row)))
            b.call("void", "llvm.prefetch.p0", [("ptr", place), ("i32", "0"), ("i32", "2"), ("i32", "1")])
        for beyond in range(unroll):
            step(index, beyond, following)
        return following

    if whole:
        sums = b.loop("0", str(whole), str(unroll), turn, [(kind, total) for total in sums])
    for beyond in range(steps - whole):
        step(str(whole), beyond, sums)
    while splits > 1:
        splits //= 2
        half = len(cells) * splits
        sums = [add(b, how.sum, how.lanes, x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
    for total, place, (_, j) in zip(sums, places, cells, strict=True):
        store(b, total, place, how.sum, how.lanes, used[j])
