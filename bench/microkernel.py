"""Whole products made of the emitted block product, by block sizes: `python -m bench.microkernel [M,K,N ...]`."""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import machine

# What a model of 6 layers of 384 asks for at 128 and at 4096 tokens, and a square.
_SHAPES = [
    (1024, 1024, 1024),
    *((m, k, n) for m in (128, 4096) for k, n in ((384, 384), (384, 1152), (384, 1536), (1536, 384))),
]
_GUARD = 64  # alignment of every operand


@dataclass(frozen=True)
class Blocks:
    """How a product is cut up.

    Attributes:
        m: Rows of a program.
        n: Columns of a program.
        k: Depth of one block product.
        panel: Columns of a panel that W comes packed in, [N / panel][K][panel]; 0 where it is an ordinary matrix.
    """

    m: int
    n: int
    k: int
    panel: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} " + (f"panels of {self.panel}" if self.panel else "row-major W")


def candidates(m: int, k: int, n: int) -> Iterator[Blocks]:
    """Yield the ways to cut up a product that are worth a try: blocks divide the product evenly."""
    rows = [r for r in (64, 128, 256) if m % r == 0] or [m]
    for block_m in rows:
        for block_n, panel in ((32, 32), (64, 64), (64, 128), (128, 128), (64, 0), (128, 0), (256, 0)):
            if n % max(block_n, panel):
                continue
            depths = [d for d in (128, 256, 384, 512) if d < k and k % d == 0]
            yield from (Blocks(block_m, block_n, depth, panel) for depth in (*depths, k))


def text(m: int, k: int, n: int, blocks: Blocks, level: str, features: frozenset[str]) -> tuple[str, int]:
    """Return the LLVM IR of ``f(a, w, bias, c, scratch)``, which writes A W + bias to C, and its scratch in bytes.

    Programs go along N first, as a matrix product in Triton does: each keeps a block of sums in scratch, adds one
    block product for every block of K, and adds the bias as it stores.
    """
    from nbxtensor.backend.cpu.ir import Builder
    from nbxtensor.backend.cpu.microkernel import Matrix, gemm, scratch_nbytes

    b = Builder(level)
    lanes = 16 if level == "x86-64-v4" else 8
    vector = f"<{lanes} x float>"

    def at(pointer: str, *terms: tuple[str, int]) -> str:
        for value, scale in terms:
            moved = b.op(f"mul i64 {value}, {scale}")
            pointer = b.op(f"getelementptr float, ptr {pointer}, i64 {moved}")
        return pointer

    def zero(i: str, _: list[str]) -> list[str]:
        b.do(f"store {vector} zeroinitializer, ptr {at('%scratch', (i, 1))}, align 64")
        return []

    def program(i: str, j: str) -> None:
        b.loop("0", str(blocks.m * blocks.n), str(lanes), zero)
        panel = blocks.panel
        w = at("%w", (j, 1))
        if panel:
            inside = b.op(f"urem i64 {j}, {panel}")
            w = at("%w", (b.op(f"udiv i64 {j}, {panel}"), k * panel), (inside, 1))
        row = panel or n

        def depth(step: str, _: list[str]) -> list[str]:
            left, right = at("%a", (i, k), (step, 1)), at(w, (step, row))
            sums = Matrix("%scratch", str(blocks.n), "float")
            a, weights = Matrix(left, str(k), "float"), Matrix(right, str(row), "float")
            free = b.op(f"getelementptr i8, ptr %scratch, i64 {sums_nbytes}")
            gemm(b, blocks.m, blocks.n, blocks.k, a, weights, sums, level=level, features=features, scratch=free)
            return []

        b.loop("0", str(k), str(blocks.k), depth)

        def finish(r: str, _: list[str]) -> list[str]:
            for column in range(0, blocks.n, lanes):
                total = b.op(f"load {vector}, ptr {at('%scratch', (r, blocks.n), (str(column), 1))}, align 4")
                bias = b.op(f"load {vector}, ptr {at('%bias', (j, 1), (str(column), 1))}, align 4")
                place = at("%c", (i, n), (r, n), (j, 1), (str(column), 1))
                b.do(f"store {vector} {b.op(f'fadd {vector} {total}, {bias}')}, ptr {place}, align 4")
            return []

        b.loop("0", str(blocks.m), "1", finish)

    def down(i: str, _: list[str]) -> list[str]:
        def along(j: str, _: list[str]) -> list[str]:
            program(i, j)
            return []

        b.loop("0", str(n), str(blocks.n), along)
        return []

    sums_nbytes = blocks.m * blocks.n * 4
    b.loop("0", str(m), str(blocks.m), down)
    nbytes = sums_nbytes + scratch_nbytes(blocks.m, blocks.n, blocks.k, ("float", "float"), level, features)
    width = 32 * lanes
    attributes = f'nounwind "prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"'
    return (
        "\n".join(
            (
                *sorted(b.declarations),
                "define void @f(ptr %a, ptr %w, ptr %bias, ptr %c, ptr %scratch) #0 {",
                "entry:",
                *b.lines,
                "  ret void",
                "}",
                f"attributes #0 = {{ {attributes} }}",
                "",
            )
        ),
        nbytes,
    )


