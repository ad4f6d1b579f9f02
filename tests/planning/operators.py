"""Ops declared for the tests of planning, with kernels that exist as declarations only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.op import Buffer, Cost, Kernel, Launch, Pointwise, Spec, Target, declare

TARGET = Target(
    "cpu",
    "test",
    frozenset({"vector"}),
    {
        "memory.copy_bandwidth": 1e10,
        "rates.vector.float32": 1e11,
        "rates.vector.float64": 5e10,
        "rates.matrix.float32": 1e12,
        "launch.seconds": 1e-6,
    },
)


class Tensor:
    """Stands in for the type of tensor parameters."""


def _cost(call):
    return Cost(2 * call.outputs[0].numel, call.operand_nbytes, call.result_nbytes)


def _one_launch(call):
    arguments = {f"{name}_ptr".replace(".", "_"): call.input(name) for name in call.inputs}
    arguments |= {f"out{i}_ptr": call.output(i) for i in range(len(call.outputs))}
    return (Launch(f"{call.op.name}_kernel", (1,), {**arguments, "n": call.outputs[0].numel}, {"BLOCK": 64}),)


def _plain(name):
    return (Kernel(f"{name}_kernel", _cost, _one_launch, strided=name != "center"),)


def _broadcast(call):
    shape = shapes.broadcast_shapes(*(s.shape for s in call.inputs.values()))
    return Spec(shape, next(iter(call.inputs.values())).dtype)


def _how(call):
    names = tuple(n for n in call.op.operands if n in call.inputs)
    return Pointwise("tests:none", names, ("float32",) * len(names))


def _pointwise(reference, name, result=_broadcast):
    return declare(result=result, reference=reference, kernels=_plain(name), cases=(), pointwise=_how)


@_pointwise(np.add, "add")
def add(x: Tensor, y: Tensor) -> Tensor:
    """Return the sum."""


@_pointwise(lambda x: np.maximum(x, 0), "relu")
def relu(x: Tensor) -> Tensor:
    """Return the positive part."""


@_pointwise(lambda x, *, factor=2.0: x * factor, "scale")
def scale(x: Tensor, *, factor: float = 2.0) -> Tensor:
    """Return the operand times a number."""


@_pointwise(lambda x, *, dtype: x, "cast", result=lambda call: call["x"].with_dtype(call.params["dtype"]))
def cast(x: Tensor, *, dtype: str) -> Tensor:
    """Return the operand in another dtype."""


@declare(result=lambda call: call["x"].packed(), reference=lambda x: x, kernels=_plain("copy"), cases=())
def copy(x: Tensor) -> Tensor:
    """Return the operand, packed."""


@declare(
    result=lambda call: call["x"].packed(),
    reference=lambda x: x - x.max(axis=-1, keepdims=True, initial=-1e30),
    kernels=_plain("center"),
    cases=(),
)
def center(x: Tensor) -> Tensor:
    """Return each row less its largest element: not pointwise."""


def _matmul_launches(call):
    partial = call.workspace("partial", "float32")
    return (
        Launch("matmul_parts", (4,), {"x": call.input("x"), "y": call.input("y"), "partial": partial}),
        Launch("matmul_sum", (1,), {"partial": partial, "out": call.output()}),
    )


def _matmul_cost(call):
    inner = call["x"].shape[1]
    partial = Buffer("partial", 8 * call.outputs[0].numel, 0, 1)
    return Cost(2 * inner * call.outputs[0].numel, call.operand_nbytes, call.result_nbytes, call["x"].dtype, (partial,))


@declare(
    result=lambda call: Spec((call["x"].shape[0], call["y"].shape[1]), call["x"].dtype),
    reference=np.matmul,
    kernels=(Kernel("matmul_kernel", _matmul_cost, _matmul_launches),),
    cases=(),
)
def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Return the product, made in two launches through workspace."""


def _cat_result(call):
    members = call.sequence("tensors")
    return Spec((sum(s.shape[0] for s in members), members[0].shape[1]), members[0].dtype)


def _cat_parts(call):
    places, start = {}, 0
    for name, part in call.inputs.items():
        places[name] = (start * call.outputs[0].strides[0], Spec(part.shape, part.dtype, call.outputs[0].strides))
        start += part.shape[0]
    return places


@declare(
    result=_cat_result,
    reference=np.concatenate,
    kernels=(Kernel("cat_kernel", _cost, _one_launch, parts=_cat_parts),),
    cases=(),
)
def cat(tensors: list[Tensor]) -> Tensor:
    """Return the rows of all operands."""


def _beside_result(call):
    members = call.sequence("tensors")
    return Spec((members[0].shape[0], sum(s.shape[1] for s in members)), members[0].dtype)


def _beside_parts(call):
    places, start = {}, 0
    for name, part in call.inputs.items():
        places[name] = (start, Spec(part.shape, part.dtype, call.outputs[0].strides))
        start += part.shape[1]
    return places


@declare(
    result=_beside_result,
    reference=lambda tensors: np.concatenate(tensors, 1),
    kernels=(Kernel("beside_kernel", _cost, _one_launch, parts=_beside_parts),),
    cases=(),
)
def beside(tensors: list[Tensor]) -> Tensor:
    """Return the columns of all operands."""


def _split_result(call):
    rows, columns = call["x"].shape
    return (Spec((rows, columns), call["x"].dtype), Spec((rows, columns), call["x"].dtype))


@declare(
    result=_split_result,
    reference=lambda x: (np.minimum(x, 0), np.maximum(x, 0)),
    kernels=_plain("split"),
    cases=(),
    pointwise=_how,
)
def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the negative and the positive part."""


@declare(
    result=lambda call: Spec(call.params["shape"], "float32"),
    reference=lambda *, shape, value=1.0, like=None: np.full(shape, value),
    kernels=_plain("full"),
    cases=(),
)
def full(*, shape: tuple[int, ...], value: float = 1.0, like: Tensor | None = None) -> Tensor:
    """Return one number everywhere: an op without operands."""


def _update_cost(call):
    part = call["values"].nbytes
    return Cost(0, part, part) if call.in_place else Cost(0, call["cache"].nbytes + part, call.result_nbytes + part)


def _update_launches(call):
    write = _one_launch(call)[0]
    return (
        (write,)
        if call.in_place
        else (Launch("copy_kernel", (1,), {"x": call.input("cache"), "out": call.output()}), write)
    )


def _update_reference(cache, values, *, row):
    result = np.array(cache)
    result[row : row + values.shape[0]] = values
    return result


@declare(
    result=lambda call: call["cache"].packed(),
    reference=_update_reference,
    kernels=(Kernel("update_kernel", _update_cost, _update_launches, in_place={0: "cache"}),),
    cases=(),
)
def update(cache: Tensor, values: Tensor, *, row: int) -> Tensor:
    """Return the operand with some rows replaced: works in place."""


FUNCTIONS = (add, relu, scale, cast, copy, center, matmul, cat, beside, split, full, update)
OPS = {function.op.name: function.op for function in FUNCTIONS}


def in_family(op, family):
    """Return the op as if it were declared in the folder of ``family``."""
    return replace(op, module=f"nbxtensor.ops.{family}.kernel")
