"""`nbxtensor run`: a model loaded, recorded, verified, replayed and timed beside what was predicted."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from nbxtensor.capture.program import Program
from nbxtensor.capture.recording import Recording
from nbxtensor.cli.figures import figures
from nbxtensor.cli.table import progress
from nbxtensor.cli.targets import here
from nbxtensor.cli.usage import UsageError
from nbxtensor.cli.words import add_model, add_output, planned, show_figures, write_data, write_pictures
from nbxtensor.errors import CaptureError
from nbxtensor.planning.price import duration
from nbxtensor.planning.report import size_text

__all__ = ["add"]

_DEVICE = 'a device of this machine ("cpu", "cuda", "cuda:1")'


def add(groups: Any) -> None:
    """Add the subcommand to a parser's groups."""
    parser = groups.add_parser("run", help="run a model: verify its replay, time it beside the prediction")
    add_model(parser, device=_DEVICE)
    add_output(parser)
    parser.add_argument("--times", type=int, default=9, help="replays to time; the median counts (left out: 9)")
    parser.set_defaults(run=_run)


def _run(asked: argparse.Namespace) -> None:
    if asked.model.endswith(".json"):
        raise UsageError(f"{asked.model}: a plan has no weights to run with. MODEL is a Python file.")
    if asked.times < 1:
        raise UsageError(f"--times: 1 or more. Got {asked.times}.")
    where = here("cpu" if asked.device is None else asked.device)
    asked.device = where.name
    found, model, _ = planned(asked)
    if model is None:
        raise UsageError(f"{asked.model}: MODEL is a Python file.")
    begun = time.perf_counter()
    with progress("preparing") as shown:
        program: Program = found.load(model.weights_on(where), progress=shown)
    recording = program.capture(*model.inputs_on(where))
    ready = time.perf_counter() - begun
    replayed = _replay_seconds(recording, asked.times)
    measured = _node_seconds(recording, len(found.graph.nodes), asked.times)
    rows = figures(found, measured)
    write_pictures(asked, found, rows)
    facts = {"verified": recording.verified, "loaded_seconds": ready, "replay_seconds": replayed}
    if write_data(asked, found, rows, run=facts):
        return
    total = rows.total.seconds
    sys.stdout.write(
        f"{found.graph.name} on {found.target.facts.get('name', where.name)}\n"
        f"  memory      {size_text(found.nbytes)} (arena {size_text(found.arena_nbytes)}, weights "
        f"{size_text(found.weights_nbytes)}, state {size_text(found.state_nbytes)})\n"
        f"  loaded      {ready:.2f} s, {len(recording)} launches recorded\n"
        f"  verified    {'yes' if recording.verified else 'no'}: a replay repeats a run byte for byte\n"
        f"  replay      {duration(replayed)}, median of {asked.times}"
        f"{'' if total is None else f'; predicted {duration(total)} ({total / replayed:.2f} of it)'}\n"
    )
    show_figures(asked, rows)
    if measured is None:
        sys.stdout.write(f"\nrecordings of {where.name} cannot be timed launch by launch\n")


def _replay_seconds(recording: Recording, times: int) -> float:
    """Return the median time of a replay."""
    samples: list[float] = []
    recording.replay()
    for _ in range(times):
        begun = time.perf_counter()
        recording.replay()
        samples.append(time.perf_counter() - begun)
    return statistics.median(samples)


def _node_seconds(recording: Recording, nodes: int, times: int) -> Sequence[float] | None:
    """Return the median time of each node; None where recordings cannot be timed launch by launch."""
    try:
        profiles = [recording.profile() for _ in range(times)]
    except CaptureError:
        return None
    found = [0.0] * nodes
    for node, *samples in zip(recording.program.nodes, *profiles, strict=True):
        found[node] += statistics.median(samples) * 1e-9
    return found
