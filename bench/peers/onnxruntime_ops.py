"""onnxruntime's way to compute an op: a graph of one node, its inputs and outputs bound to memory beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

from bench.peers import Asked
from bench.race import Contender

_OURS, _MICROSOFT, _OPSET = "", "com.microsoft", 17


@dataclass
class _Graph:
    """One node: its operator, what it is given and its attributes.

    Attributes:
        operator: Name of the operator.
        inputs: Values in the operator's order; None for one that is left out.
        domain: Where the operator is defined.
        attributes: Its attributes.
        opset: Version of the standard operators.
        constants: Positions of inputs that are part of the model, prepared when the session is made.
        value: From the output to the op's result.
        note: How it differs from the op.
        also: Variant's name, for an op that has several.
    """

    operator: str
    inputs: list[np.ndarray | None]
    domain: str = _OURS
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = _OPSET
    constants: tuple[int, ...] = ()
    value: Callable[[np.ndarray], np.ndarray] = np.asarray
    note: str = ""
    also: str = ""


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """Return options for ``threads`` threads and every graph optimisation."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    return options


def contenders(asked: Asked) -> list[Contender]:
    """Return onnxruntime's contenders: one for each graph that computes the op."""
    if asked.op in _MADE:
        graphs = _MADE[asked.op](asked)
    elif asked.op in _POINTWISE and not asked.params:
        graphs = [_Graph(_POINTWISE[asked.op], list(asked.arrays.values()))]
    elif asked.op in _REDUCTIONS and not set(asked.params) - {"axis"}:
        graphs = [_reduction(asked)]
    else:
        return []
    return [_contender(graph, asked.threads) for graph in graphs]


def _contender(graph: _Graph, threads: int) -> Contender:
    names = [f"in{i}" if value is not None else "" for i, value in enumerate(graph.inputs)]
    node = helper.make_node(graph.operator, names, ["out"], domain=graph.domain, **graph.attributes)
    given = {n: np.array(v, order="C") for n, v in zip(names, graph.inputs, strict=True) if v is not None}
    fixed = {names[i] for i in graph.constants}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in given.items()
        if n not in fixed
    ]
    model = helper.make_model(
        helper.make_graph(
            [node],
            graph.operator,
            inputs,
            [helper.make_empty_tensor_value_info("out")],
            [numpy_helper.from_array(given[n], n) for n in sorted(fixed)],
        ),
        opset_imports=[helper.make_opsetid("", graph.opset), helper.make_opsetid(_MICROSOFT, 1)],
        ir_version=10,
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options(threads), ["CPUExecutionProvider"]
    )
    values = {n: v for n, v in given.items() if n not in fixed}
    run, out = bound_run(session, values)
    name = "onnxruntime" + (f" {graph.also}" if graph.also else "")
    return Contender(name, run, lambda _: graph.value(out[0]), graph.note or "outputs bound")


def open_session(model: str | bytes, threads: int) -> onnxruntime.InferenceSession:
    """Return a session of a model, given as a path or as its bytes, on the processor."""
    return onnxruntime.InferenceSession(model, session_options(threads), ["CPUExecutionProvider"])


