"""Tables on a terminal: by rich where it is installed, and as plain text elsewhere and in pipes."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

__all__ = ["Column", "Progress", "progress", "show"]

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its heading.
        text: Whether it holds words, which begin at its left, and not numbers, which end at its right.
    """

    name: str
    text: bool = False


def show(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], total: Sequence[str] = ()) -> None:
    """Print a table, with a last row apart where ``total`` is one."""
    if _rich():
        _show_rich(title, columns, rows, total)
        return
    lines = [tuple(column.name for column in columns), *map(tuple, rows), *([tuple(total)] if total else [])]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    text: list[str] = []
    for line in lines:
        cells = zip(line, widths, columns, strict=True)
        text.append("  ".join(c.ljust(w) if column.text else c.rjust(w) for c, w, column in cells).rstrip())
    rule = "-" * max(map(len, text))
    last = [rule, text.pop()] if total else []
    sys.stdout.write("\n".join([*([title] if title else []), text[0], rule, *text[1:], *last]) + "\n")


@contextlib.contextmanager
def progress(title: str) -> Generator[Progress, None, None]:
    """Show how far something is while it goes on, on a terminal with rich; silent elsewhere."""
    if not _rich():
        yield lambda _done, _all, _name: None
        return
    from rich.progress import Progress as Bar

    with Bar(transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, name: bar.update(task, completed=done, total=total, description=f"{title} {name}")


def _rich() -> bool:
    return sys.stdout.isatty() and importlib.util.find_spec("rich") is not None


def _show_rich(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], total: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title) if title else None, title_justify="left", show_footer=bool(total), footer_style="bold"
    )
    for place, column in enumerate(columns):
        table.add_column(
            Text(column.name),
            Text(total[place]) if total else "",
            justify="left" if column.text else "right",
            no_wrap=not column.text,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
