"""Bundles: programs that were saved to a folder, loaded by processes that cannot compile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nbxtensor.capture.folder import BundleFolder
from nbxtensor.errors import ArgumentError

if TYPE_CHECKING:
    from nbxtensor.capture.program import Program
    from nbxtensor.run import Device

__all__ = ["load_program", "load_programs"]

_Paths = Sequence[str | os.PathLike[str]]


def load_program(
    folder: str | os.PathLike[str],
    name: str = "",
    *,
    device: str | Device | None = None,
    weights: _Paths = (),
) -> Program:
    """Return the program that `Program.save` wrote, ready to run, its state zeros; Triton is not needed.

    Weights that the bundle includes are mapped, where the host runs them: their file must stay as it is while the
    program lives, processes that load one bundle share its memory, and no limit set on memory counts it. The plan is
    read when `Program.plan` is.

    A bundle is trusted like a shared library: it holds machine code that runs in this process. Its checksums find
    damage, not malice. Nothing of it is executed but the kernels, and no other code is looked for.

    Args:
        folder: The folder.
        name: Which program, where it holds several (`load_programs` returns them all).
        device: The device; left out, the first of the kind that it was saved for.
        weights: Where the safetensors files are that it refers to, in their order, if they were moved.

    Raises:
        FormatError: A file is missing, damaged, or of another version of the format or of the library; names it.
        UnsupportedError: It was saved for other devices; names them.
        ArgumentError: It holds several programs and ``name`` is none of them.
        OutOfMemoryError: The device, or the limit set, cannot hold it.

    >>> import tempfile, nbxtensor as nbx
    >>> def double(x):
    ...     return x + x
    >>> program = nbx.plan(nbx.trace(double, nbx.Spec((3,), "float32"))).load()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     program.save(f"{folder}/double")
    ...     nbx.load_program(f"{folder}/double")(nbx.ones(3, dtype="float32")).numpy()
    array([2., 2., 2.], dtype=float32)
    """
    found = load_programs(folder, device=device, weights=weights)
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        raise ArgumentError(f"{folder}: a program of the bundle. Got {name!r}. It has {', '.join(found)}.")
    return found[name]


def load_programs(
    folder: str | os.PathLike[str], *, device: str | Device | None = None, weights: _Paths = ()
) -> dict[str, Program]:
    """Return every program of a bundle by name; those that shared weights and state when saved share them again.

    See `load_program`, for what is refused as well.

    >>> import tempfile, nbxtensor as nbx
    >>> def more(state, x):
    ...     total = state["total"] + nbx.sum(x)
    ...     return total, {"total": total}
    >>> state = {"total": nbx.Spec((), "float32")}
    >>> one, four = (nbx.plan(nbx.trace(more, nbx.Spec((n,), "float32"), state=state)) for n in (1, 4))
    >>> first = one.load()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nbx.save_programs(f"{folder}/sums", {"one": first, "four": four.load(share=first)})
    ...     programs = nbx.load_programs(f"{folder}/sums")
    >>> [float(programs[name](nbx.ones(n, dtype="float32")).numpy()) for name, n in (("four", 4), ("one", 1))]
    [4.0, 5.0]
    """
    several = isinstance(weights, Sequence) and not isinstance(weights, str)
    if not several or not all(isinstance(path, str | os.PathLike) for path in weights):
        raise ArgumentError(f"{folder}: weights are a sequence of paths. Got {weights!r}. A list of one path is one.")
    with BundleFolder(Path(folder)) as bundle:
        bundle.start()
        from nbxtensor.capture.opening import open_programs  # numpy, the backend: what takes the time

        return open_programs(bundle, device, [Path(path) for path in weights])
