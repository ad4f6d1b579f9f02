"""Writing a function down as a graph by calling it on tensors that stand for values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import ArgumentError, CaptureError, DtypeError, ShapeError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Op, Spec
from nbxtensor.planning.bounds import Bounds, Symbolic
from nbxtensor.planning.graph import Graph, GraphBuffer, Node, Ref, constant
from nbxtensor.shape import Dim
from nbxtensor.tensor import Tensor

__all__ = ["trace"]

_RESERVED = "folded."  # what values computed at load time are called


def trace(
    fn: Callable[..., Any],
    *specs: Spec | Tensor,
    weights: Mapping[str, Spec | Tensor] | None = None,
    state: Mapping[str, Spec | Tensor] | None = None,
    name: str = "",
) -> Graph:
    """Return the graph of ``fn``: every op it calls, in order, over values of known shape and dtype.

    ``fn`` is called once, as ``fn(*inputs)``, with the weights and the state before the inputs where they are given:
    ``fn(weights, state, *inputs)``. It may use any op and any view; tensors with values that it closes over become
    constants of the graph.

    State is what outlives a run in device memory (a key-value cache, a position, a counter). ``fn`` changes none of
    it: it returns the new values beside its outputs, and a plan writes each where the old one lay.

    Args:
        fn: A function of tensors that returns a tensor, or a tuple or list of tensors; with state, a pair of that and
            a mapping from the name of every state to its value after the run.
        specs: Shape and dtype of each input (of a tensor, only these are taken). Where a shape has a `nbxtensor.Dim`,
            the graph is that of the largest extents, and ``fn`` is called again for each other value that is planned.
        weights: Shape and dtype of each weight by name: values given once, when a plan is loaded.
        state: Shape and dtype of each state by name; zeros when a plan is loaded.
        name: What the graph is called; left out, the function's name.

    Raises:
        CaptureError: ``fn`` reads a value on the host (``item``, ``numpy``, ``bool``), or returns something else than
            tensors of this trace, or no new value for a state.
        ArgumentError: ``fn`` is no function, an input is neither a spec nor a tensor, or weights or state are no
            mapping from names that the library does not use itself ("folded." and a number).
        ShapeError: The new value of a state has another shape.
        DtypeError: The new value of a state has another dtype.

    >>> import nbxtensor as nbx
    >>> print(len(nbx.trace(lambda x: nbx.relu(x) + 1, nbx.Spec((4,), "float32")).nodes))
    2
    >>> def total(state, x):
    ...     new = state["sum"] + x
    ...     return new, {"sum": new}
    >>> x = nbx.Spec((2,), "float32")
    >>> program = nbx.plan(nbx.trace(total, x, state={"sum": x})).load()
    >>> _, twice = (program(nbx.ones(2)) for _ in range(2))
    >>> print(twice.tolist())
    [2.0, 2.0]
    """
    if not callable(fn):
        raise ArgumentError(f"trace: a function. Got {type(fn).__name__}.")
    fixed = [_named(words, x) for words, x in (("weights", weights), ("state", state)) if x is not None]
    bounds = _bounds(specs, [item for named in fixed for item in named.items()])
    if bounds is not None:
        most, given = bounds, tuple(Spec(_plain(s), s.dtype) for s in specs)

        def at(values: Mapping[str, int]) -> Graph:
            shapes = [list(spec.shape) for spec in given]
            for number, axis, dim in most.axes:
                shapes[number][axis] = values[most.names[dim]]
            smaller = [Spec(tuple(shape), spec.dtype) for shape, spec in zip(shapes, given, strict=True)]
            return trace(fn, *smaller, weights=weights, state=state, name=name)

        return replace(at(bounds.largest), symbolic=Symbolic(bounds, at))
    recorder = _Recorder()
    first = [
        {key: recorder.declare(kind, key, value) for key, value in given.items()}
        for kind, given in (("weight", weights), ("state", state))
        if given is not None
    ]
    inputs = [recorder.declare("input", f"input{i}", spec) for i, spec in enumerate(specs)]
    try:
        result = fn(*first, *inputs)
    finally:
        recorder.open = False
    new_state: dict[str, Ref] = {}
    if state is not None:
        result, new = _pair(result, state)
        new_state = {key: recorder.new_value(key, first[-1][key], new[key]) for key in first[-1]}
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    refs: list[Ref] = []
    for output in outputs:
        if not isinstance(output, Tensor):
            raise CaptureError(f"trace: a function of tensors returns tensors. Got {type(output).__name__}.")
        refs.append(recorder.ref(output))
    title = name or getattr(fn, "__name__", "graph").strip("<>")
    return Graph(tuple(recorder.buffers), tuple(recorder.nodes), tuple(refs), title, new_state).check()


def _plain(value: Spec | Tensor) -> tuple[int, ...]:
    return tuple(map(int, value.shape))


def _bounds(specs: Sequence[Spec | Tensor], fixed: Sequence[tuple[str, Spec | Tensor]]) -> Bounds | None:
    """Return the dims of inputs; None where there are none."""
    for name, value in fixed:
        found = [x for x in value.shape if isinstance(x, Dim)] if isinstance(value, Spec) else []
        if found:
            raise ArgumentError(f"trace: inputs have dims, weights and state do not. Got {found[0]!r} for {name!r}.")
    dims: dict[str, Dim] = {}
    axes: list[tuple[int, int, int]] = []
    for number, spec in enumerate(specs):
        for axis, extent in enumerate(spec.shape if isinstance(spec, Spec) else ()):
            if isinstance(extent, Dim):
                first = dims.setdefault(extent.name, extent)
                if (first.min, first.max) != (extent.min, extent.max):
                    raise ArgumentError(f"trace: dims of one name have one pair of bounds. Got {first!r}, {extent!r}.")
                axes.append((number, axis, list(dims).index(extent.name)))
    if not dims:
        return None
    for number, spec in enumerate(specs):
        if not isinstance(spec, (Spec, Tensor)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"trace: an input is a Spec or a tensor. Got {type(spec).__name__} for input{number}.")
    known = dims.values()
    return Bounds(tuple(dims), tuple(d.min for d in known), tuple(d.max for d in known), tuple(axes))


def _named(words: str, given: Mapping[str, Spec | Tensor]) -> Mapping[str, Spec | Tensor]:
    if not isinstance(given, Mapping):
        raise ArgumentError(f"trace: {words} are a mapping from names to specs. Got {type(given).__name__}.")
    for name in given:
        if not isinstance(name, str) or not name or name.startswith(_RESERVED):
            raise ArgumentError(f"trace: {words} have names that do not start with {_RESERVED!r}. Got {name!r}.")
    return given


def _pair(result: Any, state: Mapping[str, Spec | Tensor]) -> tuple[Any, Mapping[str, Any]]:
    """Return what a function with state returned as (outputs, new values), after checking that every state has one."""
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
    if not pair:
        raise CaptureError(
            "trace: a function with state returns its outputs and a mapping from every state to its new value. "
            f"Got {type(result).__name__}."
        )
    outputs, new = result
    if set(new) != set(state):
        lacking, odd = sorted(set(state) - set(new)), sorted(map(str, set(new) - set(state)))
        raise CaptureError(
            f"trace: every state has a new value, the old one where it does not change. Got none for "
            f"{', '.join(lacking) or 'no state'}, and what is no state: {', '.join(odd) or 'nothing'}."
        )
    return outputs, new


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
        """Return the tensor that stands for an input, a weight or a state."""
        spec = given.spec if isinstance(given, Tensor) else given
        if not isinstance(spec, Spec):
            raise ArgumentError(f"trace: an input is a Spec or a tensor. Got {type(given).__name__} for {name}.")
        spec = spec.packed()
        self.buffers.append(GraphBuffer(spec.nbytes, kind, name, spec))
        return Tensor(_Symbol(self, len(self.buffers) - 1), spec)

    def new_value(self, name: str, state: Tensor, value: Any) -> Ref:
        """Return the new value of a state after checking it."""
        if not isinstance(value, Tensor):
            raise CaptureError(f"trace: the new value of a state is a tensor. Got {type(value).__name__} for {name!r}.")
        if value.shape != state.shape:
            raise ShapeError(f"trace: state {name!r} keeps its shape {state.shape}. Got {value.shape}.")
        if value.dtype != state.dtype:
            raise DtypeError(f"trace: state {name!r} stays {state.dtype}. Got {value.dtype}. astype converts.")
        return self.ref(value)

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
