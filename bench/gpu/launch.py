"""What starting a kernel costs: eagerly, from a program, inside a recording; and copies to and from the card."""

from __future__ import annotations

from typing import Any

import numpy as np

import nbxtensor as nbx
from bench.gpu.card import Contender, Lines, median, race

COUNT = 1000


def run(lines: Lines) -> None:
    """Time launches of a kernel that adds 16 numbers, beside torch's, and copies."""
    device = nbx.device("cuda")
    program = _chain(COUNT)
    x, y = (nbx.asarray(np.ones(16, np.float32)).to("cuda") for _ in range(2))

    def eager(times: int) -> None:
        for _ in range(times):
            nbx.add(x, y)
        device.backend.synchronize(0)

    took = race([Contender("ours", eager), *_torch()], turns=9)
    figures = {name: 1e6 * seconds for name, seconds in took.items()}
    lines.add("launch", "eager add of 16", "us", figures.pop("ours"), peers=figures, goal=6.0)
    bound = median(lambda: (program.run(), device.backend.synchronize(0)), runs=9)
    lines.add("launch", "recorded launch started from the host", "us", 1e6 * bound / COUNT, goal=4.5)
    short, long = _chain(1).capture(*_ones()), program.capture(*_ones())
    one, whole = median(short.replay, runs=101), median(long.replay)
    lines.add("launch", "replay of one launch, waited for", "us", 1e6 * one)
    lines.add("launch", f"each node of a replay of {COUNT}", "us", 1e6 * (whole - one) / (COUNT - 1), goal=0.95)
    backend, launches = device.backend, program.launches
    lines.add("launch", f"record {COUNT} launches", "ms", 1e3 * median(lambda: backend.record(launches), runs=5))
    replay, same = backend.record(launches), launches[0].arguments
    again = median(lambda: replay.rebind(0, same), runs=21)
    lines.add("launch", "other arguments for a recorded launch", "us", 1e6 * again)
    times = 500
    many = median(lambda: short.replay(times), runs=9) / times
    lines.add("launch", "each replay of one launch, many without the host between them", "us", 1e6 * many)
    _copies(lines)


def _ones() -> tuple[np.ndarray, np.ndarray]:
    return np.ones(16, np.float32), np.ones(16, np.float32)


def _chain(length: int) -> Any:
    spec = nbx.Spec((16,), "float32")

    def fn(x: Any, y: Any) -> Any:
        for _ in range(length):
            x = nbx.add(x, y)
        return x

    return nbx.plan(nbx.trace(fn, spec, spec), device="cuda", optimize=False).load({})


def _torch() -> list[Contender]:
    try:
        import torch
    except ImportError:
        return []
    a, b = (torch.ones(16, device="cuda") for _ in range(2))

    def run(times: int) -> None:
        with torch.inference_mode():
            for _ in range(times):
                torch.add(a, b)
        torch.cuda.synchronize()

    return [Contender("torch", run)]


def _copies(lines: Lines, nbytes: int = 1 << 30) -> None:
    device = nbx.device("cuda")
    memory, wait = device.backend.memory(0), device.backend.synchronize
    first, second = memory.allocate(nbytes), memory.allocate(nbytes)
    host = np.ones(nbytes // 4, np.uint8)
    within = median(lambda: (memory.copy(second, first, nbytes), wait(0)), runs=9)
    lines.add("copy", "on the device, 1 GiB, read and written", "TB/s", 2 * nbytes / within / 1e12)
    taken = host.nbytes / median(lambda: memory.copy_in(first, host.data), runs=5) / 1e9
    lines.add("copy", "to the device, 256 MiB of pageable memory", "GB/s", taken)
    taken = host.nbytes / median(lambda: memory.copy_out(host.data, first), runs=5) / 1e9
    lines.add("copy", "from the device, 256 MiB of pageable memory", "GB/s", taken)
    pinned, size = memory.allocate_host(nbytes // 2), nbytes // 2
    taken = size / median(lambda: memory.start_copy_in(first, pinned, size).wait(), runs=5) / 1e9
    lines.add("copy", "to the device, 512 MiB of pinned memory", "GB/s", taken)
    taken = size / median(lambda: memory.start_copy_out(pinned, first, size).wait(), runs=5) / 1e9
    lines.add("copy", "from the device, 512 MiB of pinned memory", "GB/s", taken)
    memory.free(first)
    memory.free(second)
