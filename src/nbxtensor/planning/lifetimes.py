"""When each piece of memory is in use: from a graph, or from a file of lifetimes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from pathlib import Path

from nbxtensor.errors import FormatError, PlanError
from nbxtensor.planning.graph import Graph
from nbxtensor.planning.steps import PlanStep, pointers

__all__ = ["Lifetime", "buffer_id", "graph_lifetimes", "read_csv", "workspace_id", "write_csv", "write_solution"]

_REQUIRED = ("id", "lower", "upper", "size")
_NUMBERS = ("lower", "upper", "size", "alignment")
_OPTIONAL = ("alignment", "offset")
_WIDEST = 1 << 62  # moments and sizes stay below: what is added up stays within 64 bits


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A piece of memory and the time it is in use: [lower, upper).

    Attributes:
        id: Its name, unique in a plan.
        lower: First moment it is in use; a moment is one kernel launch.
        upper: First moment it is free again.
        size: Bytes.
        alignment: What its offset must be a multiple of, in bytes.

    Raises:
        PlanError: ``upper`` is not after ``lower``, ``size`` is negative, or ``alignment`` is below 1.
    """

    id: str
    lower: int
    upper: int
    size: int
    alignment: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.upper <= self.lower or self.size < 0 or self.alignment < 1:
            raise PlanError(
                f"lifetime {self.id!r}: lower is below upper, size is 0 or more, alignment is 1 or more. "
                f"Got lower {self.lower}, upper {self.upper}, size {self.size}, alignment {self.alignment}."
            )

    @property
    def nbytes(self) -> int:
        """Bytes it occupies in a plan: its size, rounded up to its alignment."""
        return -(-self.size // self.alignment) * self.alignment


def buffer_id(index: int) -> str:
    """Return the id of graph buffer ``index``.

    >>> buffer_id(3)
    'b3'
    """
    return f"b{index}"


def workspace_id(node: int, name: str) -> str:
    """Return the id of workspace ``name`` of node ``node``.

    >>> workspace_id(7, "partial")
    'n7.partial'
    """
    return f"n{node}.{name}"


def graph_lifetimes(graph: Graph, steps: Sequence[PlanStep], alignment: int) -> tuple[Lifetime, ...]:
    """Return the lifetime of every piece of memory that a run of ``graph`` shares among its nodes.

    Time counts launches; a node without launches takes one moment. Inputs are in use all the time. A temporary is in
    use from the first launch that names it to the last, through whatever view, and to the end of the run when it is
    an output of the graph; workspace is in use in the launches its kernel declares. Weights, constants and state
    have memory of their own and do not appear, nor do buffers of no bytes or that nothing touches.

    Args:
        graph: The graph.
        steps: What each node runs.
        alignment: Alignment of every offset, in bytes.
    """
    spans: dict[int, tuple[int, int]] = {}

    def touch(buffer: int, lower: int, upper: int) -> None:
        first, last = spans.get(buffer, (lower, upper))
        spans[buffer] = (min(first, lower), max(last, upper))

    workspace: list[Lifetime] = []
    now = 0
    for place, (node, step) in enumerate(zip(graph.nodes, steps, strict=True)):
        for name, ref in node.operands.items():
            touch(ref.buffer, *_named(step, now, "input", name))
        for index, ref in enumerate(node.outputs):
            touch(ref.buffer, *_named(step, now, "output", index))
        workspace += (
            Lifetime(workspace_id(place, b.name), now + b.first, now + b.last + 1, b.nbytes, alignment)
            for b in step.cost.buffers
            if b.nbytes
        )
        now += step.moments
    end = max(now, 1)
    for index, _ in graph.of_kind("input"):
        touch(index, 0, end)
    for ref in graph.outputs:
        touch(ref.buffer, end - 1, end)
    shared = (i for i, b in enumerate(graph.buffers) if b.kind in ("input", "temporary") and b.nbytes and i in spans)
    return (*(Lifetime(buffer_id(i), *spans[i], graph.buffers[i].nbytes, alignment) for i in shared), *workspace)


def _named(step: PlanStep, now: int, role: str, key: str | int) -> tuple[int, int]:
    """Return the launches of ``step`` that name an operand or a result; all of them where none does."""
    at = [i for i, launch in enumerate(step.launches) if any((p.role, p.key) == (role, key) for p in pointers(launch))]
    return (now + at[0], now + at[-1] + 1) if at else (now, now + step.moments)


def read_csv(source: Path | str) -> tuple[Lifetime, ...]:
    """Read lifetimes from a file with the columns ``id,lower,upper,size``, and ``alignment`` where it is not 1.

    The format is that of the MiniMalloc benchmarks: one row per buffer, in use in [lower, upper), columns in any
    order. A column ``offset``, as in solutions, is passed over, and so are empty lines.

    Args:
        source: Path of the file.

    Raises:
        FormatError: Not text, a column is missing or not known, or a row is not made of integers, breaks a rule of
            `Lifetime` or repeats an id; names the file, the line and the column.
    """
    path = Path(source)
    try:
        reader = csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig")))
        rows = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"{path.name}: the file is comma-separated text in UTF-8. {error}.") from None
    header = [name.strip() for name in rows[0][1]] if rows else []
    if set(_REQUIRED) - set(header) or set(header) - {*_REQUIRED, *_OPTIONAL} or len(set(header)) != len(header):
        raise FormatError(
            f"{path.name}: the first line names the columns. Got {','.join(header) or 'nothing'}. "
            f"{','.join(_REQUIRED)} in any order, and {','.join(_OPTIONAL)} if wanted."
        )
    columns = dict(zip(header, zip(*(row for _, row in rows[1:]), strict=False), strict=False))
    if columns and all(len(row) == len(header) for _, row in rows):
        try:  # column by column, which is much faster than row by row, and names no row
            ids = [text.strip() for text in columns["id"]]
            numbers = [list(map(int, columns.get(name, repeat("1", len(ids))))) for name in _NUMBERS]
            if len(set(ids)) == len(ids) and all(min(x) > -_WIDEST and max(x) < _WIDEST for x in numbers):
                return tuple(map(Lifetime, ids, *numbers))
        except ValueError:  # PlanError is one too
            pass
    found: dict[str, Lifetime] = {}
    for line, row in rows[1:]:
        lifetime = _lifetime(path.name, line, header, row)
        if lifetime.id in found:
            raise FormatError(
                f"{path.name}, line {line}, column id: an id names one buffer. Got {lifetime.id!r} again."
            )
        found[lifetime.id] = lifetime
    return tuple(found.values())


