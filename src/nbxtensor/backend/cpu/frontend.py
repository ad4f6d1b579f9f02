"""Triton kernel functions to TTIR text, without a GPU, a driver or torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nbxtensor.errors import ArgumentError, CompileError

__all__ = ["ttir"]

_ALIGNED = ":16"  # suffix of a signature type: a pointer to 16 bytes, or an integer divisible by 16


@dataclass(frozen=True)
class _Options:
    """What Triton's code generator asks of a backend's options, in every supported release."""

    num_warps: int = 1
    num_ctas: int = 1
    num_stages: int = 1
    warp_size: int = 1
    enable_fp_fusion: bool = False
    debug: bool = False
    sanitize_overflow: bool = False
    backend_name: str = "cpu"
    arch: str = "x86-64"
    supported_fp8_dtypes: tuple[str, ...] = ()
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3")
    max_num_imprecise_acc_default: int = 0
    instrumentation_mode: str = ""
    extern_libs: tuple[str, ...] = ()


def _smallest_dot(*_: Any) -> tuple[int, int, int]:
    return (1, 1, 1)


def ttir(function: Any, signature: Mapping[str, str], constants: Mapping[str, Any]) -> str:
    """Return the TTIR text of a Triton kernel, after the passes that do not depend on a device.

    Args:
        function: A ``triton.jit`` function.
        signature: Every parameter's Triton type ("*fp32", "i32", "i64", "fp32", "constexpr"); ":16" after a pointer
            type says that it is aligned to 16 bytes, after an integer type that it is a multiple of 16.
        constants: The value of each "constexpr" parameter.

    Returns:
        The module as text. The same kernel, signature and constants give the same text in every process.

    Raises:
        ArgumentError: When ``signature`` does not name the kernel's parameters, or a constant is missing.
        CompileError: When Triton refuses the kernel; carries Triton's own message.
    """
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.errors import CompilationError

    name: str = function.__name__
    names: list[str] = function.arg_names
    if set(signature) != set(names):
        raise ArgumentError(f"{name}: the signature names every parameter. Got {sorted(signature)}. Expected {names}.")
    missing = [n for n in names if signature[n] == "constexpr" and n not in constants]
    if missing:
        raise ArgumentError(f"{name}: every constexpr parameter has a value. Got none for {missing}.")
    types = {n: signature[n].removesuffix(_ALIGNED) for n in names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].endswith(_ALIGNED)}
    values = {(i,): constants[n] for i, n in enumerate(names) if signature[n] == "constexpr"}
    source = ASTSource(function, types, values, attributes)
    context = ir.context()
    ir.load_dialects(context)
    functions = {"min_dot_size": _smallest_dot}
    try:
        module = source.make_ir(GPUTarget("cpu", "x86-64", 1), _Options(), functions, {}, context)
        _run_passes(module)
    except (CompilationError, RuntimeError) as error:
        raise CompileError(f"{name}: Triton refuses the kernel. {error}") from error
    return module.str_nodebug()


def _run_passes(module: Any) -> None:
    # Not "combine": it turns dot(a, b, 0) + c into dot(a, b, c), which rounds otherwise than the kernel says.
    from triton._C.libtriton import ir, passes

    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.common.add_canonicalizer(manager)
    passes.ttir.add_reorder_broadcast(manager)
    passes.common.add_cse(manager)
    passes.common.add_licm(manager)
    passes.common.add_symbol_dce(manager)
    try:
        manager.run(module, "cpu_ttir")
    except TypeError:  # Triton up to 3.6 takes the module alone
        manager.run(module)
