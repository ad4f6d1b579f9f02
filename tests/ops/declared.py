"""One declared case as a graph: the operands are blocks of bytes, and the op is its only node, or works in place."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.ops import harness

from nbxtensor.capture.audit import audit
from nbxtensor.capture.loading import PlanLoader
from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import PlanError
from nbxtensor.op import Call, Kernel, Spec
from nbxtensor.ops.layout.op import copy
from nbxtensor.planning.alias import in_place
from nbxtensor.planning.graph import Graph, GraphBuffer, Node, Ref
from nbxtensor.planning.passes import compact
from nbxtensor.planning.plan import plan
from nbxtensor.run.eager import Layout, layout, ready

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbxtensor.planning.steps import PlanStep
    from nbxtensor.run import Device


def graph_of(call: Call, kernel: Kernel, given: Mapping[str, harness.Laid], *, copied: bool = False) -> Graph:
    """Return the graph that makes ``call`` by ``kernel`` alone, on inputs that are the operands' bytes.

    Args:
        call: The call.
        kernel: The kernel that serves it.
        given: The operands, laid out.
        copied: Whether operands are copied first, where `copy` takes them, so that the op may work in place.
    """
    op = replace(call.op, kernels=(kernel,))
    buffers: list[GraphBuffer] = []
    refs: dict[str, Ref] = {}
    nodes: list[Node] = []

    def add(kind: Any, spec: Spec, name: str = "") -> int:
        buffers.append(GraphBuffer(spec.nbytes, kind, name, spec if kind == "input" else None))
        return len(buffers) - 1

    for name, laid in given.items():
        index = add("input", Spec((laid.block.nbytes,), "uint8"), name)
        refs[name] = Ref(index, laid.spec, laid.start * 8 // bits(laid.spec.dtype))
    for name, ref in tuple(refs.items()) if copied else ():
        if ref.spec.numel and ref.spec.is_contiguous:
            refs[name] = Ref(add("temporary", ref.spec.packed()), ref.spec.packed())
            nodes.append(Node(copy.op, {"x": ref}, (refs[name],), {}))
    outputs = tuple(Ref(add("temporary", spec), spec) for spec in call.outputs)
    nodes.append(Node(op, refs, outputs, call.params))
    return Graph(tuple(buffers), tuple(nodes), outputs, call.op.name).check()


def values_of(given: Mapping[str, harness.Laid]) -> tuple[harness.Values, ...]:
    """Return what the inputs of such a graph are filled with."""
    return tuple(laid.block for laid in given.values())


def audited(call: Call, given: Mapping[str, harness.Laid], device: Device) -> None:
    """Run every kernel that serves ``call``, also in place where it can, with every byte watched.

    Workspace declared a byte smaller than it is has to be found: what is declared is needed.
    """
    for kernel in harness.kernels(call):
        made = plan(graph_of(call, kernel, given), device.target, loader=PlanLoader(device))
        audit(made, *values_of(given))
        for index in range(len(kernel.cost(call).buffers)):
            less = replace(made, steps=tuple(_smaller(step, index) for step in made.steps))
            with pytest.raises(PlanError, match=r"it wrote \d+ other bytes"):
                audit(less, *values_of(given))
        graph = graph_of(call, kernel, given, copied=True)
        shared = compact(in_place(graph, device.target))
        if len(shared.buffers) < len(graph.buffers):
            audit(plan(shared, device.target, loader=PlanLoader(device)), *values_of(given))


def _smaller(step: PlanStep, index: int) -> PlanStep:
    """Return a step whose workspace ``index`` is declared a byte smaller."""
    buffers = list(step.cost.buffers)
    if index >= len(buffers):
        return step
    buffers[index] = replace(buffers[index], nbytes=buffers[index].nbytes - 1)
    return replace(step, cost=replace(step.cost, buffers=tuple(buffers)))


def allocated(call: Call, given: Mapping[str, harness.Laid], device: Device) -> None:
    """Run ``call`` eagerly: what its allocator hands out is what is declared, block for block and byte for byte."""
    allocator, memory = device.allocator, device.backend.memory(device.index)
    blocks = {name: allocator.allocate(laid.block.nbytes) for name, laid in given.items()}
    layouts: dict[str, Layout] = {}
    for name, laid in given.items():
        memory.copy_in(blocks[name].address, laid.block.data)
        aligned = (blocks[name].address + laid.start) % 16 == 0
        layouts[name] = layout(laid.spec, device, aligned=aligned)
    prepared = ready(call.op, layouts, dict(call.params), device)
    declared = [spec.nbytes for spec in call.outputs]
    if any(spec.numel for spec in call.outputs):
        declared += [buffer.nbytes for buffer in call.op.kernel(call).cost(call).buffers]
    allocator.trim()
    allocator.reset_peak()
    gc.disable()  # a collection would free what other tests left
    try:
        live, requests = allocator.live, allocator.requests
        results = prepared.run([blocks[name].address + laid.start for name, laid in given.items()])
        device.backend.synchronize(device.index)
    finally:
        gc.enable()
    assert [result.nbytes for result in results] == declared[: len(results)]
    assert allocator.requests - requests == len(declared)
    assert allocator.peak - live == sum(max(-(-nbytes // 64), 1) * 64 for nbytes in declared)
