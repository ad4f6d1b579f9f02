"""A graph as plain data: buffers, nodes in execution order, and the views through which nodes see buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import PlanError
from nbxtensor.op import Array, Call, Op, Spec, Target
from nbxtensor.planning.bounds import Symbolic
from nbxtensor.planning.document import RUNTIME

__all__ = ["Graph", "GraphBuffer", "Node", "Ref"]

Kind = Literal["input", "weight", "constant", "temporary", "state"]


@dataclass(frozen=True, slots=True)
class GraphBuffer:
    """A piece of memory that nodes read and write.

    Attributes:
        nbytes: Size in bytes.
        kind: "input" (filled before each run), "weight" (filled once by name), "constant" (its value is in the
            graph), "temporary" (written by a node), "state" (lives from run to run).
        name: Name of an input, a weight or a state, unique within its kind; "" for the others.
        spec: Layout in which an input, weight, constant or named state is given; None for temporaries.
        value: The elements of a constant, as the dtype's numpy carrier.
    """

    nbytes: int
    kind: Kind
    name: str = ""
    spec: Spec | None = None
    value: Array | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Ref:
    """A view of a buffer: what a node or a caller sees of it.

    Attributes:
        buffer: Index of the buffer in the graph.
        spec: Shape, dtype and strides of the view.
        offset: Elements from the buffer's start to the view's first element.
    """

    buffer: int
    spec: Spec
    offset: int = 0

    def __str__(self) -> str:
        """Return the view as text: buffer, dtype and shape, then offset and strides where it is not packed from 0."""
        text = f"b{self.buffer} {self.spec.dtype}{list(self.spec.shape)}"
        text += f" at {self.offset}" if self.offset else ""
        return text if self.spec.is_contiguous else f"{text} by {list(self.spec.strides)}"

    @property
    def span(self) -> tuple[int, int]:
        """First byte of the buffer the view touches, and the byte after the last one."""
        width = bits(self.spec.dtype)
        if not self.spec.numel:
            start = self.offset * width // 8
            return start, start
        low = self.offset + sum(min(s * (n - 1), 0) for n, s in zip(self.spec.shape, self.spec.strides, strict=True))
        extent = shapes.extent_span(self.spec.shape, self.spec.strides)
        return low * width // 8, -(-(low + extent) * width // 8)


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an op on views of buffers.

    Attributes:
        op: The op.
        operands: View of each operand by name, as `Op.bind` names them.
        outputs: View each result is written to.
        params: The other parameters.
    """

    op: Op
    operands: Mapping[str, Ref]
    outputs: tuple[Ref, ...]
    params: Mapping[str, object]

    def call(self, target: Target | None = None) -> Call:
        """Return the call the node makes, with its results as they are laid out, and which lie on an operand."""
        inputs = {name: ref.spec for name, ref in self.operands.items()}
        operands = {ref: name for name, ref in reversed(tuple(self.operands.items()))}
        in_place = {i: operands[ref] for i, ref in enumerate(self.outputs) if ref in operands}
        return Call(self.op, inputs, self.params, target, tuple(r.spec for r in self.outputs), in_place)


