"""Prove that the library runs without torch: every attempt to import it is counted, caught ones too.

A fresh process with an empty kernel cache and a finder that records and refuses every import of torch imports every
module of the library, then compiles, plans, runs, captures and replays, on the CPU and, where there is one, on an
NVIDIA GPU. With ``--bundle`` it saves what it ran there; a process without Triton, given the same folder, has to run
it to the same bytes. A second process, the negative control, imports torch inside a ``try`` and must be caught, so
that a proof that cannot see is noticed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WATCH = """
import importlib.abc, sys
ATTEMPTS = []
class Watcher(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "torchaudio", "functorch"):
            ATTEMPTS.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None
sys.meta_path.insert(0, Watcher())
"""

# What needs no Triton: the facts that the package carries as files, and a plan for a device that is not there.
WITHOUT_TRITON = """
import nbxtensor as nbx
from nbxtensor.backend import device_facts, device_files
from nbxtensor.dtype.itemsize import itemsize
from nbxtensor.dtype.policy import op_class
from nbxtensor.ops.tiling_policy import tiling_table
from nbxtensor.planning.plan import plan
assert itemsize("bfloat16") == 2 and op_class("mm") == "compute" and tiling_table()
devices = [device_files.read(v, n) for v in device_files.vendors() for n in device_files.names(v)]
assert len(devices) > 20
assert device_files.read("apple", "apple_m4_pro")["memory"]["max_shared_memory_per_block"] == 32768
def layer(x, w):
    return nbx.softmax(nbx.gelu(nbx.matmul(x, w)), axis=-1)
specs = (nbx.Spec((64, 512), "float16"), nbx.Spec((512, 256), "float16"))
planned = plan(nbx.trace(layer, *specs), device_facts.target("nvidia", "h200"))
assert planned.price().total.seconds > 0
assert "triton" not in sys.modules
print(f"planned for {planned.target.arch} in {planned.nbytes} bytes, {len(devices)} devices described, without Triton")
"""

# What was saved where Triton is runs where it is not, to the same bytes.
FROM_BUNDLE = """
import numpy as np
from pathlib import Path
program = nbx.load_program(Path(sys.argv[2]) / "program")
given, wanted = (np.load(Path(sys.argv[2]) / f"{name}.npy") for name in ("given", "wanted"))
assert program(given).numpy().tobytes() == program.capture()(given).numpy().tobytes() == wanted.tobytes()
assert "triton" not in sys.modules
print(f"a bundle of {len(program.launches)} launches ran without Triton to the bytes it was saved with")
"""

RUN = """
import importlib, pkgutil
import numpy as np
import nbxtensor as nbx
for module in pkgutil.walk_packages(nbx.__path__, "nbxtensor."):
    importlib.import_module(module.name)
x = nbx.asarray(np.linspace(-2, 2, 1024, dtype=np.float32).reshape(8, 128))
def block(x):
    return nbx.softmax(nbx.gelu(nbx.matmul(x, x.T)) + 1.0, axis=-1)
eager = block(x).numpy()
program = nbx.plan(nbx.trace(block, x.spec), device="cpu").load({})
recording = program.capture()
assert recording.verified and np.allclose(recording(x).numpy(), eager, atol=1e-6)
from pathlib import Path
kernels = sum(p.is_file() for p in Path(sys.argv[1]).rglob("*"))
assert kernels > 0
print("replayed", len(recording), "launches; files in the cache that was empty:", kernels)
if sys.argv[2:]:
    program.save(Path(sys.argv[2]) / "program")
    np.save(Path(sys.argv[2]) / "given.npy", x.numpy())
    np.save(Path(sys.argv[2]) / "wanted.npy", program(x).numpy())
"""

# On an NVIDIA GPU, where there is one: an op and a captured program, their kernels compiled here and now.
ON_GPU = """
from nbxtensor.backend import registry
if registry.backend("cuda").count():
    there = x.to("cuda")
    assert np.allclose(block(there).numpy(), eager, atol=1e-4)
    recording = nbx.plan(nbx.trace(block, x.spec), device="cuda").load({}).capture()
    assert recording.verified and np.allclose(recording(x).numpy(), eager, atol=1e-4)
    print("on", nbx.device("cuda").target.fact("name"), "replayed", len(recording), "launches")
else:
    print("no NVIDIA GPU here")
"""

CONTROL = """
try:
    import torch
except ImportError:
    pass
"""

VERDICT = """
print("attempts:", len(ATTEMPTS), *ATTEMPTS)
sys.exit(3 if ATTEMPTS or "torch" in sys.modules else 0)
"""
TORCH_FREE, CAUGHT = 0, 3


def watched(body: str, *arguments: str) -> tuple[int, int]:
    """Run ``body`` under watch in a fresh process with an empty cache; return its exit status and the attempts."""
    with tempfile.TemporaryDirectory() as folder:
        caches = dict.fromkeys(("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "NBX_CACHE_DIR"), folder)
        done = subprocess.run(
            [sys.executable, "-c", WATCH + body + VERDICT, folder, *arguments],
            env={**os.environ, **caches},
            cwd=folder,
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        )
    print(done.stdout, end="")
    found = re.search(r"^attempts: (\d+)", done.stdout, re.MULTILINE)
    return done.returncode, int(found[1]) if found else -1


def main() -> int:
    """Run the proof and its control; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-triton", action="store_true", help="facts and plans alone: nothing is compiled")
    parser.add_argument(
        "--bundle", type=Path, help="folder where the run is saved, and where it is found without Triton"
    )
    asked = parser.parse_args()
    bundle = [str(asked.bundle.absolute())] if asked.bundle else []
    if bundle and not asked.without_triton:
        asked.bundle.mkdir(parents=True)
    body = WITHOUT_TRITON + (FROM_BUNDLE * len(bundle) if asked.without_triton else RUN + ON_GPU)
    passed = watched(body, *bundle) == (TORCH_FREE, 0)
    status, attempts = watched(CONTROL)
    caught = status == CAUGHT and attempts > 0
    print(f"torch-free proof: {'passed with 0 attempts' if passed else 'FAILED'}")
    print(f"negative control: {'caught' if caught else 'NOT CAUGHT'}")
    return 0 if passed and caught else 1


if __name__ == "__main__":
    sys.exit(main())
