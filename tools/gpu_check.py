"""Check the library on an NVIDIA GPU, in one command; the last results go to a file of JSON lines.

python tools/checkout.py tools/gpu_check.py

It runs what needs a GPU: the tests of the CUDA backend, every case of every op, the conformance tests, the exchange
with torch and CuPy, the proof that the library runs without torch, and, where asked, the cases of the ops under
compute-sanitizer. What is fast and what is not, `python -m bench --device cuda` measures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from bench.gpu.card import RESULTS, ROOT, Lines, slug
from tools.gpu_sanitize import TOOLS, sanitize

from nbxtensor.backend import registry

TESTS = (
    "tests/backend/cuda",
    "tests/nbxtensor_backend_conformance",
    "tests/tensor/test_exchange.py",
    "tests/examples/test_llama.py",
)


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
            if line.startswith(("FAILED", "ERROR", "E   ")):
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


def main() -> int:
    """Run every check; return the status of the tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file of the results; left out, the device's in bench/results")
    parser.add_argument("--log", type=Path, default=ROOT / "build", help="folder for what the tests print")
    parser.add_argument("--workers", type=int, default=12, help="processes that run tests")
    parser.add_argument("--sanitize", type=float, default=0, help="seconds for each tool of compute-sanitizer")
    asked = parser.parse_args()
    if not registry.backend("cuda").count():
        raise SystemExit("no NVIDIA GPU here.")
    asked.log.mkdir(parents=True, exist_ok=True)
    lines = Lines(asked.out or RESULTS / f"{slug()}.jsonl")
    status = tests(lines, asked.workers, asked.log) | without_torch(lines)
    if asked.sanitize:
        status |= sanitized(lines, asked.workers, asked.sanitize, asked.log)
    return status


if __name__ == "__main__":
    sys.exit(main())
