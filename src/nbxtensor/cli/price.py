"""`nbxtensor price`: what a model takes on a device, by op family, op and node, and what limits it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from nbxtensor.cli.figures import Figures, figures
from nbxtensor.cli.words import add_model, add_output, planned, show_figures, write_data, write_pictures
from nbxtensor.planning.price import duration

__all__ = ["add"]


def add(groups: Any) -> None:
    """Add the subcommand to a parser's groups."""
    parser = groups.add_parser("price", help="price a model on a device: time, bytes, flops, what limits it")
    add_model(parser)
    add_output(parser)
    parser.set_defaults(run=_price)


def _price(asked: argparse.Namespace) -> None:
    found, _, _ = planned(asked)
    rows = figures(found, priced=True)
    write_pictures(asked, found, rows)
    if write_data(asked, found, rows):
        return
    device = found.target.facts.get("name", f"{found.target.backend} {found.target.arch}")
    sys.stdout.write(f"{found.graph.name} on {device}: {duration(rows.total.seconds or 0.0)} predicted\n")
    show_figures(asked, rows)
    _show_facts(rows)


def _show_facts(rows: Figures) -> None:
    """Print the numbers that the price rests on."""
    sys.stdout.write("\npriced by\n")
    width = max(map(len, rows.facts), default=0)
    for name, value in sorted(rows.facts.items()):
        sys.stdout.write(f"  {name:<{width}}  {value:.4g}\n")
