"""`nbxtensor plan --lifetimes FILE.csv`: where buffers lie whose lifetimes a file states, without any model."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nbxtensor.cli.usage import UsageError, check_readable, check_writable
from nbxtensor.errors import FormatError, PlanError
from nbxtensor.planning.lifetimes import Lifetime, read_csv, write_solution
from nbxtensor.planning.placement import Placement, place
from nbxtensor.planning.verify import verify_placement

__all__ = ["PLACING", "add_placing", "place_file"]

PLACING = ("capacity", "seconds", "out")
"""Words that only go with ``--lifetimes``."""
_MODEL_WORDS = ("model", "options", "device", "save", "against", "by", "csv", "svg", "html")
_SECONDS = 57.0
_STEPS = 1 << 40  # of searching: the seconds end it


def add_placing(parser: argparse.ArgumentParser) -> None:
    """Add the words that plan a file of lifetimes."""
    group = parser.add_argument_group("lifetimes in place of a model")
    group.add_argument(
        "--lifetimes",
        type=Path,
        metavar="FILE.csv",
        help="place the buffers of this file (columns id,lower,upper,size)",
    )
    group.add_argument(
        "--capacity", type=int, metavar="N", help="bytes they have to fit in; without it, as few as can be"
    )
    group.add_argument("--seconds", type=float, metavar="S", help=f"most seconds for searching; left out: {_SECONDS:g}")
    group.add_argument(
        "--out", type=Path, metavar="FILE.csv", help="write the offsets (columns id,lower,upper,size,offset)"
    )


def place_file(asked: argparse.Namespace) -> None:
    """Place the buffers of a file, check the placement, print it and write it.

    Raises:
        UsageError: A word does not belong to this form of the command, or names nothing; or the file holds
            no lifetimes, by line and column.
        PlanError: The buffers do not fit in the capacity, or no placement was found in the time.
    """
    capacity, seconds = asked.capacity, _SECONDS if asked.seconds is None else asked.seconds
    if odd := [word for word in _MODEL_WORDS if getattr(asked, word) not in (None, False, [])]:
        raise UsageError(f"--lifetimes: stands in place of a model. Got {', '.join(odd)} too.")
    if capacity is not None and capacity < 0:
        raise UsageError(f"--capacity: 0 bytes or more. Got {capacity}.")
    if not seconds >= 0:
        raise UsageError(f"--seconds: 0 or more. Got {seconds}.")
    check_writable("--out", asked.out)
    check_readable("--lifetimes", asked.lifetimes)
    try:
        lifetimes = read_csv(asked.lifetimes)
    except FormatError as error:
        raise UsageError(f"--lifetimes: {error}") from error
    start = time.perf_counter()
    found = place(lifetimes, goal=capacity or 0, steps=_STEPS, seconds=seconds)
    verify_placement(lifetimes, found.offsets, found.peak)
    seconds = time.perf_counter() - start
    _show(asked, found, lifetimes, seconds)
    if capacity is not None and found.peak > capacity:
        raise PlanError(_lack(asked.lifetimes, found, capacity))
    if asked.out is not None:
        write_solution(asked.out, lifetimes, found.offsets)


def _show(asked: argparse.Namespace, found: Placement, lifetimes: Sequence[Lifetime], seconds: float) -> None:
    if asked.json:
        offsets = {x.id: found.offsets[x.id] for x in lifetimes}
        record = {
            "peak": found.peak, "lower_bound": found.lower_bound, "ratio": found.ratio, "algorithm": found.algorithm,
            "seconds": seconds, "offsets": offsets,
        }  # fmt: skip
        sys.stdout.write(json.dumps(record) + "\n")
        return
    rows = [
        ("buffers", f"{len(lifetimes):,}"),
        ("peak", f"{found.peak:,} bytes"),
        ("lower bound", f"{found.lower_bound:,} bytes"),
        ("ratio", f"{found.ratio:.4f}"),
        ("gap", f"{found.gap:,} bytes" if found.gap else "none: no placement needs less"),
        ("algorithm", found.algorithm),
        ("seconds", f"{seconds:.3f}"),
    ]
    sys.stdout.writelines(f"{name:<12} {value}\n" for name, value in rows)


def _lack(path: Path, found: Placement, capacity: int) -> str:
    """Say why the capacity is not met."""
    least = max(found.lower_bound, found.proven)
    if found.lower_bound > capacity:
        why = f"No placement does: {found.lower_bound} bytes are in use at one moment."
    elif least > capacity:
        why = f"No placement does: searching has proven that none needs less than {least} bytes."
    else:
        why = f"Whether one does is open: none needs less than {least} bytes. More --seconds may find it."
    return f"{path.name}: the buffers fit in the capacity. Got {found.peak} bytes for a capacity of {capacity}. {why}"