def _lifetime(file: str, line: int, header: Sequence[str], row: Sequence[str]) -> Lifetime:
    """Return the lifetime that a row states."""
    where = f"{file}, line {line}"
    if len(row) != len(header):
        column = f", column {header[len(row)]}" if len(row) < len(header) else ""
        raise FormatError(f"{where}{column}: a row has {len(header)} fields. Got {','.join(row)!r}.")
    name, numbers = "", {"alignment": 1}
    for column, text in zip(header, row, strict=True):
        if column == "id":
            name = text.strip()
        elif column != "offset":
            try:
                numbers[column] = int(text)
            except ValueError:
                raise FormatError(f"{where}, column {column}: an integer. Got {text.strip()!r}.") from None
            if not -_WIDEST < numbers[column] < _WIDEST:
                raise FormatError(f"{where}, column {column}: an integer of 62 bits. Got {text.strip()}.")
    lower, upper, size, alignment = (numbers[column] for column in _NUMBERS)
    try:
        return Lifetime(name, lower, upper, size, alignment)
    except PlanError as error:
        column = "upper" if upper <= lower else "size" if size < 0 else "alignment"
        raise FormatError(f"{where}, column {column}: {error}") from None


def write_csv(target: Path | str, lifetimes: Iterable[Lifetime]) -> None:
    """Write lifetimes to a file that `read_csv` reads; the column ``alignment`` is there only where one is not 1."""
    kept = tuple(lifetimes)
    _write(target, kept, {})


def write_solution(target: Path | str, lifetimes: Iterable[Lifetime], offsets: Mapping[str, int]) -> None:
    """Write lifetimes and where each buffer lies, as MiniMalloc does: ``id,lower,upper,size,offset``.

    `read_csv` reads the file, too. The column ``alignment`` is there only where one is not 1.
    """
    kept = tuple(lifetimes)
    _write(target, kept, {"offset": [offsets[x.id] for x in kept]})


def _write(target: Path | str, kept: Sequence[Lifetime], more: Mapping[str, Sequence[int]]) -> None:
    columns = _REQUIRED if all(x.alignment == 1 for x in kept) else (*_REQUIRED, "alignment")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*columns, *more))
    rows = map(attrgetter(*columns), kept)
    writer.writerows((*row, *rest) for row, *rest in zip(rows, *more.values(), strict=True))
    Path(target).write_text(text.getvalue(), encoding="utf-8")
