"""Prices against hand-made sums."""

from dataclasses import replace

import pytest
from hypothesis import given
from tests.planning import operators as ops
from tests.planning.graphs import Builder, graphs
from tests.planning.test_plan import small

from nbxtensor.errors import MissingFactError
from nbxtensor.op import Cost, Target
from nbxtensor.planning.caching import cached_shares
from nbxtensor.planning.plan import plan
from nbxtensor.planning.price import duration
from nbxtensor.planning.steps import choose


def priced(op, cost, facts, dtype="float32", **params):
    """The price of one node that costs ``cost``."""
    op = op.op if hasattr(op, "op") else op
    kernels = tuple(replace(k, cost=lambda call: cost) for k in op.kernels)
    b = Builder()
    graph = b.graph(b.call(replace(op, kernels=kernels), b.input((2, 2), dtype=dtype), **params))
    return plan(graph, Target("t", "t", frozenset(), facts)).price()


FACTS = {
    "memory.copy_bandwidth": 100.0,
    "rates.vector.float32": 10.0,
    "rates.vector.float64": 5.0,
    "rates.matrix.float16": 1000.0,
    "launch.seconds": 2.0,
}


@pytest.mark.parametrize(
    ("cost", "seconds", "limit"),
    [
        (Cost(10, 600, 400), 12.0, "memory"),
        (Cost(1000, 600, 400), 102.0, "vector"),
        (Cost(1000_000, 600, 400, "float16"), 1002.0, "matrix"),
        (Cost(1000, 600, 400, "float32"), 102.0, "vector"),  # the matrix unit does not take float32
        (Cost(10, 50, 50), 3.0, "launch"),
        (Cost(0, 0, 0), 2.0, "launch"),
    ],
)
def test_the_longest_resource_and_the_launch(cost, seconds, limit):
    price = priced(ops.copy, cost, FACTS)
    assert price.total.seconds == pytest.approx(seconds)
    assert price.nodes[0].limit == price.total.limit == price.families[0].limit == limit
    assert (price.total.flops, price.total.read, price.total.written) == (cost.flops, cost.read, cost.written)


@pytest.mark.parametrize(
    ("op", "dtype", "facts", "seconds"),
    [
        (ops.copy, "float16", {}, 102.0),  # computes in float32
        (ops.copy, "float64", {}, 202.0),
        (ops.copy, "int8", {}, 102.0),  # on the lanes of float32
        (ops.copy, "int8", {"rates.vector.int8": 20.0}, 52.0),
        (ops.copy, "complex128", {}, 202.0),
        (ops.relu, "float64", {}, 102.0),  # declared pointwise, computing in float32
    ],
)
def test_the_dtype_of_the_arithmetic(op, dtype, facts, seconds):
    assert priced(op, Cost(1000, 0, 0), {**FACTS, **facts}, dtype).total.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("cost", "fact"),
    [
        (Cost(0, 1, 0), "memory.copy_bandwidth"),
        (Cost(1, 0, 0), "rates.vector.float32"),
        (Cost(1, 0, 0, "float16"), "rates.matrix.float16"),
        (Cost(0, 0, 0), "launch.seconds"),
    ],
)
def test_a_missing_number_is_named(cost, fact):
    with pytest.raises(MissingFactError) as error:
        priced(ops.copy, cost, {name: value for name, value in FACTS.items() if name != fact})
    assert error.value.fact == f"{fact} of t t"
    priced(ops.copy, Cost(0, 0, 0), {"launch.seconds": 1.0})  # what is not needed may be missing


def test_what_a_device_file_states_stands_in():
    stated = {
        "memory.bandwidth": 100.0,
        "compute.vector_flops.float32": 10.0,
        "compute.matrix_flops.float16": 1000.0,
        "launch.recorded_ns": 2e9,
    }
    for cost in (Cost(1000, 600, 400), Cost(1000, 600, 400, "float16")):
        price = priced(ops.copy, cost, stated)
        assert price.total.seconds == pytest.approx(priced(ops.copy, cost, FACTS).total.seconds)
        assert price.facts.keys() <= stated.keys()
    both = priced(ops.copy, Cost(0, 600, 400), {**stated, "memory.copy_bandwidth": 50.0})
    assert both.total.seconds == pytest.approx(22.0)
    assert both.facts == {"memory.copy_bandwidth": 50.0, "launch.recorded_ns": 2e9}


