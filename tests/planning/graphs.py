"""Graphs for tests: a builder, and a strategy that draws small graphs with views, state and weights."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.planning import operators as ops

from nbxtensor.op import Spec
from nbxtensor.planning.graph import Graph, GraphBuffer, Node, Ref, constant


class Builder:
    """Collects buffers and nodes."""

    def __init__(self):
        self.buffers = []
        self.nodes = []

    def buffer(self, kind, shape, dtype="float32", name=""):
        spec = Spec(shape, dtype)
        self.buffers.append(GraphBuffer(spec.nbytes, kind, name, None if kind == "temporary" else spec))
        return Ref(len(self.buffers) - 1, spec)

    def input(self, shape, name="x", dtype="float32"):
        return self.buffer("input", shape, dtype, name)

    def weight(self, shape, name="w", dtype="float32"):
        return self.buffer("weight", shape, dtype, name)

    def state(self, shape, name=""):
        return self.buffer("state", shape, name=name)

    def constant(self, values):
        values = np.asarray(values, np.float32)
        self.buffers.append(constant(values, Spec(values.shape, "float32")))
        return Ref(len(self.buffers) - 1, self.buffers[-1].spec)

    def call(self, function, *operands, out=None, **params):
        """Add a node; results go to new buffers, or to the views in ``out``."""
        op = function if not hasattr(function, "op") else function.op
        names = [f"tensors.{i}" for i in range(len(operands))] if op.operands == ("tensors",) else op.operands
        given = dict(zip(names, operands, strict=False))
        specs = op.call({n: r.spec for n, r in given.items()}, params).outputs
        results = out or tuple(self.buffer("temporary", s.shape, s.dtype) for s in specs)
        self.nodes.append(Node(op, given, tuple(results), params))
        return results[0] if len(results) == 1 else tuple(results)

    def graph(self, *outputs, name="graph", new_state=None):
        return Graph(tuple(self.buffers), tuple(self.nodes), tuple(outputs), name, new_state or {}).check()


def transposed(ref):
    shape, strides = ref.spec.shape, ref.spec.strides
    return Ref(ref.buffer, Spec(shape[::-1], ref.spec.dtype, strides[::-1]), ref.offset)


def rows(ref, start, count):
    spec = Spec((count, *ref.spec.shape[1:]), ref.spec.dtype, ref.spec.strides)
    return Ref(ref.buffer, spec, ref.offset + start * ref.spec.strides[0])


def reshaped(ref, *shape):
    """A packed view under another shape."""
    return Ref(ref.buffer, Spec(shape, ref.spec.dtype), ref.offset)


def columns(ref, start, count):
    spec = Spec((ref.spec.shape[0], count), ref.spec.dtype, ref.spec.strides)
    return Ref(ref.buffer, spec, ref.offset + start * ref.spec.strides[1])


def first_row(ref):
    """The first row, broadcast to all rows."""
    spec = Spec(ref.spec.shape, ref.spec.dtype, (0, ref.spec.strides[1]))
    return Ref(ref.buffer, spec, ref.offset)


_SIDE = 4
_KINDS = ["relu", "add", "add", "scale", "center", "matmul", "copy", "halves", "full", "split", "state", "update"]


@st.composite
def graphs(draw, nodes=12, state=True):
    """Graphs over square float32 values: views of all kinds, results written into parts of buffers, state."""
    b = Builder()
    made = [b.input((_SIDE, _SIDE)), b.weight((_SIDE, _SIDE)), b.weight((_SIDE, _SIDE), "v")]
    made.append(b.constant(np.arange(_SIDE * _SIDE).reshape(_SIDE, _SIDE) / 8 - 1))
    if state:
        made.append(b.state((_SIDE, _SIDE)))
    cache = made[-1]

    def operand():
        view = draw(st.sampled_from(("", "", "", "transposed", "first_row", "half")))
        ref = draw(st.sampled_from(made))
        if view == "transposed":
            return transposed(ref)
        return first_row(ref) if view == "first_row" else ref

    for _ in range(draw(st.integers(1, nodes))):
        kind = draw(st.sampled_from(_KINDS))
        if kind == "full":
            made.append(b.call(ops.full, shape=(_SIDE, _SIDE), value=draw(st.integers(-2, 2))))
        elif kind == "add":
            made.append(b.call(ops.add, operand(), operand()))
        elif kind == "matmul":
            made.append(b.call(ops.matmul, operand(), operand()))
        elif kind == "scale":
            made.append(b.call(ops.scale, operand(), factor=draw(st.sampled_from((0.5, -1.0)))))
        elif kind == "split":
            made += b.call(ops.split, operand())
        elif kind == "halves":  # two nodes that write into one buffer
            whole = b.buffer("temporary", (_SIDE, _SIDE))
            part = draw(st.sampled_from((rows, columns)))
            for start in (0, _SIDE // 2):
                b.call(ops.copy, part(operand(), start, _SIDE // 2), out=(part(whole, start, _SIDE // 2),))
            made.append(whole)
        elif kind == "state":
            if state:
                ref = operand()
                if ref.buffer != cache.buffer or ref == cache:  # no kernel writes over another view of what it reads
                    b.call(ops.scale, ref, factor=0.5, out=(cache,))
        elif kind == "update":  # a buffer written again, elementwise over itself
            free = [r for r in made if b.buffers[r.buffer].kind == "temporary"]
            if free:
                ref = draw(st.sampled_from(free))
                b.call(ops.relu, ref, out=(ref,))
        else:
            made.append(b.call(getattr(ops, kind), operand()))
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
    return b.graph(*outputs)


@st.composite
def stateful(draw, nodes=10):
    """Functional graphs over two to four states: new values made in place or not, swapped, shared, old ones shown."""
    b = Builder()
    made = [b.input((_SIDE, _SIDE)), b.weight((_SIDE, _SIDE))]
    names = [f"s{i}" for i in range(draw(st.integers(2, 4)))]
    old = [b.state((_SIDE, _SIDE), name) for name in names]
    made += old * 2

    def operand(*, viewed=True):
        ref = draw(st.sampled_from(made))
        view = draw(st.sampled_from(("", "", "", "transposed", "first_row"))) if viewed else ""
        return transposed(ref) if view == "transposed" else first_row(ref) if view == "first_row" else ref

    for _ in range(draw(st.integers(0, nodes))):
        kind = draw(
            st.sampled_from(("update", "update", "update", "add", "relu", "scale", "center", "matmul", "split", "wide"))
        )
        if kind == "update":
            row = draw(st.integers(0, _SIDE - 2))
            made.append(b.call(ops.update, operand(viewed=False), rows(operand(viewed=False), 1, 2), row=row))
        elif kind in ("add", "matmul"):
            made.append(b.call(getattr(ops, kind), operand(), operand()))
        elif kind == "split":
            made += b.call(ops.split, operand())
        elif kind == "wide":  # a value that its node sees in another shape than the state has
            flat = transposed(reshaped(operand(viewed=False), _SIDE // 2, 2 * _SIDE))
            made.append(reshaped(b.call(ops.copy, flat), _SIDE, _SIDE))
        else:
            made.append(b.call(getattr(ops, kind), operand()))
    new = {}
    for name in names:
        if draw(st.integers(0, 5)):
            ref = draw(st.sampled_from([*made, *made[-4:], *made[-2:]]))
            new[name] = transposed(ref) if not draw(st.integers(0, 5)) else ref
    outputs = draw(st.lists(st.sampled_from(made), max_size=3))
    return b.graph(*outputs, new_state=new)


def values(graph, seed=0):
    """Random inputs and weights of a graph, small integers over four: sums and products of a few are exact."""
    rng = np.random.default_rng(seed)
    return {
        b.name: (rng.integers(-8, 9, b.spec.shape) / 4).astype(np.float32)
        for b in graph.buffers
        if b.kind in ("input", "weight")
    }


def states(graph, seed=1):
    """Random state of a graph."""
    rng = np.random.default_rng(seed)
    return {
        i: (rng.integers(-8, 9, b.nbytes // 4) / 4).astype(np.float32).view(np.uint8) for i, b in graph.of_kind("state")
    }
