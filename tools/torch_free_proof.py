"""Prove that the library runs without torch: every attempt to import it is recorded, caught ones too.

A fresh process, an empty kernel cache, a meta-path finder that records and refuses every import of torch, then a run
through compilation, plan, program and replay. A second process is the negative control: it imports torch inside a
``try`` and must be caught, so that a proof that cannot see is noticed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

WATCH = """
import importlib.abc, sys
ATTEMPTS = []
class Watcher(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "functorch"):
            ATTEMPTS.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None
sys.meta_path.insert(0, Watcher())
"""

IMPORT = """
import nbxtensor
"""

RUN = """
import numpy as np
import nbxtensor as nbx
x = nbx.asarray(np.linspace(-2, 2, 1024, dtype=np.float32).reshape(8, 128))
def block(x):
    return nbx.softmax(nbx.gelu(nbx.matmul(x, x.T)) + 1.0, axis=-1)
eager = block(x).numpy()
plan = nbx.plan(nbx.trace(block, x.spec), device="cpu")
recording = plan.load({}).capture()
assert recording.verified and np.allclose(recording(x).numpy(), eager, atol=1e-6)
"""

CONTROL = """
try:
    import torch
except ImportError:
    pass
"""

VERDICT = """
print("attempts:", ATTEMPTS or "none")
sys.exit(3 if ATTEMPTS or "torch" in sys.modules else 0)
"""


def attempt(body: str) -> int:
    """Run ``body`` under watch in a fresh process with an empty cache; return 0 where torch was never asked for."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder, "TRITON_CACHE_DIR": folder, "NBX_CACHE_DIR": folder}
        done = subprocess.run(  # noqa: S603 - our own text
            [sys.executable, "-c", WATCH + body + VERDICT], env=environment, cwd=folder, check=False
        )
    return done.returncode


def main() -> int:
    """Run the proof and its control; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--import-only", action="store_true", help="only import the library (no Triton at hand)")
    arguments = parser.parse_args()
    proof = attempt(IMPORT if arguments.import_only else IMPORT + RUN)
    control = attempt(IMPORT + CONTROL)
    print(f"proof: exit {proof} (0: torch was never asked for); control: exit {control} (3: it was caught)")
    return 0 if (proof, control) == (0, 3) else 1


if __name__ == "__main__":
    sys.exit(main())
