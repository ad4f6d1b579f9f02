"""Norms into the layers that read them: a row's RMS norm is made by the linear layers' own kernels."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from nbxtensor.op import Target
from nbxtensor.ops.matmul.op import linear, rms_norm_linear
from nbxtensor.ops.matmul.rows import serves_row
from nbxtensor.ops.norm.op import rms_norm
from nbxtensor.planning.graph import Graph, Node

__all__ = ["fold_norms"]


def fold_norms(graph: Graph, target: Target) -> Graph:
    """Return ``graph`` with each RMS norm of one row made by the linear layers that read it, where all of them can.

    What a layer then computes differs from the two nodes by the rounding of the normed row, which is left out: so
    `nbxtensor.plan` does not do it unasked. It is given the graph that this returns, with the target it plans for.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for place, node in enumerate(graph.nodes):
        for ref in node.operands.values():
            readers[ref.buffer].append(place)
    leaving = {ref.buffer for ref in graph.leaving}
    nodes: list[Node | None] = list(graph.nodes)
    for place, node in enumerate(graph.nodes):
        if not _is_plain(node) or node.outputs[0].buffer in leaving:
            continue
        layers = {at: _joined(node, graph.nodes[at]) for at in readers[node.outputs[0].buffer]}
        if layers and all(layer is not None and serves_row(layer.call(target)) for layer in layers.values()):
            nodes[place] = None
            for at, layer in layers.items():
                nodes[at] = layer
    return replace(graph, nodes=tuple(node for node in nodes if node is not None))


def _is_plain(node: Node) -> bool:
    """Return whether a node is an RMS norm with a weight, over the last axis, of what it reads."""
    if node.op is not rms_norm.op or "weight" not in node.operands or len(node.outputs) != 1:
        return False
    extras = any(name.startswith("extras.") for name in node.operands)
    return node.params["prologue"] is None and not extras and len(node.operands["weight"].spec.shape) == 1


def _joined(norm: Node, layer: Node) -> Node | None:
    """Return a layer that norms its operand itself, or None where it is no linear layer on the whole norm."""
    x = norm.operands["x"]
    whole = layer.operands.get("x") == norm.outputs[0] and norm.outputs[0].spec.is_contiguous
    alone = sum(ref.buffer == norm.outputs[0].buffer for ref in layer.operands.values()) == 1
    if layer.op is not linear.op or not (whole and alone) or x.spec.dtype != norm.outputs[0].spec.dtype:
        return None
    others = {name: ref for name, ref in layer.operands.items() if name != "x"}
    operands = {"x": x, "norm": norm.operands["weight"], **others}
    return Node(rms_norm_linear.op, operands, layer.outputs, {**layer.params, "eps": norm.params["eps"]})
