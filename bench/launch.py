"""What it costs to start a kernel: recorded, recorded many at a time, eagerly, and for two threads to meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import nbxtensor as nbx
from bench import machine, peers
from bench.lines import Lines, scaled
from bench.race import Contender, race

_SMALL = 16  # elements: one vector, so that nothing but the launch takes time
_MANY = 200


def run(lines: Lines) -> None:
    """Time launches on one thread, then the meeting of two."""
    machine.set_threads(1)
    values = [np.random.default_rng(i).standard_normal(_SMALL, dtype=np.float32) for i in range(2)]
    one, many = _recording(1), _recording(_MANY)
    x, y = (nbx.asarray(v) for v in values)
    contenders = [
        _plain("recorded", one.replay),
        _plain("many", many.replay),
        _plain("eager", lambda: nbx.add(x, y)),
        *_peers(values),
    ]
    timings = race(contenders, threads=1, turns=41, seconds=10)
    figures, more = scaled(timings, 1e9)
    spread = (figures["many"] - figures["recorded"]) / (_MANY - 1)
    others = {name: value for name, value in figures.items() if name in peers.NAMES}
    told = {"peers": others, "unit": "ns", "clock": "thread", **more}
    lines.add("launch", f"recorded, one add of {_SMALL}", ours=figures["recorded"], goal="1000 ns", **told)
    lines.add("launch", f"each further launch of a recording ({_MANY})", ours=spread, goal="1000 ns", **told)
    lines.add("launch", f"eager add of {_SMALL}", ours=figures["eager"], **told)
    if machine.about()["cores"] > 1:
        alone = machine.rates(1)["launch.seconds"] * 1e9
        met = machine.rates(2)["launch.seconds"] * 1e9
        lines.add(
            "launch", "barrier of two workers (empty kernel)", ours=met, unit="ns", threads=2, alone=alone, clock="wall"
        )


def _recording(count: int) -> Any:
    """Return a recording of ``count`` launches of a kernel that adds a handful of numbers."""

    def fn(x: Any, y: Any) -> Any:
        for _ in range(count):
            x = nbx.add(x, y)
        return x

    spec = nbx.Spec((_SMALL,), "float32")
    recording = nbx.plan(nbx.trace(fn, spec, spec), device="cpu", optimize=False).load({}).capture()
    if len(recording) != count:
        raise ValueError(f"a recording of {count} launches was meant. Got {len(recording)}.")
    return recording


def _plain(name: str, call: Callable[[], Any]) -> Contender:
    return Contender(name, call, np.asarray)


def _peers(values: list[np.ndarray]) -> list[Contender]:
    out = np.empty_like(values[0])
    found = [_plain("numpy", lambda: np.add(values[0], values[1], out=out))]
    if peers.present("torch"):
        import torch

        torch.set_grad_enabled(False)
        a, b = (torch.from_numpy(v) for v in values)
        result = torch.empty_like(a)
        found.append(_plain("torch", lambda: torch.add(a, b, out=result)))
    return found
