"""Check and time attention, rope, cache updates and row kernels on an NVIDIA GPU, beside PyTorch where it is there.

python tools/checkout.py tools/gpu_attention.py --out bench/results/nvidia-h200.jsonl

With --sweep other blocks and warps than the library's own are tried as well, and shown beside them.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from bench.gpu.card import Lines
from tools.gpu_rig import L2_NBYTES, Rig, replaced

import nbxtensor as nbx
from nbxtensor.backend import registry
from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import NbxError
from nbxtensor.op import Call, Op, Spec
from nbxtensor.ops.attention import op as attention_module
from nbxtensor.ops.attention.blocks import Blocks, decode_splits
from nbxtensor.run.binding import request


@dataclass(frozen=True)
class Attention:
    """One case of attention."""

    batch: int
    heads: int
    queries: int
    width: int
    dtype: str = "bfloat16"
    groups: int = 0
    keys: int = 0
    length: int = 0
    causal: bool = False
    mask: bool = False

    def __str__(self) -> str:
        """Return its name."""
        name = f"B{self.batch} H{self.heads}/{self.groups or self.heads} {self.queries}x{self.keys or self.queries}"
        more = f"{' of ' + str(self.length) if self.length else ''}{' causal' if self.causal else ''}"
        return f"{name} D{self.width} {self.dtype}{more}{' mask' if self.mask else ''}"

    @property
    def specs(self) -> dict[str, Spec]:
        """Specs of its operands."""
        groups, keys = self.groups or self.heads, self.keys or self.queries
        found = {
            "q": Spec((self.batch, self.heads, self.queries, self.width), self.dtype),
            "k": Spec((self.batch, groups, keys, self.width), self.dtype),
            "v": Spec((self.batch, groups, keys, self.width), self.dtype),
        }
        if self.mask:
            found["mask"] = Spec((self.batch, 1, 1, keys), "bool")
        if self.length:
            found["kv_length"] = Spec((), "int32")
        return found

    @property
    def seen(self) -> int:
        """Keys that take part."""
        return self.length or self.keys or self.queries

    @property
    def flops(self) -> float:
        """Operations of the two products."""
        return 4 * self.batch * self.heads * self.queries * self.seen * self.width * (0.5 if self.causal else 1)

    @property
    def nbytes(self) -> float:
        """Bytes of the keys and values that take part."""
        return 2 * self.batch * (self.groups or self.heads) * self.seen * self.width * bits(self.dtype) // 8

    def rig(self) -> Rig:
        """Return it on the device."""
        given = {}
        if self.mask:
            given["mask"] = np.ones((self.batch, self.keys or self.queries), np.bool_)
        if self.length:
            given["kv_length"] = np.array(self.length, np.int32)
        causal = self.causal and (self.queries > 1 or self.length > 0)
        return Rig(nbx.attention.op, self.specs, {"is_causal": causal}, given)

    def error(self, rig: Rig) -> float:
        """Return the largest error of the first and the last head, relative to the largest result."""
        worst = 0.0
        specs = self.specs
        for batch, head in ((0, 0), (self.batch - 1, self.heads - 1)):
            group = head // (self.heads // (self.groups or self.heads))

            def rows(name: str, index: int, batch: int = batch) -> np.ndarray:
                shape = specs[name].shape
                first = (batch * shape[1] + index) * shape[2] * shape[3]
                return rig.read(rig.inputs[0][name], self.dtype, first, shape[2] * shape[3]).reshape(shape[2:])

            q, k, v = rows("q", head), rows("k", group)[: self.seen], rows("v", group)[: self.seen]
            scores = q @ k.T / np.sqrt(self.width)
            if self.causal:
                offset = self.length - self.queries if self.length else 0
                limit = np.arange(self.queries)[:, None] + offset
                scores = np.where(np.arange(self.seen) <= limit, scores, -np.inf)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            want = weights / weights.sum(1, keepdims=True) @ v
            size = self.queries * self.width
            got = rig.read(rig.outputs[0][0], self.dtype, (batch * self.heads + head) * size, size)
            worst = max(worst, float(np.abs(got.reshape(want.shape) - want).max() / np.abs(want).max()))
        return worst if np.isfinite(worst) else float("inf")

    def peers(self) -> dict[str, float]:
        """Return PyTorch's times, by kernel."""
        torch, functional = importlib.import_module("torch"), importlib.import_module("torch.nn.functional")
        chosen = importlib.import_module("torch.nn.attention")
        dtype = getattr(torch, self.dtype)
        specs = self.specs
        copies = max(1, min(32, -(-L2_NBYTES // sum(s.nbytes for s in specs.values()))))
        sets = [[torch.randn(specs[n].shape, device="cuda", dtype=dtype) for n in "qkv"] for _ in range(copies)]
        mask = torch.ones(specs["mask"].shape, device="cuda", dtype=torch.bool) if self.mask else None
        causal = self.causal and self.queries > 1
        found: dict[str, float] = {}
        for kind in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"):

            def run(kind: str = kind) -> None:
                with chosen.sdpa_kernel(getattr(chosen.SDPBackend, kind)):
                    for q, k, v in sets:
                        functional.scaled_dot_product_attention(
                            q, k[:, :, : self.seen], v[:, :, : self.seen], attn_mask=mask, is_causal=causal,
                            enable_gqa=bool(self.groups),
                        )  # fmt: skip

            try:
                found[kind.partition("_")[0].lower()] = graphed(run) / copies
            except RuntimeError:
                continue
        return found


def graphed(run: Callable[[], None]) -> float:
    """Return the time of what PyTorch runs, from a graph of it."""
    torch = importlib.import_module("torch")
    run()
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        for _ in range(4):
            run()
    took = []
    for _ in range(5):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        took.append(start.elapsed_time(stop) * 1e-3 / 4)
    return float(np.median(took))


PREFILL = (
    Attention(4, 32, 4096, 128, causal=True),
    Attention(4, 32, 4096, 128),
    Attention(4, 32, 4096, 64, causal=True),
    Attention(4, 32, 4096, 64),
    Attention(4, 16, 2048, 256, causal=True),
    Attention(1, 32, 1024, 128, groups=8, keys=2048, length=1024, causal=True),
    Attention(32, 12, 128, 32, "float32", mask=True),
    Attention(32, 12, 128, 32, "bfloat16", mask=True),
    Attention(4, 16, 2048, 64, "float32", causal=True),
    Attention(4, 16, 1024, 128, "float32", causal=True),
)
DECODE = (
    Attention(1, 32, 1, 128, groups=8, keys=8192, length=8192, causal=True),
    Attention(1, 32, 1, 128, groups=8, keys=8192, length=1024, causal=True),
    Attention(1, 32, 1, 128, groups=8, keys=2048, length=1024, causal=True),
    Attention(1, 32, 1, 64, groups=8, keys=2048, length=1024, causal=True),
    Attention(1, 32, 1, 64, groups=8, keys=8192, length=8192, causal=True),
    Attention(16, 32, 1, 128, groups=8, keys=8192, length=8192, causal=True),
    Attention(64, 32, 1, 128, groups=8, keys=4096, length=4096, causal=True),
    Attention(1, 32, 1, 128, "float32", groups=8, keys=8192, length=8192, causal=True),
)
TILES = {  # (rows, keys, warps, stages) tried
    ("bfloat16", 64): ((128, 64, 8, 4), (64, 64, 4, 3)),
    ("bfloat16", 128): ((128, 128, 8, 2), (64, 64, 4, 3)),
    ("float32", 32): ((64, 64, 4, 2), (128, 128, 8, 1), (128, 64, 8, 1)),
    ("float32", 64): ((128, 64, 8, 1), (64, 64, 4, 1), (64, 32, 4, 2)),
    ("float32", 128): ((64, 32, 4, 1), (32, 64, 4, 2)),
}
SHARES = {  # (keys, warps, stages) tried, each with half and twice the splits too
    "bfloat16": ((64, 4, 3), (64, 2, 4), (128, 4, 2)),
    "float32": ((32, 8, 3), (32, 4, 3), (64, 8, 2), (16, 4, 4)),
}


def attempts(case: Attention) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield other blocks for a case, and what to replace in the op's module for them."""
    precision = "tf32x3" if case.dtype == "float32" else "ieee"
    if case.queries == 1:
        target = registry.backend("cuda").target(0)
        own = decode_splits(nbx.attention.op.call(case.specs, {"is_causal": False, "scale": None}, target))
        for splits in (own // 2, own, 2 * own):
            for keys, warps, stages in SHARES[case.dtype] if splits else ():
                made = Blocks(16, keys, case.width, case.width, warps, stages, precision)
                yield (
                    (splits, keys, warps, stages),
                    {"decode_blocks": lambda _, made=made: made, "decode_splits": lambda _, splits=splits: splits},
                )
        return
    for rows, keys, warps, stages in TILES.get((case.dtype, case.width), ()):
        made = Blocks(rows, keys, case.width, case.width, warps, stages, precision)
        yield (rows, keys, warps, stages), {"prefill_blocks": lambda _, made=made: made}


def requests(case: Attention, call: Call, *, sweep: bool) -> Iterator[Any]:
    """Yield what is compiled for a case and all that is tried for it."""
    for _, names in (("own", {}), *(attempts(case) if sweep else ())):
        with replaced(attention_module, **names):
            for launch in call.op.kernel(call).launch(call):
                yield request(call.op, launch, bake=True, aligned=lambda _: True)


def compile_there(asked: Any) -> str:
    """Compile in a process of its own; the library keeps the result on disk."""
    backend = registry.backend("cuda")
    try:
        backend.compile(asked, backend.target(0))
    except NbxError as error:  # shows again where it is launched
        return repr(error)[:200]
    return ""


def compile_all(asked: list[Any]) -> None:
    """Compile side by side what is going to be launched."""
    began = time.perf_counter()
    with ProcessPoolExecutor(14, mp_context=get_context("spawn")) as pool:
        told = [text for text in pool.map(compile_there, asked) if text]
    print(f"{len(asked)} kernels compiled in {time.perf_counter() - began:.1f} s; {told[:4]}", flush=True)


def attention(lines: Lines, *, sweep: bool, peers: bool) -> None:
    """Time every case, beside others' kernels and other blocks."""
    target = registry.backend("cuda").target(0)
    asked: list[Any] = []
    for case in (*PREFILL, *DECODE):
        params = {"is_causal": case.causal and (case.queries > 1 or case.length > 0), "scale": None}
        asked += requests(case, nbx.attention.op.call(case.specs, params, target), sweep=sweep)
    compile_all(asked)
    for case in (*PREFILL, *DECODE):
        with guarded(str(case)):
            rig = case.rig()
            seconds = rig.seconds()
            figures: dict[str, Any] = {"error": float(f"{case.error(rig):.3g}")}
            if case.queries > 1:
                figures["teraflops"] = float(f"{case.flops / seconds / 1e12:.4g}")
            else:
                figures["terabytes_per_second"] = float(f"{case.nbytes / seconds / 1e12:.4g}")
            if peers:
                with guarded(f"peers of {case}"):
                    figures["peers"] = {n: float(f"{1e6 * s:.4g}") for n, s in case.peers().items()}
            lines.add("attention", str(case), "us", 1e6 * seconds, **figures)
            if sweep:
                tried(case, rig)
            rig.free()


def tried(case: Attention, rig: Rig) -> None:
    """Show the times of other blocks, the best first."""
    found: list[tuple[float, Any, float]] = []
    for name, names in attempts(case):
        with replaced(attention_module, **names):
            try:
                found.append((round(1e6 * rig.seconds(), 2), name, float(f"{case.error(rig):.2g}")))
            except NbxError as error:  # what does not run is no candidate
                print("   ", name, repr(error)[:120], flush=True)
    print("    tried:", *sorted(found)[:8], flush=True)


@contextmanager
def guarded(name: str) -> Iterator[None]:
    """Let the other measurements go on where one fails."""
    try:
        yield
    except (NbxError, RuntimeError):  # torch's are the latter; shown, and the status says so
        FAILED.append(name)
        print(f"{name} failed:", *traceback.format_exc().splitlines()[-4:], sep="\n    ", flush=True)


FAILED: list[str] = []


# ---- rope, caches, rows


def state(lines: Lines) -> None:
    """Time what a decoder does with its state, as a program that updates in place does it."""
    for tokens, width, heads, groups in ((1, 128, 32, 8), (1, 64, 32, 8), (1024, 128, 32, 8)):
        row = (heads + 2 * groups) * width
        cache = Spec((1, groups, 2048, width), "bfloat16")
        table = nbx.rope_frequencies(width, base=500000.0).numpy()
        specs = {
            "qkv": Spec((1, tokens, row), "bfloat16"), "k_cache": cache, "v_cache": cache,
            "position": Spec((), "int32"), "frequencies": Spec((width // 2,), "int64"),
        }  # fmt: skip
        given = {"position": np.array(1000, np.int32), "frequencies": table}
        name = f"{tokens} tokens, {heads}/{groups} heads of {width}"
        with guarded(f"rope_update {name}"):
            rig = Rig(nbx.rope_update.op, specs, {"heads": heads}, given, in_place=True)
            seconds = rig.seconds()
            error = rope_error(rig, tokens, heads, groups, width)
            moved = 2 * specs["qkv"].nbytes
            lines.add(
                "state", f"rope_update {name}", "us", 1e6 * seconds, error=float(f"{error:.3g}"),
                gigabytes_per_second=round(moved / seconds / 1e9),
            )  # fmt: skip
            rig.free()
        with guarded(f"cache_update {name}"):
            values = Spec((1, groups, tokens, width), "bfloat16")
            specs = {"cache": cache, "values": values, "position": Spec((), "int32")}
            rig = Rig(nbx.cache_update.op, specs, {"axis": 2}, {"position": given["position"]}, in_place=True)
            lines.add("state", f"cache_update {name}", "us", 1e6 * rig.seconds())
            rig.free()


def rope_error(rig: Rig, tokens: int, heads: int, groups: int, width: int) -> float:
    """Return the largest error of the queries and of the keys in the cache."""
    qkv = rig.read(rig.inputs[0]["qkv"], "bfloat16", 0, tokens * (heads + 2 * groups) * width)
    rows = qkv.reshape(tokens, heads + 2 * groups, width)
    turns = 500000.0 ** (-np.arange(0, width, 2) / width)
    angle = (1000 + np.arange(tokens))[:, None, None] * turns
    first, second = np.split(rows[:, : heads + groups], 2, -1)
    cos, sin = np.cos(angle), np.sin(angle)
    want = np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
    queries = rig.read(rig.outputs[0][0], "bfloat16", 0, tokens * heads * width).reshape(tokens, heads, width)
    cache = rig.read(rig.outputs[0][1], "bfloat16", 0, groups * 2048 * width).reshape(groups, 2048, width)
    keys = cache[:, 1000 : 1000 + tokens].transpose(1, 0, 2)
    return float(np.abs(np.concatenate([queries, keys], 1) - want).max() / np.abs(want).max())


ROWS = ((16384, 384), (16384, 1024), (8192, 4096), (4096, 8192), (4096, 16384))
WARPS = (4, 8, 16, 32)


def row_cases() -> Iterator[tuple[str, Op, dict[str, Spec], dict[str, Any]]]:
    """Yield (name, op, specs, parameters) of kernels over rows."""
    for (count, width), dtype in itertools.product(ROWS, ("bfloat16", "float32")):
        x, w = Spec((count, width), dtype), Spec((width,), dtype)
        cases: tuple[tuple[Op, dict[str, Spec], dict[str, Any]], ...] = (
            (nbx.softmax.op, {"x": x}, {"axis": -1}),
            (nbx.layer_norm.op, {"x": x, "weight": w, "bias": w}, {"normalized_shape": (width,)}),
            (nbx.rms_norm.op, {"x": x, "weight": w}, {"normalized_shape": (width,)}),
            (nbx.sum.op, {"x": x}, {"axis": -1}),
            (nbx.gelu.op, {"x": x}, {}),
        )
        for op, specs, params in cases[: 5 if dtype == "bfloat16" else 2]:
            yield f"{op.name} {count}x{width} {dtype}", op, specs, params


def rows(lines: Lines, *, sweep: bool) -> None:
    """Time kernels over rows, as the bandwidth of what they have to move."""
    target = registry.backend("cuda").target(0)
    asked: list[Any] = []
    for _, op, specs, params in row_cases():
        defaults = {n: p.default for n, p in op.signature.parameters.items() if n not in specs}
        call = op.call(specs, {**defaults, **params}, target)
        for launch in op.kernel(call).launch(call):
            made = (replace(launch, warps=warps) for warps in {launch.warps, *(WARPS if sweep else ())})
            asked += (request(op, one, bake=True, aligned=lambda _: True) for one in made)
    compile_all(asked)
    for name, op, specs, params in row_cases():
        with guarded(name):
            rig = Rig(op, specs, params, {})
            moved = sum(s.nbytes for s in (*specs.values(), *rig.call.outputs))
            seconds = rig.seconds()
            lines.add("rows", name, "us", 1e6 * seconds, gigabytes_per_second=round(moved / seconds / 1e9))
            if sweep:
                found = [
                    (round(moved / rig.seconds(functools.partial(replace, warps=warps)) / 1e9), warps)
                    for warps in WARPS
                ]
                print("    tried:", *sorted(found, reverse=True), flush=True)
            rig.free()


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file of JSON lines to append to; left out, figures are only shown")
    parser.add_argument("--sweep", action="store_true", help="try other blocks and warps too")
    parser.add_argument("--peers", action="store_true", help="time PyTorch's kernels too")
    parser.add_argument("--only", nargs="+", default=["attention", "state", "rows"], help="groups to run")
    asked = parser.parse_args()
    lines = Lines(asked.out)
    if "attention" in asked.only:
        attention(lines, sweep=asked.sweep, peers=asked.peers)
    if "state" in asked.only:
        state(lines)
    if "rows" in asked.only:
        rows(lines, sweep=asked.sweep)
    print("failed:", FAILED, flush=True)
    return len(FAILED)


if __name__ == "__main__":
    sys.exit(main())