@dataclass(frozen=True, slots=True)
class Graph:
    """What a function does, written down: nodes in execution order over buffers.

    Attributes:
        buffers: Every buffer; a `Ref` names one by its index.
        nodes: The calls, each after those that write what it reads.
        outputs: What the function returns, in order.
        name: What the graph is called in messages and pictures.
        new_state: What a run leaves in each state it changes, by the state's name. All nodes and outputs see what the
            state held before the run, until `planning.state.settle` has turned these into nodes that write to it.
        symbolic: The dims of a traced graph, and how it is traced at another value; None for one without dims. Passes
            drop it, and it is no part of the graph's data.
    """

    buffers: tuple[GraphBuffer, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    name: str = "graph"
    new_state: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    symbolic: Symbolic | None = field(default=None, compare=False, repr=False, metadata=RUNTIME)

    def __reduce__(self) -> NoReturn:
        """Refuse: pickle has no way to the ops' functions.

        Raises:
            PlanError: Always; names what writes a plan down.
        """
        raise PlanError(f"{self.name}: a graph is not pickled. save_plan writes its plan as text, load_plan reads it.")

    @property
    def leaving(self) -> tuple[Ref, ...]:
        """What is still read when all nodes have run: the outputs and the new values of states."""
        return (*self.outputs, *self.new_state.values())

    def of_kind(self, kind: Kind) -> Iterator[tuple[int, GraphBuffer]]:
        """Yield (index, buffer) of every buffer of ``kind``, in order."""
        return ((i, b) for i, b in enumerate(self.buffers) if b.kind == kind)

    def __str__(self) -> str:
        """Return the graph as text: a line per buffer that comes from outside, per node and for the outputs."""
        lines = [f"{self.name}: {len(self.buffers)} buffers, {len(self.nodes)} nodes"]
        for index, buffer in enumerate(self.buffers):
            if buffer.kind != "temporary":
                view = f" {Ref(index, buffer.spec)}" if buffer.spec else f" b{index}"
                lines.append(f"  {buffer.kind}{view}{' ' + buffer.name if buffer.name else ''}, {buffer.nbytes} bytes")
        for place, node in enumerate(self.nodes):
            given = [f"{name}={ref}" for name, ref in node.operands.items()]
            given += [f"{name}={value!r}" for name, value in node.params.items()]
            results = ", ".join(str(ref) for ref in node.outputs)
            lines.append(f"  {place}: {results} = {node.op.name}({', '.join(given)})")
        lines.append(f"  return {', '.join(str(ref) for ref in self.outputs)}")
        lines += (f"  state {name} <- {ref}" for name, ref in self.new_state.items())
        return "\n".join(lines)

    def check(self) -> Graph:
        """Return the graph itself after checking it.

        Raises:
            PlanError: A view outside its buffer, a temporary read before it is written, a buffer that is written but
                is an input, weight or constant, a missing spec or value, two inputs of one name, results of
                another shape or dtype than their op makes, or a new value of another than its state's.
        """
        names: set[tuple[str, str]] = set()
        for index, buffer in enumerate(self.buffers):
            if buffer.kind in ("input", "weight", "constant") and buffer.spec is None:
                raise PlanError(f"{self.name}: {buffer.kind} buffer {index} {buffer.name!r} has no spec.")
            if buffer.kind == "constant" and buffer.value is None:
                raise PlanError(f"{self.name}: constant buffer {index} has no value.")
            if buffer.name and (buffer.kind, buffer.name) in names:
                raise PlanError(f"{self.name}: two buffers of kind {buffer.kind} are named {buffer.name!r}.")
            names.add((buffer.kind, buffer.name))
        written = {i for i, b in enumerate(self.buffers) if b.kind != "temporary"}
        for place, node in enumerate(self.nodes):
            where = f"{self.name}, node {place} ({node.op.name})"
            for name, ref in node.operands.items():
                self._inside(ref, f"{where}, operand {name}")
                if ref.buffer not in written:
                    raise PlanError(f"{where}: operand {name} reads buffer {ref.buffer} before anything wrote it.")
            inputs = {name: ref.spec for name, ref in node.operands.items()}
            made = [(spec.shape, spec.dtype) for spec in node.op.call(inputs, node.params).outputs]
            if made != [(ref.spec.shape, ref.spec.dtype) for ref in node.outputs]:
                raise PlanError(f"{where}: writes what the op makes, {made}. Got {[r.spec for r in node.outputs]}.")
            for ref in node.outputs:
                self._inside(ref, f"{where}, result")
                if self.buffers[ref.buffer].kind not in ("temporary", "state"):
                    raise PlanError(f"{where}: writes the {self.buffers[ref.buffer].kind} buffer {ref.buffer}.")
                written.add(ref.buffer)
        for ref in self.leaving:
            self._inside(ref, f"{self.name}, output")
            if ref.buffer not in written:
                raise PlanError(f"{self.name}: output buffer {ref.buffer} is never written.")
        states = {buffer.name: buffer.spec for _, buffer in self.of_kind("state")}
        for name, ref in self.new_state.items():
            spec = states.get(name)
            if spec is None or (spec.shape, spec.dtype) != (ref.spec.shape, ref.spec.dtype):
                raise PlanError(f"{self.name}: a new value is of its state's shape and dtype. Got {ref} for {name!r}.")
        return self

    def _inside(self, ref: Ref, where: str) -> None:
        if not 0 <= ref.buffer < len(self.buffers):
            raise PlanError(f"{where}: no buffer {ref.buffer}. The graph has {len(self.buffers)}.")
        low, high = ref.span
        if low < 0 or high > self.buffers[ref.buffer].nbytes:
            raise PlanError(
                f"{where}: a view stays inside its buffer. Got bytes {low}..{high} of buffer {ref.buffer} "
                f"({self.buffers[ref.buffer].nbytes} bytes)."
            )


def constant(value: Array, spec: Spec) -> GraphBuffer:
    """Return a constant buffer that holds ``value``, laid out row-major as ``spec``."""
    return GraphBuffer(spec.nbytes, "constant", spec=spec.packed(), value=np.ascontiguousarray(value))
