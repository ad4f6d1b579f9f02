"""Matrix products: matmul, mm, bmm, linear, addmm, and linear with a packed weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits, is_storage_only
from nbxtensor.dtype.itemsize import kind as dtype_kind
from nbxtensor.errors import DtypeError, ShapeError
from nbxtensor.op import Array, Call, Case, Cost, Expression, Kernel, Spec, declare
from nbxtensor.ops.matmul.plain import is_matvec, matmul_launches, matvec_launch, panel_launch, panels_fit
from nbxtensor.ops.matmul.product import (
    epilogue_flops,
    epilogue_of,
    operand_dtype,
    operand_names,
    product_of,
    runs_on_matrix_unit,
)
from nbxtensor.ops.matmul.rows import row_cost, row_launches, serves_row
from nbxtensor.ops.matmul.tiles import serves_tiles, tile_cost, tile_launches

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["addmm", "bmm", "linear", "linear_packed", "matmul", "mm"]


def _result(call: Call, shape: tuple[int, ...]) -> Spec:
    expression, names, _ = epilogue_of(call)
    for dtype in (*(call[name].dtype for name in names), call.params.get("dtype") or "float32"):
        if is_storage_only(dtype) or dtype_kind(dtype) == "complex":
            raise DtypeError(
                f"{call.op.name}: addends and results are integers, or floats of 16 bits or more. Got {dtype}."
            )
    for name in names:
        if shapes.broadcast_shapes(call[name].shape, shape, op=call.op.name) != shape:
            raise ShapeError(
                f"{call.op.name}: {name} broadcasts to the product's shape {shape}. Got {call[name].shape}."
            )
    return Spec(shape, expression.dtype(expression.outputs[0]))


def _matmul_shape(op: str, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    if min(len(x), len(y)) == 0:
        raise ShapeError(f"{op}: operands of one axis or more. Got shapes {x} and {y}.")
    inner = y[-2:][0]
    if x[-1] != inner:
        raise ShapeError(f"{op}: the last axis of x matches the rows of y. Got shapes {x} and {y}.")
    rows = x[-2:-1] if len(x) > 1 else ()
    columns = y[-1:] if len(y) > 1 else ()
    return (*shapes.broadcast_shapes(x[:-2], y[:-2], op=op), *rows, *columns)


def _matmul_result(call: Call) -> Spec:
    return _result(call, _matmul_shape(call.op.name, call["x"].shape, call["y"].shape))


def _ranked_result(ndim: int) -> Any:
    def rule(call: Call) -> Spec:
        x, y = call["x"].shape, call["y"].shape
        if len(x) != ndim or len(y) != ndim or x[:-2] != y[:-2]:
            raise ShapeError(f"{call.op.name}: two operands of {ndim} axes, equal batches. Got shapes {x} and {y}.")
        return _result(call, _matmul_shape(call.op.name, x, y))

    return rule


def _linear_result(call: Call) -> Spec:
    x, weight = call["x"].shape, call["weight"].shape
    if not x or len(weight) != 2 or x[-1] != weight[1]:
        raise ShapeError(f"{call.op.name}: x [..., inputs] by weight [outputs, inputs]. Got shapes {x} and {weight}.")
    return _result(call, (*x[:-1], weight[0]))


def _packed_result(call: Call) -> Spec:
    x, panels, n = call["x"].shape, call["panels"].shape, call.params["n"]
    fits = len(panels) == 3 and x and x[-1] == panels[1] and 0 <= n <= panels[0] * panels[2]
    if not fits or panels[2] & (panels[2] - 1):
        raise ShapeError(
            f"{call.op.name}: x [..., inputs] by panels [count, inputs, width], the width a power of two, with "
            f"n <= count * width. Got shapes {x} and {panels}, n {n}."
        )
    return _result(call, (*x[:-1], n))


def _cost(call: Call) -> Cost:
    """Two flops per multiply-add, the epilogue's beside them; each operand read once."""
    x = call[operand_names(call)[0]]
    depth = x.shape[-1]
    dtype = operand_dtype(call)
    return Cost(
        flops=2 * depth * call.outputs[0].numel,
        read=call.operand_nbytes,
        written=call.result_nbytes,
        matrix=dtype if runs_on_matrix_unit(dtype, call.device) else None,
        beside=epilogue_flops(call),
    )


