"""Products of one row on a GPU, such as the linear layers of a decoding step: how they are shared out, the launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbxtensor.dtype.itemsize import bits
from nbxtensor.dtype.itemsize import kind as dtype_kind
from nbxtensor.op import Buffer, Call, Cost, Launch
from nbxtensor.ops.matmul.product import (
    Product,
    accumulator_of,
    is_wide,
    operand_dtype,
    operand_names,
    power_of_two,
    product_of,
    slots_of,
    turned,
)
from nbxtensor.ops.matmul.tiles import PARTIAL, UNUSED, combining, has_units
from nbxtensor.ops.tiling_policy import split_size

__all__ = ["Row", "launches_of", "row_cost", "row_launches", "row_of", "serves_row"]


@dataclass(frozen=True, slots=True)
class Row:
    """How a row is made.

    Attributes:
        columns: Columns of the result that one program makes.
        depth: Depth of one step.
        warps: Warps of a program.
        unroll: Steps whose operands are asked for together.
        splits: Shares of the depth.
    """

    columns: int
    depth: int
    warps: int
    unroll: int
    splits: int


def _as_row(call: Call) -> tuple[Product, tuple[str, str]]:
    """Return the product with the vector as its left operand, and the names of the operands in that order."""
    p, names = product_of(call), operand_names(call)
    column = p.m > 1 and p.n == 1
    return (turned(p), (names[1], names[0])) if column else (p, names)


def serves_row(call: Call) -> bool:
    """Return whether `row_kernel` serves a call: floats, one row, a matrix whose columns lie along memory, a GPU."""
    if call.target is None or not has_units(call.target) or dtype_kind(operand_dtype(call)) != "float":
        return False
    p, _ = _as_row(call)
    along = p.a[-1] == 1 and p.b[-2] == 1
    return p.m == 1 and not p.batch and along and min(p.n, p.k) > 0


def row_cost(call: Call) -> Cost:
    """Two flops per multiply-add; each operand read once, and each share of the depth written and read once."""
    p, _ = _as_row(call)
    splits = row_of(call).splits
    sums = p.n * splits * bits(accumulator_of(call)) // 8 if splits > 1 else 0
    return Cost(
        flops=2 * p.k * p.n * p.m,
        read=call.operand_nbytes + sums,
        written=call.result_nbytes + sums,
        buffers=(Buffer(PARTIAL, sums, 0, 1),) if sums else (),
    )


def row_launches(call: Call) -> tuple[Launch, ...]:
    """Return the launch of `row_kernel`, and that of `combine_kernel` where the depth is shared."""
    return launches_of(call, row_of(call))


def launches_of(call: Call, row: Row) -> tuple[Launch, ...]:
    """Return the launches of a call made as ``row`` says."""
    p, names = _as_row(call)
    accumulator = accumulator_of(call)
    given, slots = slots_of(call, p, [0] * len(p.extras), batched=False)
    arguments: dict[str, Any] = {"a": call.input(names[0]), "b": call.input(names[1]), "n": p.n, "k": p.k}
    arguments |= {"a_row": p.a[-2], "b_col": p.b[-1], "c_row": p.c[-2]}
    even = p.k % row.depth == 0 and p.k // row.depth % row.splits == 0
    constants: dict[str, Any] = {
        "COMPUTE": f"tl.{operand_dtype(call)}", "ACC": f"tl.{accumulator}", "WIDE": is_wide(call),
        "EVEN_N": p.n % row.columns == 0, "EVEN_K": even, "SPLITS": row.splits, "UNROLL": row.unroll,
        "BN": row.columns, "BK": row.depth, "EARLY": names[1] in call.fixed,
    }  # fmt: skip
    grid = (-(-p.n // row.columns) * p.m, row.splits)
    rounds = 1 + -(-p.k // (row.depth * row.splits * row.unroll))  # and the sum over the program
    if row.splits == 1:
        arguments |= {**given, "c": call.output(), "c_col": p.c[-1]}
        constants |= {**slots, "partial": None}
        return (Launch("row_kernel", grid, arguments, constants, row.warps, rounds=rounds),)
    arguments["partial"] = call.workspace(PARTIAL, accumulator)
    constants |= dict.fromkeys((*given, *slots, "c_col"), 0) | dict.fromkeys((*UNUSED, "c"))
    return Launch("row_kernel", grid, arguments, constants, row.warps, rounds=rounds), combining(call, p, row.splits)


# Measured on an H200 for 14 weights, 1024 to 128256 outputs of 2048 to 14336 inputs: within 5 % of the fastest of a
# hundred ways each.
_COLUMNS = 2
_HELD = 128  # bytes of the matrix that a thread asks for in one step
_AHEAD = 256  # bytes that it asks for together: a step of 8B decoding took 4.07 ms with them and 4.20 with half as many
_LONGEST = 8192  # bytes of a column that are a step at most
_BUSY = 16  # warps that a unit needs at least


def row_of(call: Call) -> Row:
    """Return how a call is made on its target: long columns, few at a time, and warps enough for every unit."""
    p, _ = _as_row(call)
    if not has_units(call.device):
        return Row(min(16, power_of_two(p.n)), min(512, power_of_two(p.k)), 4, 1, 1)
    units = int(call.device.fact("compute.units"))
    width = bits(operand_dtype(call)) // 8
    columns = min(_COLUMNS, power_of_two(p.n))
    longest = _LONGEST // width
    depth = min(p.k & -p.k, longest)
    if depth < longest // 4:  # no long power of two divides the depth: the last step is cut
        depth = min(power_of_two(p.k), longest // 2)
    programs = -(-p.n // columns)
    warps = max(1, min(8, columns * depth * width // (_HELD * 32)))
    if programs * warps < _BUSY * units and warps < 8 and columns * depth * width >= 32 * 32 * warps:
        warps *= 2
    held = columns * depth * width // (32 * warps)
    unroll = max(1, min(4, _AHEAD // max(held, 1))) if p.k > depth else 1
    splits, sums = 1, p.n * bits(accumulator_of(call)) // 8
    most = split_size("matmul", "workspace_nbytes")
    while programs * splits * 2 <= units and p.k >= depth * splits * 8 and sums * splits * 2 <= most:
        splits *= 2
    return Row(columns, depth, warps, unroll, splits)
