"""Check and time matrix products on an NVIDIA GPU, beside PyTorch (cuBLAS), which also makes and checks the operands.

python tools/checkout.py tools/gpu_products.py --out bench/results/nvidia-h200.jsonl

Every product is compared with float64, on normal and on positive operands, against the bound that the tests hold it to.
Then it is timed in a recording of many, each on another copy of the operands, so that none is found in a cache. With
--candidates the ways that a choice was made from are timed as well: how far it is from the fastest.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.gpu.card import Lines

from nbxtensor.backend import registry
from nbxtensor.errors import NbxError
from nbxtensor.op import Call, Kernel, Launch, Pointer, Spec
from nbxtensor.ops.matmul import tiles
from nbxtensor.ops.matmul.op import bmm, linear, matmul
from nbxtensor.run.binding import prepare, request

torch: Any = importlib.import_module("torch")

PAST_CACHE = 240_000_000  # bytes of right operands that a recording passes through
SECONDS = 2e-3  # a recording takes about that long, at least
CHECKED = 64  # rows that are compared, at each end
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Shape:
    """One product: ``form`` is "linear" (weight [n, k]), "matmul" (right [k, n]) or "bmm" (batches of those)."""

    form: str
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    goal: str = ""
    batch: int = 1

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        return f"{self.form} {self.dtype} {batch}{self.m}x{self.n}x{self.k}"

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return {"float64": 8, "float32": 4}.get(self.dtype, 2)


ROWS = ((14336, 4096, "4.1"), (4096, 14336, "4.0"), (4096, 4096, "3.3"), (6144, 4096, ""), (28672, 4096, "4.1"),
        (1024, 4096, ""), (2048, 2048, ""), (3072, 2048, ""), (8192, 2048, ""), (2048, 8192, ""), (128256, 2048, ""),
        (128256, 4096, ""))  # fmt: skip
LARGE = ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 14336, 4096), (1024, 4096, 14336), (512, 4096, 4096),
         (128, 4096, 4096))  # fmt: skip
SHAPES = (
    *(Shape("linear", 1, n, k, goal=f"{goal} TB/s" if goal else "") for n, k, goal in ROWS),
    Shape("linear", 1, 4096, 4096, "float16"), Shape("linear", 1, 4096, 4096, "float32"),
    Shape("linear", 1, 1000, 11008), Shape("linear", 1, 333, 4099), Shape("matmul", 1, 4096, 4096),
    *(Shape("linear", m, n, k) for m in (2, 4, 16, 64) for n, k in ((14336, 4096), (4096, 14336), (4096, 4096))),
    *(Shape("linear", *s, goal="0.85 x cuBLAS") for s in LARGE),
    *(Shape("matmul", *s, goal="0.85 x cuBLAS") for s in LARGE[:3]),
    *(Shape("linear", 4096, n, k, d) for n, k in ((384, 384), (1536, 384), (384, 1536))
      for d in ("float32", "float16", "bfloat16")),
    *(Shape("linear", 128, n, k, "float32") for n, k in ((384, 384), (1536, 384), (384, 1536))),
    Shape("linear", 4096, 4096, 4096, "float32"), Shape("matmul", 1024, 1024, 1024, "float32"),
    Shape("matmul", 1024, 1024, 1024, "float64"), Shape("linear", 1000, 1001, 999, "float32"),
    Shape("linear", 1000, 1001, 999), Shape("linear", 300, 500, 704, "float16"),
    Shape("bmm", 512, 64, 512, batch=48), Shape("bmm", 128, 128, 64, "float32", batch=384),
)  # fmt: skip


def call_of(shape: Shape) -> Call:
    """Return a product as a call on the first card; its weight is memory that no launch writes."""
    batch = (shape.batch,) if shape.form == "bmm" else ()
    x = Spec((*batch, shape.m, shape.k), shape.dtype)
    op = {"linear": linear, "matmul": matmul, "bmm": bmm}[shape.form].op
    if shape.form == "linear":
        specs, name = {"x": x, "weight": Spec((shape.n, shape.k), shape.dtype)}, "weight"
    else:
        specs, name = {"x": x, "y": Spec((*batch, shape.k, shape.n), shape.dtype)}, "y"
    params = {n: p.default for n, p in op.signature.parameters.items() if n not in specs}
    call = op.call(specs, params, registry.backend("cuda").target(0))
    return replace(call, fixed=frozenset({name}))


def ways(call: Call, candidates: int) -> Iterator[tuple[str, Kernel, tuple[Launch, ...]]]:
    """Yield what a call runs, and other ways to run it: (name, kernel, launches)."""
    kernel = call.op.kernel(call)
    yield "chosen", kernel, kernel.launch(call)
    if kernel.name == "tile_kernel":
        ranked = tiles.candidates_of(call)[1:]
        near = candidates - candidates // 2  # half of them are the next best, half from further down
        for choice in (*ranked[:near], *ranked[near::5][: candidates // 2]):
            yield described(choice), kernel, tiles.launches_of(call, choice)


def described(choice: tiles.Choice) -> str:
    """Return a choice in words."""
    t = choice.tile
    return f"{t.rows}x{t.columns}x{t.depth} warps {t.warps} stages {t.stages} splits {choice.splits}"


def compile_ways(shape: Shape, candidates: int) -> None:
    """Compile what a product runs, into the library's cache."""
    call = call_of(shape)
    backend = registry.backend("cuda")
    for _, _, launches in ways(call, candidates):
        for launch in launches:
            backend.compile(request(call.op, launch, bake=True, aligned=lambda _: True), call.device)


