"""`nbxtensor plan`: where every byte of a model lies, what it moves and computes, and in what two plans differ.

With ``--lifetimes`` it places the buffers of a file (`placing`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from nbxtensor.capture.described import save_plan
from nbxtensor.cli.figures import figures
from nbxtensor.cli.placing import PLACING, add_placing, place_file
from nbxtensor.cli.records import changes_csv, json_text
from nbxtensor.cli.table import Column, show
from nbxtensor.cli.text import count_text
from nbxtensor.cli.usage import UsageError
from nbxtensor.cli.words import add_model, add_output, planned, read_plan, show_figures, write_data, write_pictures
from nbxtensor.planning.difference import Change
from nbxtensor.planning.peak import peak
from nbxtensor.planning.plan import Plan
from nbxtensor.planning.report import size_text

__all__ = ["add"]

_SHOWN = 24  # lines of a table of buffers
_LARGEST = 3  # of those in use at a peak that a difference names


def add(groups: Any) -> None:
    """Add the subcommand to a parser's groups."""
    parser = groups.add_parser("plan", help="plan a model: where every byte lies, what is live at the peak")
    add_model(parser, optional=True)
    add_output(parser)
    parser.add_argument("--save", type=Path, metavar="FILE.json", help="write the plan to this file")
    parser.add_argument("--against", type=Path, metavar="OTHER.json", help="say in what it differs from a saved plan")
    add_placing(parser)
    parser.set_defaults(run=partial(_plan, parser))


def _plan(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> None:
    if asked.lifetimes is not None:
        place_file(asked)
        return
    if asked.model is None or any(getattr(asked, word) is not None for word in PLACING):
        parser.error(f"MODEL, or --lifetimes FILE.csv, which {', '.join(f'--{x}' for x in PLACING)} belong to")
    if asked.save is not None and asked.save.suffix != ".json":
        raise UsageError(f"--save: a name that ends in .json. Got {asked.save}.")
    # Read before --save, which may write the same file.
    before = None if asked.against is None else read_plan("--against", asked.against)
    found, _, _ = planned(asked)
    if asked.save is not None:
        asked.save.write_text(save_plan(found), encoding="utf-8")
    rows = figures(found)
    write_pictures(asked, found, rows)
    if before is not None:
        _compare(asked, before, found)
        return
    if write_data(asked, found, rows):
        return
    sys.stdout.write(f"{found}\n")
    _show_peak(found)
    show_figures(asked, rows)


def _show_peak(found: Plan) -> None:
    """Print who is in use at the peak."""
    top = peak(found)
    if top is None:
        return
    at = "" if top.node is None else f", node {top.node} {top.op}"
    columns = [Column("buffer", text=True), Column("what it is", text=True), Column("family", text=True)]
    columns += [Column("bytes"), Column("offset"), Column("launches"), Column("share")]
    lines = [
        (x.id, x.name, x.family, f"{x.nbytes:,}", f"{x.offset:,}", f"{x.lower} to {x.upper - 1}",
         f"{x.nbytes / top.nbytes:.1%}")
        for x in top.live[:_SHOWN]
    ]  # fmt: skip
    show(f"\nin use at the peak: launch {top.moment}{at}, {size_text(top.nbytes)}", columns, lines)
    _show_rest(len(top.live))


def _compare(asked: argparse.Namespace, before: Plan, after: Plan) -> None:
    """Print in what a plan differs from another."""
    found = before.difference(after)
    if asked.json:
        sys.stdout.write(json_text(asdict(found)))
        return
    if asked.csv:
        sys.stdout.write(changes_csv(found))
        return
    if not found:
        sys.stdout.write(f"{after.graph.name}: nothing that is planned differs\n")
        return
    titles = ("the plan", found.plan), ("ops", found.ops), ("buffers", found.buffers)
    for title, changes in titles:
        if changes:
            _show_changes(title, changes)
    if found.kernels:
        columns = [Column(name, text=True) for name in ("call", "kernel before", "kernel after")]
        show("\nkernels", columns, found.kernels)
    for words, top in zip(("before", "after"), found.peaks, strict=True):
        if top is not None:
            at = f" at node {top.node} {top.op}" if top.node is not None else ""
            largest = ", ".join(f"{x.name} {size_text(x.nbytes)}" for x in top.live[:_LARGEST])
            sys.stdout.write(f"\npeak {words}: {size_text(top.nbytes)}{at}: {largest}")
    sys.stdout.write("\n")


def _show_changes(title: str, changes: Sequence[Change]) -> None:
    buffers = changes[0].subject == "buffer"
    columns = [Column(title, text=True), Column("what", text=True), Column("before"), Column("after")]
    columns += [Column("growth"), *([Column("at the peak", text=True)] if buffers else [])]
    lines: list[tuple[str, ...]] = []
    for change in changes[:_SHOWN]:
        text = size_text if change.what.startswith("bytes") else count_text
        before, after = ("-" if n is None else text(n) for n in (change.before, change.after))
        growth = f"{'-' if change.growth < 0 else '+'}{text(abs(change.growth))}"
        line = (change.name, change.what, before, after, growth)
        lines.append((*line, "yes" if change.at_peak else "") if buffers else line)
    sys.stdout.write("\n")
    show("", columns, lines)
    _show_rest(len(changes))


def _show_rest(number: int) -> None:
    if number > _SHOWN:
        sys.stdout.write(f"and {number - _SHOWN} more; --json lists all\n")
