"""Graph passes: what they leave computes the same, and leaves nothing that should have gone."""

import numpy as np
import pytest
from hypothesis import given
from tests.planning import operators as ops
from tests.planning.graphs import Builder, columns, graphs, rows, states, values

from nbxtensor.planning.interpret import interpret
from nbxtensor.planning.passes import compact, partition, remove_dead


def run(graph, given_values, state=None):
    return [x.tobytes() for x in interpret(graph, given_values, state)]


def run_parts(prologue, main, given_values, state=None):
    """Run the prologue once on its weights, then the main graph on the folded ones."""
    inputs = {b.name for _, b in prologue.of_kind("input")}
    folded = interpret(prologue, {k: v for k, v in given_values.items() if k in inputs})
    names = [b.name for _, b in main.of_kind("weight") if b.name.startswith("folded.")]
    assert len(names) == len(folded)
    return run(main, {**given_values, **dict(zip(names, folded, strict=True))}, state)


@given(graphs())
def test_dead_nodes_and_unused_buffers_go(graph):
    smaller = compact(remove_dead(graph)).check()
    before, after = states(graph), states(smaller)
    assert run(smaller, values(graph), after) == run(graph, values(graph), before)
    assert [x.tobytes() for x in after.values()] == [x.tobytes() for x in before.values()]
    assert compact(remove_dead(smaller)) == smaller
    used = {r.buffer for n in smaller.nodes for r in (*n.operands.values(), *n.outputs)}
    used |= {r.buffer for r in smaller.outputs}
    assert all(i in used or b.kind in ("input", "state") for i, b in enumerate(smaller.buffers))


def test_what_nothing_uses_is_dead():
    b = Builder()
    x, w = b.input((2, 2)), b.weight((2, 2))
    b.input((2, 2), "unused")
    kept = b.call(ops.relu, x)
    b.call(ops.add, b.call(ops.scale, x), w)
    b.call(ops.scale, x, out=(b.state((2, 2)),))
    graph = compact(remove_dead(b.graph(kept)))
    assert [n.op.name for n in graph.nodes] == ["relu", "scale"]
    assert [x.kind for x in graph.buffers] == ["input", "input", "temporary", "state"]


@given(graphs())
def test_prologue_and_main_compute_what_the_whole_does(graph):
    prologue, main = partition(graph)
    prologue.check()
    main.check()
    before, after = states(graph), states(main)
    assert run_parts(prologue, main, values(graph), after) == run(graph, values(graph), before)
    assert [x.tobytes() for x in after.values()] == [x.tobytes() for x in before.values()]
    assert not list(prologue.of_kind("state"))
    assert not list(prologue.of_kind("weight"))


@given(graphs(state=False))
def test_nothing_is_left_to_fold(graph):
    _, main = partition(graph)
    again, same = partition(main)
    assert not again.nodes
    assert same == main
    fixed = {i for i, b in enumerate(main.buffers) if b.kind in ("weight", "constant")}
    writers = {}
    for place, node in enumerate(main.nodes):
        for ref in node.outputs:
            writers.setdefault(ref.buffer, []).append(place)
    for place, node in enumerate(main.nodes):
        once = all(writers[ref.buffer] == [place] for ref in node.outputs)
        assert not (once and {ref.buffer for ref in node.operands.values()} <= fixed)


def test_folded_weights_replace_what_made_them():
    b = Builder()
    x, w, v = b.input((2, 3)), b.weight((3, 2)), b.weight((2, 2), "bias")
    doubled = b.call(ops.scale, w)
    b.call(ops.relu, doubled)  # folded too, and used by nothing
    summed = b.call(ops.add, b.call(ops.full, shape=(2, 2)), v)
    graph = b.graph(b.call(ops.add, b.call(ops.matmul, x, doubled), summed), v)
    prologue, main = partition(graph)
    assert [n.op.name for n in main.nodes] == ["matmul", "add"]
    assert {b.name for _, b in main.of_kind("weight")} == {"folded.0", "folded.1", "bias"}
    assert [n.op.name for n in prologue.nodes] == ["scale", "full", "add"]
    assert [b.name for _, b in prologue.of_kind("input")] == ["w", "bias"]
    assert prologue.name == "graph.prologue"
    assert run_parts(prologue, main, values(graph)) == run(graph, values(graph))


def test_names_count_on():
    b = Builder()
    x, w = b.input((2, 2)), b.weight((2, 2), "folded.0")
    _, main = partition(b.graph(b.call(ops.add, x, b.call(ops.relu, w)), w))
    assert [b.name for _, b in main.of_kind("weight")] == ["folded.0", "folded.1"]


@pytest.mark.parametrize("part", [rows, columns])
def test_a_buffer_written_in_parts_is_folded_as_bytes(part):
    b = Builder()
    x, w = b.input((4, 4)), b.weight((2, 4) if part is rows else (4, 2))
    whole = b.buffer("temporary", (4, 4))
    for start in (0, 2):
        b.call(ops.scale, w, factor=float(start), out=(part(whole, start, 2),))
    graph = b.graph(b.call(ops.add, x, whole))
    prologue, main = partition(graph)
    assert [b.spec.dtype for _, b in main.of_kind("weight")] == ["uint8"]
    assert run_parts(prologue, main, values(graph)) == run(graph, values(graph))


def test_values_that_change_between_reads_stay():
    b = Builder()
    x, w = b.input((2, 2)), b.weight((2, 2))
    kept = b.call(ops.scale, w)
    first = b.call(ops.add, x, kept)
    b.call(ops.relu, w, out=(kept,))
    graph = b.graph(first, b.call(ops.add, x, kept))
    prologue, main = partition(graph)
    assert not prologue.nodes
    assert len(main.nodes) == 4
    part = Builder()  # a run writes into a part of what could be folded
    x, w = part.input((1, 2)), part.weight((2, 2))
    kept = part.call(ops.scale, w)
    part.call(ops.relu, x, out=(rows(kept, 0, 1),))
    prologue, main = partition(part.graph(kept))
    assert not prologue.nodes
    assert len(main.nodes) == 2


def test_poison_is_no_value_to_fold():
    """A folded buffer of which only a part is written keeps that part."""
    b = Builder()
    x, w = b.input((1, 2)), b.weight((1, 2))
    whole = b.buffer("temporary", (2, 2))
    b.call(ops.relu, w, out=(rows(whole, 1, 1),))
    graph = b.graph(b.call(ops.add, x, rows(whole, 1, 1)))
    prologue, main = partition(graph)
    got = run_parts(prologue, main, values(graph))
    assert got == run(graph, values(graph))
    assert not np.isnan(np.frombuffer(got[0], np.float32)).any()
