"""TTIR text as both supported releases of Triton print it."""

import numpy as np
import pytest

from nbxtensor.backend.cpu import ttir
from nbxtensor.errors import CompileError


def parsed(body, arguments="%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg1: i32"):
    text = f"module {{\n  tt.func public @k({arguments}) attributes {{noinline = false}} {{\n{body}\n  }}\n}}\n"
    return ttir.parse(text)


def only(line, arguments="%arg0: !tt.ptr<f32>, %arg1: i32, %arg2: tensor<4x8xf32>, %arg3: tensor<4x8xi1>"):
    function = parsed(line + "\ntt.return", arguments)
    return function.blocks[0].ops[0]


def test_the_kernel():
    function = parsed("tt.return")
    assert function.name == "k"
    assert [a.type for a in function.arguments] == [ttir.Type("f32", None, pointer=True), ttir.Type("i32")]
    assert function.aligned == (16, 1)
    assert [op.name for op in function.blocks[0].ops] == ["tt.return"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("%c = arith.constant 7 : i32", (7,)),
        ("%c-3_i64 = arith.constant -3 : i64", (-3,)),
        ("%t = arith.constant true", (1,)),
        ("%c = arith.constant 1.000000e+00 : f32", (1.0,)),
        ("%c = arith.constant dense<0xFF800000> : tensor<4xf32>", (-np.inf,)),
        ("%c = arith.constant dense<0x7C00> : tensor<4xf16>", (np.inf,)),
        ("%c = arith.constant dense<0x3F80> : tensor<4xbf16>", (1.0,)),
        ("%c = arith.constant 0x7FF0000000000000 : f64", (np.inf,)),
        ("%c = arith.constant dense<[1, -2, 3]> : tensor<3xi32>", (1, -2, 3)),
        ("%c = arith.constant dense<[[1.5, 2.5], [3.5, -4.5]]> : tensor<2x2xf32>", (1.5, 2.5, 3.5, -4.5)),
        ("%c = arith.constant dense<true> : tensor<4xi1>", (1,)),
        ("%c = arith.constant dense<[true, false]> : tensor<2xi1>", (1, 0)),
        ('%c = arith.constant dense<"0x0000803F00000040"> : tensor<2xf32>', (1.0, 2.0)),
        ('%c = arith.constant dense<"0x803F0040"> : tensor<2xbf16>', (1.0, 2.0)),
        ("%c = arith.constant dense<4.6566126E-10> : tensor<4xf32>", (4.6566126e-10,)),
    ],
)
def test_constants(text, numbers):
    op = only(text)
    assert op.constant() == numbers
    assert op.result.op is op


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("%0 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>", ttir.Type("f32", (64,), pointer=True)),
        ("%0 = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>", ttir.Type("i32", (8,))),
        ("%0 = arith.addf %arg2, %arg2 : tensor<4x8xf32>", ttir.Type("f32", (4, 8))),
        ("%0 = arith.cmpf ogt, %arg2, %arg2 : tensor<4x8xf32>", ttir.Type("i1", (4, 8))),
        ("%0 = arith.select %arg3, %arg2, %arg2 : tensor<4x8xi1>, tensor<4x8xf32>", ttir.Type("f32", (4, 8))),
        ("%0 = arith.truncf %arg2 : tensor<4x8xf32> to tensor<4x8xbf16>", ttir.Type("bf16", (4, 8))),
        ("%0 = tt.load %arg0 : !tt.ptr<f32>", ttir.Type("f32")),
        ("%0 = tt.expand_dims %arg2 {axis = 1 : i32} : tensor<4x8xf32> -> tensor<4x1x8xf32>",
         ttir.Type("f32", (4, 1, 8))),
        ("%0 = tt.get_program_id y : i32", ttir.Type("i32")),
        ("%0 = tt.dot %arg2, %arg2, %arg2, inputPrecision = ieee : tensor<4x8xf32> * tensor<4x8xf32> -> tensor<4xf32>",
         ttir.Type("f32", (4,))),
        ("%0 = tt.gather %arg2[%arg2] {axis = 1 : i32} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>",
         ttir.Type("f32", (4, 8))),
    ],
)  # fmt: skip
def test_results(text, type_):
    assert only(text).result.type == type_