def aligned(values: np.ndarray) -> np.ndarray:
    """Return a copy that begins at a multiple of the page size, in large pages where there are."""
    page = 4096
    memory = np.empty(values.nbytes + page, np.uint8)
    start = -memory.ctypes.data % page
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def ours(arrays: Mapping[str, np.ndarray], blocks: Blocks, level: str, features: frozenset[str]) -> Any:
    """Return a contender that runs the product cut up as ``blocks``."""
    from bench.race import Contender
    from nbxtensor.backend.cpu import elf, native
    from nbxtensor.backend.cpu.codegen import object_code

    a, w, bias = arrays["x"], arrays["weight"].T, arrays["bias"]
    (m, k), n = a.shape, w.shape[1]
    code, nbytes = text(m, k, n, blocks, level, features)
    module = elf.load(object_code(code, level, features))
    run = native.entry(module.address("f"))
    if blocks.panel:
        w = w.reshape(k, n // blocks.panel, blocks.panel).transpose(1, 0, 2)
    memory = [a, aligned(w), bias, aligned(np.zeros((m, n), np.float32)), aligned(np.zeros(nbytes, np.uint8))]
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in memory]

    def call(_: Any = (memory, module)) -> np.ndarray:
        run(*pointers)
        return memory[3]

    return Contender(str(blocks), call, np.asarray)


def measure(lines: Any, shape: Sequence[int], *, turns: int, seconds: float, level: str | None) -> None:
    """Race every way to cut up one product, then the best of each layout against the peers; keep both."""
    from bench import peers
    from bench.race import agree, race
    from nbxtensor.backend.cpu import levels
    from nbxtensor.backend.cpu.tile_unit import usable

    m, k, n = shape
    rng = np.random.default_rng(0)
    # A model keeps its weights [N, K]; every contender may prepare them.
    arrays = {
        "x": aligned(rng.standard_normal((m, k), np.float32)),
        "weight": aligned(rng.standard_normal((n, k), np.float32)),
        "bias": aligned(rng.standard_normal(n, np.float32)),
    }
    level, features = level or levels.detect(), usable(levels.features())
    ways = [ours(arrays, blocks, level, features) for blocks in candidates(m, k, n)]
    agree(ways, rtol=1e-5)
    first = race(ways, threads=1, turns=turns, seconds=seconds)
    ranked = sorted(ways, key=lambda way: first[way.name].median)
    best: dict[bool, Any] = {}
    for way in ranked:
        best.setdefault("panels" in way.name, way)
    asked = peers.Asked("linear", arrays, {}, ("weight", "bias"), 1)
    others = [*peers.contenders(asked), numpy_of(arrays)]
    # numpy's product of a transposed view is another one than of a matrix: both are peers.
    agree([*best.values(), *others], rtol=1e-4)
    timings = race([*best.values(), *others], threads=1, turns=turns, seconds=seconds)

    rates = {name: 2e-9 * m * n * k / timing.median for name, timing in timings.items()}
    peak = machine.rates(1)["compute.matrix_flops.float32"] * 1e-9
    for way in best.values():
        lines.add(
            "blocks",
            f"{m}x{k}x{n} {way.name}",
            unit="GFLOP/s",
            ours=rates[way.name],
            peers={other.name: rates[other.name] for other in others},
            floor=peak,
            level=level,
            clock="thread",
            also={x.name: round(2e-9 * m * n * k / first[x.name].median, 1) for x in ranked},
        )


def numpy_of(arrays: Mapping[str, np.ndarray]) -> Any:
    """Return numpy's product with W as an ordinary matrix, without the bias."""
    from bench.race import Contender

    x, w, bias = arrays["x"], aligned(arrays["weight"].T), arrays["bias"]
    out = aligned(np.zeros((x.shape[0], w.shape[1]), np.float32))
    return Contender("numpy W", lambda: np.matmul(x, w, out=out), lambda y: y + bias, "without the bias")


def main() -> None:
    """Measure."""
    machine.start_anew()
    parser = argparse.ArgumentParser(prog="python -m bench.microkernel", description=__doc__)
    parser.add_argument("shapes", nargs="*", help="M,K,N; none: those of a small BERT and a square")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20.0, help="about what one race may take")
    parser.add_argument("--level", help="instruction set; left out: this processor's")
    parser.add_argument("--no-write", action="store_true", help="show the figures only")
    asked = parser.parse_args()
    from bench.lines import Lines

    machine.set_threads(1)
    lines = Lines(keep=not asked.no_write)
    for shape in [tuple(map(int, s.split(","))) for s in asked.shapes] or _SHAPES:
        measure(lines, shape, turns=asked.turns, seconds=asked.seconds, level=asked.level)


if __name__ == "__main__":
    main()
