"""A graph run on numpy arrays by the references of its ops: the oracle of graph passes, never a way to run a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nbxtensor.dtype.convert import convert, pack, unpack
from nbxtensor.dtype.itemsize import bits, kind, numpy_dtype
from nbxtensor.errors import ArgumentError, ShapeError, UnsupportedError
from nbxtensor.op import Array, Spec
from nbxtensor.planning.graph import Graph, GraphBuffer, Node, Ref

__all__ = ["interpret"]

Bytes = npt.NDArray[np.uint8]
_POISON = 0xFF  # a NaN in every float: what reads memory that nothing wrote shows


def interpret(graph: Graph, values: Mapping[str, Array], state: Mapping[int, Bytes] | None = None) -> tuple[Array, ...]:
    """Return the outputs of ``graph``, computed by the references of its ops in float64.

    Every buffer is a block of bytes and every view is read and written through its offset and strides, as a device
    would; temporaries begin as poison. A result is rounded to its dtype when it is stored.

    Args:
        graph: The graph.
        values: The inputs and weights by name, each as the numpy carrier of its dtype.
        state: The bytes of each state buffer by index, written in place; zeros where left out.

    Returns:
        Packed arrays, each the carrier of its output's dtype.

    Raises:
        ArgumentError: A value is missing, or is not the carrier of its dtype.
        ShapeError: A value, or what a reference returns, has another shape than its spec.
        UnsupportedError: A view of elements narrower than a byte that is not packed from a byte on.
    """
    memory: list[Bytes] = []
    for index, buffer in enumerate(graph.buffers):
        if buffer.kind == "state":
            given = (state or {}).get(index)
            memory.append(np.zeros(buffer.nbytes, np.uint8) if given is None else given)
            continue
        block = np.full(buffer.nbytes, _POISON, np.uint8)
        memory.append(block)
        if buffer.spec is not None:
            _write(block, Ref(index, buffer.spec), _given(graph, buffer, values))
    for node in graph.nodes:
        _run(graph, node, memory)
    outputs = tuple(_read(memory[ref.buffer], ref) for ref in graph.outputs)
    found = {name: _read(memory[ref.buffer], ref) for name, ref in graph.new_state.items()}
    for index, buffer in graph.of_kind("state"):
        if buffer.spec is not None and buffer.name in found:
            _write(memory[index], Ref(index, buffer.spec), found[buffer.name])
    return outputs


def _given(graph: Graph, buffer: GraphBuffer, values: Mapping[str, Array]) -> Array:
    value = buffer.value if buffer.kind == "constant" else values.get(buffer.name)
    if value is None:
        raise ArgumentError(f"{graph.name}: every {buffer.kind} has a value. Got none for {buffer.name!r}.")
    return value


def _run(graph: Graph, node: Node, memory: Sequence[Bytes]) -> None:
    arrays = {name: _exact(_read(memory[r.buffer], r), r.spec.dtype) for name, r in node.operands.items()}
    with np.errstate(all="ignore"):
        positional, named = _arguments(node, arrays)
        found = node.op.reference(*positional, **named)
    results: Sequence[Any] = found if isinstance(found, (tuple, list)) else (found,)
    if len(results) != len(node.outputs):
        raise ShapeError(
            f"{graph.name}, {node.op.name}: the reference returns every result. Got {len(results)} "
            f"for {len(node.outputs)}."
        )
    for ref, result in zip(node.outputs, results, strict=True):
        _write(memory[ref.buffer], ref, _rounded(np.asarray(result), ref.spec.dtype))


def _arguments(node: Node, arrays: Mapping[str, Array]) -> tuple[list[Any], dict[str, Any]]:
    """Return the call's arguments as the op's signature takes them, operand sequences put together."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in node.op.signature.parameters.items():
        members = [array for key, array in arrays.items() if key.rpartition(".")[0] == name]
        value = arrays[name] if name in arrays else members or node.params.get(name, parameter.default)
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            positional.append(value)
    return positional, named


def _exact(array: Array, dtype: str) -> Array:
    """Return a carrier as a reference takes it: floats as float64, complex as complex128, all else by value."""
    wide = {"float": "float64", "complex": "complex128"}.get(kind(dtype))
    if wide is None:
        wide = "int8" if dtype == "int4" else "uint8" if dtype == "uint4" else dtype
    return convert(array, dtype, wide)


def _rounded(result: Array, dtype: str) -> Array:
    """Return a reference's result as the carrier of ``dtype``."""
    wide: dict[str, str] = {"f": "float64", "c": "complex128"}
    source = wide.get(result.dtype.kind, str(result.dtype.name))
    return convert(np.asarray(result, numpy_dtype(source)), source, dtype)


def _elements(block: Bytes, ref: Ref) -> Array:
    """Return the elements of a view, writable where they lie."""
    carrier = numpy_dtype(ref.spec.dtype)
    strides = tuple(n * carrier.itemsize for n in ref.spec.strides)
    return np.ndarray(ref.spec.shape, carrier, block.data, ref.offset * carrier.itemsize, strides)


def _packed(block: Bytes, spec: Spec, offset: int) -> Bytes:
    """Return the bytes of a packed view of elements narrower than a byte."""
    width = bits(spec.dtype)
    if not spec.is_contiguous or offset * width % 8:
        raise UnsupportedError(
            f"interpret: elements narrower than a byte are packed from a whole byte on. Got {spec} from element "
            f"{offset}."
        )
    start = offset * width // 8
    return block[start : start + spec.nbytes]


def _read(block: Bytes, ref: Ref) -> Array:
    spec = ref.spec
    if not spec.numel:
        return np.empty(spec.shape, numpy_dtype(spec.dtype))
    if bits(spec.dtype) < 8:
        return unpack(_packed(block, spec, ref.offset), spec.numel).reshape(spec.shape)
    return _elements(block, ref).copy()


def _write(block: Bytes, ref: Ref, value: Array) -> None:
    spec = ref.spec
    if value.dtype != numpy_dtype(spec.dtype):
        raise ArgumentError(
            f"interpret: a value is the carrier of its dtype. Got {value.dtype} for {spec.dtype}. "
            f"{numpy_dtype(spec.dtype)} is accepted."
        )
    if value.shape != spec.shape:
        raise ShapeError(f"interpret: a value has the shape of its spec. Got {value.shape} for {spec.shape}.")
    if not spec.numel:
        return
    if bits(spec.dtype) < 8:
        _packed(block, spec, ref.offset)[...] = pack(value)
    elif any(n > 1 and stride == 0 for n, stride in zip(spec.shape, spec.strides, strict=True)):
        raise ShapeError(f"interpret: what is written has an element of its own for each index. Got {spec}.")
    else:
        _elements(block, ref)[...] = value
