"""Run the cases of the ops on a GPU under compute-sanitizer, several processes side by side, each for a limited time.

python tools/gpu_sanitize.py --tool memcheck --seconds 120 --workers 8

Every case runs its kernels between no guards, so that a byte outside a block is outside all memory. A kernel with
planted faults has to be found first. Which cases come
first is drawn anew from the seed; how many were reached is told. The status is 0 where nothing was found.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = ("memcheck", "racecheck")
# A kernel with both kinds of faults, to see that the tools see: each thread reads past the end of a block of 64 bytes,
# and all threads write one word of shared memory and read it, with nothing between.
PLANTED = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry planted(.param .u64 out, .param .u64 x)
{
    .shared .align 4 .b8 word[4];
    .reg .b32 %r<4>;
    .reg .b64 %d<3>;
    ld.param.u64 %d0, [x];
    ld.global.u32 %r0, [%d0+64];
    mov.u32 %r1, %tid.x;
    st.shared.u32 [word], %r1;
    ld.shared.u32 %r2, [word];
    add.u32 %r3, %r2, %r0;
    ld.param.u64 %d1, [out];
    st.global.u32 [%d1], %r3;
    ret;
}
\0"""
_FOUND = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
_RAN = re.compile(r"^ran (\d+) of (\d+) cases, (\d+) wrong$", re.MULTILINE)


def work(shard: int, shards: int, seconds: float, seed: int) -> int:
    """Run the cases of one shard until the time is up; return the number of wrong results."""
    from tests.ops import harness

    from nbxtensor.backend import registry

    harness.GUARD = 0
    backend = registry.backend("cuda")
    target = backend.target(0)
    every = [(op, i) for op in harness.declared_ops() for i, case in enumerate(op.cases) if not case.bench]
    random.Random(seed).shuffle(every)
    mine = every[shard::shards]
    ran, wrong = 0, 0
    began = time.perf_counter()
    for op, index in mine:
        if time.perf_counter() - began > seconds:
            break
        case = op.cases[index]
        call = harness.call_of(op, case, target)
        given = harness.operands(case, harness.case_seed(op, index))
        try:
            for kernel in harness.kernels(call):
                harness.run(call, kernel, given, backend, bake=index % 2 == 1)
        except AssertionError as failure:
            wrong += 1
            print(f"wrong: {harness.case_id(op, index)}: {failure}", flush=True)
        ran += 1
        print(f"case {harness.case_id(op, index)}", flush=True)
    print(f"ran {ran} of {len(mine)} cases, {wrong} wrong", flush=True)
    return wrong


def plant() -> int:
    """Run the planted kernel; return 0."""
    from nbxtensor.backend import registry
    from nbxtensor.backend.contract import Bound, Compiled
    from nbxtensor.errors import DriverError

    backend = registry.backend("cuda")
    facts = {"arch": backend.target(0).arch, "warps": 4, "shared_nbytes": 0, "hidden": 0}
    kernel = backend.load(Compiled("planted", PLANTED, (("out", "*i32"), ("x", "*i32")), facts), 0)
    memory = backend.memory(0)
    try:
        backend.launch(Bound(kernel, (1, 1, 1), (memory.allocate(64), memory.allocate(64))), 0)
        backend.synchronize(0)
    except DriverError as failure:  # the device has stopped the kernel
        print(failure)
    os._exit(0)  # nothing can be given back to a device that has failed


def sees(tool: str, log: Path) -> bool:
    """Return whether ``tool`` finds what was planted."""
    path = log / f"{tool}.planted.txt"
    with path.open("wb") as file:
        subprocess.run(_command(tool, "--plant"), cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
    return any(int(a or b) for a, b in _FOUND.findall(path.read_text(errors="replace")))


def _command(tool: str, *arguments: str) -> list[str]:
    watched = ["compute-sanitizer", "--tool", tool, "--target-processes", "application-only"]
    return [*watched, sys.executable, __file__, *arguments]


def sanitize(tool: str, workers: int, seconds: float, seed: int, log: Path) -> dict[str, int]:
    """Run every shard under ``tool``; return the numbers of cases run, cases there are, and faults found."""
    log.mkdir(parents=True, exist_ok=True)
    running: list[tuple[Path, subprocess.Popen[bytes]]] = []
    for shard in range(workers):
        path = log / f"{tool}.{shard}.txt"
        given = {"--shard": shard, "--workers": workers, "--seconds": seconds, "--seed": seed}
        command = _command(tool, *(str(word) for pair in given.items() for word in pair))
        with path.open("wb") as file:
            running.append((path, subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)))
    total = {"ran": 0, "of": 0, "found": 0}
    if not sees(tool, log):
        total["found"] += 1
        print(f"{tool}: it does not find the faults that were planted.")
    for path, process in running:
        try:
            process.wait(timeout=seconds + 120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        text = path.read_text(errors="replace")
        ran, found = _RAN.search(text), [int(a or b) for a, b in _FOUND.findall(text)]
        if ran is None or not found:  # it died, or the tool did not speak
            total["ran"] += text.count("\ncase ")
            total["found"] += 1
            print(f"{path}: the run did not end; its last lines: {text[-600:]}")
            continue
        total["ran"] += int(ran[1])
        total["of"] += int(ran[2])
        total["found"] += max(found) + int(ran[3])
        if max(found) or int(ran[3]):
            shown = [line for line in text.splitlines() if line.startswith(("=========", "wrong"))]
            print(f"{path}:", *shown[:20], sep="\n")
    return total


def main() -> int:
    """Run one shard, or all of them; return the status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", choices=TOOLS, default=TOOLS[0])
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 2) - 2, 1), help="processes")
    parser.add_argument("--seconds", type=float, default=60, help="how long a process starts new cases")
    parser.add_argument("--seed", type=int, default=0, help="draws the order of the cases")
    parser.add_argument("--log", type=Path, default=ROOT / "build" / "sanitizer", help="folder for what is printed")
    parser.add_argument("--shard", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plant", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.plant:
        return plant()
    if asked.shard is not None:
        return int(work(asked.shard, asked.workers, asked.seconds, asked.seed) > 0)
    found = sanitize(asked.tool, asked.workers, asked.seconds, asked.seed, asked.log)
    print(f"{asked.tool}: {found['ran']} of {found['of']} cases, {found['found']} faults")
    return int(found["found"] > 0)


if __name__ == "__main__":
    sys.exit(main())
