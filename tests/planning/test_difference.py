"""In what two plans differ: against the plans themselves, and in both directions."""

import pytest
from hypothesis import given
from tests.planning import operators as ops
from tests.planning.graphs import Builder, graphs

from nbxtensor.planning import difference
from nbxtensor.planning.difference import Change, compare
from nbxtensor.planning.plan import plan


def chain(side, *names, weight="w"):
    b = Builder()
    x, w = b.input((side, side)), b.weight((side, side), weight)
    for name in names:
        x = b.call(ops.matmul, x, w) if name == "matmul" else b.call(getattr(ops, name), x)
    return plan(b.graph(x, name="chain"), ops.TARGET)


def by_name(changes):
    return {(c.name, c.what): (c.before, c.after) for c in changes}


@given(graphs())
def test_a_plan_does_not_differ_from_itself(graph):
    made = plan(graph, ops.TARGET)
    found = made.difference(plan(graph, ops.TARGET))
    assert not found
    assert found.changes == ()
    assert found.peaks[0] == found.peaks[1]


@given(graphs(), graphs())
def test_the_way_back_is_the_opposite(one, other):
    before, after = plan(one, ops.TARGET), plan(other, ops.TARGET)
    there, back = compare(before, after), compare(after, before)
    assert sorted(c.growth for c in there.plan) == sorted(-c.growth for c in back.plan)
    assert {(c.name, c.what, c.before, c.after) for c in there.ops} == {
        (c.name, c.what, c.after, c.before) for c in back.ops
    }
    for found in (there, back):
        for changes in (found.plan, found.ops, found.buffers):
            grown = [c.growth for c in changes if c.growth >= 0]
            assert grown == sorted(grown, reverse=True)
            assert all(c.before != c.after for c in changes)
    assert by_name(there.plan).get(("arena", "bytes"), (before.peak,) * 2) == (before.peak, after.peak)


@given(graphs(), graphs())
def test_the_growth_of_all_buffers_is_that_of_the_plans(one, other):
    before, after = plan(one, ops.TARGET), plan(other, ops.TARGET)

    def total(made):
        return sum(x.size for x in made.lifetimes) + sum(
            b.nbytes for b in made.graph.buffers if b.kind in ("weight", "state", "constant")
        )

    found = compare(before, after)
    unused = [sum(b.nbytes for i, b in p.graph.of_kind("input") if f"b{i}" not in p.offsets) for p in (before, after)]
    assert sum(c.growth for c in found.buffers) == total(after) + unused[1] - total(before) - unused[0]


def test_what_grew_by_itself():
    before, after = chain(16, "relu", "matmul", "relu"), chain(32, "relu", "matmul", "relu")
    found = before.difference(after)
    sizes = {c.name: (c.before, c.after) for c in found.buffers}
    assert sizes["weight w"] == (1024, 4096)
    assert sizes["input x"] == (1024, 4096)
    assert sizes["node 1 matmul"] == (1024, 4096)
    assert next(c.name for c in found.plan if c.what == "bytes") == "in all"
    assert by_name(found.ops)["matmul", "flops"] == (before.steps[1].cost.flops, after.steps[1].cost.flops)
    live = {x.name for x in found.peaks[1].live}
    assert {c.name for c in found.buffers if c.at_peak} == {c.name for c in found.buffers} & ({"input x"} | live)


def test_calls_that_came_and_went():
    before, after = chain(16, "relu", "matmul"), chain(16, "relu", "scale", "matmul", weight="other")
    found = before.difference(after)
    sizes = {c.name: (c.before, c.after) for c in found.buffers}
    assert sizes["node 1 scale"] == (None, 1024)
    assert sizes["weight w"] == (1024, None)
    assert sizes["weight other"] == (None, 1024)
    assert "node 2 matmul" not in sizes
    assert by_name(found.ops)["scale", "calls"] == (None, 1)
    assert str(next(c for c in found.buffers if c.name == "node 1 scale")) == "node 1 scale: new, 1 KiB"
    assert not found.kernels


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change("plan", "arena", "bytes", 1024, 2048), "arena: 1 KiB -> 2 KiB (+100.0%)"),
        (Change("op", "linear", "flops", 4000, 1000), "linear: 4,000 -> 1,000 (-75.0%) flops"),
        (Change("op", "linear", "bytes moved", None, 512), "linear: new, 512 B bytes moved"),
        (Change("buffer", "node 1 relu", "bytes", 512, None), "node 1 relu: gone, 512 B"),
        (Change("plan", "state", "bytes", 0, 512), "state: 0 B -> 512 B"),
    ],
)
def test_changes_in_words(change, words):
    assert str(change) == words


def test_another_kernel_is_named():
    from dataclasses import replace

    one = chain(16, "relu", "matmul")
    steps = (one.steps[0], replace(one.steps[1], kernel="another"))
    found = one.difference(replace(one, steps=steps))
    assert found.kernels == (("node 1 matmul", one.steps[1].kernel, "another"),)
    assert found


@given(graphs(), graphs())
def test_plans_of_very_many_calls_are_matched_call_by_call(one, other):
    names = [[n.op.name for n in g.nodes] for g in (one, other)]
    for matched in (difference._numbered, difference._matched):
        pairs = list(matched(*names))
        for side in (0, 1):
            assert sorted(p[side] for p in pairs if p[side] is not None) == list(range(len(names[side])))
        assert all(names[0][b] == names[1][a] for b, a in pairs if b is not None and a is not None)


def test_very_many_calls_take_no_more_than_their_number(monkeypatch):
    monkeypatch.setattr(difference, "_COMPARED", 0)
    found = chain(16, "relu", "matmul").difference(chain(16, "relu", "scale", "matmul"))
    assert {c.name for c in found.buffers} == {"node 1 scale"}
