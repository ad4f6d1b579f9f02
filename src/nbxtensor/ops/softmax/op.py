"""softmax and log_softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits, kind
from nbxtensor.errors import DtypeError
from nbxtensor.op import Array, Call, Case, Cost, Expression, Kernel, Launch, Spec, declare
from nbxtensor.op.kernel_text import tiles
from nbxtensor.op.prologue import Prologue, evaluate_prologue
from nbxtensor.op.row_text import RowText

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["log_softmax", "softmax"]

_FLOPS = 17  # largest, difference, exponential (12), sum, scale


def _result(call: Call) -> Spec:
    value = Prologue(call).spec
    shapes.normalize_axis(call.params["axis"], len(value.shape), op=call.op.name)
    dtype = call.params["dtype"] or value.dtype
    for name in (value.dtype, dtype):
        if kind(name) != "float" or bits(name) < 16:
            raise DtypeError(
                f"{call.op.name}: floats of 16 bits or more. Got {value.dtype} to {dtype}. astype converts the operand."
            )
    return Spec(value.shape, dtype)


def _text(call: Call) -> RowText:
    prologue, axis = Prologue(call), call.params["axis"]
    result = call.outputs[0]
    layouts = {"o": result.strides, **prologue.layouts(call)}
    axis = shapes.normalize_axis(axis, result.ndim, op=call.op.name)
    return RowText(
        f"{call.op.name}_kernel",
        result.shape,
        axis,
        layouts,
        "x",
        tiles(call.target, *(call[name].dtype for name in prologue.names), result.dtype),
    )


def _launch(call: Call) -> tuple[Launch, ...]:
    if not call.outputs[0].numel:
        return ()
    prologue, text, dtype = Prologue(call), _text(call), call.outputs[0].dtype
    compute = "float64" if "float64" in (prologue.spec.dtype, dtype) else "float32"
    text.imports.append("from nbxtensor.ops.softmax import kernel as f")
    text.arguments |= {"o": call.output(), **prologue.arguments(call)}
    text.begin()
    text.repeat(2)  # the largest, and the sum

    def value() -> None:
        (result,) = text.compute(prologue.expression, list(prologue.pointers()))
        cast = result if prologue.spec.dtype == compute else f"tl.cast({result}, tl.{compute})"
        text.line("v = " + text.padded(cast, 'float("-inf")'))

    def store() -> None:
        text.store("o", f"tl.cast(f.{call.op.name}(v, high, total), tl.{dtype})")

    if text.whole:
        with text.walk():
            value()
            text.line(f"high = f.highest(v, {text.dim})")
            text.line(f"total = f.weight(v, high, {text.dim})")
            store()
    else:
        text.line(f'high = tl.full({text.single}, float("-inf"), tl.{compute})')
        text.line(f"total = tl.full({text.single}, 0.0, tl.{compute})")
        with text.walk():
            value()
            text.line(f"high, total = f.join(high, total, v, {text.dim})")
        with text.walk():
            value()
            store()
    return (text.launch(text.programs, warps=text.warps),)


def _cost(call: Call) -> Cost:
    if not call.outputs[0].numel:
        return Cost(0, 0, 0)
    walks = 1 if _text(call).whole else 2
    flops = (_FLOPS + Prologue(call).flops) * call.outputs[0].numel
    again = (walks - 1) * call.operand_nbytes
    return Cost(flops, walks * call.operand_nbytes, call.result_nbytes, again=again)


def _reference(finish: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def evaluate(
        x: Array,
        axis: int = -1,
        *,
        dtype: str | None = None,
        prologue: Expression | None = None,
        extras: Sequence[Any] = (),
        scalars: Sequence[float] = (),
    ) -> Array:
        value = evaluate_prologue(x, prologue, extras, scalars).astype(np.float64)
        shifted = value - np.max(value, axis=axis, keepdims=True, initial=-np.inf)
        return finish(shifted, np.sum(np.exp(shifted), axis=axis, keepdims=True))

    return evaluate


def _shares(shifted: Array, total: Array) -> Array:
    return np.asarray(np.exp(shifted) / total)


def _logarithms(shifted: Array, total: Array) -> Array:
    return np.asarray(shifted - np.log(total))


_KERNELS = (Kernel("rows", _cost, _launch, strided=True),)


def _case(
    shape: tuple[int, ...], dtype: str, axis: int, strides: tuple[int, ...] = (), fill: str = "", **more: Any
) -> Case:
    return Case({"x": Spec(shape, dtype, strides)}, {"axis": axis, **more}, fill={"x": fill} if fill else {})


_CASES = (
    _case((5, 37), "float32", -1),
    _case((3, 4096), "float32", 1),
    _case((4, 130), "float16", 1),
    _case((7, 65), "bfloat16", -1),
    _case((6, 33), "float64", 1),
    _case((2, 9001), "float32", -1),
    _case((2, 20000), "float16", -1),
    _case((2, 3, 4, 50), "float32", 3, (600, 50, 150, 1)),
    _case((70, 33), "float32", 0),
    _case((3, 40, 5), "float16", 1),
    _case((3, 500, 130), "float32", 1),
    _case((6, 50), "float32", 1, (1, 6)),
    _case((5, 40), "float32", -1, (60, 1)),
    _case((4, 40), "float32", -1, (0, 1)),
    _case((9, 20), "float32", 1, fill="special"),
    _case((2, 9000), "float32", 1, fill="special"),
    Case({"x": Spec((5, 60), "float16")}, {"axis": 1, "dtype": "float32"}),
    _case((1,), "float32", 0),
    _case((4, 1), "float32", 1),
    _case((0, 5), "float32", 1),
    _case((3, 0), "float32", 1),
    Case({"x": Spec((2048, 4096), "float32")}, {"axis": -1}, bench=True),
)


@declare(result=_result, reference=_reference(_shares), kernels=_KERNELS, cases=_CASES)
def softmax(
    x: Tensor,
    axis: int = -1,
    *,
    dtype: str | None = None,
    prologue: Expression | None = None,
    extras: Sequence[Tensor] = (),
    scalars: tuple[float, ...] = (),
) -> Tensor:
    """Return ``exp(x) / sum(exp(x))`` along an axis; the half formats compute in float32.

    A row of nothing but -inf has no shares: it gives NaN.

    Args:
        x: A float tensor.
        axis: The axis whose elements share 1.
        dtype: Dtype of the result; left out, that of ``x``.
        prologue: What is computed from ``x`` and ``extras`` first, in the same kernel.
        extras: Other inputs of ``prologue``; all broadcast to one shape.
        scalars: Numbers of ``prologue``.

    Raises:
        DtypeError: An operand or ``dtype`` is no float of 16 bits or more, or does not fit the prologue.
        BoundsError: The axis is out of range.
    """
    raise NotImplementedError


@declare(result=_result, reference=_reference(_logarithms), kernels=_KERNELS, cases=_CASES)
def log_softmax(
    x: Tensor,
    axis: int = -1,
    *,
    dtype: str | None = None,
    prologue: Expression | None = None,
    extras: Sequence[Tensor] = (),
    scalars: tuple[float, ...] = (),
) -> Tensor:
    """Return ``log(softmax(x))`` along an axis without overflow on the way. Arguments are those of `softmax`."""
    raise NotImplementedError
