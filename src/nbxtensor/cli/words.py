"""The words that `nbxtensor plan`, `price` and `run` share, and what they print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from nbxtensor.capture.planned import load_plan, plan
from nbxtensor.cli.figures import Figures, Level, Row
from nbxtensor.cli.model import Model, build_model
from nbxtensor.cli.page import page
from nbxtensor.cli.records import csv_text, json_text, plan_record
from nbxtensor.cli.table import Column, show
from nbxtensor.cli.targets import HELP, named
from nbxtensor.cli.text import count_text
from nbxtensor.cli.usage import UsageError, check_readable, check_writable
from nbxtensor.errors import FormatError
from nbxtensor.op import Target
from nbxtensor.planning.plan import Plan
from nbxtensor.planning.price import duration
from nbxtensor.planning.report import size_text
from nbxtensor.run import Device

__all__ = ["add_model", "add_output", "levels", "planned", "read_plan", "show_figures", "write_data", "write_pictures"]

_LEVELS: tuple[Level, ...] = ("family", "op", "node")


def add_model(parser: argparse.ArgumentParser, *, optional: bool = False, device: str = HELP) -> None:
    """Add MODEL, its options and the device."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="?" if optional else None,
        help="a Python file with a function build, or (for plan and price) a plan that was saved (.json)",
    )  # fmt: skip
    parser.add_argument("options", metavar="KEY=VALUE", nargs="*", help="options of the file's build function")
    parser.add_argument("--device", default=None, help=f"{device}; left out: cpu")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add what says how figures are shown and where pictures go."""
    parser.add_argument(
        "--by", action="append", choices=_LEVELS, help="a table by op family, op or node; may be given several times"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    form.add_argument("--csv", action="store_true", help="print comma-separated rows instead (left out --by: by node)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the plan to this file")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plan, roofline and tables")


def levels(asked: argparse.Namespace) -> tuple[Level, ...]:
    """Return the levels that are asked for, or those that the form of output has by itself."""
    given = cast("list[Level] | None", asked.by)
    return tuple(dict.fromkeys(given)) if given else ("node",) if asked.csv else ("family", "op")


def planned(asked: argparse.Namespace) -> tuple[Plan, Model | None, Device | Target]:
    """Return the plan that the words ask for, with the model it is of (None for a plan read from a file).

    Raises:
        UsageError: A word names nothing.
        NbxError: What planning raises.
    """
    for word in ("svg", "html", "save"):
        check_writable(f"--{word}", getattr(asked, word, None))
    path = Path(asked.model)
    if path.suffix == ".json":
        if asked.options or asked.device is not None:
            raise UsageError(f"{path}: a plan that was saved has its device and takes no options.")
        found = read_plan("MODEL", path)
        return found, None, found.target
    model = build_model(path, asked.options)
    where = named("cpu" if asked.device is None else asked.device)
    return plan(model.graph, device=where), model, where


def read_plan(word: str, path: Path) -> Plan:
    """Return the plan in a file that ``nbxtensor plan --save`` or `save_plan` wrote, and that ``word`` names.

    Raises:
        UsageError: There is no such file, or it holds no plan.
    """
    check_readable(word, path, "`nbxtensor plan MODEL --save FILE.json` writes a plan.")
    try:
        return load_plan(path.read_text(encoding="utf-8"))
    except (FormatError, UnicodeDecodeError) as error:
        raise UsageError(f"{word}: {path}: {error}") from error


def write_data(asked: argparse.Namespace, found: Plan, rows: Figures, **more: object) -> bool:
    """Print JSON or comma-separated rows where they are asked for; say whether they were."""
    if asked.json:
        sys.stdout.write(json_text({**plan_record(found, rows), **more}))
    elif asked.csv:
        sys.stdout.write(csv_text(rows, levels(asked)))
    return bool(asked.json or asked.csv)


def write_pictures(asked: argparse.Namespace, found: Plan, rows: Figures) -> None:
    """Write the files that are asked for."""
    for path, text in ((asked.svg, found.svg), (asked.html, lambda: page(found, rows))):
        if path is not None:
            path.write_text(text(), encoding="utf-8")


def show_figures(asked: argparse.Namespace, rows: Figures) -> None:
    """Print the tables that are asked for."""
    ran = rows.total.measured is not None
    for level in levels(asked):
        columns = [Column(f"op {level}" if level == "family" else level, text=True)]
        columns += [Column("calls"), Column("launches")] if level != "node" else [Column("launches")]
        columns += [Column(name) for name in ("bytes", "flops", "predicted", "share")]
        columns += [Column("limited by", text=True)]
        columns += [Column(name) for name in ("measured", "predicted / measured")] if ran else []
        lines = [_line(row, rows.total, level) for row in rows.of(level)]
        show(f"\nby {level}", columns, lines, _line(rows.total, rows.total, level))
    if rows.lacking:
        sys.stdout.write(f"\nno prediction: {rows.lacking}\n")


def _line(row: Row, total: Row, level: Level) -> Sequence[str]:
    name = f"{row.node:>4} {row.name}" if row.node is not None else row.name
    line = [name, *([str(row.calls)] if level != "node" else []), str(row.launches)]
    line += [size_text(row.nbytes), count_text(row.flops)]
    line += ["-" if row.seconds is None else duration(row.seconds)]
    line += [f"{row.seconds / total.seconds:.1%}" if row.seconds is not None and total.seconds else "-"]
    line += [row.limit or "-"]
    if total.measured is not None:
        line += [duration(row.measured or 0.0)]
        line += [f"{row.seconds / row.measured:.2f}" if row.seconds is not None and row.measured else "-"]
    return line
