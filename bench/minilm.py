"""The MiniLM sentence encoder at 128 tokens: our recorded program beside onnxruntime and torch."""

from __future__ import annotations

import importlib.util
import time
from collections import defaultdict
from types import ModuleType
from typing import Any

import numpy as np

import nbxtensor as nbx
from bench import floors, machine, peers
from bench.lines import Lines, scaled
from bench.race import Contender, agree, race
from nbxtensor.backend.cpu import levels

TOKENS = 128
BATCHES = (1, 32)
_COSINE = 1e-5


def example() -> ModuleType:
    """Return examples/minilm.py as a module."""
    spec = importlib.util.spec_from_file_location("minilm", machine.ROOT / "examples" / "minilm.py")
    if spec is None or spec.loader is None:
        raise SystemExit("examples/minilm.py is not there.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random token ids and a mask that sees them all."""
    ids = np.random.default_rng(batch).integers(1000, 30000, (batch, TOKENS))
    return ids, np.ones((batch, TOKENS), bool)


def run(lines: Lines, threads: int, *, turns: int = 25, seconds_each: float = 30.0) -> None:
    """Time one run of the model at each batch; embeddings have to agree with every peer's first."""
    for batch in BATCHES:
        machine.set_threads(threads)
        nbx.device("cpu").measure()
        ids, mask = inputs(batch)
        plan, program = example().load(batch, TOKENS)
        recording = program.capture(ids, mask)
        mine = _ours(recording, ids, mask)
        others = _others(ids, mask, threads)
        agree([mine, *others], rtol=1e-3)
        apart = _apart([mine, *others])
        timings = race([mine, *others], threads=threads, turns=turns, seconds=seconds_each)
        tokens = batch * TOKENS
        figures = {name: tokens / timing.figure for name, timing in timings.items()}
        cost = plan.price().total
        floor, limit = floors.seconds(0.0, cost.flops, "float32", threads)
        lines.add(
            "minilm",
            f"batch {batch}, {TOKENS} tokens",
            unit="tokens/s",
            ours=figures.pop("ours"),
            peers=figures,
            threads=threads,
            floor=tokens / floor,
            limit=limit,
            launches=len(recording),
            apart=apart,
            notes={c.name: c.note for c in others},
            goal="1.0 x onnxruntime",
            against="onnxruntime",
            clock="thread" if threads == 1 else "wall",
            milliseconds=scaled(timings, 1e3)[1],
            priced_over_measured=round(cost.seconds / timings["ours"].figure, 3),
        )
        profile(plan, recording, threads)


def _ours(recording: Any, ids: np.ndarray, mask: np.ndarray) -> Contender:
    return Contender("ours", lambda: recording(ids, mask, borrow=True), lambda value: value.numpy())


def _others(ids: np.ndarray, mask: np.ndarray, threads: int) -> list[Contender]:
    found: list[Contender] = []
    if not peers.present("torch"):
        return found
    from bench.peers import bert

    folder = example().model_folder()
    if peers.present("onnxruntime"):
        found += bert.onnxruntime_contenders(folder, machine.CACHE, ids, mask, threads)
    return found + bert.torch_contenders(folder, ids, mask)


def _apart(contenders: list[Contender]) -> float:
    """Return how far the embeddings are from ours at most, as 1 - cosine.

    Raises:
        ValueError: They are too far from a peer's.
    """
    mine, *others = (np.array(c.value(c.run()), np.float64) for c in contenders)
    worst = 0.0
    for contender, other in zip(contenders[1:], others, strict=True):
        norms = np.linalg.norm(mine, axis=-1) * np.linalg.norm(other, axis=-1)
        apart = float((1 - (mine * other).sum(-1) / norms).max())
        if not apart <= _COSINE:
            raise ValueError(f"{contender.name}: its embeddings are not ours: 1 - cosine is {apart:.2e}.")
        worst = max(worst, apart)
    return float(f"{worst:.1e}")


def profile(plan: Any, recording: Any, threads: int, *, runs: int = 9) -> None:
    """Show where the time of a run goes, by op and shape: processor time of one thread, wall time of several."""
    took = np.median([_alone(recording) if threads == 1 else recording.profile() for _ in range(runs)], axis=0)
    spent: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for node, nanoseconds in zip(recording.program.nodes, took, strict=True):
        found = plan.graph.nodes[node]
        call = found.call(plan.target)
        cost = found.op.kernel(call).cost(call)
        shapes = " ".join("x".join(map(str, s.shape)) for s in call.inputs.values())
        entry = spent[f"{found.op.name} {shapes}"]
        entry[0] += 1
        entry[1] += nanoseconds
        entry[2] += cost.flops
    for name, (count, nanoseconds, flops) in sorted(spent.items(), key=lambda item: -item[1][1]):
        rate = flops / max(nanoseconds, 1)
        print(f"    {nanoseconds / 1e3:10.1f} us  {count:3.0f} x  {rate:7.1f} GFLOP/s  {name[:90]}")
    print(f"    {took.sum() / 1e3:10.1f} us  in all, on {levels.detect()}", flush=True)


def _alone(recording: Any) -> list[float]:
    """Return the nanoseconds of processor time of each launch, run in order, one at a time."""
    program = recording.program
    took: list[float] = []
    for bound in program.launches:
        replay = program.device.backend.record([bound])
        began = time.thread_time_ns()
        replay.run()
        took.append(float(time.thread_time_ns() - began))
    return took
