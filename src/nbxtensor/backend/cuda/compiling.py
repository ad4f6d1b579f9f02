"""Triton kernels to machine code for an NVIDIA GPU, ahead of time: no GPU, no driver and no torch are needed.

From compute capability 9.0 on, a launch can start while the one before it still runs ("programmatic dependent
launch"), if it waits for that one before it touches memory that a launch writes. Every kernel compiled here does:

* A kernel that knows nothing of it is given the two instructions as its first: it waits until the launches before it
  are done and their results can be seen (``griddepcontrol.wait``), and then lets the next launch start
  (``griddepcontrol.launch_dependents``). In this order no more than one launch stands ready: were the next let in
  first, it would let in the one after it, and so on, until waiting programs hold most of the units and those of a
  launch that runs are crowded on the few that are left (measured on an H200: up to twice the time).
* A kernel with a parameter ``PDL: tl.constexpr`` places them itself. No launch names the constant; it is true here for
  compute capability 9.0 and later, and false for every other target and backend::

      tile = tl.load(weights + ...)  # memory that no launch of a program writes
      if PDL:
          tl.extra.cuda.gdc_wait()
          tl.extra.cuda.gdc_launch_dependents()
      x = tl.load(...)  # everything else: loads of results, and every store

  All its programs wait, on every path, before they read what a launch writes and before they write anything: a launch
  that ends without having waited would let its successors run beside its predecessors.

Recordings rely on it (`Compiled.metadata` has "early"), and so do launches of kernels that wait before they read
anything ("waits_first"): it is also the cheapest way to start one. Where a launch is started in the ordinary way both
instructions do nothing.

A grid longer along its second or third axis than any card allows is folded: the code of a request that names such a
grid finds its place from a number along the first axis alone, which is how it is launched ("folded").
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from nbxtensor.backend.contract import Compiled, KernelRequest
from nbxtensor.backend.cuda.folding import MOST_ACROSS, folded_module
from nbxtensor.backend.kernel_source import constant_values, early_start, kernel_function
from nbxtensor.errors import ArgumentError, CompileError, UnsupportedError
from nbxtensor.op import Target

__all__ = ["capability", "compile_kernel", "compile_options"]

_WARP = 32
_EARLY_START = 90  # the compute capability from which on there is programmatic dependent launch
_RELEASE, _WAIT = "griddepcontrol.launch_dependents", "griddepcontrol.wait"
_ENTRY = re.compile(r"\.entry\s+\w+\s*\((.*?)\)", re.DOTALL)


def capability(arch: str) -> int:
    """Return the compute capability of an architecture as Triton takes it.

    Raises:
        ArgumentError: ``arch`` is not written as one.

    >>> capability("sm_90")
    90
    """
    match = re.fullmatch(r"sm_([1-9][0-9]+)", arch)
    if match is None:
        raise ArgumentError(f"cuda: an architecture is sm_ and a number. Got {arch!r}. 'sm_80' is an accepted form.")
    return int(match[1])


def compile_options(request: KernelRequest) -> Mapping[str, Any]:
    """Return the options that a kernel is compiled with.

    Multiply and add are not contracted, and numbers below the smallest normal are not flushed to zero: results are as
    the kernel's steps round them.
    """
    return MappingProxyType(
        {
            "num_warps": request.warps,
            "num_stages": request.stages,
            "enable_fp_fusion": False,
            "enable_reflect_ftz": False,
        }
    )


def compile_kernel(request: KernelRequest, target: Target) -> Compiled:
    """Return the machine code of a kernel.

    Its metadata: "arch"; "warps"; "shared_nbytes", the dynamic shared memory of a program; "hidden", the number of
    pointers that the code takes after the parameters (Triton's scratch, of which none is asked for); "early", whether
    it waits by itself for the launches before it, so that it may be started before they are done; "waits_first",
    whether it does so before it reads anything; "folded", the grid that
    its programs have their places in while they are launched along one axis, or None.

    Raises:
        ArgumentError: The signature and the constants do not name the kernel's parameters.
        CompileError: The kernel cannot be found, or Triton refuses it.
        UnsupportedError: Its code needs memory that no plan knows of.
    """
    from triton import compile as triton_compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import PTXASError

    gpu = GPUTarget("cuda", capability(target.arch), _WARP)
    function = kernel_function(request)
    early = capability(target.arch) >= _EARLY_START
    placed = early_start(function, device_has_it=early)
    constants = constant_values(request) | placed
    names: list[str] = function.arg_names
    if {*request.signature, *constants} != set(names):
        raise ArgumentError(
            f"{request.name}: types and constants name every parameter. "
            f"Got {sorted({*request.signature, *constants})}. Expected {names}."
        )
    types = {name: request.signature.get(name, "constexpr").partition("@")[0] for name in names}
    aligned = [i for i, name in enumerate(names) if "@" in request.signature.get(name, "")]
    source = ASTSource(
        function,
        types,
        {(names.index(name),): value for name, value in constants.items()},
        {(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    try:
        folded = _whole(request.grid) if max(request.grid[1:], default=0) > MOST_ACROSS else None
        with _stages(_waiting if early and not placed else None, folded):
            options = {**compile_options(request), "launch_pdl": early and bool(placed)}
            built = triton_compile(source, target=gpu, options=options)
    except (CompilationError, PTXASError, RuntimeError) as error:
        raise CompileError(f"{request.name}: Triton refuses the kernel for {target.arch}. {error}") from error
    facts = built.metadata
    if facts.global_scratch_size or facts.profile_scratch_size:
        raise UnsupportedError(
            f"{request.name}: memory that a plan knows of. Its code asks for {facts.global_scratch_size} bytes of "
            "scratch of its own. A kernel without device-side descriptors is accepted."
        )
    text = built.asm["ptx"]
    if early and _WAIT not in text:
        raise CompileError(
            f"{request.name}: a kernel with a parameter PDL waits where it is true. Got code without "
            f"{_WAIT}. gdc_wait() before the first access to memory that a launch writes is accepted."
        )
    parameters = tuple((name, request.signature[name]) for name in names if name in request.signature)
    metadata = {
        "arch": target.arch,
        "warps": int(facts.num_warps),
        "shared_nbytes": int(facts.shared),
        "hidden": _parameter_count(request.name, text) - len(parameters),
        "early": early,
        "waits_first": early and not placed,
        "folded": folded and list(folded),
    }
    return Compiled(facts.name, built.asm["cubin"], parameters, metadata)


def _whole(grid: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*grid, 1, 1)[:3]
    return x, y, z


@contextmanager
def _stages(change: Callable[[str], str] | None, folded: tuple[int, int, int] | None) -> Generator[None]:
    """Compile in a folder that goes, since the library has a cache of its own.

    Args:
        change: What is made of the assembly.
        folded: The grid that the kernel is folded from.
    """
    from triton import knobs

    runtime: Any = knobs.runtime  # its annotations know one of the two ways in which the hook is called

    def inspect(*given: Any) -> tuple[str, str] | None:
        if not given:  # asked for what the changes add to the key of Triton's cache
            return "changed", "changed"
        stages = given[1]
        tiles, assembly = stages["ttir"], stages["ptx"]
        if folded:
            stages["ttir"] = lambda source, metadata, grid=folded: folded_module(tiles(source, metadata), grid)
        stages["ptx"] = lambda source, metadata: (change or str)(assembly(source, metadata))
        return None

    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope(), knobs.runtime.scope():
        knobs.cache.dir = folder
        if change is not None or folded is not None:
            runtime.add_stages_inspection_hook = inspect
        yield


def _waiting(text: str) -> str:
    """Return assembly whose entry begins by waiting for the launches before it and then letting the next one start."""
    found = _ENTRY.search(text)
    start = text.find("{", found.end() if found else len(text))
    if start < 0:
        raise CompileError("the code has an entry with a body. Got assembly without one.")
    return f"{text[: start + 1]}\n\t{_WAIT};\n\t{_RELEASE};{text[start + 1 :]}"


def _parameter_count(name: str, text: str) -> int:
    """Return how many parameters the code takes, read from its assembly: releases of Triton append some."""
    found = _ENTRY.search(text)
    if found is None:
        raise CompileError(f"{name}: the code has an entry. Got assembly without one.")
    return found[1].count(".param")
