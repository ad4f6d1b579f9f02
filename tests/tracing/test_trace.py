"""What a trace writes down."""

from __future__ import annotations

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.errors import ArgumentError, CaptureError, ShapeError
from nbxtensor.planning.interpret import interpret

X = nbx.Spec((3, 4), "float32")


def values(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_a_graph_computes_what_the_function_computes():
    def fn(weights, x):
        y = nbx.linear(x, weights["w"], weights["b"])
        left, right = y[:, :2], y[:, 2:]
        return left.T @ right, nbx.concat([right, left], axis=1)

    specs = {"w": nbx.Spec((4, 4), "float32"), "b": nbx.Spec((4,), "float32")}
    graph = nbx.trace(fn, X, weights=specs)
    x, w, b = values(3, 4), values(4, 4), values(4)
    y = x @ w.T + b
    got = interpret(graph, {"input0": x, "w": w, "b": b})
    np.testing.assert_allclose(got[0], y[:, :2].T @ y[:, 2:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], np.concatenate([y[:, 2:], y[:, :2]], 1), rtol=1e-5, atol=1e-6)
    assert [n.op.name for n in graph.nodes] == ["linear", "matmul", "concat"]


def test_views_are_no_nodes():
    graph = nbx.trace(lambda x: x.T.reshape(2, 6) if False else x.T[1:, None], X)
    assert graph.nodes == ()
    assert graph.outputs[0].spec.shape == (3, 1, 3)
    np.testing.assert_array_equal(interpret(graph, {"input0": values(3, 4)})[0], values(3, 4).T[1:, None])


def test_a_tensor_that_is_closed_over_is_a_constant_once():
    table = nbx.asarray(values(4, 5))
    graph = nbx.trace(lambda x: (x @ table) @ table.T @ table, X)
    assert len(list(graph.of_kind("constant"))) == 2
    np.testing.assert_allclose(
        interpret(graph, {"input0": values(3, 4)})[0],
        values(3, 4) @ table.numpy() @ table.numpy().T @ table.numpy(),
        rtol=1e-4,
    )


@pytest.mark.parametrize("read", [lambda x: x.numpy(), lambda x: x[0, 0].item(), lambda x: bool(x[0, 0]), repr])
def test_reading_values_while_tracing_is_refused_or_shows_none(read):
    if read is repr:
        nbx.trace(lambda x: (repr(x), x)[1], X)
        return
    with pytest.raises(CaptureError, match="no values"):
        nbx.trace(lambda x: (read(x), x)[1], X)


def test_what_is_no_graph_is_refused():
    with pytest.raises(CaptureError, match="returns tensors"):
        nbx.trace(lambda _: 3, X)
    with pytest.raises(ArgumentError, match="Spec or a tensor"):
        nbx.trace(lambda x: x, (3, 4))
    with pytest.raises(ShapeError):
        nbx.trace(lambda x: x @ x, X)
    kept = []
    nbx.trace(lambda x: (kept.append(x), x)[1], X)
    with pytest.raises(CaptureError, match="another trace"):
        nbx.trace(lambda x: nbx.concat([x, kept[0]]), X)


def test_traced_tensors_have_no_device():
    with pytest.raises(CaptureError, match="no device"):
        nbx.trace(lambda x: (x.device, x)[1], X)
