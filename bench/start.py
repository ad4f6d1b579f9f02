"""What it costs to begin: the import, and a fresh process up to its first embedding."""

from __future__ import annotations

import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench import machine, peers
from bench.lines import Lines
from bench.minilm import example

_PROCESSES = 7

# Tokenize, read the model, embed once: with us, and with onnxruntime (both take the demo's tokenizer and sentences).
_FIRST_EMBEDDING = """
import runpy, sys
demo = runpy.run_path(sys.argv[1])
ids, mask = demo["tokenize"](demo["SENTENCES"].split("|"))
"""
_OURS = """
plan, program = demo["load"](*ids.shape)
program(ids, mask).numpy()
"""
_ONNXRUNTIME = """
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
session = onnxruntime.InferenceSession(sys.argv[2], options, ["CPUExecutionProvider"])
session.run(None, {"ids": ids, "mask": mask.astype("int64")})
"""
# From ids to the embedding of 16 tokens and no more: our bundle, onnxruntime's file, and what both import.
_IDS = "import sys\nimport numpy as np\nids, mask = np.arange(2000, 2016)[None], np.ones((1, 16), bool)\n"
_BUNDLE = """
import nbxtensor
program = nbxtensor.load_program(sys.argv[1])
program(ids, mask).numpy()
"""
_ALONE = """
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
session = onnxruntime.InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"])
session.run(None, {"ids": ids, "mask": mask.astype("int64")})
"""
_IMPORT = "import time; began = time.perf_counter(); import {0}; print(time.perf_counter() - began)"
_FIRST = """
import time
began = time.perf_counter()
import nbxtensor
nbxtensor.softmax(nbxtensor.ones((4, 4)))
print(time.perf_counter() - began)
"""
# Not getrusage's figure, which begins at that of the process that started this one.
_PEAK = "\nprint(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


@dataclass(frozen=True)
class _Ended:
    wall: float
    cpu: float
    output: str

    @property
    def peak_bytes(self) -> int:
        """Largest resident memory, which the process printed last, in KiB."""
        return int(self.output.split()[-1]) * 1024


def run(lines: Lines) -> None:
    """Time fresh processes, ours and the peers' in turns."""
    _bundle(lines)
    _imports(lines)
    _demo(lines)


def _bundle(lines: Lines) -> None:
    """A process that has what was prepared before, in which both sides begin from ids."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "minilm"
        example().load(1, 16)[1].save(path)
        commands = {"ours": [_IDS + _BUNDLE, str(path)], "numpy": [_IDS]}
        if peers.present("onnxruntime") and peers.present("torch"):
            from bench.peers import bert

            commands["onnxruntime"] = [_IDS + _ALONE, str(bert.exported(example().model_folder(), machine.CACHE)[""])]
        took = _in_turns(
            {name: [sys.executable, "-c", text + _PEAK, *rest] for name, (text, *rest) in commands.items()}
        )
    walls = {name: statistics.median(e.wall for e in ended) for name, ended in took.items()}
    cpu = {name: statistics.median(e.cpu for e in ended) for name, ended in took.items()}
    least = {name: min(e.wall for e in ended) for name, ended in took.items()}
    memory = {name: statistics.median(e.peak_bytes for e in ended) for name, ended in took.items()}
    lines.add(
        "start", "a process that loads a bundle and embeds 16 tokens, from start to end", unit="s",
        ours=walls.pop("ours"), peers=walls, goal="0.30 s", clock="wall", least=least, processor_s=cpu,
        against="onnxruntime", notes={"numpy": "its import alone"},
    )  # fmt: skip
    lines.add(
        "start", "peak resident memory of a process with a bundle", unit="bytes", ours=memory.pop("ours"),
        peers=memory, goal="184 MiB", against="onnxruntime",
    )  # fmt: skip


def _imports(lines: Lines) -> None:
    names = ["nbxtensor", *(n for n in ("numpy", "torch", "onnxruntime") if peers.present(n))]
    took = _in_turns({name: [sys.executable, "-c", _IMPORT.format(name) + _PEAK] for name in names})
    medians = {name: statistics.median(float(e.output.split()[0]) for e in ended) for name, ended in took.items()}
    memory = {name: ended[-1].peak_bytes for name, ended in took.items()}
    told = _process([sys.executable, "-X", "importtime", "-c", "import nbxtensor"]).output.splitlines()
    rows = [re.match(r"import time:\s*(\d+)\s*\|\s*(\d+)\s*\|( *)(\S+)", line) for line in told]
    slow = sorted(((int(r[1]), r[4]) for r in rows if r), reverse=True)[:5]
    lines.add(
        "start", "import nbxtensor", unit="s", ours=medians.pop("nbxtensor"), peers=medians, goal="0.2 s", clock="wall",
        peak_bytes=memory, slowest_us={name: us for us, name in slow},
    )  # fmt: skip
    first = [sys.executable, "-c", _FIRST + _PEAK]
    _process(first)  # fills the cache
    took = [float(_process(first).output.split()[0]) for _ in range(_PROCESSES)]
    lines.add("start", "import and a first softmax", unit="s", ours=statistics.median(took), clock="wall")


def _demo(lines: Lines) -> None:
    path = machine.ROOT / "examples" / "minilm.py"
    said: list[float] = []
    _process([sys.executable, str(path)])  # fills the cache
    for _ in range(_PROCESSES):
        found = re.search(r"first embedding: ([\d.]+) s", _process([sys.executable, str(path)]).output)
        said.append(float(found[1]) if found else float("nan"))
    lines.add(
        "start", "second start of the demo to first embedding", unit="s", ours=statistics.median(said), least=min(said),
        goal="1.0 s", clock="wall", notes={"ours": "as the demo says, its imports not counted"},
    )  # fmt: skip
    commands = {"ours": [sys.executable, "-c", _FIRST_EMBEDDING + _OURS + _PEAK, str(path)]}
    if peers.present("onnxruntime") and peers.present("torch"):
        from bench.peers import bert

        model = bert.exported(example().model_folder(), machine.CACHE)[""]
        commands["onnxruntime"] = [
            sys.executable, "-c", _FIRST_EMBEDDING + _ONNXRUNTIME + _PEAK, str(path), str(model)
        ]  # fmt: skip
    took = _in_turns(commands)
    walls = {name: statistics.median(e.wall for e in ended) for name, ended in took.items()}
    memory = {name: statistics.median(e.peak_bytes for e in ended) for name, ended in took.items()}
    lines.add(
        "start", "a process that embeds once, from start to end", unit="s", ours=walls.pop("ours"), peers=walls,
        goal="1.0 s", clock="wall", notes={"onnxruntime": "imports us too: the demo's tokenizer"},
    )  # fmt: skip
    lines.add("start", "peak resident memory of that process", unit="bytes", ours=memory.pop("ours"), peers=memory)


def _in_turns(commands: dict[str, list[str]]) -> dict[str, list[_Ended]]:
    ended: dict[str, list[_Ended]] = {name: [] for name in commands}
    for _ in range(_PROCESSES):
        for name, command in commands.items():
            ended[name].append(_process(command))
    return ended


def _process(command: list[str]) -> _Ended:
    """Run a process to its end.

    Raises:
        SystemExit: It failed; shows the last it said.
    """
    before, began = _children(), time.perf_counter()
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/")
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:2])} ... failed:\n{done.stdout[-2000:]}")
    return _Ended(took, _children() - before, done.stdout)


def _children() -> float:
    """Return the seconds of processor time that processes started from here have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
