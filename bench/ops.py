"""Every declared case that asks to be timed, beside every peer that has the op."""

from __future__ import annotations

from bench import floors, machine, ours, peers
from bench.lines import Lines, scaled
from bench.race import agree, race
from nbxtensor.errors import NbxError

# What is asked of us, as a ratio: of the best peer, or of the one named.
GOALS = {
    "softmax": "1.0 x the best peer",
    "layer_norm": "1.0 x the best peer",
    "rms_norm": "1.0 x the best peer",
    "silu": "1.0 x the best peer",
    "gelu": "1.0 x the best peer",
    "matmul": "0.95 x numpy",
}
_RTOL = 2e-4  # of the largest result: float32 sums of thousands in different orders


def run(lines: Lines, threads: int, *, only: str = "", turns: int = 25, seconds_each: float = 4.0) -> None:
    """Time the cases of every op whose name contains ``only``."""
    for timed in ours.timed_cases(only):
        machine.set_threads(threads)
        try:
            values = ours.arrays(timed)
            mine, recording = ours.recorded(timed, values)
            contenders = [mine, ours.eager(timed, values)]
            asked = peers.Asked(timed.op.name, values, timed.case.params, timed.weights, threads)
            found = peers.contenders(asked)
            agree([*contenders, *found], rtol=_RTOL)
        except (NbxError, ValueError, TypeError) as error:
            print(f"ops      {timed.name}: not timed: {type(error).__name__}: {error}", flush=True)
            continue
        cost = timed.op.kernel(timed.call).cost(timed.call)
        bare = floors.moving(cost.read - cost.again, cost.written, threads)
        timings = race([*contenders, *found, bare], threads=threads, turns=turns, seconds=seconds_each)
        floor, limit = floors.seconds(timings.pop(floors.NAME).figure, cost.flops, cost.matrix or "float32", threads)
        figures, more = scaled(timings, 1e3)
        lines.add(
            "ops",
            timed.name,
            unit="ms",
            ours=figures.pop("ours"),
            eager=float(f"{figures.pop('eager'):.5g}"),
            peers=figures,
            threads=threads,
            floor=floor * 1e3,
            limit=limit,
            launches=len(recording),
            notes={c.name: c.note for c in found},
            goal=GOALS.get(timed.op.name, ""),
            against="numpy" if timed.op.name == "matmul" else "",
            clock="thread" if threads == 1 else "wall",
            **more,
        )
        del contenders, found, mine, recording, values
