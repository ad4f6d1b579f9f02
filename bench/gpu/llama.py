"""Llama-architecture decoding, batch 1, a cache of 1024 tokens: our recording beside torch with a static cache."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from bench.gpu.card import Contender, Lines, example, race, short, spent, spills

CONTEXT = 1024
SHAPES = ("1b", "8b")
GOALS = {"1b": 1000, "8b": 240}
_APART = 0.05  # of the largest logit, bfloat16 activations through all layers


def run(lines: Lines, shape: str, *, layers: int = 0, compiled: bool = True) -> None:
    """Time a step with the cache full.

    Args:
        lines: Where figures go.
        shape: "1b" or "8b" (`examples/llama.py`), weights random.
        layers: So many layers only, to try the bench; 0: all.
        compiled: Whether torch takes part.
    """
    llama = example("llama")
    config = llama.SHAPES[shape]
    if layers:
        config = dataclasses.replace(config, layers=layers)
    began = time.perf_counter()
    weights = llama.RandomWeights(config, "cuda")
    program = llama.load(config, "cuda", CONTEXT, weights)
    recording = program.capture()
    loaded = time.perf_counter() - began
    ours = Contender("ours", recording.replay)
    others, apart, noted = _torch(config, weights, program, recording) if compiled else ([], None, {})
    program.state["position"] = np.array([CONTEXT - 1], np.int32)
    took = race([ours, *others], turns=11, seconds=20)
    figures = {name: 1 / seconds for name, seconds in took.items()}
    rate, price = figures.pop("ours"), program.plan.price().total
    read = program.plan.weights_nbytes
    lines.add(
        "llama", f"decode {shape}, {config.layers} layers, context {CONTEXT}, {config.dtype}", "tokens/s",
        rate, peers=figures, milliseconds=short(1e3 / rate), priced=short(1e3 * price.seconds),
        priced_over_measured=short(price.seconds * rate), limit=price.limit, launches=len(recording),
        verified=recording.verified, apart=apart, notes=noted, load_seconds=round(loaded, 2),
        weights_nbytes=read, terabytes_per_second=short(read * rate / 1e12), planned_nbytes=program.plan.nbytes,
        spilling=spills([program]), microseconds=spent(program, recording), goal=None if layers else GOALS[shape],
    )  # fmt: skip


def _torch(config: Any, weights: Any, program: Any, recording: Any) -> tuple[list[Contender], float, dict[str, str]]:
    """Return torch's contenders; their logits have to be ours for the same tokens, the first three."""
    import torch

    from bench.peers import cuda_torch, llama

    def given(name: str) -> torch.Tensor:
        tensor = torch.from_dlpack(weights[name])
        return tensor.clone()

    step = llama.load(config, CONTEXT, given)
    program.state.reset()
    program.state["token"] = np.array([7], np.int64)
    mine = []  # (the token that went in, the logits)
    for _ in range(3):
        token = int(program.state["token"].numpy().item())
        recording.replay()
        mine.append((token, _floats(program)))
    contenders: list[Contender] = []
    notes: dict[str, str] = {}
    apart = 0.0
    with torch.inference_mode():
        for name, call, note in (
            ("torch CUDA graph", step, "eager kernels, static cache"),
            ("torch.compile", torch.compile(step, dynamic=False), "inductor, static cache, one CUDA graph"),
        ):
            replay, logits = cuda_torch.graphed(call)
            step.position.zero_()
            for number, (token, value) in enumerate(mine):
                step.token.fill_(token)  # ours: of two logits alike, either may be the larger
                replay()
                torch.cuda.synchronize()
                got = logits.double().cpu().numpy()[0]
                worst = float(np.abs(got - value).max() / np.abs(value).max())
                if not worst <= _APART:
                    raise ValueError(f"{name}: logits of token {number} are not ours: off by {worst:.2e}.")
                apart = max(apart, worst)
            step.position.fill_(CONTEXT - 1)

            def run(times: int, replay: Any = replay) -> None:
                for _ in range(times):
                    replay()
                torch.cuda.synchronize()

            contenders.append(Contender(name, run))
            notes[name] = note
    return contenders, short(apart), notes


def _floats(program: Any) -> np.ndarray:
    """Return the logits of the last step."""
    from nbxtensor.dtype.convert import convert

    logits = program.results(borrow=True)[1]
    return convert(logits.numpy(), logits.dtype, "float32").astype(np.float64).reshape(-1)
