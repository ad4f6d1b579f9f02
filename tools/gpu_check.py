"""Check and time the library on an NVIDIA GPU, in one command; figures go to a file of JSON lines.

python tools/gpu_check.py --out bench/results/nvidia-h200.jsonl

It compares a BERT of MiniLM's shape (random weights) with the CPU, times launches, recordings, copies, some ops and the
start, and runs the tests that need a GPU and the conformance tests.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import nbxtensor as nbx
from nbxtensor.backend import registry

ROOT = Path(__file__).parent.parent
TESTS = ("tests/backend/cuda", "tests/nbxtensor_backend_conformance")
LAYERS = 6
MINILM = {"num_attention_heads": 12, "layer_norm_eps": 1e-12, "num_hidden_layers": LAYERS}
HIDDEN, WIDE, WORDS, PLACES = 384, 1536, 30522, 512


class Lines:
    """Figures: shown, and kept as JSON lines."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        target = registry.backend("cuda").target(0)
        self._about = {
            "device": target.fact("name"),
            "arch": target.arch,
            "versions": {"triton": _version("triton"), "numpy": np.__version__, "python": sys.version.split()[0]},
            "commit": _commit(),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }

    def add(self, group: str, case: str, unit: str, ours: float, **more: Any) -> None:
        """Show and keep one figure."""
        line = {"group": group, "case": case, "unit": unit, "ours": float(f"{ours:.4g}"), **more}
        print(json.dumps(line), flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, **self._about}) + "\n")


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def _commit() -> str:
    try:
        command = ["git", "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def median(call: Callable[[], Any], *, runs: int = 21) -> float:
    """Return the median seconds of a call, after two warm ones."""
    took: list[float] = []
    for _ in range(runs + 2):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return float(np.median(took[2:]))


def tests(lines: Lines, workers: int, log: Path) -> int:
    """Run the tests that need a GPU; return pytest's status."""
    began = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        str(workers),
        "-p",
        "no:cacheprovider",
        "-p",
        "no:benchmark",
        "--tb=short",
        *TESTS,
    ]
    with log.open("w", encoding="utf-8") as file:
        status = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    words = log.read_text(encoding="utf-8").strip().splitlines()
    for line in words:
        if line.startswith(("FAILED", "ERROR")):
            print(line[:200])
    lines.add(
        "tests", " ".join(TESTS), "seconds", time.perf_counter() - began, status=status, said=words[-1] if words else ""
    )
    return status


