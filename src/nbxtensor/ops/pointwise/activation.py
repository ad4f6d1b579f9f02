"""Activation functions of neural networks; the half formats compute in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbxtensor.errors import ArgumentError
from nbxtensor.op import Call, Case, Spec
from nbxtensor.ops.pointwise import references as ref
from nbxtensor.ops.pointwise.declaring import pointwise
from nbxtensor.ops.pointwise.rules import ACTIVATION, NUMBER, SUMS

if TYPE_CHECKING:
    from nbxtensor.tensor import Tensor

__all__ = [
    "celu",
    "elu",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log_sigmoid",
    "mish",
    "relu",
    "relu6",
    "selu",
    "silu",
    "softplus",
    "softsign",
    "threshold",
]

_BENCH = (Case({"x": Spec((2048, 4096), "float32")}, bench=True),)
_GELU = (
    *_BENCH,
    Case({"x": Spec((2048, 4096), "float32")}, {"approximate": "tanh"}, bench=True),
    Case({"x": Spec((5, 60), "float32")}, {"approximate": "tanh"}, rtol=SUMS["float32"]),
    Case({"x": Spec((20,), "float32")}, fill={"x": "special"}, rtol=SUMS["float32"]),
    Case({"x": Spec((5, 60), "float16")}, {"approximate": "tanh"}),
)


def _gelu(call: Call) -> str:
    approximate = call.params["approximate"]
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f'gelu: approximate is a word. Got {approximate!r}. "none" and "tanh" are accepted.')
    return "gelu_erf" if approximate == "none" else "gelu_tanh"


@pointwise(NUMBER, ref.relu)
def relu(x: Tensor, /) -> Tensor:
    """Return ``max(x, 0)``; NaN stays."""
    raise NotImplementedError


@pointwise(NUMBER, ref.relu6, flops=2)
def relu6(x: Tensor, /) -> Tensor:
    """Return ``min(max(x, 0), 6)``; NaN stays."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.silu, flops=18, cases=_BENCH)
def silu(x: Tensor, /) -> Tensor:
    """Return ``x * sigmoid(x)``."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.gelu, flops=30, function=_gelu, static=("approximate",), rtol=SUMS, cases=_GELU)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return ``x`` times the normal distribution function of ``x``.

    Args:
        x: A float tensor.
        approximate: "none", or "tanh" for ``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``.

    Raises:
        ArgumentError: ``approximate`` is another word.
    """
    raise NotImplementedError


@pointwise(ACTIVATION, ref.elu, flops=22)
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return ``x``, or ``alpha * (exp(x) - 1)`` for negative x."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.selu, flops=23)
def selu(x: Tensor, /) -> Tensor:
    """Return the scaled `elu` of Klambauer et al. (2017), which keeps mean and variance."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.celu, flops=26, cases=(Case({"x": Spec((65,), "float32")}, {"alpha": 0.3}),))
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return ``x``, or ``alpha * (exp(x / alpha) - 1)`` for negative x."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.leaky_relu, flops=2)
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return ``x``, times the slope where negative."""
    raise NotImplementedError


@pointwise(
    ACTIVATION,
    ref.softplus,
    flops=40,
    cases=(Case({"x": Spec((65,), "float32")}, {"beta": 7.5}, rtol=SUMS["float32"]),),
)
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return ``log(1 + exp(beta * x)) / beta``, or ``x`` where ``beta * x`` is above the threshold."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.mish, flops=55)
def mish(x: Tensor, /) -> Tensor:
    """Return ``x * tanh(softplus(x))``."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.hardsigmoid, flops=7)
def hardsigmoid(x: Tensor, /) -> Tensor:
    """Return ``relu6(x + 3) / 6``."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.hardswish, flops=8)
def hardswish(x: Tensor, /) -> Tensor:
    """Return ``x * relu6(x + 3) / 6``."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.clip, flops=2)
def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Return ``x`` within bounds; NaN stays."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.log_sigmoid, flops=35)
def log_sigmoid(x: Tensor, /) -> Tensor:
    """Return ``log(sigmoid(x))`` without overflow on the way."""
    raise NotImplementedError


@pointwise(ACTIVATION, ref.softsign, flops=6)
def softsign(x: Tensor, /) -> Tensor:
    """Return ``x / (1 + |x|)``."""
    raise NotImplementedError


@pointwise(NUMBER, ref.threshold, params={"threshold": 1, "value": 3})
def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """Return ``x``, or ``value`` where x is not above the threshold; NaN stays."""
    raise NotImplementedError
