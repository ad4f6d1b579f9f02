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
    load,
    multiply,
    offset,
    store,
)
from nbxtensor.backend.cpu.microkernel_copies import factor, group_of_rows, store_factor

__all__ = ["Rows", "Strip", "lines_of_following", "multiply_rows", "prefetch", "row_blocks", "strip_vectors"]

_UNROLL = 4  # most steps of k in one turn of the inner loop
_FEWEST_SUMS = 8  # latency of a multiply-add times the units that do it
_LINE_NBYTES = 64
_SHARED_NBYTES = 262144  # a strip up to this long is brought to the cache while the one before it is multiplied
_DISTANCE_NBYTES = 16384  # how far it runs ahead: bandwidth of memory times its latency, several times over
# Rows of a block by the vectors of W beside it: the sums, those vectors and a group of A fit the registers.
_ROWS = {32: {1: 14, 2: 12, 3: 8, 4: 6}, 16: {1: 8, 2: 6}}
# Rows of A whose stride is known at run time only take a general register each.
_MOST_ROWS_BY_POINTER = 6


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


@dataclass(frozen=True)
class Rows:
    """Some adjacent rows of A and of the columns of C beside a strip.

    Attributes:
        a: Where A's are.
        c: Where the sums are.
        excess: Address of one i32 a row that its sums start from besides, or empty.
    """

    a: Matrix
    c: Matrix
    excess: str = ""

    def starting(self, b: Builder, i: str) -> Rows:
        """Return the rows from the ``i``-th on."""
        excess = at(b, self.excess, "i32", i) if self.excess else ""
        return Rows(from_row(b, self.a, i), from_row(b, self.c, i), excess)


def from_row(b: Builder, x: Matrix, i: str) -> Matrix:
    """Return ``x`` without its first ``i`` rows."""
    return replace(x, pointer=at(b, x.pointer, x.element, offset(b, (i, x.row))))


