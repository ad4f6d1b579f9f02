"""One product as the kernels see it: strides, blocks, epilogue, launches."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits
from nbxtensor.dtype.itemsize import kind as dtype_kind
from nbxtensor.dtype.limits import iinfo
from nbxtensor.dtype.promotion import binary_result
from nbxtensor.errors import ArgumentError, DtypeError, ShapeError
from nbxtensor.op import Array, Call, Expression, Launch, Scalar, Spec, Step, Target
from nbxtensor.shape.collapse import collapse

__all__ = [
    "epilogue_of", "is_matvec", "matmul_launches", "matvec_launch", "operand_dtype", "operand_names",
    "panel_launch", "panel_width", "panels_fit", "runs_on_matrix_unit",
]  # fmt: skip

_MODULE = "nbxtensor.ops.matmul.kernel"
_DEPTH_OF_BYTES = 2**15  # products of 8-bit integers that 32 bits hold the sum of
_SLOTS = 4  # operands, and scalars, that a kernel's epilogue has room for
_BATCH_AXES = 3  # batch axes a kernel walks, after those that can be merged are merged
_WIDE = 2**31 - 2**16  # elements from which offsets are 64 bits wide, the padding of the last block in mind


@dataclass(frozen=True, slots=True)
class _Product:
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


def _accumulator(call: Call) -> str:
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


def runs_on_matrix_unit(dtype: str) -> bool:
    """Return whether products of ``dtype`` are made by ``tl.dot``."""
    return dtype_kind(dtype) == "float" or dtype == "int8"


def _rounded(accumulator: str, dtype: str) -> Expression:
    """Return the epilogue that only rounds the accumulator to ``dtype``."""
    return Expression((accumulator,), (Step("", (0,), (accumulator,), dtype),), (1,))


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
    accumulator = _accumulator(call)
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


def _product(call: Call) -> _Product:
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
    over = [_lifted(s, out.shape, vectors) for s in (out, *(call[n] for n in epilogue_of(call)[1]))]
    a = shapes.broadcast_strides(xs[:-2], xt[:-2], batch)[1]
    b = shapes.broadcast_strides(ys[:-2], yt[:-2], batch)[1]
    m = xs[-2]
    if not any(b):  # rows of all batches are rows of one product, where that is a walk by strides
        extents, walked = collapse((*batch, m), [(*a, xt[-2]), *(o[:-1] for o in over)])
        if len(extents) <= 1:
            extents, walked = extents or (1,), walked if extents else tuple((0,) for _ in walked)
            rows = [(*w, last) for w, last in zip(walked, (xt[-1], *(o[-1] for o in over)), strict=True)]
            return _Product((), extents[0], ys[-1], xs[-1], rows[0], yt[-2:], rows[1], tuple(rows[2:]))
    batch, walked = collapse(batch, [a, b, *(o[:-2] for o in over)])
    tails = [xt[-2:], yt[-2:], *(o[-2:] for o in over)]
    rows = [w + t for w, t in zip(walked, tails, strict=True)]
    return _Product(batch, m, ys[-1], xs[-1], rows[0], rows[1], rows[2], tuple(rows[3:]))


def _lifted(spec: Spec, shape: tuple[int, ...], vectors: tuple[bool, bool]) -> tuple[int, ...]:
    """Return the strides of ``spec`` broadcast to the result's ``shape``, with the axes that vector operands lack."""
    strides = list(shapes.broadcast_strides(spec.shape, spec.strides, shape)[1])
    if vectors[1]:
        strides.append(0)
    if vectors[0]:
        strides.insert(len(strides) - 1, 0)
    return tuple(strides)


def _is_wide(call: Call) -> bool:
    specs = (*call.inputs.values(), *call.outputs)
    return any(shapes.extent_span(s.shape, s.strides) >= _WIDE for s in specs)


