"""Working in place: the same results, less memory, and none of the traps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from tests.planning import operators as ops
from tests.planning.graphs import Builder, first_row, graphs, rows, states, transposed, values

from nbxtensor.op import Kernel
from nbxtensor.planning.alias import in_place
from nbxtensor.planning.interpret import interpret
from nbxtensor.planning.passes import compact
from nbxtensor.planning.plan import plan


class _Streaming:
    """Runs a pointwise node element by element, each written before the next is read, from either end."""

    def __init__(self, op, *, backwards):
        self.op, self.backwards = op, backwards

    def run(self, node, memory):
        shape = node.outputs[0].spec.shape
        indices = list(np.ndindex(*shape))
        views = {name: _view(memory, ref) for name, ref in node.operands.items()}
        results = [_view(memory, ref) for ref in node.outputs]
        for index in reversed(indices) if self.backwards else indices:
            arguments = [np.broadcast_to(v, shape)[index] for v in views.values()]
            params = {k: v for k, v in node.params.items() if k in self.op.signature.parameters}
            found = self.op.reference(*arguments, **params)
            for result, value in zip(results, found if isinstance(found, tuple) else (found,), strict=True):
                result[index] = value


def _view(memory, ref):
    strides = tuple(4 * s for s in ref.spec.strides)
    return np.ndarray(ref.spec.shape, np.float32, memory[ref.buffer].data, 4 * ref.offset, strides)


def run_streaming(graph, given_values, *, backwards):
    """Run a float32 graph whose pointwise nodes write each element before they read the next."""
    memory = [np.full(b.nbytes, 0xFF, np.uint8) for b in graph.buffers]
    state = states(graph)
    for i, b in enumerate(graph.buffers):
        if b.kind == "state":
            memory[i][...] = state[i]
        elif b.kind != "temporary":
            value = b.value if b.kind == "constant" else given_values[b.name]
            memory[i][...] = np.frombuffer(value.tobytes(), np.uint8)
    for node in graph.nodes:
        if node.op.pointwise is not None:
            _Streaming(node.op, backwards=backwards).run(node, memory)
        else:
            found = node.op.reference(*(_view(memory, r).copy() for r in node.operands.values()), **dict(node.params))
            _view(memory, node.outputs[0])[...] = found
    return [_view(memory, ref).tobytes() for ref in graph.outputs]


@given(graphs(state=False))
def test_results_stay_the_same(graph):
    shared = in_place(graph, ops.TARGET).check()
    want = [x.tobytes() for x in interpret(graph, values(graph))]
    assert [x.tobytes() for x in interpret(shared, values(graph))] == want


@given(graphs(state=False))
def test_each_element_may_be_written_before_the_next_is_read(graph):
    """The order within a node is the kernel's own affair: both directions give what separate memory gives."""
    shared = in_place(graph, ops.TARGET)
    for backwards in (False, True):
        plain = run_streaming(graph, values(graph), backwards=backwards)
        assert run_streaming(shared, values(graph), backwards=backwards) == plain


@given(graphs())
def test_the_bound_never_grows(graph):
    before, after = plan(graph, ops.TARGET), plan(compact(in_place(graph, ops.TARGET)), ops.TARGET)
    assert after.lower_bound <= before.lower_bound


def _shares(build):
    """Whether the last node of what ``build`` makes writes over an operand."""
    b = Builder()
    graph = b.graph(*build(b))
    node = in_place(graph, ops.TARGET).nodes[-1]
    return bool({r.buffer for r in node.operands.values()} & {r.buffer for r in node.outputs})


def test_a_chain_runs_in_one_buffer():
    b = Builder()
    y = b.input((4, 4))
    for _ in range(5):
        y = b.call(ops.relu, b.call(ops.scale, y))
    graph = compact(in_place(b.graph(y), ops.TARGET))
    assert [x.kind for x in graph.buffers] == ["input", "temporary"]
    assert plan(graph, ops.TARGET, alignment=64).peak == 128


