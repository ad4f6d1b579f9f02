"""Write docs/OPS.md: every op with its signature, kernels, dtypes tested and first docs line, from the declarations."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbxtensor as nbx
from nbxtensor.op import Op

TARGET = Path(__file__).parent.parent / "docs" / "OPS.md"
HEAD = """# Ops

Every op, from its declaration; written by `tools/ops_table.py`, and a gate fails when it is out of date. `dtypes` are
those that its cases run natively on the CPU against the reference; `fuses` says whether pointwise fusion takes it
(`chain`) or lets others into its kernel (`epilogue`).

"""


def declared() -> list[Op]:
    """Return every exported op by family and name."""
    found = [getattr(nbx, name).op for name in nbx.__all__ if isinstance(getattr(getattr(nbx, name), "op", None), Op)]
    return sorted(found, key=lambda op: (family(op), op.name))


def family(op: Op) -> str:
    """Return the name of the op's family."""
    return op.module.split(".")[-2]


def table() -> str:
    """Return the whole document."""
    parts = [HEAD]
    groups: dict[str, list[Op]] = {}
    for op in declared():
        groups.setdefault(family(op), []).append(op)
    for name, ops in groups.items():
        parts.append(f"## {name}\n\n| op | arguments | dtypes | kernels | fuses | what |\n| --- | --- | --- | --- | --- | --- |\n")
        parts += [row(op) for op in ops]
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def row(op: Op) -> str:
    """Return the op's line."""
    arguments = ", ".join(n for n in op.signature.parameters if n not in ("epilogue", "extras", "scalars"))
    dtypes = sorted({s.dtype for case in op.cases for s in case.operands.values()})
    kernels = ", ".join(k.name for k in op.kernels)
    fuses = "chain" if op.pointwise else "epilogue" if "epilogue" in op.signature.parameters else ""
    first = op.doc.partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    return f"| `{op.name}` | `{arguments}` | {' '.join(dtypes)} | {kernels} | {fuses} | {first} |\n"


def main() -> int:
    """Write the document, or check that it is fresh."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the document is out of date")
    wanted = table()
    if parser.parse_args().check:
        fresh = TARGET.exists() and TARGET.read_text() == wanted
        print(f"{TARGET.name}: {'fresh' if fresh else 'out of date; run tools/ops_table.py'}")
        return 0 if fresh else 1
    TARGET.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
