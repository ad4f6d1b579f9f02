"""The card that is measured, how contenders take turns on it, and where figures go."""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbxtensor as nbx

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "bench" / "results"
_TURN_SECONDS = 0.02  # what a turn is filled up to
_CALM_SECONDS = 0.02  # between turns, so that no card's clock is kept down by the contender before


@dataclass(frozen=True)
class Contender:
    """One way to compute the same thing on the card.

    Attributes:
        name: What its figures are kept under.
        run: Computes so many times, one after another, and waits for the last.
        note: How it differs from the others.
    """

    name: str
    run: Callable[[int], object]
    note: str = ""


def race(contenders: Sequence[Contender], *, turns: int = 15, seconds: float = 8.0) -> dict[str, float]:
    """Return the median seconds of a run of each contender, turns taken in rounds, every other round reversed.

    Args:
        contenders: Who runs; each is warmed up before.
        turns: Most rounds.
        seconds: No further round starts once this much time went by (five rounds are always run).
    """
    counts = {c.name: _count(c) for c in contenders}
    samples: dict[str, list[float]] = {c.name: [] for c in contenders}
    gc.collect()
    began = time.perf_counter()
    for number in range(turns):
        if number >= 5 and time.perf_counter() - began > seconds:
            break
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            time.sleep(_CALM_SECONDS)
            contender.run(1)
            samples[contender.name].append(clock(lambda c=contender: c.run(counts[c.name])) / counts[contender.name])
    return {name: statistics.median(took) for name, took in samples.items()}


def _count(contender: Contender) -> int:
    contender.run(2)
    took = min(clock(lambda: contender.run(1)) for _ in range(3))
    return max(1, min(2000, round(_TURN_SECONDS / max(took, 1e-7))))


def clock(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def median(call: Callable[[], object], *, runs: int = 21) -> float:
    """Return the median seconds of a call, after two warm ones."""
    call(), call()
    return statistics.median(clock(call) for _ in range(runs))


class Lines:
    """Figures: shown as they come, and kept as JSON lines, the last one of each case.

    Args:
        path: The file that they are kept in; None: they are only shown.
    """

    def __init__(self, path: Path | None) -> None:
        device = nbx.device("cuda")
        driver = getattr(device.backend, "driver_version", None)
        self._about = {
            "device": str(device.target.fact("name")),
            "arch": device.target.arch,
            "versions": {"driver": driver() if driver else "unknown", "python": sys.version.split()[0], **_versions()},
            "commit": _commit(),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
        self._path = path

    def add(self, group: str, case: str, unit: str, ours: float, **more: Any) -> None:
        """Keep one figure; ``peers`` among the others adds how many times as good ours is as the best of them."""
        line: dict[str, Any] = {"group": group, "case": case, "unit": unit, "ours": short(ours)}
        peers: dict[str, float] = more.pop("peers", {})
        if peers:
            rate = unit.endswith("/s")
            best = (max if rate else min)(peers, key=lambda name: peers[name])
            line["peers"] = {name: short(value) for name, value in peers.items()}
            line["best_peer"] = best
            line["ratio"] = round(ours / peers[best] if rate else peers[best] / ours, 3)
        line |= {name: value for name, value in more.items() if value is not None}
        print(json.dumps(line), flush=True)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            old = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
            kept = [text for text in old if not _same(json.loads(text), line)]
            self._path.write_text("\n".join([*kept, json.dumps(line | self._about), ""]), encoding="utf-8")


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one.get("group"), one.get("case")) == (other["group"], other["case"])


def short(value: float) -> float:
    """Return a figure to four digits."""
    return float(f"{value:.4g}")


def slug() -> str:
    """Return the name of the file that results of this card are kept in, without its ending."""
    return re.sub(r"[^a-z0-9]+", "-", str(nbx.device("cuda").target.fact("name")).lower()).strip("-")


def _versions() -> dict[str, str]:
    names = [name for name in ("nbxtensor", "triton", "numpy", "torch") if importlib.util.find_spec(name)]
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # a checkout
        return "checkout"


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def example(name: str) -> Any:
    """Return examples/``name``.py as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"examples/{name}.py is not there.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def spent(program: Any, recording: Any, *, runs: int = 7) -> dict[str, dict[str, float]]:
    """Return microseconds of each op of a recording, launch by launch as the device counts them, beside the price."""
    samples = [recording.profile() for _ in range(runs)]
    found: dict[str, dict[str, float]] = {}
    for node, times in zip(program.nodes, zip(*samples, strict=True), strict=True):
        entry = found.setdefault(
            program.plan.graph.nodes[node].op.name, {"measured": 0.0, "priced": 0.0, "launches": 0}
        )
        entry["measured"] += statistics.median(times) / 1e3
        entry["launches"] += 1
    for node, priced in zip(program.plan.graph.nodes, program.plan.price().nodes, strict=True):
        if node.op.name in found:
            found[node.op.name]["priced"] += 1e6 * priced.seconds
    return {
        name: {k: short(v) for k, v in e.items()} for name, e in sorted(found.items(), key=lambda e: -e[1]["measured"])
    }


def spills(programs: Sequence[Any]) -> dict[str, dict[str, int]]:
    """Return what each kernel of programs that has local memory takes: registers, and bytes of it for each thread."""
    found: dict[str, dict[str, int]] = {}
    for program in programs:
        for bound in program.launches:
            taken = bound.kernel.resources
            if taken.local_nbytes:
                name = bound.kernel.compiled.name
                found[name] = {"registers": taken.registers, "local_nbytes": taken.local_nbytes}
    return found
