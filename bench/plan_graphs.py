"""Graphs of ops as data: the peak in program order, with results over operands, and with the order searched too."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbxtensor.planning.order import BUDGET, Task, dependencies, peak_of, search

# MiB: the least peak that a study of fifteen planners found for each graph, with any order and results in place.
BEST = {
    "densenet121": 6.89,
    "gpt2_prefill512": 18.0,
    "llama8b_decode": 64.53,
    "llama8b_prefill512": 72.0,
    "mobilenet_v2": 5.74,
    "moe32": 9.03,
    "resnet50": 6.89,
    "unet_sd15": 1094.01,
    "vit_b16": 5.17,
}
GRANULE = 256  # bytes that sizes are rounded up to, as in the files of lifetimes


@dataclass(frozen=True)
class Peaks:
    """Most bytes in use at one moment by one graph's temporaries.

    Attributes:
        name: The graph.
        ops: Its ops.
        total: Bytes of all temporaries together.
        program: In program order, each result in memory of its own.
        in_place: In program order, results over operands that die, and updates of donated operands where they lie.
        ordered: The same with the order searched.
        largest_op: What the op that needs most needs by itself: no order and no placement needs less.
        floor: What is proven that no order needs less than.
        complete: Whether it is sure that no order needs less.
        seconds: Time of the search.
    """

    name: str
    ops: int
    total: int
    program: int
    in_place: int
    ordered: int
    largest_op: int
    floor: int
    complete: bool
    seconds: float


def peaks(path: Path, *, donated: bool = True, budget: int = BUDGET) -> Peaks:
    """Measure one graph.

    Args:
        path: A JSON file: ``ops`` (``inp``, ``out`` and ``inplace`` of each), ``bufs`` (bytes of each temporary),
            ``external`` (weights and inputs, not counted) and ``outputs``.
        donated: Whether an op may update an external operand where it lies, if every other op reads it before.
        budget: Steps of the search.
    """
    graph = json.loads(path.read_text())
    sizes = _sizes(graph)
    plain = _tasks(graph, sizes, over=False)
    kept = [b for b in graph["outputs"] if b in sizes]
    order = range(len(plain))
    before = peak_of(plain, sizes, kept, order)
    given = _donated(graph, sizes) if donated else {}
    sizes_left = {b: 0 if b in given else n for b, n in sizes.items()}
    tasks = _tasks(graph, sizes_left, over=True, given=given)
    start = time.perf_counter()
    found = search(tasks, sizes_left, kept, budget=budget)
    return Peaks(
        path.stem, len(tasks), sum(sizes.values()), before, peak_of(tasks, sizes_left, kept, order), found.peak,
        found.largest, found.floor, found.complete, time.perf_counter() - start,
    )  # fmt: skip


def _sizes(graph: dict[str, Any]) -> dict[int, int]:
    return {int(b): -(-n // GRANULE) * GRANULE for b, n in graph["bufs"].items()}


def _tasks(
    graph: dict[str, Any], sizes: dict[int, int], *, over: bool, given: dict[int, int] | None = None
) -> Sequence[Task]:
    updated = given or {}
    accesses = [  # what is updated where it lies is written: all else that reads it comes before
        (op["inp"], [*op["out"], *(updated[b] for b in op["out"] if b in updated)]) for op in graph["ops"]
    ]
    return [
        Task(
            tuple(b for b in dict.fromkeys((*op["inp"], *op["out"])) if b in sizes),
            after,
            tuple((op["out"][0], b) for b in op["inplace"] if b in sizes and sizes[b] == sizes[op["out"][0]])
            if over
            else (),
        )
        for op, after in zip(graph["ops"], dependencies(accesses), strict=True)
    ]


def _donated(graph: dict[str, Any], sizes: dict[int, int]) -> dict[int, int]:
    """Return, for each result of an update of an external operand that no later op reads, that operand."""
    last: dict[int, int] = {}
    for place, op in enumerate(graph["ops"]):
        last.update(dict.fromkeys(op["inp"], place))
    return {
        op["out"][0]: op["inp"][0]
        for place, op in enumerate(graph["ops"])
        if op["name"] == "dynamic_update_slice" and op["inp"][0] not in sizes and last[op["inp"][0]] == place
    }


def table(found: Sequence[Peaks]) -> str:
    """Return the peaks as a table in MiB, beside the best that is known where a graph is one of `BEST`."""
    lines = [
        "graph                 ops      total    program   in place    ordered largest op      floor       best    s"
    ]
    for x in found:
        sizes = [x.total, x.program, x.in_place, x.ordered, x.largest_op, x.floor]
        best = f"{BEST[x.name]:10.2f}" if x.name in BEST else " " * 10
        mib = " ".join(f"{n / 2**20:10.2f}" for n in sizes)
        lines.append(f"{x.name:20} {x.ops:5} {mib} {best} {x.seconds:4.1f}")
    return "\n".join(lines)


def main(paths: Sequence[Path]) -> int:
    """Print the table; the status is the number of graphs that need more than the best that is known."""
    found = [peaks(path) for path in paths]
    print(table(found))
    worse = [x for x in found if x.name in BEST and round(x.ordered / 2**20, 2) > BEST[x.name]]
    for x in worse:
        print(f"{x.name}: {x.ordered / 2**20:.2f} MiB is more than {BEST[x.name]}")
    return len(worse)


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
