"""The command's words and what each of them runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from nbxtensor.cli import device
from nbxtensor.errors import NbxError

__all__ = ["main"]

_GROUPS = (device,)
"""Modules of subcommands: each has ``add(subparsers)``, which says what runs by ``set_defaults(run=...)``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; errors of the library are told in one line.

    Args:
        arguments: The words after the command's name; left out, those of this process.

    Returns:
        0, or 1 where it failed.
    """
    parser = argparse.ArgumentParser(prog="nbxtensor", description="An inference-first tensor library.")
    groups = parser.add_subparsers(metavar="COMMAND", required=True)
    for group in _GROUPS:
        group.add(groups)
    asked = parser.parse_args(arguments)
    try:
        asked.run(asked)
    except (NbxError, OSError) as error:
        print(f"nbxtensor: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0