def _blocks_cost(call: Call) -> Cost:
    """As above; each block of the result asks for its rows of the left operand and its columns of the right one."""
    p, width = product_of(call), bits(operand_dtype(call)) // 8
    issued = call.result_nbytes
    for launch in matmul_launches(call) if call.outputs[0].numel else ():
        rows, columns = min(launch.constants["BM"], p.m), min(launch.constants["BN"], p.n)
        issued += shapes.numel(launch.grid) * (rows + columns) * p.k * width
    return replace(_cost(call), issued=issued)


def _exact(array: Array) -> Array:
    kind = np.asarray(array).dtype.kind
    return np.asarray(array, np.float64) if kind == "f" else np.asarray(array, np.int64)


def _finished(product: Array, epilogue: Expression | None, extras: Sequence[Array], scalars: Sequence[float]) -> Array:
    return np.asarray(epilogue.evaluate([product, *extras], scalars)[0]) if epilogue else product


def _matmul_reference(
    x: Array, y: Array, *, dtype: str | None = None, epilogue: Expression | None = None,
    extras: Sequence[Array] = (), scalars: Sequence[float] = (),
) -> Array:  # fmt: skip
    product = np.matmul(_exact(x), _exact(y))
    if product.dtype.kind == "i":  # sums wrap around in the result's width
        product = product.astype(dtype or np.result_type(x, y))
    return _finished(product, epilogue, extras, scalars)


def _linear_reference(
    x: Array, weight: Array, bias: Array | None = None, *, epilogue: Expression | None = None,
    extras: Sequence[Array] = (), scalars: Sequence[float] = (),
) -> Array:  # fmt: skip
    product = np.matmul(_exact(x), _exact(weight).T)
    return _finished(product if bias is None else product + _exact(bias), epilogue, extras, scalars)


def _packed_reference(
    x: Array, panels: Array, bias: Array | None = None, *, n: int, epilogue: Expression | None = None,
    extras: Sequence[Array] = (), scalars: Sequence[float] = (),
) -> Array:  # fmt: skip
    weight = np.moveaxis(panels, 1, 2).reshape(-1, panels.shape[1])[:n]
    return _linear_reference(x, weight, bias, epilogue=epilogue, extras=extras, scalars=scalars)


def _addmm_reference(
    addend: Array, x: Array, y: Array, *, beta: float = 1.0, alpha: float = 1.0, epilogue: Expression | None = None,
    extras: Sequence[Array] = (), scalars: Sequence[float] = (),
) -> Array:  # fmt: skip
    product = alpha * np.matmul(_exact(x), _exact(y)) + beta * _exact(addend)
    return _finished(product, epilogue, extras, scalars)


_KERNELS = (
    Kernel("row_kernel", row_cost, row_launches, accepts=serves_row),
    Kernel("tile_kernel", tile_cost, tile_launches, accepts=serves_tiles),
    Kernel("matvec_kernel", _cost, matvec_launch, accepts=is_matvec),
    Kernel("matmul_kernel", _blocks_cost, matmul_launches, strided=True),
)
_PANELS = "floats, evenly spaced rows of x, packed panels"
_PANEL_KERNELS = (Kernel("panel_kernel", _cost, panel_launch, accepts=panels_fit, strided=True, accepted=_PANELS),)

_FLOATS = ("float32", "float16", "bfloat16", "float64")


def _pair(x: tuple[int, ...], y: tuple[int, ...], dtype: str = "float32", **more: Spec) -> dict[str, Spec]:
    return {"x": Spec(x, dtype), "y": Spec(y, dtype), **more}


