"""Check and time the library on an NVIDIA GPU, in one command; figures go to a file of JSON lines.

python tools/checkout.py tools/gpu_check.py

It compares a BERT of MiniLM's shape (random weights) with the CPU, times launches, recordings, copies, some ops and the
start, and runs what needs a GPU: the tests of the CUDA backend, every case of every op, the conformance tests, the
exchange with torch and CuPy, the proof that the library runs without torch, and, where asked, the cases of the ops
under compute-sanitizer. The file keeps the last result of each, for the device.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.backend.cuda.planned_memory import taken
from tools.gpu_sanitize import TOOLS, sanitize

import nbxtensor as nbx
from nbxtensor.backend import registry

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
TESTS = (
    "tests/backend/cuda",
    "tests/nbxtensor_backend_conformance",
    "tests/tensor/test_exchange.py",
    "tests/examples/test_llama.py",
)
LAYERS = 6
MINILM = {"num_attention_heads": 12, "layer_norm_eps": 1e-12, "num_hidden_layers": LAYERS}
HIDDEN, WIDE, WORDS, PLACES = 384, 1536, 30522, 512


class Lines:
    """Figures: shown, and kept as JSON lines, the last one of each case."""

    def __init__(self, path: Path | None) -> None:
        target = registry.backend("cuda").target(0)
        name = str(target.fact("name")).lower().replace(" ", "-")
        self._path = path or RESULTS / f"{name}.jsonl"
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
        self._path.parent.mkdir(parents=True, exist_ok=True)
        old = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        kept = [text for text in old if not _same(json.loads(text), line)]
        self._path.write_text("\n".join([*kept, json.dumps({**line, **self._about}), ""]), encoding="utf-8")


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (one.get("group"), one.get("case")) == (other["group"], other["case"])


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def _commit() -> str:
    try:
        head, changed = (
            subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
        return head + ("+changes" if changed else "")
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


def tests(lines: Lines, workers: int, folder: Path) -> int:
    """Run the tests that need a GPU, side by side, then those that need it to themselves; return pytest's status."""
    # The documents' examples, which the folder above the tests has, need packages of their own.
    fixed = ["-q", "--confcutdir=tests", "-p", "no:cacheprovider", "-p", "no:benchmark", "--tb=short", *TESTS]
    worst = 0
    for name, chosen in (("side by side", ["-n", str(workers)]), ("alone", ["-n0", "-m", "alone"])):
        began = time.perf_counter()
        log = folder / f"tests {name}.txt".replace(" ", "_")
        with log.open("w", encoding="utf-8") as file:
            command = [sys.executable, "-m", "pytest", *chosen, *fixed]
            status = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        words = log.read_text(encoding="utf-8").strip().splitlines()
        for line in words:
            if line.startswith(("FAILED", "ERROR")):
                print(line[:200])
        took = time.perf_counter() - began
        lines.add("tests", name, "seconds", took, status=status, said=words[-1] if words else "", of=TESTS)
        worst = max(worst, status)
    return worst


def without_torch(lines: Lines) -> int:
    """Run the proof that the library runs without torch; return its status."""
    began = time.perf_counter()
    command = [sys.executable, str(ROOT / "tools" / "torch_free_proof.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stdout.strip().splitlines()
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-2000:])
    lines.add("tests", "without torch", "seconds", time.perf_counter() - began, status=done.returncode, said=said)
    return done.returncode


def sanitized(lines: Lines, workers: int, seconds: float, folder: Path) -> int:
    """Run cases of the ops under compute-sanitizer; return 0 where nothing was found."""
    status = 0
    for tool in TOOLS:
        began = time.perf_counter()
        found = sanitize(tool, workers, seconds, seed=0, log=folder)
        lines.add("tests", f"compute-sanitizer {tool}", "seconds", time.perf_counter() - began, **found)
        status |= int(found["found"] > 0)
    return status


@functools.cache
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


@functools.cache
def _example() -> Any:
    spec = importlib.util.spec_from_file_location("minilm", ROOT / "examples" / "minilm.py")
    if spec is None or spec.loader is None:
        raise SystemExit("examples/minilm.py is not there.")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def minilm_graph(batch: int, tokens: int = 128) -> Any:
    """Return the graph of the example's encoder."""
    specs = {name: nbx.Spec(w.shape, "float32") for name, w in minilm_weights().items()}
    inputs = (nbx.Spec((batch, tokens), "int64"), nbx.Spec((batch, tokens), "bool"))
    return nbx.trace(_example().encoder(MINILM), *inputs, weights=specs, name="minilm")


