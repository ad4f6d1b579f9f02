"""Nodes in another order compute the same in less memory, or stay where they are."""

from __future__ import annotations

from hypothesis import given
from tests.planning import operators as ops
from tests.planning.graphs import Builder, graphs, states, values

from nbxtensor.planning.alias import in_place
from nbxtensor.planning.interpret import interpret
from nbxtensor.planning.ordering import reorder
from nbxtensor.planning.passes import compact
from nbxtensor.planning.plan import plan


@given(graphs(nodes=16))
def test_the_same_results_and_state_in_no_more_memory(graph):
    found = reorder(graph, ops.TARGET, alignment=64).check()
    before, after = states(graph), states(found)
    want = [x.tobytes() for x in interpret(graph, values(graph), before)]
    assert [x.tobytes() for x in interpret(found, values(graph), after)] == want
    assert [x.tobytes() for x in after.values()] == [x.tobytes() for x in before.values()]
    plain = compact(in_place(graph, ops.TARGET))
    assert plan(found, ops.TARGET, alignment=64).lower_bound <= plan(plain, ops.TARGET, alignment=64).lower_bound
    assert reorder(graph, ops.TARGET, alignment=64) == found


def test_branches_one_after_another():
    """Four wide values are made first and summed up later: made when they are needed, two are there at once."""
    b = Builder()
    x, w = b.input((1, 64)), b.weight((64, 1))
    wide = [b.call(ops.matmul, w, b.call(ops.scale, x, factor=float(i))) for i in range(4)]
    total = b.call(ops.matmul, x, b.call(ops.center, wide[0]))
    for each in wide[1:]:
        total = b.call(ops.add, total, b.call(ops.matmul, x, b.call(ops.center, each)))
    graph = b.graph(total)
    plain = plan(compact(in_place(graph, ops.TARGET)), ops.TARGET)
    ordered = plan(reorder(graph, ops.TARGET, alignment=256), ops.TARGET)
    nbytes = 64 * 64 * 4
    assert plain.lower_bound > 4 * nbytes
    assert ordered.lower_bound <= ordered.largest_op[1] + 512  # the sum so far stays beside a product's workspace


def test_a_chain_keeps_its_order():
    b = Builder()
    y = b.input((4, 4))
    for _ in range(6):
        y = b.call(ops.center, b.call(ops.relu, y))
    graph = b.graph(y)
    assert reorder(graph, ops.TARGET, alignment=64) == compact(in_place(graph, ops.TARGET))
