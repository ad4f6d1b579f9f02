"""Write docs/OPS.md: every op with its signature, what fuses with it, kernels, tested dtypes and docs line."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from itertools import groupby
from pathlib import Path

import nbxtensor as nbx
from nbxtensor.dtype.itemsize import autotune_key, names
from nbxtensor.op import Op

TARGET = Path(__file__).parent.parent / "docs" / "OPS.md"
HEAD = """# Ops

Every op of the namespace, by family, from its declaration: {count} ops with {cases} cases. Each case runs natively on
the CPU against a float64 reference. `tools/ops_table.py` writes this page, and a gate fails when it is out of date.

- **fuses**: `chain`: chains of such ops become one kernel; `into`: pointwise ops before it are computed in its kernel;
  `out of`: pointwise ops after it are.
- **dtypes**: those of the operands in its cases, as launch keys spell them (`bf16` is bfloat16, `int1` bool).

"""
FUSION = {"prologue": "into", "epilogue": "out of"}
HIDDEN = {*FUSION, "extras", "scalars"}  # filled in by graph passes


def declared() -> list[Op]:
    """Return every exported op by family and name."""
    found = [getattr(nbx, name).op for name in nbx.__all__ if isinstance(getattr(getattr(nbx, name), "op", None), Op)]
    return sorted(found, key=lambda op: (family(op), op.name))


def family(op: Op) -> str:
    """Return the name of the op's family."""
    return op.module.split(".")[-2]


def signature(op: Op) -> str:
    """Return how the op is called: parameters and defaults, without what graph passes fill in."""
    shown = [p for name, p in op.signature.parameters.items() if name not in HIDDEN]
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in shown]
    return f"{op.name}{inspect.Signature(plain)}"


def dtypes(op: Op) -> str:
    """Return the dtypes of the operands in the op's cases, in the order of the dtype table."""
    used = {spec.dtype for case in op.cases for spec in case.operands.values()}
    return " ".join(autotune_key(name) for name in names() if name in used)


def row(op: Op) -> str:
    """Return the op's line."""
    fuses = ["chain"] if op.pointwise else [word for name, word in FUSION.items() if name in op.signature.parameters]
    first = " ".join(op.doc.partition("\n\n")[0].split()).replace("|", "\\|")
    kernels = ", ".join(f"`{k.name}`" for k in op.kernels)
    return f"| `{signature(op)}` | {first} | {', '.join(fuses)} | {kernels} | {dtypes(op)} |\n"


def table() -> str:
    """Return the whole document."""
    ops = declared()
    parts = [HEAD.format(count=len(ops), cases=sum(len(op.cases) for op in ops))]
    for name, members in groupby(ops, family):
        package = importlib.import_module(f"nbxtensor.ops.{name}")
        parts.append(f"## {name}\n\n{inspect.getdoc(package)}\n\n")
        parts.append("| op | what | fuses | kernels | dtypes |\n| --- | --- | --- | --- | --- |\n")
        parts += [*map(row, members), "\n"]
    return "".join(parts).rstrip() + "\n"


def main() -> int:
    """Write the document, or check that it is fresh."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the document is out of date")
    check = parser.parse_args().check
    wanted = table()
    if not check:
        TARGET.write_text(wanted)
        return 0
    fresh = TARGET.exists() and TARGET.read_text() == wanted
    print(f"{TARGET.name}: {'fresh' if fresh else 'out of date; run tools/ops_table.py'}")
    return 0 if fresh else 1


if __name__ == "__main__":
    sys.exit(main())