def test_attributes():
    assert only("%0 = arith.cmpi sle, %arg1, %arg1 : i32").attributes["predicate"] == "sle"
    assert only("%0 = tt.get_program_id y : i32").attributes["axis"] == "y"
    assert only("%0 = tt.make_range {end = 8 : i32, start = 2 : i32} : tensor<8xi32>").integer("start") == 2
    turned = only("%0 = tt.trans %arg2 {order = array<i32: 1, 0>} : tensor<4x8xf32> -> tensor<8x4xf32>")
    assert turned.attributes["order"] == "array<i32: 1, 0>"
    assert (
        only("%0 = tt.fp_to_fp %arg2, rounding = rtz : tensor<4x8xf32> -> tensor<4x8xf16>").attributes["rounding"]
        == "rtz"
    )


def test_several_results():
    op = only("%a, %b = tt.split %arg2 : tensor<4x8xf32> -> tensor<4xf32>")
    assert [(v.name, v.index, v.type.shape) for v in op.results] == [("%a", 0, (4,)), ("%b", 1, (4,))]


def test_a_reduction_and_its_region():
    op = only(
        '%0:2 = "tt.reduce"(%arg2, %arg3) <{axis = 1 : i32}> ({\n'
        "^bb0(%x: f32, %i: i1, %y: f32, %j: i1):\n"
        "  tt.reduce.return %x, %j : f32, i1\n"
        "}) : (tensor<4x8xf32>, tensor<4x8xi1>) -> (tensor<4xf32>, tensor<4xi1>)"
    )
    (block,) = op.regions
    assert op.integer("axis") == 1
    assert [v.name for v in block.arguments] == ["%x", "%i", "%y", "%j"]
    assert [v.name for v in op.results] == ["%0#0", "%0#1"]
    assert block.ops[0].operands == (block.arguments[0], block.arguments[3])


def test_loops_and_branches():
    function = parsed(
        "%c0 = arith.constant 0 : i32\n"
        "%0:2 = scf.for %i = %c0 to %arg1 step %arg1 iter_args(%a = %c0, %b = %arg1) -> (i32, i32)  : i32 {\n"
        "  %t = arith.cmpi slt, %a, %b : i32\n"
        "  %s = scf.if %t -> (i32) {\n    scf.yield %a : i32\n  } else {\n    scf.yield %b : i32\n  }\n"
        "  scf.if %t {\n    tt.store %arg0, %s : !tt.ptr<f32>\n  }\n"
        "  scf.yield %b, %s : i32, i32\n} {tt.num_stages = 2 : i32}\n"
        "%1 = scf.while (%w = %0#1) : (i32) -> i32 {\n"
        "  %t = arith.cmpi slt, %w, %arg1 : i32\n  scf.condition(%t) %w : i32\n} do {\n"
        "^bb0(%w: i32):\n  scf.yield %w : i32\n}\n"
        "cf.cond_br %c1, ^bb1, ^bb2(%1 : i32)\n^bb1:  // pred: ^bb0\n  tt.return\n"
        "^bb2(%z: i32):  // pred: ^bb0\n  tt.return",
        arguments="%arg0: !tt.ptr<f32>, %arg1: i32, %c1: i1",
    )
    for_, while_, jump = function.blocks[0].ops[1:]
    (body,) = for_.regions
    assert [v.name for v in body.arguments] == ["%i", "%a", "%b"]
    assert for_.operands[3:] == (function.blocks[0].ops[0].result, function.arguments[1])
    assert [len(op.regions) for op in body.ops[1:3]] == [2, 1]
    assert body.ops[2].regions[0].ops[-1].name == "scf.yield"
    assert while_.operands == (for_.results[1],)
    assert [len(region.ops) for region in while_.regions] == [2, 1]
    assert [b.label for b in function.blocks] == ["bb0", "bb1", "bb2"]
    assert (jump.attributes["targets"], jump.attributes["counts"]) == ("bb1 bb2", "0 1")
    assert jump.operands == (function.arguments[2], while_.results[0])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("module {\n}\n", "holds a kernel"),
        ("module {\n  tt.func public @k() {\n", "closing brace"),
        ("module {\n  tt.func public @k() {\n    %0 = arith.addi %x, %x : i32\n  }\n}\n", "%x"),
        ("module {\n  tt.func public @k() {\n    !?\n  }\n}\n", "k: an op begins with its name"),
    ],
)
def test_what_is_not_ttir(text, match):
    with pytest.raises(CompileError, match=match):
        ttir.parse(text)
