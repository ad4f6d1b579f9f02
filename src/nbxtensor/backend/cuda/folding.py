"""Grids with more programs along an axis than a card allows: every program's place, found from one number."""

from __future__ import annotations

import itertools
import re
import tempfile
from pathlib import Path
from typing import Any

from nbxtensor.errors import CompileError

__all__ = ["MOST_ACROSS", "folded_module", "folded_text"]

MOST_ACROSS = 65_535
"""Programs along the second axis and along the third that every card allows (CUDA C++ Programming Guide, technical
specifications per compute capability)."""
_READ = re.compile(r"^(\s*)(%[\w#]+) = tt\.get_(program_id|num_programs) ([xyz]) : i32.*$", re.MULTILINE)


def folded_text(text: str, grid: tuple[int, int, int]) -> str:
    """Return a kernel's TTIR for a launch along the first axis alone, of as many programs as ``grid`` has.

    It is done before any optimisation: compilers take it for granted that no program's place is past the limit.

    Raises:
        CompileError: A place is read in a way that is not known.
    """
    extents, numbers = dict(zip("xyz", grid, strict=True)), itertools.count()
    below = {"x": 1, "y": extents["x"], "z": extents["x"] * extents["y"]}

    def place(found: re.Match[str]) -> str:
        indent, name, what, axis = found.groups()
        if what == "num_programs":
            return f"{indent}{name} = arith.constant {extents[axis]} : i32"
        number = next(numbers)
        whole, step, end, quotient = (f"%folded_{part}_{number}" for part in ("whole", "step", "end", "quotient"))
        return "\n".join(
            f"{indent}{line}"
            for line in (
                f"{whole} = tt.get_program_id x : i32",
                f"{step} = arith.constant {below[axis]} : i32",
                f"{end} = arith.constant {extents[axis]} : i32",
                f"{quotient} = arith.divui {whole}, {step} : i32",
                f"{name} = arith.remui {quotient}, {end} : i32",
            )
        )

    made, places = _READ.subn(place, text)
    if places != len(re.findall(r"tt\.get_(?:program_id|num_programs)", text)):
        raise CompileError("a kernel's TTIR reads the place of a program in the known way. Got another.")
    return made


def folded_module(module: Any, grid: tuple[int, int, int]) -> Any:
    """Return `folded_text` of a module of TTIR, as a module."""
    from triton._C.libtriton import ir

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "folded.ttir"
        path.write_text(folded_text(module.str_nodebug(), grid), encoding="utf-8")
        made = ir.parse_mlir_module(str(path), module.context)
    made.context = module.context
    return made
