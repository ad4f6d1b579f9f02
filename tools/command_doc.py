"""Run the commands in docs/COMMAND.md and write what they print below them."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

import nbxtensor.cli

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "COMMAND.md"
BLOCK = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
MODEL = re.compile(r"saved as `(\S+)`:\n\n```python\n(.*?)```\n", re.DOTALL)
VARYING = {
    "B",
    "KiB",
    "MiB",
    "GiB",
    "k",
    "M",
    "G",
    "T",
    "P",
    "s",
    "ms",
    "us",
    "ns",
    "memory",
    "vector",
    "matrix",
    "launch",
}


def printed(command: str, folder: Path) -> str:
    """Return what a command prints, run in ``folder``."""
    words, before, said = shlex.split(command), Path.cwd(), io.StringIO()
    assert words[0] == "nbxtensor", command  # noqa: S101
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
            nbxtensor.cli.main(words[1:])
    finally:
        os.chdir(before)
    return "".join(line.rstrip() + "\n" for line in said.getvalue().splitlines())


def written(text: str) -> str:
    """Return the document with what its commands print now."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")
        for file, code in MODEL.findall(text):
            (folder / file).write_text(code)

        def block(found: re.Match[str]) -> str:
            commands = [line for line in found[1].splitlines() if line.startswith("$ ")]
            return "```console\n" + "".join(f"{c}\n{printed(c[2:], folder)}" for c in commands) + "```\n"

        return BLOCK.sub(block, text)


def words(text: str) -> list[list[str]]:
    """Return the words of each line, in no order: no numbers, units, limits, rules, nor what is in brackets."""
    text = re.sub(r"\([^)\n]*\)", "", text)
    lines = ([word.strip(",;:()") for word in re.split(r"[\s,]+", line)] for line in text.splitlines())
    kept = ([w for w in line if not re.search(r"\d|^-*$", w) and w not in VARYING] for line in lines)
    return sorted(line for line in kept if line)


def main() -> int:
    """Write the document, or check that its commands still print the same, numbers aside."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a command prints something else")
    check = parser.parse_args().check
    text = TARGET.read_text()
    wanted = written(text)
    if not check:
        TARGET.write_text(wanted)
        return 0
    for was, now in zip(BLOCK.findall(text), BLOCK.findall(wanted), strict=True):
        if words(was) != words(now):
            print(f"{TARGET.name} is out of date: run tools/command_doc.py. Printed now:\n{now}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
