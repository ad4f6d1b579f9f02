"""Values made again compute the same, lower the peak, and are made again for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from tests.planning import operators as ops
from tests.planning.graphs import Builder, graphs, states, values

from nbxtensor.planning.alias import in_place
from nbxtensor.planning.interpret import interpret
from nbxtensor.planning.ordering import arrange
from nbxtensor.planning.passes import compact
from nbxtensor.planning.plan import plan
from nbxtensor.planning.remaking import remake


def bound(graph):
    return plan(compact(in_place(graph, ops.TARGET)), ops.TARGET, alignment=16).lower_bound


@given(graphs(nodes=16))
def test_the_same_results_in_no_more_memory(graph):
    found = remake(graph, ops.TARGET, alignment=16, most=1.0).check()
    before, after = states(graph), states(found)
    want = [x.tobytes() for x in interpret(graph, values(graph), before)]
    assert [x.tobytes() for x in interpret(found, values(graph), after)] == want
    assert [x.tobytes() for x in after.values()] == [x.tobytes() for x in before.values()]
    assert bound(found) < bound(graph) or found == graph


def masked(*, changed=False):
    """A mask is used at both ends of a graph, whose middle needs most memory."""
    b = Builder()
    w, v = b.weight((32, 32)), b.weight((32, 32), "v")
    source = b.state((32, 32)) if changed else w
    mask = b.call(ops.relu, source)
    x = b.call(ops.center, b.call(ops.add, b.call(ops.center, w), mask))
    if changed:
        b.call(ops.relu, source, out=(source,))
    product = b.call(ops.matmul, x, v)
    return b.graph(b.call(ops.center, b.call(ops.add, product, mask)))


def test_a_mask_is_made_again():
    graph = masked()
    found = remake(graph, ops.TARGET, alignment=16, most=1.0)
    assert [node.op.name for node in found.nodes].count("relu") == 2
    nbytes = 32 * 32 * 4
    assert bound(graph) - bound(found) == nbytes
    assert [x.tobytes() for x in interpret(found, values(graph))] == [
        x.tobytes() for x in interpret(graph, values(graph))
    ]
    assert plan(arrange(graph, ops.copy.op, ops.TARGET, alignment=16), ops.TARGET, alignment=16).peak <= bound(graph)


def test_not_where_it_moves_too_much():
    assert remake(masked(), ops.TARGET, alignment=16, most=0.01) == masked()


@pytest.mark.parametrize("changed", [True])
def test_not_from_what_changes(changed):
    graph = masked(changed=changed)
    assert remake(graph, ops.TARGET, alignment=16, most=1.0) == graph


def test_not_what_is_an_output():
    graph = masked()
    shown = replace(graph, outputs=(*graph.outputs, graph.nodes[0].outputs[0]))
    assert remake(shown, ops.TARGET, alignment=16, most=1.0) == shown
