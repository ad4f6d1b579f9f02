"""Compilation as a whole: what is refused and how it is named, what is the same every time, what is known of a grid."""

import numpy as np
import pytest
import triton
import triton.language as tl
from tests.backend.cpu.triton_launch import LEVELS, Kernel, pointer
from triton.language.extra import libdevice

from nbxtensor.backend.cpu import codegen, elf, frontend
from nbxtensor.errors import ArgumentError, CompileError

CONSTANT = {"BLOCK": 16}


def text(function, **signature):
    constants = {n: CONSTANT[n] for n in function.arg_names if n in CONSTANT}
    return frontend.ttir(function, signature | dict.fromkeys(constants, "constexpr"), constants)


@triton.jit
def _copy(out, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def _atomic(out, BLOCK: tl.constexpr):
    tl.atomic_add(out + tl.arange(0, BLOCK), 1.0)


@triton.jit
def _exchange(out):
    tl.atomic_cas(out, 1, 2)


@triton.jit
def _prints(out):
    tl.device_print("x", tl.program_id(0))
    tl.store(out, 1)


@triton.jit
def _library(out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, libdevice.tanh(i.to(tl.float32)))


@triton.jit
def _assembly(out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.inline_asm_elementwise("mov $0, $1;", "=r,r", [i], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + i, v)


@triton.jit
def _depth(out):
    tl.store(out, tl.num_programs(2))


@triton.jit
def _eighths(out, x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(tl.float32))


@triton.jit
def _wrong(out):
    tl.store(out, undefined_name)  # noqa: F821


@pytest.mark.parametrize(
    ("function", "signature", "match"),
    [
        (_atomic, {"out": "*fp32"}, r"_atomic: .*tt\.atomic_rmw"),
        (_exchange, {"out": "*i32"}, r"_exchange: .*tt\.atomic_cas"),
        (_prints, {"out": "*i32"}, r"_prints: .*tt\.print"),
        (_assembly, {"out": "*i32"}, r"_assembly: .*tt\.elementwise_inline_asm"),
        (_depth, {"out": "*i32"}, r"_depth: .*axis 2"),
    ],
)
def test_what_is_not_lowered_is_refused_by_name(function, signature, match):
    with pytest.raises(CompileError, match=match):
        codegen.compile_ttir(text(function, **signature), "x86-64-v3")


@pytest.mark.parametrize("function", [_library, _wrong], ids=["library", "name"])
def test_what_triton_refuses_carries_its_message(function):
    with pytest.raises(CompileError, match=rf"{function.__name__}: Triton refuses"):
        text(function, out="*fp32")


def test_eight_bit_floats_are_refused_by_name():
    with pytest.raises(CompileError, match=r"(?s)_eighths: .*fp8e5"):
        text(_eighths, out="*fp32", x="*fp8e5")
    line = "%0 = tt.load %arg0 : !tt.ptr<f8E5M2>"
    with pytest.raises(CompileError, match=r"k: an element type is lowered\. Got f8E5M2"):
        codegen.compile_ttir(body(line).replace("ptr<f32>", "ptr<f8E5M2>"), "x86-64-v3")


def body(*lines):
    inside = "\n".join(lines)
    return f"module {{\n  tt.func public @k(%arg0: !tt.ptr<f32>, %arg1: i32) {{\n{inside}\n    tt.return\n  }}\n}}\n"


@pytest.mark.parametrize(
    "lines",
    [
        ["%0 = tt.unheard_of %arg1 : i32"],
        ["%0 = arith.unheard_of %arg1 : i32"],
        [
            "%0 = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>",
            "%1 = tt.unheard_of %0 : tensor<8xi32>",
        ],
    ],
)
def test_unknown_ops_are_refused_by_name(lines):
    with pytest.raises(CompileError, match=r"k: an op is lowered\. Got \w+\.unheard_of"):
        codegen.compile_ttir(body(*lines), "x86-64-v3")


def test_an_unknown_level_names_the_known():
    with pytest.raises(CompileError, match=r"x86-64-v3, x86-64-v4\. Got 'sse2'"):
        codegen.compile_ttir(body(), "sse2")


def test_the_signature_is_checked():
    with pytest.raises(ArgumentError, match="names every parameter"):
        frontend.ttir(_copy, {"out": "*fp32"}, {})
    with pytest.raises(ArgumentError, match="BLOCK"):
        frontend.ttir(_copy, {"out": "*fp32", "x": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {})


def test_alignment_and_divisibility_reach_the_text():
    plain = text(_copy, out="*fp32", x="*fp32", n="i32")
    known = text(_copy, out="*fp32:16", x="*fp32", n="i32:16")
    assert plain.count("tt.divisibility = 16") == 0
    assert known.count("tt.divisibility = 16") == 2


@pytest.mark.parametrize("level", LEVELS)
def test_the_same_kernel_is_the_same_code(level):
    ttir = text(_copy, out="*fp32", x="*fp32", n="i32")
    assert ttir == text(_copy, out="*fp32", x="*fp32", n="i32")
    first, second = (codegen.compile_ttir(ttir, level) for _ in range(2))
    assert first == second
    assert first.name == "_copy"
    assert first.parameters == ("!tt.ptr<f32>", "!tt.ptr<f32>", "i32")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("grid", [(1,), (4,), (4, 1, 1)])
def test_a_known_grid_changes_no_result(level, grid):
    x = np.arange(64, dtype=np.float32)
    n = grid[0] * 16
    ttir = frontend.ttir(
        _copy, {"out": pointer(x), "x": pointer(x), "n": "constexpr", "BLOCK": "constexpr"}, {"n": n, "BLOCK": 16}
    )
    kernel = Kernel(ttir, level)
    kernel.compiled = codegen.compile_ttir(ttir, level, grid=grid)
    assert "masked" not in (kernel.compiled.llvm or "")
    module = elf.load(kernel.compiled.object)
    kernel.call = type(kernel.call)(module.address("_copy"))
    out, _ = kernel.launch(np.zeros_like(x), x, grid=grid)
    np.testing.assert_array_equal(out[:n], x[:n])
    assert (out[n:] == 0).all()
