"""layer_norm, rms_norm, group_norm, instance_norm and batch_norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor.errors import ShapeError
from nbxtensor.op import Array, Call, Case, Cost, Expression, Kernel, Launch, Number, Spec, declare
from nbxtensor.op.kernel_text import tiles
from nbxtensor.op.prologue import evaluate_prologue
from nbxtensor.op.row_text import RowText
from nbxtensor.ops.norm.groups import group_kernel, group_result
from nbxtensor.ops.norm.rows import check_floats, compute_dtype, row_kernel, row_result

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]


def _axes(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    count = len(normalized_shape) if isinstance(normalized_shape, Sequence) else 1
    return tuple(range(-count, 0))


def _layer_norm(
    x: Array,
    normalized_shape: int | Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    prologue: Expression | None = None,
    extras: Sequence[Any] = (),
    scalars: Sequence[float] = (),
    keep: bool = False,
) -> Any:
    value = evaluate_prologue(x, prologue, extras, scalars)
    axes = _axes(normalized_shape)
    away = value - value.mean(axis=axes, keepdims=True)
    result = away / np.sqrt((away * away).mean(axis=axes, keepdims=True) + eps)
    result = (result if weight is None else result * weight) + (0.0 if bias is None else bias)
    return (result, value) if keep else result


def _rms_norm(
    x: Array,
    normalized_shape: int | Sequence[int],
    weight: Array | None = None,
    eps: float = 1e-6,
    *,
    prologue: Expression | None = None,
    extras: Sequence[Any] = (),
    scalars: Sequence[float] = (),
    keep: bool = False,
) -> Any:
    value = evaluate_prologue(x, prologue, extras, scalars)
    mean = (value * value).mean(axis=_axes(normalized_shape), keepdims=True)
    result = value / np.sqrt(mean + eps) * (1.0 if weight is None else weight)
    return (result, value) if keep else result


# Largest error of a result, relative to the largest one: it is rounded once, and what the bias is added to is off by
# some roundings of the dtype that is computed in, however small the sum.
_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_RTOL = {dtype: error + 16 * _ROUNDOFF[compute_dtype(dtype)] for dtype, error in _ROUNDOFF.items()}


def _of_channels(values: Array | None, ndim: int) -> Any:
    return None if values is None else values.reshape((-1,) + (1,) * (ndim - 2))


def _group_norm(
    x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Array:
    if not x.size:
        return x
    grouped = x.reshape((x.shape[0], groups, -1))
    away = grouped - grouped.mean(axis=2, keepdims=True)
    result = (away / np.sqrt((away * away).mean(axis=2, keepdims=True) + eps)).reshape(x.shape)
    scaled = result if weight is None else result * _of_channels(weight, x.ndim)
    return np.asarray(scaled if bias is None else scaled + _of_channels(bias, x.ndim))


def _instance_norm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5) -> Array:
    return _group_norm(x, x.shape[1], weight, bias, eps)


def _batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    result = (x - _of_channels(mean, x.ndim)) / np.sqrt(_of_channels(variance, x.ndim) + eps)
    scaled = result if weight is None else result * _of_channels(weight, x.ndim)
    return np.asarray(scaled if bias is None else scaled + _of_channels(bias, x.ndim))


_STATISTICS = {"m": "mean", "s": "variance", "w": "weight", "b": "bias"}


def _batch_result(call: Call) -> Spec:
    x = call["x"]
    given = {name: call[name] for name in _STATISTICS.values() if name in call.inputs}
    check_floats(call, x.dtype, *(spec.dtype for spec in given.values()))
    if x.ndim < 2 or any(spec.shape != x.shape[1:2] for spec in given.values()):
        raise ShapeError(
            f"batch_norm: x is [batch, channels, ...], all else [channels]. Got shapes {x.shape} and "
            f"{', '.join(f'{name} {spec.shape}' for name, spec in given.items())}."
        )
    return x.packed()


def _batch_launch(call: Call) -> tuple[Launch, ...]:
    x, result = call["x"], call.outputs[0]
    if not result.numel:
        return ()
    compute = compute_dtype(x.dtype)
    given = {pointer: name for pointer, name in _STATISTICS.items() if name in call.inputs}
    layouts = {"o": result.strides, "x": x.strides}
    layouts |= {p: tuple(call[name].strides[0] if a == 1 else 0 for a in range(x.ndim)) for p, name in given.items()}
    axis = min((a for a in range(x.ndim)), key=lambda a: (x.shape[a] == 1, abs(result.strides[a])))
    text = RowText("batch_norm_kernel", x.shape, axis, layouts, "x", tiles(call.target, x.dtype))
    text.imports.append("from nbxtensor.ops.norm import kernel as f")
    text.arguments |= {"o": call.output(), "x": call.input("x")}
    text.arguments |= {pointer: call.input(name) for pointer, name in given.items()}
    text.arguments["eps"] = Number(float(call.params["eps"]), compute)
    text.begin()
    with text.walk():
        for pointer in ("x", *given):
            text.load(f"{pointer}_v", pointer)
            text.line(f"{pointer}_v = tl.cast({pointer}_v, tl.{compute})")
        text.line(f"scale = f.scale(s_v, eps){' * w_v' if 'w' in given else ''}")
        text.line(f"y = (x_v - m_v) * scale{' + b_v' if 'b' in given else ''}")
        text.store("o", f"tl.cast(y, tl.{result.dtype})")
    return (text.launch(text.programs, warps=text.warps),)


def _batch_cost(call: Call) -> Cost:
    if not call.outputs[0].numel:
        return Cost(0, 0, 0)
    return Cost(4 * call.outputs[0].numel, call.operand_nbytes, call.result_nbytes)


def _rows(
    shape: tuple[int, ...],
    dtype: str,
    count: int = 1,
    strides: tuple[int, ...] = (),
    *,
    bias: bool = True,
    fill: str = "",
) -> Case:
    rows = shape[len(shape) - count :]
    operands = {"x": Spec(shape, dtype, strides), "weight": Spec(rows, dtype)}
    operands |= {"bias": Spec(rows, dtype)} if bias else {}
    return Case(operands, {"normalized_shape": rows}, rtol=_RTOL[dtype])


def _row_cases(*, bias: bool) -> tuple[Case, ...]:
    bench = {"x": Spec((2048, 4096), "float32"), "weight": Spec((4096,), "float32")}
    bench |= {"bias": Spec((4096,), "float32")} if bias else {}
    return (
        _rows((5, 37), "float32", bias=bias),
        _rows((2, 7, 384), "float32", bias=bias),
        _rows((4, 130), "float16", bias=bias),
        _rows((3, 4096), "bfloat16", bias=bias),
        _rows((6, 33), "float64", bias=bias),
        _rows((2, 3, 4, 5), "float32", 2, bias=bias),
        _rows((2, 20000), "float32", bias=bias),
        _rows((2, 9000), "float16", bias=bias),
        _rows((2, 3, 50), "float32", 1, (50, 100, 1), bias=bias),
        _rows((3, 40), "float32", 1, (80, 2), bias=bias),
        _rows((70, 33), "float32", 1, (1, 70), bias=bias),
        _rows((40, 300), "float32", 1, (1, 40), bias=bias),
        _rows((5, 1), "float32", bias=bias),
        _rows((0, 7), "float32", bias=bias),
        Case({"x": Spec((5, 60), "float32")}, {"normalized_shape": 60}),
        Case(
            {"x": Spec((5, 60), "float16"), "weight": Spec((60,), "float32")}, {"normalized_shape": (60,), "eps": 0.5}
        ),
        Case({"x": Spec((5, 60), "float16")}, {"normalized_shape": (60,), "keep": True}),
        Case(bench, {"normalized_shape": (4096,)}, bench=True),
    )


def _images(shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] = (), **params: Any) -> Case:
    operands = {"x": Spec(shape, dtype, strides), "weight": Spec(shape[1:2], dtype), "bias": Spec(shape[1:2], dtype)}
    return Case(operands, params, rtol=_RTOL[dtype])


@declare(result=row_result, reference=_layer_norm, kernels=(row_kernel(centred=True),), cases=_row_cases(bias=True))
def layer_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    prologue: Expression | None = None,
    extras: Sequence[Tensor] = (),
    scalars: tuple[float, ...] = (),
    keep: bool = False,
) -> Tensor:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias``, with mean and variance over the last axes.

    The half formats compute in float32. The variance is that of the deviations, in a second pass.

    Args:
        x: A float tensor.
        normalized_shape: Extents of the last axes, over which mean and variance are taken.
        weight: Of shape ``normalized_shape``; left out, 1.
        bias: Of shape ``normalized_shape``; left out, 0.
        eps: What is added to the variance.
        prologue: What is computed from ``x`` and ``extras`` first, in the same kernel.
        extras: Other inputs of ``prologue``; all broadcast to one shape.
        scalars: Numbers of ``prologue``.
        keep: Whether the value of ``prologue`` is a second result.

    Raises:
        ShapeError: The last axes, a weight or a bias are not ``normalized_shape``.
        DtypeError: An operand is no float of 16 bits or more, or does not fit the prologue.
        UnsupportedError: Several normalised axes do not lie in memory as one.
    """
    raise NotImplementedError