class Operands:
    """Operands of a product in several copies, its result, and what PyTorch makes of them."""

    def __init__(self, shape: Shape) -> None:
        dtype = getattr(torch, shape.dtype)
        batch = (shape.batch,) if shape.form == "bmm" else ()
        right = (shape.n, shape.k) if shape.form == "linear" else (*batch, shape.k, shape.n)
        copies = max(1, min(24, -(-PAST_CACHE // (math.prod(right) * shape.width))))
        made: dict[str, Any] = {"device": "cuda", "dtype": dtype}
        self.x = torch.randn((*batch, shape.m, shape.k), **made)
        self.rights = [torch.randn(right, **made) for _ in range(copies)]
        self.out = torch.empty((*batch, shape.m, shape.n), **made)
        self.shape = shape

    def worst(self, run: Callable[[], None]) -> float:
        """Return the largest error, in units of the bound, of what ``run`` makes of normal and of positive operands."""
        shape, worst = self.shape, 0.0
        for positive in (False, True):
            if positive:
                self.x.abs_()
                self.rights[0].abs_()
            self.out.fill_(float("nan"))
            torch.cuda.synchronize()
            run()
            torch.cuda.synchronize()
            rows = sorted({*range(min(shape.m, CHECKED)), *range(max(0, shape.m - CHECKED), shape.m)})
            right = (self.rights[0].T if shape.form == "linear" else self.rights[0]).double()
            x = self.x[..., rows, :].double()
            want, size = x @ right, x.abs() @ right.abs()
            inner = ROUNDOFF["float64" if shape.dtype == "float64" else "float32"]
            bound = (8 + 5 * math.sqrt(2 * shape.k)) * inner * size + ROUNDOFF[shape.dtype] * want.abs() + 1e-30
            error = ((self.out[..., rows, :].double() - want).abs() / bound).max().item()
            if math.isnan(error) or bool(self.out.isnan().any()):
                return math.inf
            worst = max(worst, error)
        return worst

    def peer(self) -> float:
        """Return the seconds that PyTorch takes, in a CUDA graph."""
        rights = [w.T if self.shape.form == "linear" else w for w in self.rights]

        def some(count: int) -> Callable[[], None]:
            def run() -> None:
                for i in range(count):
                    torch.matmul(self.x, rights[i % len(rights)], out=self.out)

            return run

        some(3)()
        torch.cuda.synchronize()
        return seconds_each(lambda count: graph(some(count)))


def graph(run: Callable[[], None]) -> Callable[[], None]:
    """Return a CUDA graph of what ``run`` starts, replayed and waited for."""
    captured, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.cuda.graph(captured, stream=stream):
        run()

    def replay() -> None:
        captured.replay()
        torch.cuda.synchronize()

    return replay


def least(run: Callable[[], None], times: int) -> float:
    """Return the shortest of some runs, in seconds."""
    took: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return min(took)


def seconds_each(make: Callable[[int], Callable[[], None]]) -> float:
    """Return the seconds of one of many in a recording, of which ``make`` returns one of any length."""
    one = make(1)
    one()
    alone = least(one, 5)
    few = make(8)
    few()
    rough = max((least(few, 3) - alone) / 7, 1e-6)
    count = max(8, min(400, round(SECONDS / rough)))
    many = make(count)
    many()
    return max((least(many, 7) - alone) / (count - 1), 1e-9)


class Runner:
    """Launches of one way to make a product, on every copy of its operands."""

    def __init__(self, call: Call, kernel: Kernel, launches: tuple[Launch, ...], operands: Operands) -> None:
        self.backend = registry.backend("cuda")
        prepared = prepare(call, kernel, launches, self.backend, 0, bake=True, aligned=lambda _: True)
        parts = [p for launch in launches for p in launch.arguments.values() if isinstance(p, Pointer)]
        splits = launches[0].constants["SPLITS"] if any(p.role == "workspace" for p in parts) else 0
        self._sums = torch.empty(splits * operands.out.numel(), device="cuda", dtype=torch.float64) if splits else None
        self.sets: list[list[Any]] = []
        for right in operands.rights:

            def resolve(pointer: Pointer, right: Any = right) -> int:
                if pointer.role == "workspace" and self._sums is not None:
                    return self._sums.data_ptr()
                if pointer.role == "output":
                    return operands.out.data_ptr()
                return operands.x.data_ptr() if pointer.key == "x" else right.data_ptr()

            self.sets.append([p.bind(resolve) for p in prepared])
        self.resources = [bound.kernel.resources for bound in self.sets[0]]

    def once(self) -> None:
        """Run on the first copy."""
        for bound in self.sets[0]:
            self.backend.launch(bound, 0)
        self.backend.synchronize(0)

    def seconds(self) -> float:
        """Return the seconds of one product within a recording of many."""

        def recording(count: int) -> Callable[[], None]:
            launches = [bound for i in range(count) for bound in self.sets[i % len(self.sets)]]
            return self.backend.record(launches, 0).run

        return seconds_each(recording)


def measure(shape: Shape, lines: Lines, candidates: int) -> str:
    """Check and time one product; return a line about it."""
    call, operands = call_of(shape), Operands(shape)
    found: list[tuple[float, str]] = []
    worst, spilling, kernel_name, splits = 0.0, 0, "", 1
    for name, kernel, launches in ways(call, candidates):
        runner = Runner(call, kernel, launches, operands)
        error = operands.worst(runner.once) if name == "chosen" else 0.0
        if name == "chosen":
            worst, kernel_name, splits = error, kernel.name, len(launches)
            spilling = max(r.local_nbytes for r in runner.resources)
        found.append((runner.seconds(), name))
    ours, theirs = found[0][0], operands.peer()
    fastest = min(found)
    flops, nbytes = 2 * shape.batch * shape.m * shape.n * shape.k, call.operand_nbytes + call.result_nbytes
    more: dict[str, Any] = {"choice": described(tiles.choice_of(call))} if kernel_name == "tile_kernel" else {}
    if candidates:
        more |= {"fastest": fastest[1], "ways_us": {name: round(1e6 * took, 2) for took, name in found}}
    lines.add(
        "products", str(shape), "us", 1e6 * ours, peers={"torch": float(f"{1e6 * theirs:.4g}")},
        ratio=round(theirs / ours, 3), teraflops=float(f"{flops / ours / 1e12:.4g}"),
        terabytes_per_second=float(f"{nbytes / ours / 1e12:.3g}"), error_of_bound=float(f"{worst:.3g}"),
        kernel=kernel_name, launches=splits, spilled_nbytes=spilling, goal=shape.goal, **more,
    )  # fmt: skip
    flag = "" if worst <= 1 and not spilling else "  <-- WRONG" if worst > 1 else "  <-- spills"
    other = f" fastest {1e6 * fastest[0]:.2f} {fastest[1]}" if candidates and fastest[1] != "chosen" else ""
    return (
        f"{shape!s:40} {1e6 * ours:9.2f} us  torch {1e6 * theirs:9.2f}  x{theirs / ours:5.2f} "
        f"{flops / ours / 1e12:7.1f} TFLOP/s {nbytes / ours / 1e12:5.2f} TB/s  {kernel_name} "
        f"err {worst:.2f}{flag}{other}"
    )


def chosen(shapes: Sequence[Shape], words: Sequence[str]) -> list[Shape]:
    """Return the shapes whose name has one of some words; all of them for no words."""
    return [shape for shape in shapes if not words or any(word in str(shape) for word in words)]


def main() -> int:
    """Check and time every product; return 0 where all are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file that the figures are appended to")
    parser.add_argument("--only", nargs="*", default=[], help="words of which a product's name has one")
    parser.add_argument("--candidates", type=int, default=0, help="how many other ways to time")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing new after that long")
    asked = parser.parse_args()
    if not registry.backend("cuda").count():
        raise SystemExit("no NVIDIA GPU here.")
    began = time.perf_counter()
    shapes = chosen(SHAPES, asked.only)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as workers:
        for shape, job in [(s, workers.submit(compile_ways, s, asked.candidates)) for s in shapes]:
            if (error := job.exception()) is not None:
                print(f"{shape}: {error!r}"[:500], flush=True)
    print(f"compiled after {time.perf_counter() - began:.1f} s", flush=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    lines = Lines(asked.out)
    table: list[str] = []
    for shape in shapes:
        if time.perf_counter() - began > asked.seconds:
            table.append(f"{shape}: not measured, no time left")
            continue
        try:
            table.append(measure(shape, lines, asked.candidates))
        except (NbxError, RuntimeError, ValueError) as error:  # one product's failure leaves the others
            table.append(f"{shape}: FAILED {error!r}"[:300])
        torch.cuda.empty_cache()
    print("\n".join(table))
    print(f"in all {time.perf_counter() - began:.1f} s")
    return int(any("FAILED" in line or "WRONG" in line for line in table))


if __name__ == "__main__":
    sys.exit(main())
