"""`python -m bench plan FOLDER`: placements of lifetimes and of long chains, and the tables of docs/PLANNING.md."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import machine
from bench.lines import Lines
from nbxtensor.planning.lifetimes import Lifetime, read_csv
from nbxtensor.planning.placement import place
from nbxtensor.planning.verify import verify_placement

DOCUMENT = machine.ROOT / "docs" / "PLANNING.md"
BEGIN, END = "<!-- {}: written by python -m bench plan -->", "<!-- end of {} -->"
CHAINS = (1_000, 10_000, 100_000, 1_000_000)  # buffers
_STEPS = 1 << 40  # of searching: the seconds end it


@dataclass(frozen=True)
class Placed:
    """One file, placed and checked.

    Attributes:
        group: The folder it lies in.
        name: Its name.
        buffers: How many buffers it has.
        peak: Bytes of the placement.
        bound: Most bytes in use at one moment.
        goal: Bytes that are asked for: the capacity in the file's name, or the bound.
        algorithm: What found the placement.
        seconds: Time of placing and checking.
    """

    group: str
    name: str
    buffers: int
    peak: int
    bound: int
    goal: int
    algorithm: str
    seconds: float

    @property
    def ratio(self) -> float:
        return self.peak / self.bound if self.bound else 1.0


def placed(group: str, name: str, lifetimes: Sequence[Lifetime], goal: int = 0, seconds: float = 60.0) -> Placed:
    """Place, check, and take the time of both: this thread's own, which other processes do not add to."""
    began = time.thread_time()
    found = place(lifetimes, goal=goal, steps=_STEPS, seconds=seconds)
    verify_placement(lifetimes, found.offsets, found.peak)
    took = time.thread_time() - began
    goal = max(goal, found.lower_bound)
    return Placed(group, name, len(lifetimes), found.peak, found.lower_bound, goal, found.algorithm, took)


def folder(root: Path, seconds: float) -> Iterator[Placed]:
    """Place every file of a folder's folders; a number in a name (``A.1048576.csv``) is its capacity."""
    for path in sorted(root.glob("*/*.csv")):
        capacity = path.stem.rpartition(".")[2]
        goal = int(capacity) if capacity.isdecimal() and int(capacity) > 4096 else 0
        yield placed(path.parent.name, path.stem, read_csv(path), goal, seconds)


def chain(count: int, seed: int = 0) -> list[Lifetime]:
    """Return the buffers of a long transformer: layers of varying width, each with a residual and nine temporaries.

    Every third layer or so also keeps something for up to forty layers, as caches and skipped connections do.
    """
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int, int]] = []
    for now in range(0, 10 * count, 10):
        if len(rows) >= count:
            break
        width = int(rng.choice([256, 384, 512, 768])) * int(rng.choice([64, 128])) * 4
        rows.append((now, now + 11, width))
        for step, times in enumerate((1, 3, 1, 1, 2, 1, 1, 4, 4)):
            size = times * width + int(rng.choice([0, 256]))
            rows.append((now + step + 1, now + step + 3 + (step % 3 == 0), size))
        if rng.random() < 0.3:
            rows.append((now, now + int(rng.integers(20, 400)), width // 4))
    return [Lifetime(f"b{i}", *row, 256) for i, row in enumerate(rows[:count])]


def summary(found: Sequence[Placed]) -> str:
    """Return one line per folder: how many reach what is asked for, by how much the others miss, and the time."""
    lines = [
        "| set | instances | buffers | as asked | geometric mean | worst | seconds in all | slowest |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for group in dict.fromkeys(x.group for x in found):
        some = [x for x in found if x.group == group]
        over = [x.peak / x.goal if x.goal else 1.0 for x in some]
        mean = math.exp(sum(map(math.log, over)) / len(over))
        sizes = sorted(x.buffers for x in some)
        spread = f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,}"
        lines.append(
            f"| {group} | {len(some)} | {spread} | {sum(r <= 1 for r in over)} | {mean:.4f} | {max(over):.4f} | "
            f"{sum(x.seconds for x in some):.2f} | {max(x.seconds for x in some):.2f} |"
        )
    return "\n".join(lines)


def listing(found: Sequence[Placed]) -> str:
    """Return a line for each instance."""
    lines = [
        "| instance | buffers | peak | lower bound | ratio | seconds | found by |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {x.group}/{x.name} | {x.buffers:,} | {x.peak:,} | {x.bound:,} | {x.ratio:.4f} | {x.seconds:.3f} | "
        f"{x.algorithm} |"
        for x in found
    ]
    return "\n".join(lines)


def growth(found: Sequence[Placed]) -> str:
    """Return how time grows with the number of buffers; the last column would stay the same for n log n."""
    lines = ["| buffers | ratio | seconds | ns / (n log2 n) |", "| ---: | ---: | ---: | ---: |"]
    for x in found:
        each = 1e9 * x.seconds / (x.buffers * math.log2(x.buffers))
        lines.append(f"| {x.buffers:,} | {x.ratio:.4f} | {x.seconds:.3f} | {each:.0f} |")
    return "\n".join(lines)


def written(text: str, tables: dict[str, str]) -> str:
    """Return a document with each table between its marks in place of what was there."""
    for name, table in tables.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"the document has no marks {begin!r} and {end!r}")
        text = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return text


def main(arguments: Sequence[str]) -> int:
    """Place everything, show and keep it; the status is the number of instances that miss what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench plan", description="Placements of recorded lifetimes, and how time grows."
    )
    parser.add_argument("folder", type=Path, help="its folders hold files of lifetimes: id,lower,upper,size")
    parser.add_argument("--seconds", type=float, default=60.0, help="most seconds of searching for one file")
    parser.add_argument("--chains", type=int, nargs="*", default=CHAINS, help="lengths of the chains, in buffers")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="where the tables stand")
    parser.add_argument("--no-write", action="store_true", help="show the figures only")
    asked = parser.parse_args(arguments)
    with closing(Lines(keep=not asked.no_write)) as lines:
        found = list(_kept(lines, folder(asked.folder, asked.seconds)))
        if not found:
            parser.error(f"{asked.folder}: no folder in it holds a .csv file")
        chains = (placed("chain", f"{count}", chain(count), seconds=asked.seconds) for count in asked.chains)
        chains = list(_kept(lines, chains))
    tables = {"sets": summary(found), "growth": growth(chains), "instances": listing(found)}
    print("\n\n".join(tables.values()))
    if not asked.no_write:
        asked.document.write_text(written(asked.document.read_text(encoding="utf-8"), tables), encoding="utf-8")
    return sum(x.peak > x.goal for x in found)


def _kept(lines: Lines, found: Iterable[Placed]) -> Iterator[Placed]:
    for one in found:
        lines.add(
            "plan", f"{one.group}/{one.name}", unit="s", ours=one.seconds, buffers=one.buffers, peak=one.peak,
            lower_bound=one.bound, over=round(one.ratio, 4), algorithm=one.algorithm,
        )  # fmt: skip
        yield one
