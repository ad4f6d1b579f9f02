"""Lifetimes against a definition by launches, and the CSV format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning import operators as ops
from tests.planning.graphs import Builder, graphs, rows

from nbxtensor.errors import FormatError, PlanError
from nbxtensor.op import Buffer, Cost, Kernel, Pointer
from nbxtensor.planning.lifetimes import Lifetime, graph_lifetimes, read_csv, write_csv
from nbxtensor.planning.steps import choose


def _of(graph):
    return {x.id: x for x in graph_lifetimes(graph, choose(graph, ops.TARGET), 16)}


def test_time_counts_launches():
    b = Builder()
    x, w = b.input((4, 4)), b.weight((4, 4))
    first = b.call(ops.relu, x)  # launch 0
    product = b.call(ops.matmul, first, w)  # launches 1 and 2
    last = b.call(ops.add, product, x)  # launch 3
    found = _of(b.graph(last))
    assert {name: (x.lower, x.upper) for name, x in found.items()} == {
        "b0": (0, 4),  # an input, all the time
        "b2": (0, 2),  # the operand is read by the first launch of the product
        "n1.partial": (1, 3),
        "b3": (2, 4),  # and the product written by the second one alone
        "b4": (3, 4),
    }
    assert found["n1.partial"].size == 128
    assert found["b3"].alignment == 16


def test_an_operand_lives_to_the_last_launch_that_names_it():
    def launches(call):
        reads = ops.Launch("read", (1,), {"x": call.input("x")})
        return (reads, reads, ops.Launch("write", (1,), {"out": call.output()}))

    op = ops.replace(ops.relu.op, kernels=(Kernel("k", ops._cost, launches),))
    b = Builder()
    found = _of(b.graph(b.call(op, b.call(ops.copy, b.input((2, 2))))))
    assert (found["b1"].lower, found["b1"].upper) == (0, 3)
    assert (found["b2"].lower, found["b2"].upper) == (3, 4)


def test_outputs_live_to_the_end_and_views_count_as_their_buffer():
    b = Builder()
    x = b.input((4, 4))
    early = b.call(ops.relu, x)
    viewed = b.call(ops.relu, x)
    b.call(ops.scale, x)
    b.call(ops.copy, rows(viewed, 2, 1))
    found = _of(b.graph(rows(early, 0, 1)))
    assert (found["b1"].lower, found["b1"].upper) == (0, 4)
    assert (found["b2"].lower, found["b2"].upper) == (1, 4)
    assert (found["b3"].lower, found["b3"].upper) == (2, 3)  # written, never read


def test_a_graph_without_nodes_lasts_a_moment():
    b = Builder()
    x = b.input((2, 2))
    assert _of(b.graph(x))["b0"].upper == 1


@given(graphs())
def test_each_launch_that_names_a_buffer_is_in_its_life(graph):
    steps = choose(graph, ops.TARGET)
    found = _of(graph)
    used = {}
    now = 0
    for node, step in zip(graph.nodes, steps, strict=True):
        for launch in step.launches:
            for pointer in (a for a in launch.arguments.values() if isinstance(a, Pointer)):
                if pointer.role != "workspace":
                    refs = node.operands if pointer.role == "input" else node.outputs
                    used.setdefault(refs[pointer.key].buffer, []).append(now)
            now += 1
    for ref in graph.outputs:
        used.setdefault(ref.buffer, []).append(now - 1)
    for index, buffer in enumerate(graph.buffers):
        if buffer.kind == "input":
            assert (found[f"b{index}"].lower, found[f"b{index}"].upper) == (0, now)
        elif buffer.kind == "temporary":
            assert (found[f"b{index}"].lower, found[f"b{index}"].upper) == (min(used[index]), max(used[index]) + 1)
        else:
            assert f"b{index}" not in found


def _with_kernel(cost, launch=ops.matmul.op.kernels[0].launch):
    op = ops.replace(ops.matmul.op, kernels=(Kernel("k", lambda call: cost, launch),))
    b = Builder()
    x = b.input((2, 2))
    return b.graph(b.call(op, x, x))


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (Cost(0, 0, 0), "Got workspace 'partial'"),
        (Cost(0, 0, 0, None, (Buffer("partial", 8, 0, 2),)), "inside the launches"),
        (Cost(0, 0, 0, None, (Buffer("partial", 8, 0, 0),)), "Got 'partial' in launch 1"),
        (Cost(0, 0, 0, None, (Buffer("partial", 8), Buffer("partial", 8))), "two workspace buffers"),
        (Cost(0, 0, 0, None, (Buffer("partial", -1, 0, 1),)), "inside the launches"),
    ],
)
def test_declarations_that_contradict_each_other_are_refused(cost, message):
    with pytest.raises(PlanError, match=message):
        choose(_with_kernel(cost), ops.TARGET)


def test_launches_name_what_the_call_has():
    for pointer, message in (
        (Pointer("input", "z", "float32"), "Got input 'z'"),
        (Pointer("output", 1, "float32"), "Got output 1"),
        (Pointer("workspace", "partial", "float32", 9), "Got element 9"),
    ):
        launch = ops.Launch("k", (1,), {"p": pointer})
        cost = Cost(0, 0, 0, None, (Buffer("partial", 32),))
        with pytest.raises(PlanError, match=message):
            choose(_with_kernel(cost, lambda call, launch=launch: (launch,)), ops.TARGET)


def test_nothing_runs_where_no_result_has_an_element():
    b = Builder()
    x = b.input((0, 4))
    graph = b.graph(b.call(ops.relu, x))
    assert choose(graph, ops.TARGET)[0].launches == ()
    assert _of(graph) == {}


@given(
    st.lists(
        st.tuples(st.text(min_size=1), st.integers(-9, 9), st.integers(1, 9), st.integers(0, 1 << 40)),
        unique_by=lambda row: row[0].strip(),
    ),
    st.sampled_from((1, 64)),
)
def test_csv_round_trip(tmp_path_factory, rows, alignment):
    kept = tuple(
        Lifetime(name.strip(), lower, lower + length, size, alignment)
        for name, lower, length, size in rows
        if name.strip().isprintable() and name.strip()
    )
    path = tmp_path_factory.mktemp("csv") / "lifetimes.csv"
    write_csv(path, kept)
    assert read_csv(path) == kept
    assert ("alignment" in path.read_text().splitlines()[0]) == (alignment != 1 and bool(kept))


def test_csv_reads_columns_in_any_order(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("size, upper,lower,id\n7,4,1,a\n")
    assert read_csv(path) == (Lifetime("a", 1, 4, 7),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Got nothing"),
        ("id,lower,upper\n", "names the columns"),
        ("id,lower,upper,size,gaps\n", "names the columns"),
        ("id,lower,upper,size,size\n", "names the columns"),
        ("id,lower,upper,size\na,1,2\n", "line 2, column size: a row has 4 fields"),
        ("id,lower,upper,size\na,1,2,x\n", "line 2, column size: an integer. Got .x."),
        ("id,lower,upper,size\na,1,2,3\nb,2,2,3\n", "line 3, column upper: lifetime .b."),
        ("id,lower,upper,size\na,1,2,-3\n", "size -3"),
        ("id,lower,upper,size\na,1,2,3\na,4,5,3\n", "line 3, column id: an id names one buffer"),
    ],
)
def test_bad_csv(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_csv(path)


def test_csv_is_text(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="UTF-8"):
        read_csv(path)
