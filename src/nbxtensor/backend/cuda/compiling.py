"""Triton kernels to machine code for an NVIDIA GPU, ahead of time: no GPU, no driver and no torch are needed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nbxtensor.backend.contract import Compiled, KernelRequest
from nbxtensor.backend.kernel_source import constant_values, kernel_function
from nbxtensor.errors import ArgumentError, CompileError, UnsupportedError
from nbxtensor.op import Target

__all__ = ["capability", "compile_kernel", "compile_options"]

_WARP = 32
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
    pointers that the code takes after the parameters (Triton's scratch, of which none is asked for).

    Raises:
        ArgumentError: The signature and the constants do not name the kernel's parameters.
        CompileError: The kernel cannot be found, or Triton refuses it.
        UnsupportedError: Its code needs memory that no plan knows of.
    """
    from triton import compile as triton_compile
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import PTXASError

    gpu = GPUTarget("cuda", capability(target.arch), _WARP)
    function = kernel_function(request)
    constants = constant_values(request)
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
        # What Triton keeps on the way goes with the folder: compiled kernels are kept by the library's own cache.
        with tempfile.TemporaryDirectory() as folder, knobs.cache.scope():
            knobs.cache.dir = folder
            built = triton_compile(source, target=gpu, options=dict(compile_options(request)))
    except (CompilationError, PTXASError, RuntimeError) as error:
        raise CompileError(f"{request.name}: Triton refuses the kernel for {target.arch}. {error}") from error
    facts = built.metadata
    if facts.global_scratch_size or facts.profile_scratch_size:
        raise UnsupportedError(
            f"{request.name}: memory that a plan knows of. Its code asks for {facts.global_scratch_size} bytes of "
            "scratch of its own. A kernel without device-side descriptors is accepted."
        )
    parameters = tuple((name, request.signature[name]) for name in names if name in request.signature)
    metadata = {
        "arch": target.arch,
        "warps": int(facts.num_warps),
        "shared_nbytes": int(facts.shared),
        "hidden": _parameter_count(request.name, built.asm["ptx"]) - len(parameters),
    }
    return Compiled(facts.name, built.asm["cubin"], parameters, metadata)


def _parameter_count(name: str, text: str) -> int:
    """Return how many parameters the code takes, read from its assembly: releases of Triton append some."""
    found = _ENTRY.search(text)
    if found is None:
        raise CompileError(f"{name}: the code has an entry. Got assembly without one.")
    return found[1].count(".param")