def bound_run(
    session: onnxruntime.InferenceSession, inputs: Mapping[str, np.ndarray]
) -> tuple[Callable[[], object], tuple[np.ndarray, ...]]:
    """Return a call that runs a session on fixed memory, and the arrays that it writes its outputs to."""
    outputs = tuple(session.run(None, dict(inputs)))
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for described, array in zip(session.get_outputs(), outputs, strict=True):
        binding.bind_output(described.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def run() -> object:
        return session.run_with_iobinding(binding)

    return run, outputs


_POINTWISE = {
    "abs": "Abs", "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "exp": "Exp", "log": "Log",
    "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tanh": "Tanh", "erf": "Erf", "relu": "Relu", "sigmoid": "Sigmoid",
    "negative": "Neg", "reciprocal": "Reciprocal", "floor": "Floor", "ceil": "Ceil", "maximum": "Max",
    "minimum": "Min", "softplus": "Softplus", "softsign": "Softsign", "mish": "Mish", "hardswish": "HardSwish",
}  # fmt: skip
_REDUCTIONS = {
    "sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd",
    "logsumexp": "ReduceLogSumExp", "vector_norm": "ReduceL2", "argmax": "ArgMax", "argmin": "ArgMin",
}  # fmt: skip


def _reduction(asked: Asked) -> _Graph:
    x, axis, operator = asked.arrays["x"], asked.params.get("axis"), _REDUCTIONS[asked.op]
    if asked.op in ("argmax", "argmin"):
        return _Graph(operator, [x], attributes={"axis": -1 if axis is None else axis, "keepdims": 0})
    axes = np.array(list(range(x.ndim)) if axis is None else [axis], np.int64)
    return _Graph(operator, [x, axes], attributes={"keepdims": 0}, opset=18, constants=(1,))


def _softmax(asked: Asked) -> list[_Graph]:
    return [_Graph("Softmax", [asked.arrays["x"]], attributes={"axis": asked.params.get("axis", -1)})]


def _log_softmax(asked: Asked) -> list[_Graph]:
    return [_Graph("LogSoftmax", [asked.arrays["x"]], attributes={"axis": asked.params.get("axis", -1)})]


def _layer_norm(asked: Asked) -> list[_Graph]:
    x = asked.arrays["x"]
    scale = asked.arrays.get("weight", np.ones(x.shape[-1], x.dtype))
    inputs = [x, scale, asked.arrays.get("bias")] if "bias" in asked.arrays else [x, scale]
    attributes = {"axis": -1, "epsilon": asked.params.get("eps", 1e-5)}
    return [_Graph("LayerNormalization", inputs, attributes=attributes, constants=tuple(range(1, len(inputs))))]


def _rms_norm(asked: Asked) -> list[_Graph]:
    x = asked.arrays["x"]
    attributes = {"axis": -1, "epsilon": asked.params.get("eps") or float(np.finfo(np.float32).eps)}
    scale = asked.arrays.get("weight", np.ones(x.shape[-1], x.dtype))
    return [_Graph("SimplifiedLayerNormalization", [x, scale], attributes=attributes, constants=(1,))]


def _silu(asked: Asked) -> list[_Graph]:
    return [_Graph("QuickGelu", [asked.arrays["x"]], _MICROSOFT, {"alpha": 1.0}, note="QuickGelu, alpha 1")]


def _gelu(asked: Asked) -> list[_Graph]:
    x, approximate = asked.arrays["x"], asked.params.get("approximate", "none")
    standard = _Graph("Gelu", [x], attributes={"approximate": approximate}, opset=20, also="Gelu-20")
    own = ("FastGelu" if approximate == "tanh" else "Gelu", _MICROSOFT)
    return [standard, _Graph(own[0], [x], own[1], note=own[0], also=own[0])]


def _matmul(asked: Asked) -> list[_Graph]:
    fixed = (1,) if "y" in asked.weights else ()
    return [_Graph("MatMul", [asked.arrays["x"], asked.arrays["y"]], constants=fixed, note="y packed" if fixed else "")]


def _linear(asked: Asked) -> list[_Graph]:
    inputs = [asked.arrays["x"], asked.arrays["weight"], *([asked.arrays["bias"]] if "bias" in asked.arrays else [])]
    if asked.arrays["x"].ndim != 2:
        return []
    return [_Graph("Gemm", inputs, attributes={"transB": 1}, constants=tuple(range(1, len(inputs))), note="packed")]


def _attention(asked: Asked) -> list[_Graph]:
    q, k, v = asked.arrays["q"], asked.arrays["k"], asked.arrays["v"]
    if "mask" in asked.arrays or set(asked.params) - {"is_causal"}:
        return []
    batch, heads, length, _ = q.shape
    causal = int(asked.params.get("is_causal", False))
    standard = _Graph("Attention", [q, k, v], attributes={"is_causal": causal}, opset=23, also="Attention-23")

    def by_token(x: np.ndarray) -> np.ndarray:
        return x.transpose(0, 2, 1, 3).reshape(batch, x.shape[2], -1)

    def by_head(x: np.ndarray) -> np.ndarray:
        return x.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)

    own = _Graph(
        "MultiHeadAttention", [by_token(q), by_token(k), by_token(v)], _MICROSOFT,
        {"num_heads": heads, "unidirectional": causal}, value=by_head, note="heads side by side in a token's row",
        also="MultiHeadAttention",
    )  # fmt: skip
    return [standard, own] if math.prod(k.shape[:2]) == batch * heads else [standard]


def _copy(asked: Asked) -> list[_Graph]:
    x = asked.arrays["x"]
    order = [int(i) for i in np.argsort([-s for s in x.strides], kind="stable")]
    if x.flags.c_contiguous or not x.transpose(order).flags.c_contiguous:
        return []
    return [_Graph("Transpose", [x.transpose(order)], attributes={"perm": [int(i) for i in np.argsort(order)]})]


_MADE: dict[str, Callable[[Asked], list[_Graph]]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "silu": _silu,
    "gelu": _gelu,
    "matmul": _matmul,
    "linear": _linear,
    "attention": _attention,
    "copy": _copy,
}