@declare(result=row_result, reference=_rms_norm, kernels=(row_kernel(centred=False),), cases=_row_cases(bias=False))
def rms_norm(
    x: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    prologue: Expression | None = None,
    extras: Sequence[Tensor] = (),
    scalars: tuple[float, ...] = (),
    keep: bool = False,
) -> Tensor:
    """Return ``x / sqrt(mean(x**2) + eps) * weight``, the mean over the last axes.

    The half formats compute in float32. Arguments and errors are those of `layer_norm`.
    """
    raise NotImplementedError


@declare(
    result=group_result,
    reference=_group_norm,
    kernels=(group_kernel(),),
    cases=(
        _images((2, 6, 5, 7), "float32", groups=3),
        _images((2, 8, 9), "float16", groups=2),
        _images((1, 4, 60, 60), "float32", groups=2),
        _images((2, 300, 3), "bfloat16", groups=1),
        _images((2, 320, 8, 8), "float32", groups=2),
        _images((2, 6, 4, 4), "float32", (96, 1, 24, 6), groups=2),
        _images((3, 12), "float64", groups=4),
        _images((0, 4, 3), "float32", groups=2),
        Case({"x": Spec((2, 4, 30), "float32")}, {"groups": 4, "eps": 0.1}),
    ),
)
def group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return ``x`` normalised over each group of channels and all positions, times ``weight`` plus ``bias``.

    Args:
        x: A float tensor [batch, channels, ...].
        groups: Number of groups, which divides the channels.
        weight: One number for each channel; left out, 1.
        bias: One number for each channel; left out, 0.
        eps: What is added to the variance.

    Raises:
        ShapeError: ``x`` has fewer than two axes, or a weight is not one number for each channel.
        ArgumentError: ``groups`` does not divide the channels.
        DtypeError: An operand is no float of 16 bits or more.
        UnsupportedError: The positions of a channel do not lie in memory as one axis.
    """
    raise NotImplementedError


@declare(
    result=group_result,
    reference=_instance_norm,
    kernels=(group_kernel(),),
    cases=(
        _images((2, 3, 5, 7), "float32"),
        _images((2, 3, 40), "float16"),
        _images((1, 2, 120, 100), "float32"),
        Case({"x": Spec((2, 4, 30), "bfloat16")}),
    ),
)
def instance_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Return `group_norm` with every channel a group of its own."""
    raise NotImplementedError


