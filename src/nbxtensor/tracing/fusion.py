"""Fusion: chains of pointwise nodes become one node, and go into the epilogue of the node that feeds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nbxtensor.errors import ArgumentError
from nbxtensor.op import Expression, Scalar
from nbxtensor.ops.pointwise.fused import expression_of, fused, operands_of, scalars_of
from nbxtensor.planning.graph import Graph, Node, Ref

__all__ = ["fuse"]

_MOST_INPUTS = 8  # operands of one fused pointwise node


@dataclass(frozen=True, slots=True)
class _Chain:
    """A pointwise computation: an expression, the view each of its inputs reads, the value of each scalar."""

    expression: Expression
    inputs: tuple[Ref, ...]
    scalars: tuple[float, ...]

    def merged(self) -> _Chain:
        """Return the same computation with every view read once."""
        kept = tuple(dict.fromkeys(self.inputs))
        if len(kept) == len(self.inputs):
            return self
        before, after = len(self.inputs), len(kept)
        place = {i: kept.index(ref) for i, ref in enumerate(self.inputs)}

        def moved(value: int) -> int:
            return place[value] if value < before else value - before + after

        steps = tuple(
            replace(s, arguments=tuple(a if isinstance(a, Scalar) else moved(a) for a in s.arguments))
            for s in self.expression.steps
        )
        outputs = tuple(moved(v) for v in self.expression.outputs)
        dtypes = tuple(r.spec.dtype for r in kept)
        return _Chain(Expression(dtypes, steps, outputs, self.expression.scalars), kept, self.scalars)

    def after(self, producer: _Chain, value: int) -> _Chain:
        """Return ``producer`` followed by this chain, whose input ``value`` it computes."""
        others = self.inputs[:value] + self.inputs[value + 1 :]
        expression = producer.expression.then(self.expression, value)
        return _Chain(expression, producer.inputs + others, producer.scalars + self.scalars).merged()


def fuse(graph: Graph) -> Graph:
    """Return ``graph`` with pointwise nodes fused; its results keep their bits.

    A pointwise node goes into the node that computes one of its operands when that operand has the node's own shape,
    is read nowhere else and is no output: into the epilogue of a node that takes one (a matrix product), else into
    one pointwise node for both. The fused node stands where the later of the two stood.
    """
    fusion = _Fusion(graph)
    for place in range(len(graph.nodes)):
        fusion.visit(place)
    return fusion.result()


class _Fusion:
    """The graph while its nodes are fused, front to back."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node | None] = list(graph.nodes)
        self.chains: dict[int, _Chain] = {}
        self.writer = {ref.buffer: place for place, node in enumerate(graph.nodes) for ref in node.outputs}
        self.readers: Counter[int] = Counter()
        for node in graph.nodes:
            self.readers.update({ref.buffer for ref in node.operands.values()})
        self.kept = {ref.buffer for ref in graph.leaving}

    def visit(self, place: int) -> None:
        """Fuse node ``place``, if it is pointwise, with what feeds it."""
        node = self.nodes[place]
        if node is None or node.op.pointwise is None or len(node.outputs) != 1:
            return
        call = node.call()
        refs = tuple(node.operands[name] for name in operands_of(call))
        chain = _Chain(expression_of(call), refs, scalars_of(call)).merged()
        while True:
            step = self._into_epilogue(place, chain) or self._into_chain(place, chain)
            if step is None:
                break
            if isinstance(step, Node):
                self.nodes[place] = step
                self.chains.pop(place, None)
                return
            chain = step
        self.chains[place] = chain

    def _feeding(self, place: int, chain: _Chain) -> list[tuple[int, int]]:
        """Return (input, node that computes it) of every input that could be fused."""
        output = self._node(place).outputs[0]
        found: list[tuple[int, int]] = []
        for value, ref in enumerate(chain.inputs):
            producer = self.writer.get(ref.buffer)
            if producer is None or self.nodes[producer] is None or self.graph.buffers[ref.buffer].kind != "temporary":
                continue
            whole = (ref,) == self._node(producer).outputs and ref.spec.is_contiguous
            alone = self.readers[ref.buffer] == 1 and ref.buffer not in self.kept
            if whole and alone and ref.spec.shape == output.spec.shape:
                found.append((value, producer))
        return found

    def _into_epilogue(self, place: int, chain: _Chain) -> Node | None:
        for value, producer in self._feeding(place, chain):
            node = self._node(producer)
            if "epilogue" not in node.op.signature.parameters:
                continue
            dtype = chain.inputs[value].spec.dtype
            first = node.params["epilogue"]
            start = first if isinstance(first, Expression) else Expression((dtype,), (), (0,))
            others = chain.inputs[:value] + chain.inputs[value + 1 :]
            taken = [n for n in node.operands if n.startswith("extras.")]
            extras = {f"extras.{len(taken) + i}": ref for i, ref in enumerate(others)}
            before = node.params["scalars"]
            fused_node = replace(
                node,
                operands={**node.operands, **extras},
                outputs=self._node(place).outputs,
                params={
                    **node.params,
                    "epilogue": start.then(chain.expression, value),
                    "scalars": (*_floats(before), *chain.scalars),
                },
            )
            if self._accepted(fused_node):
                self.nodes[producer] = None
                return fused_node
        return None

    def _into_chain(self, place: int, chain: _Chain) -> _Chain | None:
        for value, producer in self._feeding(place, chain):
            if producer in self.chains:
                longer = chain.after(self.chains[producer], value)
                if len(longer.inputs) <= _MOST_INPUTS:
                    self.nodes[producer] = None
                    del self.chains[producer]
                    return longer
        return None

    def _accepted(self, node: Node) -> bool:
        try:
            call = node.op.call({n: r.spec for n, r in node.operands.items()}, node.params)
        except ArgumentError:  # more operands or scalars than an epilogue has room for
            return False
        return call.outputs == tuple(r.spec for r in node.outputs)

    def _node(self, place: int) -> Node:
        node = self.nodes[place]
        if node is None:
            raise ArgumentError(f"fuse: node {place} is fused already.")
        return node

    def result(self) -> Graph:
        """Return the graph of what is left."""
        nodes: list[Node] = []
        for place, node in enumerate(self.nodes):
            if node is None:
                continue
            chain = self.chains.get(place)
            nodes.append(_fused_node(chain, node.outputs) if chain and len(chain.expression.steps) > 1 else node)
        return replace(self.graph, nodes=tuple(nodes))


def _fused_node(chain: _Chain, outputs: tuple[Ref, ...]) -> Node:
    operands: Mapping[str, Ref] = {f"operands.{i}": ref for i, ref in enumerate(chain.inputs)}
    return Node(fused(chain.expression), operands, outputs, {"scalars": chain.scalars})


def _floats(values: object) -> tuple[float, ...]:
    return tuple(values) if isinstance(values, (tuple, list)) else ()
