"""One product as the kernels see it: strides, dtypes, epilogue."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits
from nbxtensor.dtype.itemsize import kind as dtype_kind
from nbxtensor.dtype.limits import iinfo
from nbxtensor.dtype.promotion import binary_result
from nbxtensor.errors import ArgumentError, DtypeError
from nbxtensor.op import Array, Call, Expression, Scalar, Spec, Step, Target
from nbxtensor.shape.collapse import collapse

__all__ = [
    "BATCH_AXES", "Product", "accumulator_of", "epilogue_flops", "epilogue_of", "is_wide", "lifted", "operand_dtype",
    "operand_names",
    "padded", "power_of_two", "product_of", "runs_on_matrix_unit", "slots_of", "turned",
]  # fmt: skip

_MODULE = "nbxtensor.ops.matmul.kernel"
_DEPTH_OF_BYTES = 2**15  # products of 8-bit integers that 32 bits hold the sum of
_NO_DOT_OF_BYTES = ("sm_70", "sm_72")
_SLOTS = 4  # operands, and scalars, that a kernel's epilogue has room for
BATCH_AXES = 3  # batch axes a kernel walks, after those that can be merged are merged
_WIDE = 2**31 - 2**16  # elements from which offsets are 64 bits wide, the padding of the last block in mind


@dataclass(frozen=True, slots=True)
class Product:
    """One product as the kernels see it: (batch, m, k) by (batch, k, n), every operand by strides in elements.

    Attributes:
        batch: Extents of the batch axes.
        m: Rows.
        n: Columns.
        k: Depth.
        a: Strides of the left operand over (batch..., row, column).
        b: Strides of the right operand.
        c: Strides of the result.
        extras: Strides of each operand of the epilogue, broadcast to the result.
    """

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: tuple[int, ...]
    b: tuple[int, ...]
    c: tuple[int, ...]
    extras: tuple[tuple[int, ...], ...]


def accumulator_of(call: Call) -> str:
    """Return the dtype sums are kept in: float32 for the half formats, int32 for narrow integers.

    Integers whose sum goes into more than 32 bits, or into a float, are summed in 64 unless 32 always hold the sum.
    """
    dtype, result = operand_dtype(call), _base_dtype(call)
    if dtype_kind(dtype) == "float":
        return "float64" if dtype == "float64" else "float32"
    narrow = dtype_kind(result) in ("int", "uint") and bits(result) <= 32
    short = bits(dtype) == 8 and call[operand_names(call)[0]].shape[-1] <= _DEPTH_OF_BYTES
    return "int32" if bits(dtype) <= 32 and (narrow or short) else "int64"


def _product_dtype(op: str, x: str, y: str) -> str:
    dtype = binary_result(x, y)
    if dtype_kind(dtype) not in ("float", "int", "uint") or bits(dtype) < 8 or dtype.startswith("float8"):
        raise DtypeError(f"{op}: floats of 16 bits or more, and integers. Got {x} and {y}. astype converts an operand.")
    return dtype


def runs_on_matrix_unit(dtype: str, target: Target) -> bool:
    """Return whether products of ``dtype`` are made by ``tl.dot``; Triton has none of bytes for the oldest cards."""
    return dtype_kind(dtype) == "float" or (dtype == "int8" and target.arch not in _NO_DOT_OF_BYTES)


def _rounded(accumulator: str, dtype: str) -> Expression:
    """Return the epilogue that only rounds the accumulator to ``dtype``."""
    return Expression((accumulator,), (Step("", (0,), (accumulator,), dtype),), (1,))


def epilogue_flops(call: Call) -> int:
    """Return the operations that the epilogue does on all elements of the result."""
    return sum(step.flops for step in epilogue_of(call)[0].steps) * call.outputs[0].numel


def epilogue_of(call: Call) -> tuple[Expression, tuple[str, ...], tuple[float, ...]]:
    """Return all that happens to the accumulator: (expression, its operands' names, its scalars).

    The op's own part (bias, scale) comes first and ends in the op's dtype, then the fused part.
    """
    base, names, scalars = _own_epilogue(call)
    fused: Expression | None = call.params["epilogue"]
    if fused is None and (call.params["scalars"] or any(n.startswith("extras.") for n in call.inputs)):
        raise ArgumentError(f"{call.op.name}: extras and scalars are those of an epilogue. Got no epilogue.")
    if fused is not None:
        base = base.then(fused, 0)
        names += tuple(n for n in call.inputs if n.startswith("extras."))
        scalars += tuple(call.params["scalars"])
    if len(names) > _SLOTS or base.scalars > _SLOTS:
        raise ArgumentError(
            f"{call.op.name}: an epilogue of at most {_SLOTS} operands and {_SLOTS} scalars. "
            f"Got {len(names)} and {base.scalars}."
        )
    return base, names, scalars


def _own_epilogue(call: Call) -> tuple[Expression, tuple[str, ...], tuple[float, ...]]:
    dtype = _base_dtype(call)
    accumulator = accumulator_of(call)
    if "bias" in call.inputs:
        other = call["bias"].dtype
        step = Step(f"{_MODULE}:bias_add", (0, 1), (accumulator, accumulator), dtype, np.add)
        return Expression((accumulator, other), (step,), (2,)), ("bias",), ()
    if "addend" in call.inputs:
        other = call["addend"].dtype
        arguments = (0, 1, Scalar(0, accumulator), Scalar(1, accumulator))
        step = Step(f"{_MODULE}:scaled_sum", arguments, (accumulator,) * 4, dtype, _scaled_sum)
        scalars = (_scale(call, "alpha", accumulator), _scale(call, "beta", accumulator))
        return Expression((accumulator, other), (step,), (2,), 2), ("addend",), scalars
    return _rounded(accumulator, dtype), (), ()


def _scale(call: Call, name: str, accumulator: str) -> float:
    value = float(call.params[name])
    if dtype_kind(accumulator) != "float" and not (value.is_integer() and abs(value) <= iinfo(accumulator).max):
        raise ArgumentError(
            f"{call.op.name}: {name} of integer matrices is a whole number that {accumulator} holds. Got {value}. "
            "astype converts the matrices to floats."
        )
    return value


def _scaled_sum(product: Array, addend: Array, alpha: float, beta: float) -> Array:
    return np.asarray(alpha * product + beta * addend)


def operand_dtype(call: Call) -> str:
    """Return the dtype both operands are brought to."""
    left, right = operand_names(call)
    return _product_dtype(call.op.name, call[left].dtype, call[right].dtype)


def _base_dtype(call: Call) -> str:
    """Return the dtype of the product with the op's own epilogue."""
    return call.params.get("dtype") or operand_dtype(call)


def operand_names(call: Call) -> tuple[str, str]:
    """Return the names of the left and the right operand."""
    left, right = itertools.islice((n for n in call.inputs if n not in ("bias", "addend")), 2)
    return left, right


def product_of(call: Call) -> Product:
    """Return the call as one batched product over as few batch axes as the strides allow."""
    left, right = operand_names(call)
    x, y = call[left], call[right]
    xs, xt, ys, yt = x.shape, x.strides, y.shape, y.strides
    if right == "weight":
        ys, yt = ys[::-1], yt[::-1]
    vectors = len(xs) == 1, len(ys) == 1
    if vectors[0]:
        xs, xt = (1, *xs), (0, *xt)
    if vectors[1]:
        ys, yt = (*ys, 1), (*yt, 0)
    batch = shapes.broadcast_shapes(xs[:-2], ys[:-2])
    out = call.outputs[0]
    over = [lifted(s, out.shape, vectors) for s in (out, *(call[n] for n in epilogue_of(call)[1]))]
    a = shapes.broadcast_strides(xs[:-2], xt[:-2], batch)[1]
    b = shapes.broadcast_strides(ys[:-2], yt[:-2], batch)[1]
    m = xs[-2]
    if not any(b):  # rows of all batches are rows of one product, where that is a walk by strides
        extents, walked = collapse((*batch, m), [(*a, xt[-2]), *(o[:-1] for o in over)])
        if len(extents) <= 1:
            extents, walked = extents or (1,), walked if extents else tuple((0,) for _ in walked)
            rows = [(*w, last) for w, last in zip(walked, (xt[-1], *(o[-1] for o in over)), strict=True)]
            return Product((), extents[0], ys[-1], xs[-1], rows[0], yt[-2:], rows[1], tuple(rows[2:]))
    batch, walked = collapse(batch, [a, b, *(o[:-2] for o in over)])
    tails = [xt[-2:], yt[-2:], *(o[-2:] for o in over)]
    rows = [w + t for w, t in zip(walked, tails, strict=True)]
    return Product(batch, m, ys[-1], xs[-1], rows[0], rows[1], rows[2], tuple(rows[3:]))


def lifted(spec: Spec, shape: tuple[int, ...], vectors: tuple[bool, bool]) -> tuple[int, ...]:
    """Return the strides of ``spec`` broadcast to the result's ``shape``, with the axes that vector operands lack."""
    strides = list(shapes.broadcast_strides(spec.shape, spec.strides, shape)[1])
    if vectors[1]:
        strides.append(0)
    if vectors[0]:
        strides.insert(len(strides) - 1, 0)
    return tuple(strides)


def is_wide(call: Call) -> bool:
    """Return whether offsets of an operand or a result need 64 bits."""
    specs = (*call.inputs.values(), *call.outputs)
    return any(shapes.extent_span(s.shape, s.strides) >= _WIDE for s in specs)


def slots_of(
    call: Call, product: Product, offsets: list[int], *, batched: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the epilogue's (arguments, constants) of a launch."""
    expression, names, scalars = epilogue_of(call)
    arguments: dict[str, Any] = {}
    constants: dict[str, Any] = {
        "EPILOGUE": expression.device_function("epilogue", _SLOTS + 1, _SLOTS),
        "EXTRAS": len(names),
    }
    for slot in range(_SLOTS):
        axes = [f"b{i}" for i in range(BATCH_AXES)] if batched else []
        places = [f"e{slot}_{axis}" for axis in (*axes, "row", "col")]
        if slot < len(names):
            strides = product.extras[slot]
            arguments[f"e{slot}"] = call.input(names[slot], offsets[slot])
            last = padded(strides[max(len(strides) - 2 - BATCH_AXES, 0) :]) if batched else strides[-2:]
            arguments |= dict(zip(places, last, strict=True))
        else:
            constants[f"e{slot}"] = None
            constants |= dict.fromkeys(places, 0)
    numbers = expression.numbers(scalars)
    arguments |= {f"s{index}": number for index, number in enumerate(numbers)}
    constants |= {f"s{index}": 0.0 for index in range(len(numbers), _SLOTS)}
    return arguments, constants


def turned(product: Product) -> Product:
    """Return the transposed product: the operands change places, and rows are columns."""

    def across(strides: tuple[int, ...]) -> tuple[int, ...]:
        return (*strides[:-2], strides[-1], strides[-2])

    extras = tuple(across(strides) for strides in product.extras)
    p = replace(product, m=product.n, n=product.m, c=across(product.c), extras=extras)
    return replace(p, a=across(product.b), b=across(product.a))


def padded(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides with the batch axes filled up to three, outermost first."""
    return (0,) * (BATCH_AXES + 2 - len(strides)) + strides


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()
