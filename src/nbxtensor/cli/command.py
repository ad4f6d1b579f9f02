"""The command's words and what each of them runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from nbxtensor.cli import device, plan, price, run
from nbxtensor.cli.usage import Parser, UsageError
from nbxtensor.errors import NbxError

__all__ = ["main"]

_GROUPS = (plan, price, run, device)
"""Modules of subcommands: each has ``add(subparsers)``, which says what runs by ``set_defaults(run=...)``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; errors of the library are told in one line.

    Args:
        arguments: The words after the command's name; left out, those of this process.

    Returns:
        0; 1 where it failed; 2 where a word names nothing (so does the parser, by SystemExit); 130 where it was
        interrupted.
    """
    parser = Parser(prog="nbxtensor", description="An inference-first tensor library.")
    groups = parser.add_subparsers(metavar="COMMAND", required=True)
    for group in _GROUPS:
        group.add(groups)
    asked, rest = parser.parse_known_args(arguments)
    if not hasattr(asked, "options") or any(word.startswith("-") for word in rest):
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
    else:
        asked.options += rest  # KEY=VALUE behind a flag
    try:
        asked.run(asked)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has enough; nothing more is written, at the end of the process either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("nbxtensor: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    except (NbxError, OSError) as error:
        print(f"nbxtensor: {error}", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, UsageError) else 1
    return 0