def _slots(
    call: Call, product: _Product, offsets: list[int], *, batched: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the epilogue's (arguments, constants) of a launch."""
    expression, names, scalars = epilogue_of(call)
    arguments: dict[str, Any] = {}
    constants: dict[str, Any] = {
        "EPILOGUE": expression.device_function("epilogue", _SLOTS + 1, _SLOTS),
        "EXTRAS": len(names),
    }
    for slot in range(_SLOTS):
        axes = [f"b{i}" for i in range(_BATCH_AXES)] if batched else []
        places = [f"e{slot}_{axis}" for axis in (*axes, "row", "col")]
        if slot < len(names):
            strides = product.extras[slot]
            arguments[f"e{slot}"] = call.input(names[slot], offsets[slot])
            padded = _padded(strides[max(len(strides) - 2 - _BATCH_AXES, 0) :]) if batched else strides[-2:]
            arguments |= dict(zip(places, padded, strict=True))
        else:
            constants[f"e{slot}"] = None
            constants |= dict.fromkeys(places, 0)
    numbers = expression.numbers(scalars)
    arguments |= {f"s{index}": number for index, number in enumerate(numbers)}
    constants |= {f"s{index}": 0.0 for index in range(len(numbers), _SLOTS)}
    return arguments, constants


def _padded(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides with the batch axes filled up to three, outermost first."""
    return (0,) * (_BATCH_AXES + 2 - len(strides)) + strides


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class _Tiling:
    """Largest blocks (rows, columns, depth) of a kind of device.

    Attributes:
        plain: Where both operands lie as they were given.
        panels: Where the right one is packed; columns are the width of a panel.
        packs: Whether weights are packed for it at all.
        programs: Programs below which blocks are halved, so that a device's workers all have some.
        least: Smallest extent of a block.
    """

    plain: tuple[int, int, int]
    panels: tuple[int, int, int]
    packs: bool
    programs: int
    least: int


# CPU: many rows share the copy that the product makes of a strip of a plain right operand; a packed panel needs none,
# and stays in the second-level cache while rows pass. Measured (bench/README.md): 0.97 to 1.15 of OpenBLAS.
# Others: a plain configuration that fits the shared memory of every card.
_TILINGS: Mapping[str, _Tiling] = {"cpu": _Tiling((512, 256, 256), (128, 64, 512), packs=True, programs=16, least=1)}
_GPU = _Tiling((64, 64, 32), (64, 64, 32), packs=False, programs=1, least=16)


def _tiling(target: Target) -> _Tiling:
    return _TILINGS.get(target.backend, _GPU)


def panel_width(target: Target) -> int | None:
    """Return the width of a packed weight's panels on ``target``, or None where weights stay as they are."""
    tiling = _tiling(target)
    return tiling.panels[1] if tiling.packs else None


def _plain_blocks(call: Call, p: _Product) -> tuple[int, int, int]:
    """Return blocks for operands as they were given: the largest that leave enough programs."""
    tiling = _tiling(call.device)
    rows, columns, depth = _within(tiling.plain, (p.m, p.n, p.k), tiling.least)
    batches = shapes.numel(p.batch)
    while -(-p.m // rows) * -(-p.n // columns) * batches < tiling.programs and max(rows, columns) > 64:
        rows, columns = (rows // 2, columns) if rows >= columns else (rows, columns // 2)
    return rows, columns, depth


def _within(largest: tuple[int, int, int], extents: tuple[int, int, int], least: int) -> tuple[int, int, int]:
    """Return ``largest`` where no extent is smaller, else the power of two that holds the extent."""
    rows, columns, depth = (max(least, min(limit, _power_of_two(n))) for limit, n in zip(largest, extents, strict=True))
    return rows, columns, depth


def matmul_launches(call: Call) -> tuple[Launch, ...]:
    """Return the launches of ``matmul_kernel``: one, or one per index of the batch axes past the third."""
    p = _product(call)
    dtype = operand_dtype(call)
    accumulator = _accumulator(call)
    matrix = runs_on_matrix_unit(dtype) and accumulator != "int64"
    bm, bn, bk = _plain_blocks(call, p) if matrix else (16, 16, 16)
    left, right = operand_names(call)
    beyond = max(len(p.batch) - _BATCH_AXES, 0)
    sizes = _padded((*p.batch[beyond:], 0, 0))
    grid = (-(-p.m // bm), -(-p.n // bn), shapes.numel(p.batch[beyond:]))
    launches: list[Launch] = []
    for index in np.ndindex(*p.batch[:beyond]):

        def at(strides: tuple[int, ...], index: tuple[int, ...] = index) -> int:
            return sum(i * s for i, s in zip(index, strides[:beyond], strict=True))

        arguments, constants = _slots(call, p, [at(strides) for strides in p.extras], batched=True)
        arguments |= {"a": call.input(left, at(p.a)), "b": call.input(right, at(p.b)), "c": call.output(0, at(p.c))}
        arguments |= {"m": p.m, "n": p.n, "k": p.k, "b1": max(sizes[1], 1), "b2": max(sizes[2], 1)}
        for name, strides in (("a", p.a), ("b", p.b), ("c", p.c)):
            places = (f"{name}_b0", f"{name}_b1", f"{name}_b2", f"{name}_row", f"{name}_col")
            arguments |= dict(zip(places, _padded(strides[beyond:]), strict=True))
        constants |= {"COMPUTE": f"tl.{dtype}", "ACC": f"tl.{accumulator}", "MATRIX": matrix}
        constants |= {"WIDE": _is_wide(call), "BM": bm, "BN": bn, "BK": bk}
        launches.append(Launch("matmul_kernel", grid, arguments, constants))
    return tuple(launches)


def is_matvec(call: Call) -> bool:
    """Few rows against columns that lie along memory: a sum along the depth beats blocks of the matrix unit."""
    p = _product(call)
    along = p.a[-1] == 1 and p.b[-2] == 1 and (p.b[-1] != 1 or p.n == 1)
    return not p.batch and p.m <= 8 and along and dtype_kind(operand_dtype(call)) == "float"


def matvec_launch(call: Call) -> tuple[Launch, ...]:
    """Return the launch of ``matvec_kernel``."""
    p = _product(call)
    dtype = operand_dtype(call)
    arguments, constants = _slots(call, p, [0] * len(p.extras), batched=False)
    left, right = operand_names(call)
    arguments |= {"a": call.input(left), "b": call.input(right), "c": call.output(), "m": p.m, "n": p.n, "k": p.k}
    arguments |= {"a_row": p.a[-2], "b_col": p.b[-1], "c_row": p.c[-2], "c_col": p.c[-1]}
    bn, bk = min(16, _power_of_two(p.n)), min(512, _power_of_two(p.k))
    constants |= {"COMPUTE": f"tl.{dtype}", "ACC": f"tl.{_accumulator(call)}", "WIDE": _is_wide(call)}
    constants |= {"BN": bn, "BK": bk}
    return (Launch("matvec_kernel", (p.m, -(-p.n // bn)), arguments, constants),)


def panel_launch(call: Call) -> tuple[Launch, ...]:
    """Return the launch of ``panel_kernel``."""
    p = _panel_product(call)
    width = call["panels"].shape[2]
    dtype = operand_dtype(call)
    tiling = _tiling(call.device)
    bm, _, bk = _within(tiling.panels, (p.m, p.n, p.k), tiling.least)
    arguments, constants = _slots(call, p, [0] * len(p.extras), batched=False)
    arguments |= {"a": call.input("x"), "panels": call.input("panels"), "c": call.output()}
    arguments |= {"m": p.m, "n": p.n, "k": p.k, "a_row": p.a[-2], "c_row": p.c[-2], "c_col": p.c[-1]}
    constants |= {"COMPUTE": f"tl.{dtype}", "ACC": f"tl.{_accumulator(call)}", "WIDE": _is_wide(call)}
    constants |= {"BM": bm, "BN": width, "BK": bk}
    return (Launch("panel_kernel", (-(-p.m // bm), -(-p.n // width)), arguments, constants),)


def _panel_product(call: Call) -> _Product:
    x, out, n = call["x"], call.outputs[0], call.params["n"]
    over = [_lifted(s, out.shape, (False, False)) for s in (out, *(call[e] for e in epilogue_of(call)[1]))]
    extents, walked = collapse(x.shape[:-1], [x.strides[:-1], *(o[:-1] for o in over)])
    if len(extents) > 1:
        raise ShapeError(f"linear_packed: the rows of x are evenly spaced. Got strides {x.strides}. copy packs them.")
    extents, walked = extents or (1,), walked if extents else tuple((0,) for _ in walked)
    rows = [(*w, last) for w, last in zip(walked, (x.strides[-1], *(o[-1] for o in over)), strict=True)]
    return _Product((), extents[0], n, x.shape[-1], rows[0], (), rows[1], tuple(rows[2:]))


def panels_fit(call: Call) -> bool:
    """Return whether ``panel_kernel`` can walk the operands: evenly spaced rows, packed panels, floats."""
    x = call["x"]
    extents, _ = collapse(x.shape[:-1], [x.strides[:-1]])
    packed = call["panels"].is_contiguous and len(extents) <= 1
    return packed and (x.strides[-1] == 1 or x.shape[-1] == 1) and dtype_kind(operand_dtype(call)) == "float"