def _transposed(shape: tuple[int, ...], dtype: str = "float32") -> Spec:
    """Return ``shape`` laid out with its last two axes exchanged."""
    packed = shapes.contiguous_strides((*shape[:-2], shape[-1], shape[-2]))
    return Spec(shape, dtype, (*packed[:-2], packed[-1], packed[-2]))


_MATMUL_CASES = (
    *(Case(_pair((33, 65), (65, 47), d)) for d in _FLOATS),
    *(Case(_pair((16, 33), (33, 20), d), fill={"x": "index:5", "y": "index:7"}) for d in ("int8", "int32", "int64")),
    Case(_pair((31, 70), (70, 13), "int8"), {"dtype": "int32"}),
    Case(_pair((128, 256), (256, 192))),
    Case(_pair((1, 1), (1, 1))),
    Case(_pair((0, 4), (4, 3))),
    Case(_pair((4, 0), (0, 3))),
    Case(_pair((7,), (7,))),
    Case(_pair((7,), (7, 5))),
    Case(_pair((5, 7), (7,))),
    Case(_pair((3, 5, 7), (7,))),
    Case(_pair((7,), (3, 7, 5))),
    Case(_pair((3, 5, 7), (3, 7, 9))),
    Case(_pair((2, 1, 5, 7), (3, 7, 9))),
    Case(_pair((1, 4, 5, 7), (2, 1, 7, 9))),
    Case(_pair((5, 4, 3, 2, 6, 7), (4, 1, 2, 7, 3))),
    Case({"x": _transposed((40, 33)), "y": _transposed((33, 50))}),
    Case({"x": _transposed((2, 40, 33), "float16"), "y": Spec((2, 33, 50), "float16")}),
    Case({"x": Spec((6, 40), "float32", (80, 2)), "y": Spec((40, 8), "float32", (16, 1))}),
    Case({"x": Spec((6, 40), "float32"), "y": Spec((40, 8), "float16")}),
    Case(_pair((1024, 1024), (1024, 1024)), bench=True),
)


@declare(result=_matmul_result, reference=_matmul_reference, kernels=_KERNELS, cases=_MATMUL_CASES)
def matmul(
    x: Tensor, y: Tensor, *, dtype: str | None = None, epilogue: Expression | None = None,
    extras: Sequence[Tensor] = (), scalars: tuple[float, ...] = (),
) -> Tensor:  # fmt: skip
    """Return the matrix product of ``x [..., m, k]`` and ``y [..., k, n]``, batches broadcast.

    A vector counts as one row (``x``) or one column (``y``), and its axis is dropped from the result. Half formats
    accumulate in float32, narrow integers in int32. ``dtype`` is the result's (int32 for int8 operands keeps the
    whole sum); left out, it is the promoted dtype. ``epilogue`` is applied to the result before it is stored: its
    first input is the result, the others are ``extras``, broadcast to it.
    """
    raise NotImplementedError


@declare(
    result=_ranked_result(2),
    reference=_matmul_reference,
    kernels=_KERNELS,
    cases=(Case(_pair((19, 37), (37, 23))), Case({"x": _transposed((19, 37)), "y": _transposed((37, 23))})),
)
def mm(
    x: Tensor, y: Tensor, *, dtype: str | None = None, epilogue: Expression | None = None,
    extras: Sequence[Tensor] = (), scalars: tuple[float, ...] = (),
) -> Tensor:  # fmt: skip
    """Return the product of two matrices; `matmul` for exactly two axes."""
    raise NotImplementedError


@declare(
    result=_ranked_result(3),
    reference=_matmul_reference,
    kernels=_KERNELS,
    cases=(Case(_pair((3, 19, 37), (3, 37, 23))), Case({"x": _transposed((3, 9, 7)), "y": _transposed((3, 7, 5))})),
)
def bmm(
    x: Tensor, y: Tensor, *, dtype: str | None = None, epilogue: Expression | None = None,
    extras: Sequence[Tensor] = (), scalars: tuple[float, ...] = (),
) -> Tensor:  # fmt: skip
    """Return the products of two batches of matrices; `matmul` for exactly three axes and equal batches."""
    raise NotImplementedError