def minilm_weights() -> dict[str, np.ndarray]:
    """Return random weights of MiniLM's shapes, by the names of its file."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (WORDS, HIDDEN),
        "embeddings.position_embeddings.weight": (PLACES, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        "embeddings.LayerNorm.weight": (HIDDEN,),
        "embeddings.LayerNorm.bias": (HIDDEN,),
    }
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        linears = {f"attention.self.{part}": (HIDDEN, HIDDEN) for part in ("query", "key", "value")}
        linears |= {"attention.output.dense": (HIDDEN, HIDDEN), "intermediate.dense": (WIDE, HIDDEN)}
        linears |= {"output.dense": (HIDDEN, WIDE)}
        for name, shape in linears.items():
            shapes |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{at}.{name}.weight": (HIDDEN,), f"{at}.{name}.bias": (HIDDEN,)}
    return {
        name: (rng.standard_normal(shape, np.float32) * 0.05 + ("LayerNorm.weight" in name)).astype(np.float32)
        for name, shape in shapes.items()
    }


def minilm(lines: Lines, batch: int, tokens: int = 128) -> None:
    """Run the encoder of the example on the GPU, beside the CPU's result, memory and time against the plan's."""
    spec = importlib.util.spec_from_file_location("minilm", ROOT / "examples" / "minilm.py")
    if spec is None or spec.loader is None:
        raise SystemExit("examples/minilm.py is not there.")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    weights = minilm_weights()
    specs = {name: nbx.Spec(w.shape, "float32") for name, w in weights.items()}
    inputs = (nbx.Spec((batch, tokens), "int64"), nbx.Spec((batch, tokens), "bool"))
    graph = nbx.trace(example.encoder(MINILM), *inputs, weights=specs, name="minilm")
    rng = np.random.default_rng(batch)
    ids, mask = rng.integers(0, WORDS, (batch, tokens)), np.ones((batch, tokens), bool)
    mask[:, tokens - 16 :] = rng.random((batch, 16)) < 0.5
    wanted = nbx.plan(graph, device="cpu").load(weights)(ids, mask).numpy().astype(np.float64)
    device = nbx.device("cuda")
    memory = device.backend.memory(0)
    device.allocator.trim()
    plan = nbx.plan(graph, device="cuda")
    free = memory.info().free
    began = time.perf_counter()
    program = plan.load(weights)
    loading = time.perf_counter() - began
    loaded = free - memory.info().free
    got = program(ids, mask).numpy().astype(np.float64)
    ran = free - memory.info().free
    norms = np.linalg.norm(got, axis=-1) * np.linalg.norm(wanted, axis=-1)
    apart = float((1 - (got * wanted).sum(-1) / norms).max())
    recording = program.capture(ids, mask)
    seconds, normal = median(recording.replay), median(lambda: (program.run(), device.backend.synchronize(0)))
    kernels: list[Any] = [bound.kernel for bound in program.launches]
    times = np.median([recording.profile() for _ in range(9)], axis=0)
    families: dict[str, float] = {}
    for node, nanoseconds in zip(program.nodes, times, strict=True):
        name = plan.graph.nodes[node].op.name
        families[name] = families.get(name, 0.0) + float(nanoseconds) / 1e3
    price = plan.price().total
    lines.add(
        "minilm", f"batch {batch}, {tokens} tokens, float32", "milliseconds", 1e3 * seconds,
        program=float(f"{1e3 * normal:.4g}"), price=float(f"{1e3 * price.seconds:.4g}"), limit=price.limit,
        tokens_per_second=round(batch * tokens / seconds), launches=len(recording), verified=recording.verified,
        apart=apart, worst=float(np.abs(got - wanted).max()), load_seconds=round(loading, 3),
        planned_nbytes=plan.nbytes, driver_nbytes_after_load=loaded, driver_nbytes_after_run=ran,
        spilling=sorted({k.compiled.name for k in kernels if k.resources.local_nbytes}),
        most_registers=max(k.resources.registers for k in kernels),
        microseconds={name: round(value, 1) for name, value in sorted(families.items(), key=lambda e: -e[1])},
    )  # fmt: skip
    if not apart < 1e-5:
        raise SystemExit(f"minilm: the embeddings are not the CPU's: 1 - cosine is {apart:.2e}.")


def launches(lines: Lines, count: int = 1000) -> None:
    """Time what starting a kernel costs: eagerly, by a bound launch, as a node of a recording, and a lone replay."""
    spec = nbx.Spec((16,), "float32")

    def chain(length: int) -> Any:
        def fn(x: Any, y: Any) -> Any:
            for _ in range(length):
                x = nbx.add(x, y)
            return x

        return nbx.plan(nbx.trace(fn, spec, spec), device="cuda", optimize=False).load({})

    device = nbx.device("cuda")
    x, y = (nbx.asarray(np.ones(16, np.float32)).to("cuda") for _ in range(2))

    def eager() -> None:
        for _ in range(count):
            nbx.add(x, y)
        device.backend.synchronize(0)

    program = chain(count)

    def bound() -> None:
        program.run()
        device.backend.synchronize(0)

    lines.add("launch", "eager add of 16", "us", 1e6 * median(eager, runs=7) / count, goal=6.0)
    lines.add("launch", "bound launch", "us", 1e6 * median(bound, runs=7) / count, goal=4.5)
    began = time.perf_counter()
    replay = device.backend.record(program.launches)
    lines.add("launch", f"record {count} launches", "ms", 1e3 * (time.perf_counter() - began))
    one = median(device.backend.record(program.launches[:1]).run, runs=101)
    whole = median(replay.run)
    lines.add("launch", "replay of one launch, waited for", "us", 1e6 * one)
    lines.add("launch", f"each node of a replay of {count}", "us", 1e6 * (whole - one) / (count - 1), goal=0.95)


def copies(lines: Lines, nbytes: int = 1 << 30) -> None:
    """Time copies: on the device (bytes read and written), to it and from it (pageable host memory)."""
    memory = nbx.device("cuda").backend.memory(0)
    wait = nbx.device("cuda").backend.synchronize
    first, second = memory.allocate(nbytes), memory.allocate(nbytes)
    host = np.ones(nbytes // 4, np.uint8)
    within = median(lambda: (memory.copy(second, first, nbytes), wait(0)), runs=9)
    lines.add("copy", "on the device, 1 GiB", "TB/s", 2 * nbytes / within / 1e12)
    lines.add(
        "copy",
        "to the device, 256 MiB",
        "GB/s",
        host.nbytes / median(lambda: memory.copy_in(first, host.data), runs=5) / 1e9,
    )
    lines.add(
        "copy",
        "from the device, 256 MiB",
        "GB/s",
        host.nbytes / median(lambda: memory.copy_out(host.data, first), runs=5) / 1e9,
    )
    memory.free(first)
    memory.free(second)


def ops(lines: Lines) -> None:
    """Time some large ops in recordings, against the bytes and operations that they declare."""
    big, square = nbx.Spec((8192, 8192), "float32"), nbx.Spec((4096, 4096), "bfloat16")
    wide = nbx.Spec((8192, 4096), "bfloat16")
    cases: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "add 8192x8192 float32": (lambda x, y: x + y, (big, big)),
        "softmax 8192x4096 bfloat16": (lambda x: nbx.softmax(x, axis=-1), (wide,)),
        "sum 8192x8192 float32": (lambda x: nbx.sum(x, axis=-1), (big,)),
        "layer_norm 8192x4096 bfloat16": (lambda x: nbx.layer_norm(x, (4096,)), (wide,)),
        "matmul 4096 bfloat16": (lambda x, y: x @ y, (square, square)),
    }
    for name, (fn, specs) in cases.items():
        plan = nbx.plan(nbx.trace(fn, *specs), device="cuda")
        recording = plan.load({}).capture()
        seconds = float(np.median([sum(recording.profile()) for _ in range(9)])) * 1e-9
        cost = plan.price().total
        lines.add(
            "ops", name, "us", 1e6 * seconds, price=float(f"{1e6 * cost.seconds:.4g}"), limit=cost.limit,
            gigabytes_per_second=round(cost.nbytes / seconds / 1e9),
            teraflops=float(f"{cost.flops / seconds / 1e12:.4g}"),
        )  # fmt: skip


def main() -> int:
    """Run every check; return the status of the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file that the figures are appended to")
    parser.add_argument("--log", type=Path, default=ROOT / "build" / "gpu_tests.txt", help="what the tests print")
    parser.add_argument("--workers", type=int, default=12, help="processes that run tests")
    parser.add_argument("--no-tests", action="store_true", help="figures only")
    asked = parser.parse_args()
    if not registry.backend("cuda").count():
        raise SystemExit("no NVIDIA GPU here.")
    asked.log.parent.mkdir(parents=True, exist_ok=True)
    lines = Lines(asked.out)
    began = time.perf_counter()
    nbx.add(nbx.asarray(np.ones(4, np.float32)).to("cuda"), 1).numpy()
    lines.add("start", "first op, kernel compiled or fetched", "seconds", time.perf_counter() - began)
    for batch in (1, 32):
        minilm(lines, batch)
    launches(lines)
    copies(lines)
    ops(lines)
    return 0 if asked.no_tests else tests(lines, asked.workers, asked.log)


if __name__ == "__main__":
    sys.exit(main())
