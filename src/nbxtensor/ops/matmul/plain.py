"""Launches of the kernels that serve every device, and of those that read packed weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import kind as dtype_kind
from nbxtensor.op import Call, Launch, Target
from nbxtensor.ops.matmul.product import (
    BATCH_AXES,
    Product,
    accumulator_of,
    epilogue_of,
    is_wide,
    lifted,
    operand_dtype,
    operand_names,
    padded,
    power_of_two,
    product_of,
    runs_on_matrix_unit,
    slots_of,
)
from nbxtensor.shape.collapse import collapse

__all__ = ["is_matvec", "matmul_launches", "matvec_launch", "panel_launch", "panel_width", "panels_fit"]


@dataclass(frozen=True, slots=True)
class _Tiling:
    """Largest blocks (rows, columns, depth) of a kind of device.

    Attributes:
        plain: Where both operands lie as they were given.
        panels: Where the right one is packed; columns are the width of a panel.
        packs: Whether weights are packed for it at all.
        programs: Programs below which blocks are halved, so that a device's workers all have some.
        least: Smallest extent of a block.
        whole: Deepest block that is cut to the depth of a product it holds alone; 0: blocks are as deep as they say.
    """

    plain: tuple[int, int, int]
    panels: tuple[int, int, int]
    packs: bool
    programs: int
    least: int
    whole: int = 0


# CPU: many rows share the copy that the product makes of a strip of a plain right operand; a packed panel needs none,
# and stays in the second-level cache while rows pass. Measured (bench/README.md): 0.97 to 1.15 of OpenBLAS.
# Others: a plain configuration that fits the shared memory of every card.
_TILINGS: Mapping[str, _Tiling] = {
    "cpu": _Tiling((512, 256, 256), (128, 64, 512), packs=True, programs=16, least=1, whole=1024)
}
_GPU = _Tiling((64, 64, 32), (64, 64, 32), packs=False, programs=1, least=16)


def _tiling(target: Target) -> _Tiling:
    return _TILINGS.get(target.backend, _GPU)


def panel_width(target: Target) -> int | None:
    """Return the width of a packed weight's panels on ``target``, or None where weights stay as they are."""
    tiling = _tiling(target)
    return tiling.panels[1] if tiling.packs else None


