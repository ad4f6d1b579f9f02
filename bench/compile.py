"""What compiling costs where nothing is in the cache: every kernel of MiniLM, in a process of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time

from bench import machine
from bench.lines import Lines


def run(lines: Lines) -> None:
    """Time the compilation of each kernel of the model at one sentence of 128 tokens."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-m", "bench.compile", cache], check=True, capture_output=True, text=True, cwd=machine.ROOT
        )
    told = json.loads(done.stdout.splitlines()[-1])
    kernels: dict[str, float] = told["kernels"]
    first, *rest = kernels.values()
    lines.add(
        "compile", "a kernel of MiniLM, median", unit="ms", ours=statistics.median(rest), largest=max(rest),
        first=first, kernels=len(kernels), clock="thread", each={n: round(ms, 1) for n, ms in kernels.items()},
    )  # fmt: skip
    lines.add("compile", "MiniLM loaded with nothing in the cache", unit="s", ours=told["load"], clock="wall")


def _compile_all(cache: str) -> None:
    import nbxtensor as nbx
    from bench.minilm import TOKENS, example
    from nbxtensor.backend.cpu import device as cpu_device
    from nbxtensor.settings import set_cache_directory

    set_cache_directory(cache)
    nbx.device("cpu")
    took: dict[str, float] = {}
    inner = cpu_device._compile  # noqa: SLF001 - the cost beneath the cache

    def timed(request: object, target: object) -> object:
        began = time.thread_time()
        compiled = inner(request, target)
        took[f"{len(took)} {compiled.name}"] = (time.thread_time() - began) * 1e3
        return compiled

    cpu_device._compile = timed  # noqa: SLF001
    began = time.perf_counter()
    example().load(1, TOKENS)
    print(json.dumps({"kernels": took, "load": time.perf_counter() - began}))


if __name__ == "__main__":
    _compile_all(sys.argv[1])