@given(graphs())
def test_sums(graph):
    price = plan(graph, ops.TARGET).price()
    for rows in (price.nodes, price.families):
        assert sum(r.seconds for r in rows) == pytest.approx(price.total.seconds)
        for name in ("calls", "launches", "flops", "read", "written", "cached", "nbytes"):
            assert sum(getattr(r, name) for r in rows) == getattr(price.total, name)
    assert price.total.calls == len(graph.nodes) == len(price.nodes)


def chain(count, side=8):
    """Copies one after the other, each of 256 bytes to 256 bytes, the last node adding a weight."""
    b = Builder()
    y = b.input((side, side))
    for _ in range(count):
        y = b.call(ops.copy, y)
    return b.graph(b.call(ops.add, y, b.weight((side, side))))


def shares(graph, nbytes):
    found = cached_shares(graph, choose(graph, ops.TARGET), nbytes)
    return [s.read for s in found], [s.written for s in found]


def test_what_stays_in_cache():
    graph = chain(3)  # touched by each node: 512, 512, 512, 768
    assert shares(graph, 0) == ([0, 0, 0, 0], [0, 0, 0, 0])
    assert shares(graph, 1023) == ([0, 0, 0, 0], [0, 0, 0, 0])
    # A copy is read back by the next copy, after both of them; the sum's operands are further apart.
    assert shares(graph, 1024) == ([0, 1, 1, 0], [1, 1, 0, 0])
    assert shares(graph, 1280) == ([0, 1, 1, 0.5], [1, 1, 1, 0])
    # Input, weight and output are next used a run later.
    whole = 512 * 3 + 768
    assert shares(graph, whole + 511) == ([0, 1, 1, 0.5], [1, 1, 1, 0])
    assert shares(graph, whole + 512) == ([1, 1, 1, 0.5], [1, 1, 1, 0])
    assert shares(graph, whole + 768) == ([1, 1, 1, 1], [1, 1, 1, 1])


def test_cached_bytes_move_at_the_rate_of_the_cache():
    facts = {**ops.TARGET.facts, "memory.copy_bandwidth": 1.0, "memory.l2_nbytes": 1024, "launch.seconds": 0.0}
    made = plan(chain(3), replace(ops.TARGET, facts=facts))
    assert made.price().total.seconds == pytest.approx(3 * 512 + 768)  # no bandwidth of the cache, no cache
    facts["memory.l2_bandwidth"] = 100.0
    price = plan(chain(3), replace(ops.TARGET, facts=facts)).price()
    assert [n.cached for n in price.nodes] == [256, 512, 256, 0]
    assert price.total.seconds == pytest.approx(256 + 256 + 768 + 1024 / 100)


def test_table():
    b = Builder()
    x = b.input((8, 8))
    for family in ("norm", "matmul", "norm"):
        x = b.call(ops.in_family(ops.relu.op, family), x)
    lines = plan(b.graph(x), ops.TARGET).price().table().splitlines()
    assert [line.split()[0] for line in lines if not line.startswith("-")] == ["op", "norm", "matmul", "total"]
    assert lines[-1].split()[1:3] == ["3", "3"]
    assert all(len(line) <= 120 for line in lines)
    assert "total" in plan(Builder().graph(), ops.TARGET).price().table()


def test_a_device_that_is_not_there():
    facts = {"memory.bandwidth": 3.35e12, "compute.matrix_flops.float32": 5e14, "compute.vector_flops.float32": 6.7e13,
             "launch.recorded_ns": 900}  # fmt: skip
    price = plan(small(), Target("cuda", "sm_90", frozenset({"any"}), facts)).price()
    assert price.total.launches == 6
    assert price.total.limit == "launch"
    assert price.total.seconds == pytest.approx(6 * 900e-9, rel=1e-2)


def test_durations():
    assert [duration(s) for s in (1.5, 0.0012, 3e-6, 4.5e-8, 0.0)] == ["1.5 s", "1.2 ms", "3 us", "45 ns", "0 ns"]