def _plain_blocks(call: Call, p: Product) -> tuple[int, int, int]:
    """Return blocks for operands as they were given: the largest that leave enough programs."""
    tiling = _tiling(call.device)
    rows, columns, depth = _within(tiling.plain, (p.m, p.n, p.k), tiling)
    batches = shapes.numel(p.batch)
    while -(-p.m // rows) * -(-p.n // columns) * batches < tiling.programs and max(rows, columns) > 64:
        rows, columns = (rows // 2, columns) if rows >= columns else (rows, columns // 2)
    return rows, columns, depth


def _within(largest: tuple[int, int, int], extents: tuple[int, int, int], tiling: _Tiling) -> tuple[int, int, int]:
    """Return ``largest`` where no extent is smaller, else the power of two that holds the extent."""
    rows, columns, depth = (
        max(tiling.least, min(limit, power_of_two(n))) for limit, n in zip(largest, extents, strict=True)
    )
    return rows, columns, _depth(depth, extents[2], tiling.whole) if tiling.whole else depth


def _depth(limit: int, k: int, whole: int) -> int:
    """Return the depth of blocks of which few elements lie past ``k``: all of each is computed, unless it is the only.

    A product of 768 with blocks of 512 computes 1024. Measured on a processor, a block costs about what four more of
    its depth would, and one deeper than ``limit`` a twentieth more.
    """

    def computed(depth: int) -> float:
        padded = k if depth >= k else -(-k // depth) * depth
        return padded * (1 + 4 / depth) * (1.0 if depth <= limit else 1.05)

    depths = [limit >> halved for halved in range(limit.bit_length()) if limit >> halved >= min(limit, 64)]
    return min([*depths, *([power_of_two(k)] if power_of_two(k) <= whole else [])], key=computed)


def matmul_launches(call: Call) -> tuple[Launch, ...]:
    """Return the launches of ``matmul_kernel``: one, or one per index of the batch axes past the third."""
    p = product_of(call)
    dtype = operand_dtype(call)
    accumulator = accumulator_of(call)
    matrix = runs_on_matrix_unit(dtype, call.device) and accumulator != "int64"
    bm, bn, bk = _plain_blocks(call, p) if matrix else (16, 16, 16)
    left, right = operand_names(call)
    beyond = max(len(p.batch) - BATCH_AXES, 0)
    sizes = padded((*p.batch[beyond:], 0, 0))
    grid = (-(-p.m // bm), -(-p.n // bn), shapes.numel(p.batch[beyond:]))
    launches: list[Launch] = []
    for index in np.ndindex(*p.batch[:beyond]):

        def at(strides: tuple[int, ...], index: tuple[int, ...] = index) -> int:
            return sum(i * s for i, s in zip(index, strides[:beyond], strict=True))

        arguments, constants = slots_of(call, p, [at(strides) for strides in p.extras], batched=True)
        arguments |= {"a": call.input(left, at(p.a)), "b": call.input(right, at(p.b)), "c": call.output(0, at(p.c))}
        arguments |= {"m": p.m, "n": p.n, "k": p.k, "b1": max(sizes[1], 1), "b2": max(sizes[2], 1)}
        for name, strides in (("a", p.a), ("b", p.b), ("c", p.c)):
            places = (f"{name}_b0", f"{name}_b1", f"{name}_b2", f"{name}_row", f"{name}_col")
            arguments |= dict(zip(places, padded(strides[beyond:]), strict=True))
        constants |= {"COMPUTE": f"tl.{dtype}", "ACC": f"tl.{accumulator}", "MATRIX": matrix}
        constants |= {"WIDE": is_wide(call), "BM": bm, "BN": bn, "BK": bk}
        launches.append(Launch("matmul_kernel", grid, arguments, constants))
    return tuple(launches)


def is_matvec(call: Call) -> bool:
    """Few rows against columns that lie along memory: a sum along the depth beats blocks of the matrix unit."""
    p = product_of(call)
    along = p.a[-1] == 1 and p.b[-2] == 1 and (p.b[-1] != 1 or p.n == 1)
    return not p.batch and p.m <= 8 and along and dtype_kind(operand_dtype(call)) == "float"


def matvec_launch(call: Call) -> tuple[Launch, ...]:
    """Return the launch of ``matvec_kernel``."""
    p = product_of(call)
    dtype = operand_dtype(call)
    arguments, constants = slots_of(call, p, [0] * len(p.extras), batched=False)
    left, right = operand_names(call)
    arguments |= {"a": call.input(left), "b": call.input(right), "c": call.output(), "m": p.m, "n": p.n, "k": p.k}
    arguments |= {"a_row": p.a[-2], "b_col": p.b[-1], "c_row": p.c[-2], "c_col": p.c[-1]}
    bn, bk = min(16, power_of_two(p.n)), min(512, power_of_two(p.k))
    constants |= {"COMPUTE": f"tl.{dtype}", "ACC": f"tl.{accumulator_of(call)}", "WIDE": is_wide(call)}
    constants |= {"BN": bn, "BK": bk}
    return (Launch("matvec_kernel", (p.m, -(-p.n // bn)), arguments, constants),)


def panel_launch(call: Call) -> tuple[Launch, ...]:
    """Return the launch of ``panel_kernel``."""
    p = _panel_product(call)
    width = call["panels"].shape[2]
    dtype = operand_dtype(call)
    tiling = _tiling(call.device)
    bm, _, bk = _within(tiling.panels, (p.m, p.n, p.k), tiling)
    arguments, constants = slots_of(call, p, [0] * len(p.extras), batched=False)
    arguments |= {"a": call.input("x"), "panels": call.input("panels"), "c": call.output()}
    arguments |= {"m": p.m, "n": p.n, "k": p.k, "a_row": p.a[-2], "c_row": p.c[-2], "c_col": p.c[-1]}
    constants |= {"COMPUTE": f"tl.{dtype}", "ACC": f"tl.{accumulator_of(call)}", "WIDE": is_wide(call)}
    constants |= {"BM": bm, "BN": width, "BK": bk}
    return (Launch("panel_kernel", (-(-p.m // bm), -(-p.n // width)), arguments, constants),)


def _panel_product(call: Call) -> Product:
    x, (extents, walked) = call["x"], _panel_rows(call)
    extents, walked = extents or (1,), walked if extents else tuple((0,) for _ in walked)
    rows = [(*w, last) for w, last in zip(walked, (s[-1] for s in _panel_strides(call)), strict=True)]
    return Product((), extents[0], call.params["n"], x.shape[-1], rows[0], (), rows[1], tuple(rows[2:]))


def _panel_strides(call: Call) -> list[tuple[int, ...]]:
    """Return the strides of x, of the result, and of what the epilogue reads, over the result's axes."""
    out = call.outputs[0]
    over = (lifted(s, out.shape, (False, False)) for s in (out, *(call[e] for e in epilogue_of(call)[1])))
    return [call["x"].strides, *over]


def _panel_rows(call: Call) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the fewest axes that the rows of all of these can be walked along, and their strides."""
    return collapse(call["x"].shape[:-1], [strides[:-1] for strides in _panel_strides(call)])


def panels_fit(call: Call) -> bool:
    """Return whether ``panel_kernel`` can walk the operands: rows evenly spaced everywhere, packed panels, floats."""
    x = call["x"]
    packed = call["panels"].is_contiguous and len(_panel_rows(call)[0]) <= 1
    return packed and (x.strides[-1] == 1 or x.shape[-1] == 1) and dtype_kind(operand_dtype(call)) == "float"
