"""Fusion and packing change no bit: the optimised program against the plain one, and against the references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbxtensor as nbx
from nbxtensor.errors import ShapeError
from nbxtensor.planning.interpret import interpret
from nbxtensor.tracing.fusion import fuse

UNARY = (nbx.relu, nbx.negative, nbx.abs, nbx.square, nbx.sigmoid, nbx.tanh, nbx.exp)
BINARY = (nbx.add, nbx.subtract, nbx.multiply, nbx.maximum)


@st.composite
def programs(draw):
    """Draw a function of three tensors made of pointwise ops and products, as a list of steps."""
    steps, count = [], 3
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["unary", "binary", "scalar", "matmul"]))
        a, b = (draw(st.integers(max(count - 3, 0), count - 1)) for _ in "ab")
        choice = draw(st.integers(0, 99))
        steps.append((kind, a, b, choice))
        count += 1
    return steps, draw(st.booleans())


def function(steps, several):
    def fn(x, y, z):
        values = [x, y, z]
        for kind, a, b, choice in steps:
            left, right = values[a], values[b]
            if kind == "unary":
                values.append(UNARY[choice % len(UNARY)](nbx.clip(left, -2.0, 2.0)))
            elif kind == "binary":
                values.append(BINARY[choice % len(BINARY)](left, right))
            elif kind == "scalar":
                values.append(left * (choice / 37) + 0.5)
            else:
                values.append(left @ nbx.clip(right, -1.0, 1.0))
        return (values[-1], values[-2]) if several else values[-1]

    return fn


SPECS = tuple(nbx.Spec(s, "float32") for s in ((6, 6), (6, 6), (1, 6)))


@settings(max_examples=25)
@given(programs())
def test_fused_programs_give_the_same_bits(program):
    fn = function(*program)
    try:
        graph = nbx.trace(fn, *SPECS)
    except ShapeError:
        return
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1, 1, s.shape).astype(np.float32) for s in SPECS]
    fused = fuse(graph)
    assert len(fused.nodes) <= len(graph.nodes)
    named = {f"input{i}": v for i, v in enumerate(inputs)}
    for a, b in zip(interpret(fused, named), interpret(graph, named), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    plain = nbx.plan(graph, optimize=False).load({})(*inputs)
    quick = nbx.plan(graph).load({})(*inputs)
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (plain, quick)), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_a_chain_becomes_one_node_and_goes_into_the_product():
    def fn(x, w, b):
        return nbx.gelu(nbx.linear(x, w, b)) * 0.5 + x[:, :1]

    graph = fuse(nbx.trace(fn, *(nbx.Spec(s, "float32") for s in ((6, 4), (8, 4), (8,)))))
    assert [n.op.name for n in graph.nodes] == ["linear"]
    chain = fuse(nbx.trace(lambda x: nbx.exp(nbx.relu(x) + 1) / 3, nbx.Spec((5,), "float32")))
    assert [n.op.name for n in chain.nodes] == ["fused_pointwise"]


def test_what_is_read_twice_or_leaves_is_not_swallowed():
    x = nbx.Spec((5, 5), "float32")
    assert len(fuse(nbx.trace(lambda x: (y := nbx.exp(x), y + 1), x)).nodes) == 2
    twice = fuse(nbx.trace(lambda x: (y := x @ x) + nbx.sum(y, axis=0), x))
    assert [n.op.name for n in twice.nodes][:2] == ["matmul", "sum"]


def test_an_operand_used_twice_is_one_input():
    graph = fuse(nbx.trace(lambda x: (y := nbx.exp(x)) * y, nbx.Spec((7,), "float32")))
    values = np.linspace(-1, 1, 7, dtype=np.float32)
    np.testing.assert_allclose(interpret(graph, {"input0": values})[0], np.exp(values) ** 2, rtol=1e-6)


@pytest.mark.parametrize("outputs", [64, 70, 5])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_packed_weights_give_what_plain_ones_give(outputs, dtype):
    rng = np.random.default_rng(1)
    w, b, x = (nbx.asarray(rng.uniform(-1, 1, s)).astype(dtype) for s in ((outputs, 40), (outputs,), (9, 40)))
    graph = nbx.trace(lambda p, x: nbx.relu(nbx.linear(x, p["w"], p["b"])), x.spec, weights={"w": w.spec, "b": b.spec})
    plan = nbx.plan(graph)
    assert [n.op.name for n in plan.graph.nodes] == ["linear_packed"]
    assert "w" not in plan.weights
    got = plan.load({"w": w, "b": b})(x).to("float32").numpy()
    want = np.maximum(x.to("float32").numpy() @ w.to("float32").numpy().T + b.to("float32").numpy(), 0)
    np.testing.assert_allclose(got, want, rtol=2e-2 if dtype != "float32" else 1e-5, atol=2e-2)


def test_a_layer_whose_epilogue_reads_rows_that_are_not_evenly_spaced():
    """Its rows are one axis of x and of the result, and two of what is added: it is planned all the same."""

    def fn(weights, x):
        turned = nbx.exp(x.permute(0, 2, 1)).permute(0, 2, 1)
        centred = turned - nbx.mean(turned, axis=1, keepdims=True)
        return nbx.linear(centred, weights["w"]) + turned, turned

    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 8, 6), (6, 6)))
    graph = nbx.trace(fn, nbx.Spec(x.shape, "float32"), weights={"w": nbx.Spec(w.shape, "float32")})
    got, turned = nbx.plan(graph).load({"w": w})(x)
    e = np.exp(x.astype(np.float64))
    assert np.allclose(turned.numpy(), e, rtol=1e-6)
    assert np.allclose(got.numpy(), (e - e.mean(1, keepdims=True)) @ w.T.astype(np.float64) + e, rtol=1e-5, atol=1e-5)
