"""`python -m bench --device cuda`: measure groups on a GPU, each in a process of its own with a limit of time."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.card import RESULTS, ROOT, Lines, slug

GROUPS = {"facts": 60, "launch": 60, "minilm": 200, "llama-1b": 180, "llama-8b": 240, "ops": 120, "spills": 60}
"""Groups by name, and the seconds that each is given."""


def main(arguments: Sequence[str]) -> int:
    """Measure; the status is the number of groups that failed."""
    parser = argparse.ArgumentParser(prog="python -m bench --device cuda", description="Us and torch on a GPU.")
    parser.add_argument("groups", nargs="*", help=f"which of {', '.join(GROUPS)}; none named: all")
    parser.add_argument("--out", type=Path, help="file of JSON lines; left out, bench/results/<device>.jsonl")
    parser.add_argument("--facts", type=Path, help="where the group facts writes the device file")
    parser.add_argument("--seconds", type=float, default=550.0, help="what all groups may take together")
    parser.add_argument("--layers", type=int, default=0, help="layers of the language models, to try it; 0: all")
    parser.add_argument("--without-peers", action="store_true", help="measure us alone")
    parser.add_argument("--here", action="store_true", help="run the groups in this process")
    asked = parser.parse_args(arguments)
    unknown = sorted(set(asked.groups) - set(GROUPS))
    if unknown:
        parser.error(f"no such group: {', '.join(unknown)}. There are {', '.join(GROUPS)}.")
    groups = asked.groups or list(GROUPS)
    out = asked.out or RESULTS / f"{slug()}.jsonl"
    if asked.here:
        for group in groups:
            _run(group, asked, out)
        return 0
    began, failed = time.perf_counter(), 0
    for group in groups:
        left = asked.seconds - (time.perf_counter() - began)
        limit = min(GROUPS[group], left)
        print(f"== {group}: at most {limit:.0f} s", flush=True)
        failed += limit <= 5 or not _apart(group, asked, out, limit)
    print(f"== {len(groups) - failed} of {len(groups)} groups in {time.perf_counter() - began:.0f} s", flush=True)
    return failed


def _apart(group: str, asked: argparse.Namespace, out: Path, limit: float) -> bool:
    """Run one group in a process of its own; return whether it came to its end in time."""
    words = [sys.executable, "-m", "bench", "--device", "cuda", group, "--here", "--out", str(out)]
    words += ["--layers", str(asked.layers)]
    words += ["--facts", str(asked.facts)] if asked.facts else []
    words += ["--without-peers"] if asked.without_peers else []
    try:
        return subprocess.run(words, cwd=ROOT, timeout=limit, check=False, env=dict(os.environ)).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"== {group}: not done in {limit:.0f} s", flush=True)
        return False


def _run(group: str, asked: argparse.Namespace, out: Path) -> None:
    if group == "facts":
        from nbxtensor.cli import main as command

        given = ["--out", str(asked.facts)] if asked.facts else []
        if command(["device", "measure", "--device", "cuda", *given]):
            raise SystemExit(1)
        return
    lines = Lines(out)
    peers = not asked.without_peers
    if group == "launch":
        from bench.gpu import launch

        launch.run(lines)
    elif group == "minilm":
        from bench.gpu import minilm

        minilm.run(lines, compiled=peers)
    elif group == "ops":
        from bench.gpu import ops

        ops.run(lines)
    elif group == "spills":
        from bench.gpu import spills

        spills.run(lines)
    else:
        from bench.gpu import llama

        llama.run(lines, group.removeprefix("llama-"), layers=asked.layers, compiled=peers)
