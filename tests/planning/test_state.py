"""State: every way to place new values gives what values that appear all at once after the run give."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from tests.planning import operators as ops
from tests.planning.graphs import Builder, reshaped, rows, stateful, states, transposed, values

from nbxtensor.errors import PlanError
from nbxtensor.op import Spec
from nbxtensor.planning.alias import in_place
from nbxtensor.planning.graph import Node, Ref
from nbxtensor.planning.interpret import interpret
from nbxtensor.planning.passes import compact, partition, remove_dead
from nbxtensor.planning.plan import Plan, plan
from nbxtensor.planning.state import settle

COPY = ops.copy.op


def settled(graph, *, target=ops.TARGET):
    return settle(graph, COPY, target).check()


def three_runs(graph, prologue=None):
    """Return the outputs of three runs with other inputs each, and the state after each."""
    found, state = [], states(graph)
    for run in range(3):
        given_values = values(graph, run) | {k: v for k, v in values(graph).items() if k == "w"}
        if prologue is not None:
            folded = interpret(prologue, {k: v for k, v in given_values.items() if k == "w"})
            given_values |= {f"folded.{n}": v for n, v in enumerate(folded)}
        found.append([x.tobytes() for x in interpret(graph, given_values, state)])
        found.append([x.tobytes() for x in state.values()])
    return found


@given(stateful())
def test_settled_graphs_compute_what_functional_ones_do(graph):
    want = three_runs(graph)
    for target in (None, ops.TARGET):
        found = settled(graph, target=target)
        assert not found.new_state
        assert three_runs(found) == want
        assert three_runs(compact(in_place(found, ops.TARGET))) == want


@given(stateful())
def test_the_whole_way_to_a_plan_keeps_the_meaning_and_passes_the_verifier(graph):
    want = three_runs(graph)
    prologue, main = partition(compact(remove_dead(graph)))
    made = plan(compact(in_place(settled(main), ops.TARGET)), ops.TARGET).check()
    weights = {b.name for _, b in made.graph.of_kind("weight")}
    folding = prologue if any(name.startswith("folded.") for name in weights) else None
    if "w" in weights or folding is not None or not any(b.kind == "weight" for b in graph.buffers):
        assert _runs(made.graph, graph, prologue) == want
    text = made.to_json()
    assert Plan.from_json(text, ops.OPS.__getitem__).to_json() == text
    assert "state" in str(made)
    assert made.svg()
    assert made.price().total.seconds >= 0


def _runs(main, graph, prologue):
    found, state = [], states(main)
    for run in range(3):
        given_values = values(graph, run) | {k: v for k, v in values(graph).items() if k == "w"}
        folded = interpret(prologue, {k: v for k, v in given_values.items() if k == "w"})
        given_values |= {f"folded.{n}": v for n, v in enumerate(folded)}
        found.append([x.tobytes() for x in interpret(main, given_values, state)])
        found.append([x.tobytes() for x in state.values()])
    return found


def names_of(graph):
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_states_that_change_places(order):
    b = Builder()
    old = [b.state((4, 4), f"s{i}") for i in range(3)]
    graph = b.graph(*old, new_state={f"s{i}": old[j] for i, j in enumerate(order)})
    assert three_runs(settled(graph)) == three_runs(graph)
    moved = sum(i != j for i, j in enumerate(order))
    kept = moved  # an output shows the old value of each that changes
    cycle = 1 if moved else 0
    assert names_of(settled(graph)) == ["copy"] * (moved + kept + cycle)


def test_a_shift_needs_no_temporary():
    b = Builder()
    x = b.input((4, 4))
    old = [b.state((4, 4), f"s{i}") for i in range(3)]
    graph = b.graph(new_state={"s0": old[1], "s1": old[2], "s2": x})
    found = settled(graph)
    assert names_of(found) == ["copy"] * 3
    assert [n.outputs[0].buffer for n in found.nodes] == [r.buffer for r in old]
    assert three_runs(found) == three_runs(graph)


def test_an_update_is_made_where_the_state_lies_and_costs_its_slice():
    b = Builder()
    cache, x = b.state((4, 4), "cache"), b.input((4, 4))
    new = b.call(ops.update, cache, rows(x, 0, 1), row=2)
    y = b.call(ops.matmul, new, x)
    graph = b.graph(y, new_state={"cache": new})
    made = plan(compact(settled(graph)), ops.TARGET)
    assert names_of(made.graph) == ["update", "matmul"]
    assert made.graph.nodes[0].outputs[0] == made.graph.nodes[0].operands["cache"] == cache
    assert made.graph.nodes[1].operands["x"] == cache
    assert len(made.steps[0].launches) == 1
    assert made.steps[0].cost.written == 16
    copied = plan(compact(settled(graph, target=None)), ops.TARGET)
    assert names_of(copied.graph) == ["update", "matmul", "copy"]
    assert len(copied.steps[0].launches) == 2


def test_a_chain_of_updates_stays_in_the_state():
    b = Builder()
    cache, x = b.state((4, 4), "cache"), b.input((4, 4))
    new = cache
    seen = []
    for row in range(3):
        new = b.call(ops.update, new, rows(x, row, 1), row=row)
        seen.append(b.call(ops.matmul, new, x))
    graph = b.graph(*seen, new_state={"cache": new})
    found = compact(settled(graph))
    assert all(n.operands["cache"] == n.outputs[0] == cache for n in found.nodes if n.op.name == "update")
    assert names_of(found).count("copy") == 0
    assert three_runs(found) == three_runs(graph)


def test_the_old_value_is_read_before_it_is_overwritten():
    """A position that advances while later nodes still read it: the node that advances it moves to the end."""
    b = Builder()
    position, x = b.state((4, 4), "position"), b.input((4, 4))
    new = b.call(ops.scale, position, factor=3.0)
    y = b.call(ops.matmul, x, position)
    found = settled(b.graph(y, new_state={"position": new}))
    assert names_of(found) == ["matmul", "scale"]
    assert found.nodes[1].outputs[0] == position


def test_a_value_that_others_read_is_copied_when_the_old_one_is_read_later():
    b = Builder()
    position, x = b.state((4, 4), "position"), b.input((4, 4))
    new = b.call(ops.scale, position, factor=3.0)
    y = b.call(ops.add, new, b.call(ops.matmul, x, position))
    graph = b.graph(y, new_state={"position": new})
    assert names_of(settled(graph)) == ["scale", "matmul", "add", "copy"]
    assert three_runs(settled(graph)) == three_runs(graph)


@pytest.mark.parametrize("cycle", [False, True])
def test_a_value_made_at_the_end_keeps_the_view_that_its_node_writes(cycle):
    b = Builder()
    first, second, x = b.state((4, 4), "a"), b.state((4, 4), "b"), b.input((4, 4))
    flat = transposed(reshaped(second if cycle else x, 2, 8))
    new = reshaped(b.call(ops.copy, flat), 4, 4)
    graph = b.graph(b.call(ops.matmul, x, first), new_state={"a": new} | ({"b": first} if cycle else {}))
    assert three_runs(settled(graph)) == three_runs(graph)


def test_an_output_keeps_the_old_value_and_one_value_may_go_to_two_states():
    b = Builder()
    first, second, x = b.state((4, 4), "a"), b.state((4, 4), "b"), b.input((4, 4))
    new = b.call(ops.add, first, x)
    graph = b.graph(first, transposed(second), new, new_state={"a": new, "b": new})
    assert three_runs(settled(graph)) == three_runs(graph)


def test_one_value_for_two_states_that_is_made_at_the_end_goes_to_both():
    b = Builder()
    first, x = b.state((4, 4), "a"), b.input((4, 4))
    b.state((4, 4), "b")
    new = b.call(ops.relu, first)
    graph = b.graph(b.call(ops.matmul, first, x), new_state={"a": new, "b": new})
    assert three_runs(settled(graph)) == three_runs(graph)


def test_a_chain_ends_where_a_value_between_is_read_later():
    b = Builder()
    cache, x = b.state((4, 4), "cache"), b.input((4, 4))
    first = b.call(ops.update, cache, rows(x, 0, 1), row=0)
    second = b.call(ops.update, first, rows(x, 1, 1), row=1)
    graph = b.graph(b.call(ops.matmul, first, x), new_state={"cache": second})
    found = settled(graph)
    assert three_runs(found) == three_runs(graph)
    assert found.nodes[1].outputs[0] == cache


def test_what_is_not_settled_is_no_plan_and_what_is_no_state_has_no_new_value():
    b = Builder()
    cache, x = b.state((4, 4), "cache"), b.input((4, 4))
    graph = b.graph(x, new_state={"cache": x})
    with pytest.raises(PlanError, match="cache"):
        plan(graph, ops.TARGET)
    assert cache.buffer == 0
    with pytest.raises(PlanError, match="its state's shape"):
        b.graph(x, new_state={"cash": x})
    with pytest.raises(PlanError, match="its state's shape"):
        b.graph(x, new_state={"cache": rows(x, 0, 2)})
    for out in (reshaped(cache, 2, 8), rows(cache, 0, 2), Ref(cache.buffer, Spec((4, 4), "int32"))):
        b.nodes = [Node(ops.relu.op, {"x": x}, (out,), {})]
        with pytest.raises(PlanError, match=r"node 0 \(relu\): writes what the op makes, .* Got"):
            b.graph(x)


def test_the_verifier_sees_a_node_that_writes_over_what_it_reads():
    b = Builder()
    cache, x = b.state((4, 4), "cache"), b.input((4, 4))
    for node in (
        Node(ops.relu.op, {"x": transposed(cache)}, (cache,), {}),
        Node(ops.center.op, {"x": cache}, (cache,), {}),
        Node(ops.matmul.op, {"x": cache, "y": x}, (cache,), {}),
        Node(ops.update.op, {"cache": cache, "values": rows(cache, 0, 1)}, (cache,), {"row": 2}),
        Node(ops.copy.op, {"x": rows(cache, 0, 3)}, (Ref(0, Spec((3, 4), "float32"), 4),), {}),
    ):
        b.nodes = [node]
        with pytest.raises(PlanError, match="works in place"):
            plan(b.graph(x), ops.TARGET)
    b.nodes = [Node(ops.copy.op, {"x": rows(cache, 0, 2)}, (rows(cache, 2, 2),), {})]
    plan(b.graph(x), ops.TARGET)


def test_zero_sized_states_and_values_that_do_not_change():
    b = Builder()
    empty, kept, x = b.state((0, 4), "empty"), b.state((4, 4), "kept"), b.input((0, 4))
    found = settled(b.graph(kept, new_state={"empty": x, "kept": kept}))
    assert found.nodes == ()
    assert empty.buffer == 0
    np.testing.assert_array_equal(interpret(found, values(found), states(found))[0].shape, (4, 4))