def _affine(x: tuple[int, ...], outputs: int, dtype: str = "float32", *, bias: bool = True) -> dict[str, Spec]:
    specs = {"x": Spec(x, dtype), "weight": Spec((outputs, x[-1]), dtype)}
    return specs | ({"bias": Spec((outputs,), dtype)} if bias else {})


@declare(
    result=_linear_result,
    reference=_linear_reference,
    kernels=_KERNELS,
    cases=(
        *(Case(_affine((17, 33), 21, d)) for d in _FLOATS),
        Case(_affine((2, 9, 40), 24, bias=False)),
        Case(_affine((40,), 24)),
        Case(_affine((1, 384), 100)),
        Case(_affine((3, 700), 65, "bfloat16")),
        Case({"x": Spec((4, 5, 6), "float32", (6, 24, 1)), "weight": Spec((7, 6), "float32")}),
        Case({"x": Spec((4, 6), "float32"), "weight": _transposed((7, 6)), "bias": Spec((7,), "float32")}),
        Case(_affine((128, 384), 1536), bench=True),
    ),
)
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, epilogue: Expression | None = None,
    extras: Sequence[Tensor] = (), scalars: tuple[float, ...] = (),
) -> Tensor:  # fmt: skip
    """Return ``x @ weight.T + bias`` for ``x [..., inputs]``, ``weight [outputs, inputs]``, ``bias [outputs]``.

    The bias is added in the accumulator's dtype, before the one rounding to the result's. ``epilogue`` as in `matmul`.
    """
    raise NotImplementedError


def _panels(x: tuple[int, ...], count: int, width: int, n: int, dtype: str = "float32") -> Case:
    specs = {"x": Spec(x, dtype), "panels": Spec((count, x[-1], width), dtype), "bias": Spec((n,), dtype)}
    return Case(specs, {"n": n})


@declare(
    result=_packed_result,
    reference=_packed_reference,
    kernels=_PANEL_KERNELS,
    cases=(
        _panels((33, 40), 2, 32, 64),
        _panels((2, 9, 65), 2, 32, 50),
        _panels((7, 130), 1, 64, 64, "float16"),
        _panels((130, 96), 3, 64, 190, "bfloat16"),
        _panels((1, 256), 3, 64, 190),
        _panels((5,), 1, 16, 9),
    ),
)
def linear_packed(
    x: Tensor, panels: Tensor, bias: Tensor | None = None, *, n: int, epilogue: Expression | None = None,
    extras: Sequence[Tensor] = (), scalars: tuple[float, ...] = (),
) -> Tensor:  # fmt: skip
    """Return `linear` with a weight kept as panels ``[count, inputs, width]``: ``n`` outputs, ``width`` to a panel.

    Panel p holds weight rows ``p * width`` and on, transposed: ``panels[p, i, j] == weight[p * width + j, i]``; the
    columns past ``n`` are never stored. The packing pass makes them once, when weights are loaded.
    """
    raise NotImplementedError


@declare(
    result=_ranked_result(2),
    reference=_addmm_reference,
    kernels=_KERNELS,
    cases=(
        Case(_pair((19, 37), (37, 23), addend=Spec((23,), "float32")), {"alpha": 0.37, "beta": 1.61}),
        Case(_pair((19, 37), (37, 23), "float16", addend=Spec((19, 23), "float16")), {"alpha": -0.37, "beta": 0.61}),
    ),
)
def addmm(
    addend: Tensor, x: Tensor, y: Tensor, *, beta: float = 1.0, alpha: float = 1.0,
    epilogue: Expression | None = None, extras: Sequence[Tensor] = (), scalars: tuple[float, ...] = (),
) -> Tensor:  # fmt: skip
    """Return ``beta * addend + alpha * (x @ y)`` for matrices, ``addend`` broadcast to the product.

    For integer matrices ``alpha`` and ``beta`` are whole numbers.
    """
    raise NotImplementedError
