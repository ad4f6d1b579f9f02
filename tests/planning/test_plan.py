"""Plans: run in their own arena they compute the same; limits, loaders, text."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from tests.planning import operators as ops
from tests.planning.graphs import Builder, graphs, states, values

from nbxtensor.errors import MissingFactError, PlanError, UnsupportedError
from nbxtensor.op import Buffer, Cost, Kernel
from nbxtensor.planning.alias import in_place
from nbxtensor.planning.interpret import _read, _run, interpret
from nbxtensor.planning.passes import compact, partition, remove_dead
from nbxtensor.planning.plan import plan


def small(name="small", rows=8):
    b = Builder()
    x, w, c = b.input((rows, 16)), b.weight((16, 8)), b.constant(np.ones((rows, 8)))
    total = b.state((rows, 8))
    y = b.call(ops.relu, b.call(ops.add, b.call(ops.matmul, x, w), c))
    b.call(ops.add, total, y, out=(total,))
    return b.graph(b.call(ops.center, y), name=name)


def run_in_arena(made, given_values, state):
    """Run a plan in one block of bytes, each buffer where the plan says; what dies or is workspace is overwritten."""
    arena = np.full(made.arena_nbytes, 0xA5, np.uint8)
    weights = np.full(made.weights_nbytes, 0xA5, np.uint8)
    memory = []
    for index, (buffer, location) in enumerate(zip(made.graph.buffers, made.locations, strict=True)):
        if location is None:
            memory.append(np.empty(0, np.uint8))
            continue
        area = {"arena": arena, "weights": weights}.get(location.area)
        block = state[index] if area is None else area[location.offset : location.offset + location.nbytes]
        memory.append(block)
        if buffer.kind in ("input", "weight", "constant"):
            value = buffer.value if buffer.kind == "constant" else given_values[buffer.name]
            block[...] = np.frombuffer(value.tobytes(), np.uint8)
    end = sum(step.moments for step in made.steps)
    now = 0
    for place, (node, step) in enumerate(zip(made.graph.nodes, made.steps, strict=True)):
        for buffer in step.cost.buffers:
            offset = made.workspaces[place][buffer.name]
            arena[offset : offset + buffer.nbytes] = 0xEE
        _run(made.graph, node, memory)
        now += step.moments
        for life in made.lifetimes:
            if life.upper == now < end:
                offset = made.offsets[life.id]
                arena[offset : offset + life.size] = 0xFF
    return [_read(memory[ref.buffer], ref).tobytes() for ref in made.graph.outputs]


@given(graphs())
def test_a_plan_computes_what_its_graph_does(graph):
    for made in (plan(graph, ops.TARGET, alignment=4), plan(in_place(graph, ops.TARGET), ops.TARGET)):
        before, after = states(graph), states(made.graph)
        want = [x.tobytes() for x in interpret(graph, values(graph), before)]
        assert run_in_arena(made, values(graph), after) == want
        assert [x.tobytes() for x in after.values()] == [x.tobytes() for x in before.values()]


@given(graphs())
def test_sizes(graph):
    made = plan(graph, ops.TARGET)
    assert made.peak == made.arena_nbytes >= made.lower_bound >= made.largest_op[1] >= 0
    assert made.ratio == made.peak / made.lower_bound
    assert made.nbytes == made.arena_nbytes + made.weights_nbytes + made.state_nbytes
    assert all(offset % 256 == 0 for offset in made.offsets.values())
    for area, kinds in (("weights", ("weight", "constant")), ("state", ("state",))):
        kept = sorted((x.offset, x.nbytes) for x in made.locations if x is not None and x.area == area)
        assert len(kept) == sum(b.kind in kinds for b in graph.buffers)
        assert all(one + n <= other for (one, n), (other, _) in pairwise(kept))


@given(graphs())
def test_every_pass_together(graph):
    prologue, main = partition(compact(remove_dead(graph)))
    main = compact(in_place(main, ops.TARGET))
    plan(prologue, ops.TARGET)
    made = plan(main, ops.TARGET)
    assert made.lower_bound <= plan(graph, ops.TARGET).lower_bound


def test_what_a_plan_holds():
    made = plan(small(), ops.TARGET)
    assert [s.kernel for s in made.steps] == [
        "matmul_kernel", "add_kernel", "relu_kernel", "add_kernel", "center_kernel",
    ]  # fmt: skip
    assert len(made.steps[0].launches) == 2
    assert made.steps[0].cost.matrix == "float32"
    assert made.workspaces[0].keys() == {"partial"}
    assert made.weights["w"].nbytes == 512
    assert (made.weights_nbytes, made.state_nbytes) == (768, 256)
    # The product's second launch: its workspace (512 bytes), its result (256) and the input (512), which stays.
    assert made.lower_bound == 512 + 512 + 256
    assert made.largest_op == (0, 1280)
    assert made.algorithm
    assert made.graph == small()


def test_largest_op_counts_what_is_in_use_at_one_moment():
    """An operand that only the first launch reads and workspace of the second never meet."""
    b = Builder()
    y = b.call(ops.copy, b.call(ops.full, shape=(8, 8)))
    buffers = (Buffer("late", 1024, 1, 1),)
    kernel = Kernel("k", lambda call: Cost(0, 0, 0, None, buffers), ops._matmul_launches)
    op = replace(ops.relu.op, kernels=(kernel,))

    def launches(call):
        first = ops.Launch("a", (1,), {"x": call.input("x"), "out": call.output()})
        return (first, ops.Launch("b", (1,), {"out": call.output(), "late": call.workspace("late", "float32")}))

    op = replace(op, kernels=(replace(kernel, launch=launches),))
    made = plan(b.graph(b.call(op, y)), ops.TARGET)
    assert made.largest_op == (2, 256 + 1024)
    assert made.lower_bound == 1280


def test_a_limit_holds_for_all_memory():
    whole = plan(small(), ops.TARGET)
    assert plan(small(), ops.TARGET, limit=whole.nbytes) == whole
    with pytest.raises(PlanError, match=rf"Got {whole.nbytes} bytes .* limit of {whole.nbytes - 1}\.") as error:
        plan(small(), ops.TARGET, limit=whole.nbytes - 1)
    assert "It is 1 bytes too large. Beside weights and state, an arena of 1279 bytes would fit" in str(error.value)
    assert "node 0 (matmul) takes 1280 by itself, in any order." in str(error.value)
    assert "arena: b0 512 B (x), n0.partial 512 B (node 0 matmul, workspace partial), b4 256 B" in str(error.value)


def test_what_would_fit_where_the_arena_is_not_what_is_too_large():
    kept = plan(small(), ops.TARGET).weights_nbytes + plan(small(), ops.TARGET).state_nbytes
    with pytest.raises(PlanError, match=rf"Weights and state alone take {kept}: smaller ones would fit"):
        plan(small(), ops.TARGET, limit=kept)
    b = Builder()
    x = b.input((8, 16))
    y = [b.call(ops.center, x) for _ in range(3)]
    graph = b.graph(b.call(ops.add, b.call(ops.add, y[0], y[1]), y[2]))
    with pytest.raises(
        PlanError, match="an arena of 2047 bytes would fit; no operation takes more than 1536 by itself"
    ):
        plan(graph, ops.TARGET, limit=2047)


def test_a_loader_makes_it_run():
    class Echo:
        def load(self, made, weights, progress=None, share=None, arena=None):
            return made, weights, progress

    weights = {"w": np.ones((16, 8), np.float32)}
    made = plan(small(), ops.TARGET, loader=Echo())
    assert made.load(weights) == (made, weights, None)
    assert made.load(weights, progress=print)[2] is print
    assert made == plan(small(), ops.TARGET)
    with pytest.raises(PlanError, match="without a device runtime"):
        plan(small(), ops.TARGET).load(weights)


def test_a_graph_without_a_kernel_for_the_target():
    kernel = replace(ops.relu.op.kernels[0], needs=frozenset({"matrix"}))
    b = Builder()
    graph = b.graph(b.call(replace(ops.relu.op, kernels=(kernel,)), b.input((2, 2))))
    with pytest.raises(UnsupportedError, match="relu_kernel needs matrix"):
        plan(graph, ops.TARGET)


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: replace(p, arena_nbytes=p.arena_nbytes - 1),
        lambda p: replace(p, weights_nbytes=p.weights_nbytes - 1),
        lambda p: replace(p, locations=p.locations[1:]),
        lambda p: replace(p, locations=(None, *p.locations[1:])),
        lambda p: replace(p, locations=(*p.locations[:-1], None)),
        lambda p: replace(p, locations=(replace(p.locations[0], area="weights"), *p.locations[1:])),
        lambda p: replace(p, locations=(replace(p.locations[0], offset=1), *p.locations[1:])),
        lambda p: replace(p, locations=(p.locations[0], replace(p.locations[2], nbytes=512), *p.locations[2:])),
        lambda p: replace(p, workspaces=({}, *p.workspaces[1:])),
        lambda p: replace(p, workspaces=({"partial": 0}, *p.workspaces[1:])),
        lambda p: replace(p, steps=(replace(p.steps[0], launches=()), *p.steps[1:])),
    ],
)
def test_every_plan_is_checked(damage):
    made = plan(small(), ops.TARGET)
    assert made.check() is made
    assert made.offsets["n0.partial"] != 0
    with pytest.raises(PlanError):
        damage(made).check()


def test_temporaries_that_nothing_touches_have_no_place():
    b = Builder()
    b.buffer("temporary", (4, 4))
    empty = b.buffer("input", (0, 4), name="e")
    x = b.input((2, 2))
    made = plan(b.graph(x, empty), ops.TARGET)
    assert made.locations[0] is None
    assert made.locations[1].nbytes == 0
    assert made.largest_op is None
    assert (made.peak, made.lower_bound) == (256, 256)


def test_text():
    text = str(plan(small(), ops.TARGET))
    lines = text.splitlines()
    assert lines[0] == "small on cpu test: 5 nodes, 6 launches"
    assert len(lines) <= 24
    assert "1.25 KiB (1,280 bytes), peak / bound 1.0000" in text
    assert "n0.partial 512 B (node 0 matmul, workspace partial)" in text
    assert "planning 5" in text
    assert "nothing" not in str(plan(Builder().graph(), ops.TARGET))


@given(graphs())
def test_text_is_one_screen(graph):
    text = str(plan(graph, ops.TARGET))
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 120


def test_difference():
    one, other = plan(small(), ops.TARGET), plan(small("wide", 16), ops.TARGET)
    assert one.diff(one) == ""
    text = one.diff(other)
    assert "graph: small -> wide" in text
    assert "arena: 1280 -> 2560 (+100.0%)" in text
    assert "- matmul: matmul_kernel in 2 launches" in text
    assert "+ matmul: matmul_kernel in 2 launches" in text
    assert "algorithm" not in text


def test_a_graph_as_text():
    b = Builder()
    x = b.input((2, 3))
    y = b.call(ops.scale, x, factor=3.0)
    from tests.planning.graphs import columns, transposed

    graph = b.graph(b.call(ops.copy, transposed(columns(y, 1, 2))), name="two")
    assert str(graph).splitlines() == [
        "two: 3 buffers, 2 nodes",
        "  input b0 float32[2, 3] x, 24 bytes",
        "  0: b1 float32[2, 3] = scale(x=b0 float32[2, 3], factor=3.0)",
        "  1: b2 float32[2, 2] = copy(x=b1 float32[2, 2] at 1 by [1, 3])",
        "  return b2 float32[2, 2]",
    ]


def test_a_missing_number_is_named():
    with pytest.raises(MissingFactError, match=r"launch\.seconds of cpu test"):
        plan(small(), replace(ops.TARGET, facts={"memory.copy_bandwidth": 1.0, "rates.matrix.float32": 1.0})).price()
