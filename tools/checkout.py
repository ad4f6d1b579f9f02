"""Run a Python program with the library as this checkout has it, on a machine where it is not installed.

python tools/checkout.py tools/gpu_check.py --out figures.jsonl

Backends and the version are found through the metadata of an installed package: it is written under build/, and the
program is run with it and the source on its path. A first argument -m runs a module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).parent.parent


def paths() -> list[str]:
    """Write the metadata and return what goes on the path of Python."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = ROOT / "build" / "checkout"
    info = folder / f"nbxtensor-{about['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nbxtensor\nVersion: {about['version']}\n")
    lines = [
        line
        for group, entries in about.get("entry-points", {}).items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return [str(folder), str(ROOT / "src"), str(ROOT)]


def main() -> None:
    """Become the program that the arguments name."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    known = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths(), *known])}
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