def test_where_it_is_safe():
    assert _shares(lambda b: [b.call(ops.relu, b.call(ops.copy, b.input((4, 4))))])

    def both(b):
        y = b.call(ops.copy, b.input((4, 4)))
        return [b.call(ops.add, y, y)]

    def second(b):
        x = b.input((4, 4))
        return [b.call(ops.add, x, b.call(ops.copy, x))]

    def same_width(b):
        return [b.call(ops.cast, b.call(ops.copy, b.input((4, 4))), dtype="int32")]

    assert _shares(both)
    assert _shares(second)
    assert _shares(same_width)


def _input(b):
    return [b.call(ops.relu, b.input((4, 4)))]


def _weight(b):
    return [b.call(ops.relu, b.weight((4, 4)))]


def _not_pointwise(b):
    return [b.call(ops.center, b.call(ops.copy, b.input((4, 4))))]


def _read_later(b):
    y = b.call(ops.copy, b.input((4, 4)))
    z = b.call(ops.relu, y)
    return [b.call(ops.matmul, z, y)]


def _output(b):
    y = b.call(ops.copy, b.input((4, 4)))
    return [b.call(ops.relu, y), rows(y, 1, 1)]


def _transposed_too(b):
    y = b.call(ops.copy, b.input((4, 4)))
    return [b.call(ops.add, y, transposed(y))]


def _transposed(b):
    return [b.call(ops.relu, transposed(b.call(ops.copy, b.input((4, 4)))))]


def _broadcast_too(b):
    y = b.call(ops.copy, b.input((4, 4)))
    return [b.call(ops.add, y, first_row(y))]


def _narrower(b):
    return [b.call(ops.cast, b.call(ops.copy, b.input((4, 4))), dtype="float16")]


def _wider(b):
    return [b.call(ops.cast, b.call(ops.copy, b.input((4, 4), dtype="float16")), dtype="float32")]


def _part(b):
    return [b.call(ops.relu, rows(b.call(ops.copy, b.input((4, 4))), 0, 2))]


def _into_part(b):
    y = b.call(ops.copy, b.input((2, 4)))
    whole = b.buffer("temporary", (4, 4))
    b.call(ops.copy, y, out=(rows(whole, 0, 2),))
    b.call(ops.relu, y, out=(rows(whole, 2, 2),))
    return [whole]


def _broadcast_operand(b):
    return [b.call(ops.add, b.call(ops.copy, b.input((1, 4))), b.input((4, 4), "y"))]


def _state(b):
    y = b.state((4, 4))
    return [b.call(ops.relu, y)]


@pytest.mark.parametrize(
    "build",
    [_input, _weight, _not_pointwise, _output, _transposed, _transposed_too, _broadcast_too, _narrower, _wider, _part,
     _into_part, _broadcast_operand, _state],
)  # fmt: skip
def test_where_it_is_not(build):
    assert not _shares(build)


def test_a_later_reader_keeps_its_operand():
    b = Builder()
    outputs = _read_later(b)
    graph = in_place(b.graph(*outputs), ops.TARGET)
    relu = graph.nodes[1]
    assert relu.operands["x"].buffer != relu.outputs[0].buffer


def test_two_results_never_share():
    b = Builder()
    y = b.call(ops.copy, b.input((4, 4)))
    low, high = b.call(ops.split, y)
    for outputs in ((low, high), (high,)):
        node = in_place(b.graph(*outputs), ops.TARGET).nodes[-1]
        assert node.outputs[0].buffer == y.buffer
        assert node.outputs[1].buffer != y.buffer


def test_a_kernel_of_several_launches_may_read_again():
    twice = Kernel("twice", ops._cost, lambda call: ops._one_launch(call) * 2)
    op = replace(ops.relu.op, kernels=(twice,))
    assert not _shares(lambda b: [b.call(op, b.call(ops.copy, b.input((4, 4))))])
