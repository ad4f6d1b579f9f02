"""The interpreter against plain numpy."""

import ml_dtypes
import numpy as np
import pytest
from tests.planning import operators as ops
from tests.planning.graphs import Builder, columns, first_row, rows, transposed, values

from nbxtensor.errors import ArgumentError, ShapeError, UnsupportedError
from nbxtensor.op import Spec
from nbxtensor.planning.graph import Graph, GraphBuffer, Ref
from nbxtensor.planning.interpret import interpret


def test_views_and_sequences():
    b = Builder()
    x, w = b.input((3, 4)), b.weight((4, 2))
    product = b.call(ops.matmul, x, w)
    whole = b.buffer("temporary", (5, 4))
    b.call(ops.copy, columns(x, 1, 2), out=(columns(rows(whole, 1, 3), 2, 2),))
    joined = b.call(ops.cat, product, columns(rows(whole, 1, 3), 2, 2))
    summed = b.call(ops.add, transposed(joined), first_row(transposed(joined)))
    graph = b.graph(summed, rows(x, 2, 1))
    given = values(graph)
    got, last = interpret(graph, given)
    want = np.concatenate([given["x"] @ given["w"], given["x"][:, 1:3]]).T
    np.testing.assert_array_equal(got, want + want[:1])
    np.testing.assert_array_equal(last, given["x"][2:])
    assert got.dtype == np.float32


def test_results_are_rounded_to_their_dtype():
    b = Builder()
    x = b.input((2, 3), dtype="bfloat16")
    graph = b.graph(b.call(ops.scale, x, factor=1.01), b.call(ops.cast, x, dtype="int32"))
    given = np.array([[1, -2.5, 3], [100, 0.1, -7]], ml_dtypes.bfloat16)
    got, whole = interpret(graph, {"x": given.view(np.uint16)})
    np.testing.assert_array_equal(
        got.view(ml_dtypes.bfloat16), (given.astype(np.float64) * 1.01).astype(ml_dtypes.bfloat16)
    )
    np.testing.assert_array_equal(whole, given.astype(np.float32).astype(np.int32))


def test_state_lives_from_run_to_run():
    b = Builder()
    x, total = b.input((2, 2)), b.state((2, 2))
    b.call(ops.add, total, x, out=(total,))
    graph = b.graph(total)
    state = {total.buffer: np.zeros(16, np.uint8)}
    one = {"x": np.ones((2, 2), np.float32)}
    interpret(graph, one, state)
    np.testing.assert_array_equal(interpret(graph, one, state)[0], np.full((2, 2), 2.0))
    np.testing.assert_array_equal(interpret(graph, one)[0], np.ones((2, 2)))


def test_memory_that_nothing_wrote_is_poison():
    b = Builder()
    x = b.input((2, 2))
    whole = b.buffer("temporary", (4, 2))
    b.call(ops.copy, x, out=(rows(whole, 0, 2),))
    got = interpret(b.graph(whole), {"x": np.ones((2, 2), np.float32)})[0]
    assert np.isnan(got[2:]).all()


def test_elements_narrower_than_a_byte():
    spec = Spec((2, 3), "int4")
    graph = Graph((GraphBuffer(3, "input", "x", spec),), (), (Ref(0, spec), Ref(0, Spec((3,), "uint8"))))
    codes = np.array([[0, 7, 15], [8, 1, 2]], np.uint8)
    same, packed = interpret(graph, {"x": codes})
    np.testing.assert_array_equal(same, codes)
    np.testing.assert_array_equal(packed, [0x70, 0x8F, 0x21])
    with pytest.raises(UnsupportedError, match="whole byte"):
        interpret(Graph(graph.buffers, (), (Ref(0, Spec((3,), "int4"), 1),)), {"x": codes})


def test_refusals():
    b = Builder()
    x = b.input((2, 2))
    graph = b.graph(b.call(ops.relu, x))
    with pytest.raises(ArgumentError, match="Got none for 'x'"):
        interpret(graph, {})
    with pytest.raises(ArgumentError, match="float64 for float32"):
        interpret(graph, {"x": np.ones((2, 2))})
    with pytest.raises(ShapeError, match=r"\(4,\) for \(2, 2\)"):
        interpret(graph, {"x": np.ones(4, np.float32)})
    b.call(ops.relu, x, out=(first_row(b.buffer("temporary", (2, 2))),))
    with pytest.raises(ShapeError, match="element of its own"):
        interpret(b.graph(x), {"x": np.ones((2, 2), np.float32)})
