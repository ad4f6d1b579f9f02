"""Hold the bytes that kernels declare against the counters of a card's memory, as Nsight Compute reads them.

python tools/gpu_counters.py --out bench/results/nvidia-h200.jsonl

Memory-bound ops run at sizes several times the card's shared cache, each once and with the cache cleared before it.
What a kernel has written may still lie in that cache when it ends, so that the counter of written bytes may miss as
much as the cache holds: the sizes make that less than the difference that is accepted. The status is 0 where every
kernel is within it.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
MARK = "declared: "
ROWS, COLUMNS = 65536, 8192  # 2 GiB of float32; rows that one program holds whole
ACCEPTED = 0.05


@dataclass(frozen=True)
class Declared:
    """What one call says that it moves.

    Attributes:
        case: The call in words.
        kernels: Names of its launches, in order.
        read: Bytes read.
        written: Bytes written.
    """

    case: str
    kernels: tuple[str, ...]
    read: int
    written: int


def launch(divisor: int, device: str) -> None:
    """Run every case once, and print what it declares.

    Args:
        divisor: What the number of rows is divided by, to try it.
        device: Where.
    """
    from bench.gpu.ops import call_of

    import nbxtensor as nbx
    from nbxtensor.run.measuring import call_once

    opened = nbx.device(device)
    for dtype, rows in (("float32", ROWS), ("bfloat16", 2 * ROWS)):
        x, weight = nbx.Spec((rows // divisor, COLUMNS), dtype), nbx.Spec((COLUMNS,), dtype)
        normal = {"normalized_shape": (COLUMNS,)}
        for name, operands, given in (
            ("add", {"x1": x, "x2": x}, {}),
            ("gelu", {"x": x}, {}),
            ("copy", {"x": x}, {}),
            ("softmax", {"x": x}, {"axis": -1}),
            ("rms_norm", {"x": x, "weight": weight}, normal),
            ("layer_norm", {"x": x, "weight": weight, "bias": weight}, normal),
            ("sum", {"x": x}, {"axis": -1}),
            ("linear", {"x": nbx.Spec((1, COLUMNS), dtype), "weight": x}, {}),
        ):
            call = call_of(name, operands, given, opened.target)
            kernel = call.op.kernel(call)
            cost, launches = kernel.cost(call), kernel.launch(call)
            names = tuple(str(getattr(each.kernel, "name", each.kernel)) for each in launches)
            found = Declared(f"{name} {x.shape[0]}x{COLUMNS} {dtype}", names, cost.read, cost.written)
            call_once(opened, call)
            print(MARK + json.dumps(asdict(found)), flush=True)


def counted(text: str) -> list[tuple[str, dict[str, float]]]:
    """Return (kernel, counters by name) of each launch, in order, from the CSV that Nsight Compute prints."""
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"')))):
        entry = found.setdefault(row["ID"], (row["Kernel Name"].partition("(")[0], {}))
        if row["Metric Unit"] not in ("byte", ""):
            raise ValueError(f"counters are in bytes. Got {row['Metric Unit']}. --print-units base gives them.")
        entry[1][row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return list(found.values())


def matched(
    declared: Iterable[Declared], launches: Sequence[tuple[str, Mapping[str, float]]]
) -> list[tuple[Declared, float, float]]:
    """Return each call with the bytes read and written by its launches; launches of other kernels are passed over.

    Raises:
        ValueError: A launch of a call is missing.
    """
    rest = iter(launches)
    found: list[tuple[Declared, float, float]] = []
    for each in declared:
        read = written = 0.0
        for name in each.kernels:
            for kernel, counters in rest:
                if kernel == name:
                    read, written = read + counters[READ], written + counters[WRITTEN]
                    break
            else:
                raise ValueError(f"{each.case}: a launch of {name} is counted. Got none.")
        found.append((each, read, written))
    return found


def main() -> int:
    """Count, compare, show and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file of JSON lines that figures are appended to")
    parser.add_argument("--divisor", type=int, default=1, help="what sizes are divided by, to try it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--launch", action="store_true", help="only run the kernels: what the profiler is started on")
    asked = parser.parse_args()
    if asked.launch:
        launch(asked.divisor, asked.device)
        return 0
    words = ["ncu", "--clock-control", "none", "--metrics", f"{READ},{WRITTEN}", "--csv", "--print-units", "base"]
    words += [sys.executable, __file__, "--launch", "--divisor", str(asked.divisor), "--device", asked.device]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:])
        return done.returncode
    declared = [Declared(**json.loads(x[len(MARK) :])) for x in done.stdout.splitlines() if x.startswith(MARK)]
    return _compared(matched(declared, counted(done.stdout)), asked.out)


def _compared(rows: Sequence[tuple[Declared, float, float]], out: Path | None) -> int:
    """Show and keep declared bytes over counted ones; return 1 where one is further apart than accepted."""
    from bench.gpu.card import Lines

    lines, worst = Lines(out), 0.0
    for each, read, written in rows:
        ratio = (each.read + each.written) / max(read + written, 1.0)
        worst = max(worst, abs(ratio - 1))
        lines.add(
            "counters", each.case, "declared/counted", ratio, declared_read=each.read, declared_written=each.written,
            counted_read=round(read), counted_written=round(written), kernels=list(each.kernels), goal="0.95 to 1.05",
        )  # fmt: skip
    print(f"{len(rows)} calls, at most {worst:.1%} apart")
    return int(worst > ACCEPTED or not rows)


if __name__ == "__main__":
    sys.exit(main())