def minilm(lines: Lines, batch: int, tokens: int = 128) -> None:
    """Run the encoder of the example on the GPU, beside the CPU's result, memory and time against the plan's."""
    weights, graph = minilm_weights(), minilm_graph(batch, tokens)
    rng = np.random.default_rng(batch)
    ids, mask = rng.integers(0, WORDS, (batch, tokens)), np.ones((batch, tokens), bool)
    mask[:, tokens - 16 :] = rng.random((batch, 16)) < 0.5
    wanted = nbx.plan(graph, device="cpu").load(weights)(ids, mask).numpy().astype(np.float64)
    device = nbx.device("cuda")
    plan = nbx.plan(graph, device="cuda")
    took = taken(plan, weights, device)
    began = time.perf_counter()
    program = plan.load(weights)
    loading = time.perf_counter() - began
    got = program(ids, mask).numpy().astype(np.float64)
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
        planned_nbytes=took.planned, driver_nbytes=took.areas, unplanned_nbytes=took.unplanned,
        code_nbytes=took.code, first_run_nbytes=took.first_run,
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
    recording = median(lambda: device.backend.record(program.launches), runs=5)
    lines.add("launch", f"record {count} launches", "ms", 1e3 * recording)
    replay = device.backend.record(program.launches)
    one = median(device.backend.record(program.launches[:1]).run, runs=101)
    whole = median(replay.run)
    lines.add("launch", "replay of one launch, waited for", "us", 1e6 * one)
    each = 1e6 / (count - 1)
    card = device.backend._card(0)  # noqa: SLF001 - for the comparison alone
    card.starts_early = False
    late = median(device.backend.record(program.launches).run)
    card.starts_early = True
    lines.add(
        "launch", f"each node of a replay of {count}", "us", each * (whole - one), goal=0.95,
        without_early_start=float(f"{each * (late - one):.4g}"),
    )  # fmt: skip
    first = program.launches[0].arguments
    lines.add("launch", "other arguments for a recorded launch", "us", 1e6 * median(lambda: replay.rebind(0, first)))


def copies(lines: Lines, nbytes: int = 1 << 30) -> None:
    """Time copies: on the device (bytes read and written), and to and from ordinary and pinned memory of the host."""
    memory = nbx.device("cuda").backend.memory(0)
    wait = nbx.device("cuda").backend.synchronize
    first, second = memory.allocate(nbytes), memory.allocate(nbytes)
    host, pinned = np.ones(nbytes // 2, np.uint8), memory.allocate_host(nbytes // 2)
    size = host.nbytes
    within = median(lambda: (memory.copy(second, first, nbytes), wait(0)), runs=9)
    lines.add("copy", "on the device, 1 GiB", "TB/s", 2 * nbytes / within / 1e12)
    ways: dict[str, Callable[[], Any]] = {
        "to the device, 512 MiB": lambda: memory.copy_in(first, host.data),
        "from the device, 512 MiB": lambda: memory.copy_out(host.data, first),
        "to the device, 512 MiB, pinned": lambda: memory.start_copy_in(first, pinned, size).wait(),
        "from the device, 512 MiB, pinned": lambda: memory.start_copy_out(pinned, first, size).wait(),
    }
    for name, copy in ways.items():
        lines.add("copy", name, "GB/s", size / median(copy, runs=5) / 1e9)
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
    parser.add_argument("--out", type=Path, help="file of the figures; left out, the device's in bench/results")
    parser.add_argument("--log", type=Path, default=ROOT / "build", help="folder for what the tests print")
    parser.add_argument("--workers", type=int, default=12, help="processes that run tests")
    parser.add_argument("--no-tests", action="store_true", help="figures only")
    parser.add_argument("--no-figures", action="store_true", help="tests only")
    parser.add_argument("--sanitize", type=float, default=0, help="seconds for each tool of compute-sanitizer")
    asked = parser.parse_args()
    if not registry.backend("cuda").count():
        raise SystemExit("no NVIDIA GPU here.")
    asked.log.mkdir(parents=True, exist_ok=True)
    lines = Lines(asked.out)
    if not asked.no_figures:
        began = time.perf_counter()
        nbx.add(nbx.asarray(np.ones(4, np.float32)).to("cuda"), 1).numpy()
        lines.add("start", "first op, kernel compiled or fetched", "seconds", time.perf_counter() - began)
        for batch in (1, 32):
            minilm(lines, batch)
        launches(lines)
        copies(lines)
        ops(lines)
    status = 0
    if not asked.no_tests:
        status = tests(lines, asked.workers, asked.log) | without_torch(lines)
    if asked.sanitize:
        status |= sanitized(lines, asked.workers, asked.sanitize, asked.log)
    return status


if __name__ == "__main__":
    sys.exit(main())