def strip_vectors(how: Arithmetic, n: int) -> list[int]:
    """Return the vectors of W in each strip of columns that a product walks: wider ones first, none tiny."""
    return _balanced(-(-n // how.lanes), max(_ROWS[how.registers]))


def row_blocks(how: Arithmetic, m: int, width: int, a: Matrix) -> list[int]:
    """Return the rows of each block beside a strip of ``width`` columns: larger ones first, none tiny."""
    return _balanced(m, _most_rows(how, width, a))


def _most_rows(how: Arithmetic, width: int, a: Matrix) -> int:
    most = _ROWS[how.registers][-(-width // how.lanes)]
    return most if a.row.isdigit() else min(most, _MOST_ROWS_BY_POINTER)


def _balanced(total: int, most: int) -> list[int]:
    count = -(-total // most)
    low, more = divmod(total, count)
    return [low + 1] * more + [low] * (count - more)


def multiply_rows(b: Builder, how: Arithmetic, m: int | str, k: int, rows: Rows, strip: Strip) -> None:
    """Write the product of ``m`` rows of A by a strip of columns of W into the columns of C beside it."""
    if isinstance(m, str):
        done = "0"
        most = _most_rows(how, strip.width, rows.a)
        for size in dict.fromkeys((most, -(-most // 3), 1)):
            left = b.pure(f"sub nsw i64 {m}, {done}")
            end = offset(b, (done, "1"), (left, "1"), ("-1", b.pure(f"srem i64 {left}, {size}")))
            _multiply_blocks(b, how, k, rows, strip, size=size, low=done, high=end)
            done = end
        return
    sizes = row_blocks(how, m, strip.width, rows.a)
    count = len(sizes)
    done = 0
    if strip.copy is not None:
        size = sizes.pop(0)
        _multiply_blocks(b, how, k, rows, strip, size=size, low="0", high=str(size), count=count)
        strip = replace(strip, w=strip.copy, copy=None)
        done = size
    for size in dict.fromkeys(sizes):
        high = done + size * sizes.count(size)
        first = count - len(sizes) + sizes.index(size)
        _multiply_blocks(b, how, k, rows, strip, size=size, low=str(done), high=str(high), first=first, count=count)
        done = high


def _multiply_blocks(
    b: Builder,
    how: Arithmetic,
    k: int,
    rows: Rows,
    strip: Strip,
    *,
    size: int,
    low: str,
    high: str,
    first: int = 0,
    count: int = 0,
) -> None:
    """Write the blocks of ``size`` rows from ``low`` to ``high``: numbers ``first`` and up of ``count`` in all.

    A count that is known (not 0) shares out the prefetches.
    """
    nbytes = k * strip.width * NBYTES[strip.following.element]
    shared = count and nbytes <= (_SHARED_NBYTES if count > 1 else 2 * _DISTANCE_NBYTES)

    def turn(i: str, _: list[str]) -> list[str]:
        ahead: list[str] = []
        if shared:
            number = b.pure(f"sdiv i64 {offset(b, (i, '1'), ('-1', low))}, {size}")
            slot = offset(b, (number, "1"), ("1", str(first)))
            ahead = lines_of_following(b, how, strip.following, strip.width, slot, count, _unroll(strip))
        elif count and first == 0:
            w = strip.w
            distance = -(-_DISTANCE_NBYTES // (strip.width * w.depth * NBYTES[w.element]))
            ahead = lines_of_following(b, how, from_row(b, w, str(distance)), strip.width, "0", 1, _unroll(strip))
        _Block(b, how, size, k, rows.starting(b, i), strip).write(ahead)
        return []

    if low.isdigit() and high.isdigit() and int(high) - int(low) == size:
        turn(low, [])
    else:
        b.loop(low, high, str(size), turn)


def _unroll(strip: Strip) -> int:
    """Return the steps of k in one turn of the inner loop.

    Few where W is copied meanwhile, or LLVM gathers the loads of all steps before the stores and spills them; and
    where a step along W takes a register.
    """
    return _UNROLL if strip.copy is None and strip.w.row.isdigit() else _UNROLL // 2


def lines_of_following(
    b: Builder, how: Arithmetic, w: Matrix, width: int, number: str, count: int, steps: int
) -> list[str]:
    """Return the addresses that block ``number`` of ``count`` prefetches at its first turn of ``steps`` steps of k.

    Every turn moves on by as many rows as it uses up; the blocks together touch every line of the strip.
    """
    line = _LINE_NBYTES // NBYTES[w.element]
    lines = -(-width * w.depth // line)
    slots = steps * (how.depth // w.depth) * lines
    shares = -(-slots // count)
    places: list[str] = []
    for share in range(shares):
        slot = offset(b, (number, str(shares)), ("1", str(share)))
        row, column = (
            str(divmod(int(slot), lines)[part]) if slot.isdigit() else b.pure(f"{operation} i64 {slot}, {lines}")
            for part, operation in enumerate(("sdiv", "srem"))
        )
        places.append(at(b, w.pointer, w.element, offset(b, (row, w.row), (column, str(line)))))
    return places


def prefetch(b: Builder, how: Arithmetic, w: Matrix, places: list[str], index: str) -> None:
    """Write the prefetches of a turn that begins at step ``index``, from what :func:`lines_of_following` returned."""
    moved = offset(b, (offset(b, (index, str(how.depth // w.depth))), w.row))
    for place in places:
        b.call(
            "void",
            "llvm.prefetch.p0",
            [("ptr", at(b, place, w.element, moved)), ("i32", "0"), ("i32", "2"), ("i32", "1")],
        )


class _Block:
    """``size`` rows of C beside a strip of W: the sums stay in registers through the loop over k."""

    def __init__(self, b: Builder, how: Arithmetic, size: int, k: int, rows: Rows, strip: Strip) -> None:
        self.b, self.how, self.size, self.k, self.rows, self.strip = b, how, size, k, rows, strip
        vectors = -(-strip.width // how.lanes)
        self.used = [min(how.lanes, strip.width - j * how.lanes) for j in range(vectors)]
        self.cells = [(i, j) for i in range(size) for j in range(vectors)]
        if size < vectors:  # a vector of W is used up before the next is loaded
            self.cells.sort(key=lambda cell: cell[1])
        self.splits = 1
        while len(self.cells) * self.splits < _FEWEST_SUMS:
            self.splits *= 2
        self.starts = [from_row(b, rows.a, str(i)).pointer for i in range(size)]

    def write(self, ahead: list[str]) -> None:
        """Write the block; each turn of its loop prefetches beside ``ahead``."""
        b, how, cells = self.b, self.how, self.cells
        lines = [from_row(b, self.rows.c, str(i)).pointer for i in range(self.size)]
        places = [at(b, lines[i], how.sum, str(j * how.lanes)) for i, j in cells]
        sums = [load(b, x, how.sum, how.lanes, self.used[j]) for x, (_, j) in zip(places, cells, strict=True)]
        if self.rows.excess:
            loads = [b.op(f"load i32, ptr {at(b, self.rows.excess, 'i32', str(i))}, align 4") for i in range(self.size)]
            excess = [b.splat(x, "i32", how.lanes) for x in loads]
            sums = [add(b, how.sum, how.lanes, x, excess[i]) for x, (i, _) in zip(sums, cells, strict=True)]
        sums += ["zeroinitializer"] * (len(cells) * (self.splits - 1))
        unroll = max(_unroll(self.strip), self.splits)
        steps = self.k // how.depth
        whole = steps - steps % unroll

        def turn(index: str, sums: list[str]) -> list[str]:
            prefetch(b, how, self.strip.following, ahead, index)
            for beyond in range(unroll):
                sums = self.step(sums, index, beyond, how.depth)
            return sums

        if whole:
            kind = vector_type(how.sum, how.lanes)
            sums = b.loop("0", str(whole), str(unroll), turn, [(kind, total) for total in sums])
        for beyond in range(steps - whole):
            sums = self.step(sums, str(whole), beyond, how.depth)
        if self.k % how.depth:
            sums = self.step(sums, str(whole), steps - whole, self.k % how.depth)
        while len(sums) > len(cells):
            half = len(sums) // 2
            sums = [add(b, how.sum, how.lanes, x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
        for total, place, (_, j) in zip(sums, places, cells, strict=True):
            store(b, total, place, how.sum, how.lanes, self.used[j])

    def step(self, sums: list[str], index: str, beyond: int, rows: int) -> list[str]:
        """Write one multiplication into every sum, of group ``index + beyond`` of k, with ``rows`` rows of W in it."""
        b, how, strip = self.b, self.how, self.strip
        sums = list(sums)
        line = group_of_rows(b, how, strip.w, index, beyond)
        groups: dict[int, str] = {}
        factors: dict[int, str] = {}
        for cell, (i, j) in enumerate(self.cells):
            if i not in groups:
                groups[i] = self.group(i, index, beyond)
            if j not in factors:
                factors[j] = factor(b, how, strip.w, line, j, used=self.used[j], rows=rows)
                if strip.copy is not None:
                    store_factor(b, how, factors[j], group_of_rows(b, how, strip.copy, index, beyond), j)
            slot = cell + len(self.cells) * (beyond % self.splits)
            sums[slot] = multiply(b, how, sums[slot], groups[i], factors[j])
        return sums

    def group(self, i: int, index: str, beyond: int) -> str:
        """Write the load of a group of row ``i`` of A, into every lane."""
        b, how = self.b, self.how
        start = at(b, self.starts[i], how.a, offset(b, (index, str(how.depth))))
        start = at(b, start, how.a, str(beyond * how.depth))
        return b.splat(b.op(f"load {how.group}, ptr {start}, align {NBYTES[how.a]}"), how.group, how.lanes)