@declare(
    result=_batch_result,
    reference=_batch_norm,
    kernels=(Kernel("rows", _batch_cost, _batch_launch, strided=True),),
    cases=tuple(
        Case(
            {
                "x": Spec(shape, dtype, strides),
                **{name: Spec(shape[1:2], "float32") for name in ("mean", "variance", *affine)},
            },
            fill={"variance": "positive"},
            rtol=_RTOL[dtype],
        )
        for shape, dtype, strides, affine in (
            ((2, 3, 5, 7), "float32", (), ("weight", "bias")),
            ((2, 3, 5, 7), "float16", (105, 1, 21, 3), ("weight", "bias")),
            ((4, 60), "bfloat16", (), ("weight",)),
            ((1, 2, 9000), "float32", (), ("bias",)),
            ((2, 3, 40), "float64", (), ()),
            ((0, 3, 40), "float32", (), ()),
        )
    ),
)
def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` with statistics given for each channel.

    Args:
        x: A float tensor [batch, channels, ...].
        mean: One number for each channel, as all that follow.
        variance: Not negative.
        weight: Left out, 1.
        bias: Left out, 0.
        eps: What is added to the variance.

    Raises:
        ShapeError: ``x`` has fewer than two axes, or another operand is not one number for each channel.
        DtypeError: An operand is no float of 16 bits or more.
    """
    raise NotImplementedError
