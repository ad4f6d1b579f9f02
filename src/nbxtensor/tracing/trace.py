"""Writing a function down as a graph by calling it on tensors that stand for values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import ArgumentError, CaptureError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Op, Spec
from nbxtensor.planning.graph import Graph, GraphBuffer, Node, Ref, constant
from nbxtensor.tensor import Tensor

__all__ = ["trace"]

_RESERVED = "folded."  # what values computed at load time are called


def trace(
    fn: Callable[..., Any], *specs: Spec | Tensor, weights: Mapping[str, Spec | Tensor] | None = None, name: str = ""
) -> Graph:
    """Return the graph of ``fn``: every op it calls, in order, over values of known shape and dtype.

    ``fn`` is called once, as ``fn(*inputs)``, or ``fn(weights, *inputs)`` where weights are given. It may use any op
    and any view; tensors with values that it closes over become constants of the graph.

    Args:
        fn: A function of tensors that returns a tensor, or a tuple or list of tensors.
        specs: Shape and dtype of each input (of a tensor, only these are taken).
        weights: Shape and dtype of each weight by name: values given once, when a plan is loaded.
        name: What the graph is called; left out, the function's name.

    Raises:
        CaptureError: ``fn`` reads a value on the host (``item``, ``numpy``, ``bool``), or returns something else than
            tensors of this trace.
        ArgumentError: ``fn`` is no function, an input is neither a spec nor a tensor, or weights are no mapping from
            names that the library does not use itself ("folded." and a number).

    >>> import nbxtensor as nbx
    >>> print(len(nbx.trace(lambda x: nbx.relu(x) + 1, nbx.Spec((4,), "float32")).nodes))
    2
    """
    if not callable(fn):
        raise ArgumentError(f"trace: a function. Got {type(fn).__name__}.")
    recorder = _Recorder()
    given = {key: recorder.declare("weight", key, value) for key, value in _named(weights).items()}
    inputs = [recorder.declare("input", f"input{i}", spec) for i, spec in enumerate(specs)]
    try:
        result = fn(*inputs) if weights is None else fn(given, *inputs)
    finally:
        recorder.open = False
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    refs: list[Ref] = []
    for output in outputs:
        if not isinstance(output, Tensor):
            raise CaptureError(f"trace: a function of tensors returns tensors. Got {type(output).__name__}.")
        refs.append(recorder.ref(output))
    title = name or getattr(fn, "__name__", "graph").strip("<>")
    return Graph(tuple(recorder.buffers), tuple(recorder.nodes), tuple(refs), title).check()


def _named(weights: Mapping[str, Spec | Tensor] | None) -> Mapping[str, Spec | Tensor]:
    if weights is None:
        return {}
    if not isinstance(weights, Mapping):
        raise ArgumentError(f"trace: weights are a mapping from names to specs. Got {type(weights).__name__}.")
    for name in weights:
        if not isinstance(name, str) or name.startswith(_RESERVED):
            raise ArgumentError(f"trace: weights have names that do not start with {_RESERVED!r}. Got {name!r}.")
    return weights


class _Symbol:
    """The storage of a traced tensor: one buffer of the graph being written."""

    __slots__ = ("buffer", "recorder")

    def __init__(self, recorder: _Recorder, buffer: int) -> None:
        self.recorder = recorder
        self.buffer = buffer

    def run(self, op: Op, operands: Mapping[str, Tensor], params: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Write one call down."""
        return self.recorder.run(op, operands, params)


class _Recorder:
    """The graph of one trace while it grows."""

    def __init__(self) -> None:
        self.open = True  # until the function has returned
        self.buffers: list[GraphBuffer] = []
        self.nodes: list[Node] = []
        self._constants: dict[tuple[int, Spec, int], int] = {}
        self._kept: list[Tensor] = []  # so that no address is used twice while tracing

    def declare(self, kind: Any, name: str, given: Spec | Tensor) -> Tensor:
        """Return the tensor that stands for an input or a weight."""
        spec = given.spec if isinstance(given, Tensor) else given
        if not isinstance(spec, Spec):
            raise ArgumentError(f"trace: an input is a Spec or a tensor. Got {type(given).__name__} for {name}.")
        spec = spec.packed()
        self.buffers.append(GraphBuffer(spec.nbytes, kind, name, spec))
        return Tensor(_Symbol(self, len(self.buffers) - 1), spec)

    def run(self, op: Op, operands: Mapping[str, Tensor], params: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Write one call down and return tensors that stand for its results."""
        if not self.open:
            raise CaptureError(
                f"{op.name}: a traced tensor lives as long as its trace. Got one of a trace that is over."
            )
        refs = {name: self.ref(tensor) for name, tensor in operands.items()}
        call = op.call({name: ref.spec for name, ref in refs.items()}, params)
        outputs = tuple(Ref(self._buffer(spec), spec) for spec in call.outputs)
        self.nodes.append(Node(op, refs, outputs, dict(params)))
        return tuple(Tensor(_Symbol(self, ref.buffer), ref.spec) for ref in outputs)

    def ref(self, tensor: Tensor) -> Ref:
        """Return what ``tensor`` is in the graph."""
        storage = tensor.storage
        if isinstance(storage, _Symbol):
            if storage.recorder is not self:
                raise CaptureError("trace: a tensor of another trace cannot be used here. Pass it as an input.")
            return Ref(storage.buffer, tensor.spec, tensor.offset)
        if not isinstance(storage, Storage):
            raise CaptureError(f"trace: a tensor. Got one over {type(storage).__name__}.")
        return self._constant(tensor)

    def _buffer(self, spec: Spec) -> int:
        self.buffers.append(GraphBuffer(spec.nbytes, "temporary"))
        return len(self.buffers) - 1

    def _constant(self, tensor: Tensor) -> Ref:
        """Return the constant that holds ``tensor``; the same view twice is one constant."""
        spec = tensor.spec.packed()
        key = (id(tensor.storage), tensor.spec, tensor.offset)
        if key not in self._constants:
            if bits(tensor.dtype) < 8:
                raise CaptureError(f"trace: a constant of {tensor.dtype} cannot be captured. Pass it as a weight.")
            self.buffers.append(constant(np.array(tensor.numpy()), spec))
            self._constants[key] = len(self.buffers) - 1
            self._kept.append(tensor)
        return Ref(self._constants[key], spec)
