"""Weight packing: linear layers read their weight as panels that are made once, when weights are loaded."""

from __future__ import annotations

from dataclasses import replace

from nbxtensor.errors import UnsupportedError
from nbxtensor.op import Spec, Target
from nbxtensor.ops.layout.op import copy, pad
from nbxtensor.ops.matmul.op import linear, linear_packed
from nbxtensor.ops.matmul.plain import panel_width
from nbxtensor.planning.graph import Graph, GraphBuffer, Node, Ref

__all__ = ["pack"]


def pack(graph: Graph, target: Target) -> Graph:
    """Return ``graph`` with every linear layer on a weight or constant reading packed panels, where ``target`` gains.

    The packing itself is nodes on weights alone, so that the split of a graph into what is done at load and what is
    done in every run (`planning.passes.partition`) moves it to load time.
    """
    width = panel_width(target)
    if width is None:
        return graph
    packing = _Packing(graph, target, width)
    for node in graph.nodes:
        packing.visit(node)
    return replace(graph, buffers=tuple(packing.buffers), nodes=tuple(packing.nodes))


class _Packing:
    """The graph while linear layers are rewritten."""

    def __init__(self, graph: Graph, target: Target, width: int) -> None:
        self.target = target
        self.width = width
        self.buffers = list(graph.buffers)
        self.nodes: list[Node] = []
        self.panels: dict[Ref, Ref] = {}

    def visit(self, node: Node) -> None:
        """Append ``node``, rewritten where it can be."""
        weight = node.operands.get("weight")
        if node.op is not linear.op or weight is None or self.buffers[weight.buffer].kind not in ("weight", "constant"):
            self.nodes.append(node)
            return
        n, k = weight.spec.shape
        count = -(-n // self.width)
        operands = {name: ref for name, ref in node.operands.items() if name != "weight"}
        shape = Spec((count, k, self.width), weight.spec.dtype)
        params = {**node.params, "n": n}
        specs = {"x": node.operands["x"].spec, "panels": shape}
        specs |= {name: ref.spec for name, ref in operands.items() if name != "x"}
        call = replace(linear_packed.op.call(specs, params, self.target), outputs=tuple(r.spec for r in node.outputs))
        try:
            linear_packed.op.kernel(call)
        except UnsupportedError:  # rows that are not evenly spaced, or dtypes its kernel does not take
            self.nodes.append(node)
            return
        if weight not in self.panels:
            self.panels[weight] = self._panels(weight, count, k)
        first = {"x": operands.pop("x"), "panels": self.panels[weight]}
        self.nodes.append(Node(linear_packed.op, {**first, **operands}, node.outputs, params))

    def _panels(self, weight: Ref, count: int, k: int) -> Ref:
        """Append the nodes that pack ``weight``, and return the panels."""
        n, dtype = weight.spec.shape[0], weight.spec.dtype
        rows = weight
        if n % self.width:
            widths = ((0, count * self.width - n), (0, 0))
            rows = self._result(Spec((count * self.width, k), dtype))
            fill = {"pad_width": widths, "mode": "constant", "constant_values": 0}
            self.nodes.append(Node(pad.op, {"x": weight}, (rows,), fill))
        row, column = rows.spec.strides
        turned = Spec((count, k, self.width), dtype, (self.width * row, column, row))
        panels = self._result(turned.packed())
        self.nodes.append(Node(copy.op, {"x": Ref(rows.buffer, turned, rows.offset)}, (panels,), {}))
        return panels

    def _result(self, spec: Spec) -> Ref:
        self.buffers.append(GraphBuffer(spec.nbytes, "temporary"))
        return Ref(len(self.buffers) - 1, spec)
