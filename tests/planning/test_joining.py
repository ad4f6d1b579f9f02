"""Values made where they end up: the same results, fewer copies, and none of the traps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.planning import operators as ops
from tests.planning.graphs import Builder, rows, states, transposed, values

from nbxtensor.planning.interpret import interpret
from nbxtensor.planning.joining import join
from nbxtensor.planning.ordering import arrange
from nbxtensor.planning.passes import compact
from nbxtensor.planning.plan import plan


@st.composite
def joined(draw, nodes=10):
    """Graphs of square values in which many are joined by rows, then used whole or in part, or joined again."""
    b = Builder()
    made = [b.input((4, 4)), b.weight((4, 4)), b.state((4, 4))]
    for _ in range(draw(st.integers(1, nodes))):
        kind = draw(
            st.sampled_from(
                ("cat", "cat", "beside", "beside", "relu", "add", "center", "split", "update", "state", "part")
            )
        )
        one = draw(st.sampled_from(made))
        if kind == "cat":
            wide = [m for m in made if m.spec.shape[1] == one.spec.shape[1]]
            parts = draw(st.lists(st.sampled_from(wide), min_size=1, max_size=3))
            made.append(
                b.call(
                    ops.cat,
                    *[transposed(p) if not draw(st.integers(0, 9)) and p.spec.shape == (4, 4) else p for p in parts],
                )
            )
        elif kind == "beside":
            same = [m for m in made if m.spec.shape[0] == one.spec.shape[0]]
            made.append(b.call(ops.beside, *draw(st.lists(st.sampled_from(same), min_size=1, max_size=3))))
        elif kind == "add":
            same = [m for m in made if m.spec.shape == one.spec.shape]
            made.append(b.call(ops.add, one, draw(st.sampled_from(same))))
        elif kind == "split":
            made += b.call(ops.split, one)
        elif kind == "update":  # written again
            if b.buffers[one.buffer].kind == "temporary":
                b.call(ops.relu, one, out=(one,))
        elif kind == "state":
            if one.spec.shape == (4, 4) and one.buffer != made[2].buffer:
                b.call(ops.relu, one, out=(made[2],))
        elif kind == "part":
            made.append(rows(one, 1, 2) if one.spec.shape[0] > 2 else one)
        else:
            made.append(b.call(getattr(ops, kind), one))
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
    return b.graph(*outputs)


@given(joined())
def test_results_stay_the_same(graph):
    before = states(graph)
    want = [x.tobytes() for x in interpret(graph, values(graph), before)]
    for found in (
        join(graph, ops.copy.op, ops.TARGET).check(),
        arrange(graph, ops.copy.op, ops.TARGET, alignment=16).check(),
    ):
        after = states(found)
        assert [x.tobytes() for x in interpret(found, values(graph), after)] == want
        assert [x.tobytes() for x in after.values()] == [x.tobytes() for x in before.values()]
        plan(found, ops.TARGET, alignment=16)


def both(build):
    b = Builder()
    outputs = build(b)
    graph = b.graph(*outputs)
    return graph, compact(join(graph, ops.copy.op, ops.TARGET))


def names(graph):
    return [node.op.name for node in graph.nodes]


def test_all_parts_are_made_in_place_also_of_parts():
    def build(b):
        x = b.input((4, 4))
        inner = b.call(ops.cat, b.call(ops.center, x), b.call(ops.relu, x))
        return [b.call(ops.cat, b.call(ops.scale, x), inner, b.call(ops.center, x))]

    graph, found = both(build)
    assert names(found) == ["center", "relu", "scale", "center"]
    assert len({ref.buffer for node in found.nodes for ref in node.outputs}) == 1
    assert plan(found, ops.TARGET).peak < plan(graph, ops.TARGET).peak


def test_parts_with_gaps():
    """What one elementwise node makes for the join alone is made in its columns; the rest is copied to them."""

    def build(b):
        x = b.input((4, 4))
        read_twice = b.call(ops.scale, x)
        rows_first = b.call(ops.cat, b.call(ops.relu, x), b.call(ops.center, x))
        joined = b.call(ops.beside, b.call(ops.relu, x), b.call(ops.center, x), read_twice, b.call(ops.add, x, x))
        return [b.call(ops.cat, rows_first, read_twice), joined]

    _, found = both(build)
    assert names(found) == ["scale", "relu", "center", "relu", "center", "add", "copy", "copy"]
    gaps = [node.op.name for node in found.nodes if not node.outputs[0].spec.is_contiguous]
    assert gaps == ["relu", "add", "copy", "copy"]


def test_what_comes_from_elsewhere_is_copied():
    def build(b):
        x, w = b.input((4, 4)), b.weight((4, 4))
        y = b.call(ops.center, x)
        return [b.call(ops.cat, y, w, y, transposed(b.call(ops.relu, x)))]

    _, found = both(build)
    assert names(found) == ["center", "relu", "copy", "copy", "copy"]


def test_where_it_does_not_help():
    def inputs(b):
        return [b.call(ops.cat, b.input((4, 4)), b.weight((4, 4)))]

    def changes_later(b):
        y = b.call(ops.copy, b.input((4, 4)))
        joined = b.call(ops.cat, y, b.weight((4, 4)))
        b.call(ops.relu, y, out=(y,))
        return [joined, y]

    def result_changes_later(b):
        y = b.call(ops.copy, b.input((4, 4)))
        joined = b.call(ops.cat, y, b.weight((4, 4)))
        b.call(ops.relu, joined, out=(joined,))
        return [joined, y]

    def not_aligned(b):
        x = b.input((1, 3))
        return [b.call(ops.cat, x, b.call(ops.relu, x))]

    for build in (inputs, changes_later, result_changes_later, not_aligned):
        graph, found = both(build)
        assert names(found) == names(graph)


def test_a_result_that_would_be_there_too_long():
    """A small part is made long before a large one: made in its place, the large result would be there meanwhile."""
    b = Builder()
    x, big = b.input((4, 4)), b.weight((64, 4))
    small = b.call(ops.center, x)
    busy = b.call(ops.matmul, big, x)
    wide = b.call(ops.matmul, busy, transposed(busy))
    narrow = b.call(ops.matmul, wide, b.weight((64, 4), "v"))
    graph = b.graph(b.call(ops.cat, b.call(ops.add, small, rows(narrow, 0, 4)), b.call(ops.center, big), small))
    found = arrange(graph, ops.copy.op, ops.TARGET, alignment=16)
    apart = plan(compact(graph), ops.TARGET, alignment=16)
    assert plan(found, ops.TARGET, alignment=16).lower_bound <= apart.lower_bound
