"""Products in blocks on a GPU: which block of the result a program makes, in how many shares, and the launches."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits
from nbxtensor.op import Buffer, Call, Cost, Launch, Round, Target
from nbxtensor.ops.matmul.product import (
    BATCH_AXES,
    Product,
    accumulator_of,
    epilogue_flops,
    is_wide,
    operand_dtype,
    operand_names,
    padded,
    power_of_two,
    product_of,
    runs_on_matrix_unit,
    slots_of,
    turned,
)
from nbxtensor.ops.tiling_policy import split_size

__all__ = [
    "PARTIAL", "UNUSED", "Choice", "Tile", "candidates_of", "choice_of", "combining", "has_units", "launches_of",
    "serves_tiles", "tile_cost", "tile_launches",
]  # fmt: skip

PARTIAL = "partial"
UNUSED = ("EPILOGUE", "e0", "e1", "e2", "e3")  # what is None where a launch has no epilogue
_COMBINED = (16, 256)  # rows and columns of the result that one program of `combine_kernel` makes


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program makes at a time.

    Attributes:
        rows: Rows of the result.
        columns: Columns of the result.
        depth: Depth of one step.
        warps: Warps of a program.
        stages: Steps whose operands are on their way at once.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Choice:
    """How a product is made.

    Attributes:
        tile: What a program makes.
        splits: Shares of the depth, each summed by a program of its own and added up by a second launch.
        turned: Whether the transposed product is made: rows and columns change places.
        parts: 3 where float32 operands are multiplied as bfloat16 parts, else 1.
        group: Rows of blocks that are walked side by side.
    """

    tile: Tile
    splits: int
    turned: bool
    parts: int
    group: int = 8


def has_units(target: Target) -> bool:
    """Return whether a target states what a choice needs: how many units it has, and their shared memory."""
    return {"compute.units", "memory.max_shared_memory_per_block"} <= target.facts.keys()


def serves_tiles(call: Call) -> bool:
    """Return whether `tile_kernel` serves a call: on a GPU that states its units, at most three batch axes."""
    target = call.target
    if target is None or not has_units(target) or not runs_on_matrix_unit(operand_dtype(call), target):
        return False
    p = product_of(call)
    return accumulator_of(call) != "int64" and len(p.batch) <= BATCH_AXES and min(p.m, p.n, p.k) > 0


def tile_cost(call: Call) -> Cost:
    """Two flops per multiply-add; each operand read once, and each share of the depth written and read once."""
    choice, p = choice_of(call), product_of(call)
    dtype = operand_dtype(call)
    sums = shapes.numel(p.batch) * p.m * p.n * choice.splits * bits(accumulator_of(call)) // 8
    sums = sums if choice.splits > 1 else 0
    blocks = shapes.numel(p.batch) * -(-p.m // choice.tile.rows) * -(-p.n // choice.tile.columns)
    loaded = blocks * (choice.tile.rows + choice.tile.columns) * p.k * bits(dtype) // 8
    return Cost(
        flops=2 * p.k * call.outputs[0].numel,
        read=call.operand_nbytes + sums,
        written=call.result_nbytes + sums,
        matrix=dtype,
        buffers=(Buffer(PARTIAL, sums, 0, 1),) if sums else (),
        beside=epilogue_flops(call),
        issued=loaded + call.result_nbytes + 2 * sums,
    )


def tile_launches(call: Call) -> tuple[Launch, ...]:
    """Return the launch of `tile_kernel`, and that of `combine_kernel` where the depth is shared."""
    return launches_of(call, choice_of(call))


def launches_of(call: Call, choice: Choice) -> tuple[Launch, ...]:
    """Return the launches of a call made as ``choice`` says."""
    p, names = product_of(call), operand_names(call)
    if choice.turned:
        p, names = turned(p), names[::-1]
    tile, splits, accumulator = choice.tile, choice.splits, accumulator_of(call)
    given, slots = slots_of(call, p, [0] * len(p.extras), batched=True)
    result: dict[str, Any] = {"c": call.output(), **_strides("c", p.c)}
    arguments: dict[str, Any] = {"a": call.input(names[0]), "b": call.input(names[1]), "k": p.k, **_extents(p)}
    arguments |= {**_strides("a", p.a), **_strides("b", p.b)}
    even = p.k % tile.depth == 0 and p.k // tile.depth % splits == 0
    constants: dict[str, Any] = {
        "COMPUTE": f"tl.{operand_dtype(call)}", "ACC": f"tl.{accumulator}", "WIDE": is_wide(call),
        "PARTS": choice.parts, "SPLITS": splits, "GROUP": choice.group,
        "EVEN_M": p.m % tile.rows == 0, "EVEN_N": p.n % tile.columns == 0, "EVEN_K": even,
        "BM": tile.rows, "BN": tile.columns, "BK": tile.depth,
    }  # fmt: skip
    blocks = -(-p.m // tile.rows) * -(-p.n // tile.columns)
    grid = (blocks * shapes.numel(p.batch) * splits,)
    rounds = math.ceil(math.ceil(p.k / tile.depth) / splits)
    told: dict[str, Any] = {"rounds": rounds, "round": _round(call, product_of(call), choice)}
    if splits == 1:
        arguments |= {**given, **result}
        constants |= {**slots, "partial": None}
        return (Launch("tile_kernel", grid, arguments, constants, tile.warps, tile.stages, **told),)
    arguments["partial"] = call.workspace(PARTIAL, accumulator)
    constants |= dict.fromkeys((*given, *slots, *result), 0) | dict.fromkeys((*UNUSED, "c"))
    launch = Launch("tile_kernel", grid, arguments, constants, tile.warps, tile.stages, **told)
    return launch, combining(call, p, splits)


def combining(call: Call, p: Product, splits: int) -> Launch:
    """Return the launch of `combine_kernel` that adds up ``splits`` shares of ``p`` and applies the epilogue."""
    accumulator = accumulator_of(call)
    given, slots = slots_of(call, p, [0] * len(p.extras), batched=True)
    rows, columns = (min(most, power_of_two(n)) for most, n in zip(_COMBINED, (p.m, p.n), strict=True))
    batches = shapes.numel(p.batch)
    arguments = {**given, "c": call.output(), **_strides("c", p.c), **_extents(p), "batches": batches}
    arguments |= {"partial": call.workspace(PARTIAL, accumulator)}
    constants = {
        **slots,
        "ACC": f"tl.{accumulator}",
        "WIDE": is_wide(call),
        "SPLITS": splits,
        "BM": rows,
        "BN": columns,
    }
    grid = (-(-p.m // rows) * -(-p.n // columns) * batches,)
    return Launch("combine_kernel", grid, arguments, constants)


def _extents(p: Product) -> dict[str, int]:
    sizes = padded((*p.batch, 0, 0))
    return {"m": p.m, "n": p.n, "b1": max(sizes[1], 1), "b2": max(sizes[2], 1)}


def _strides(name: str, strides: tuple[int, ...]) -> dict[str, int]:
    places = (f"{name}_b0", f"{name}_b1", f"{name}_b2", f"{name}_row", f"{name}_col")
    return dict(zip(places, padded(strides), strict=True))


# ---- the choice

_PARTS = 3  # bfloat16 parts of a float32 number
_PRODUCTS = 6  # products of parts that are summed
_REGISTERS = 65536  # of one unit, and of one program at most
_RESERVED = 1024  # bytes of shared memory that a program takes beside its own
_MOST_SPLITS = 16
_STAGES = (2, 3, 4, 5, 6)
# What no device file states. Fitted to 600 ways to make 30 products on an H200: what is chosen is within 3 % of the
# fastest in the mean, and within 20 % each (tools/gpu_products.py --candidates measures them anew). Of equals the first
# is taken.
_PLAIN = 2000.0  # operations per nanosecond of a unit whose device file states no rate
_LOADED = 145.0  # bytes per nanosecond that a unit takes from the last cache
_STORED = 42.0  # bytes per nanosecond that a unit writes
_LATENCY = 800.0  # nanoseconds from asking for an operand to having it
_LAUNCHED = 1850.0  # nanoseconds from the start of a launch to its first operand, and from the last sum to its end
_BETWEEN = 830.0  # nanoseconds from the last sum of a program to the first operand of the one after it
_STEP = 29.0  # nanoseconds of a step that nothing overlaps
# Nanoseconds that another launch costs: of MiniLM's products of 128 x 384 x 384, 24 halved and summed took 55 us more.
_SECOND = 2000.0
_POWER = 6.0  # of the norm in which times that overlap are added
# Share of a unit's rate that is reached by blocks of fewer than 2**13, 2**14, 2**15 sums, and of more: where the depth
# lies along memory in both operands, in any other layout, and in parts.
_SHARES_ALONG = (0.95, 0.9, 0.74, 0.82)
_SHARES = (0.52, 0.57, 0.63, 0.78)
_SHARES_IN_PARTS = (0.38, 0.54, 0.54, 0.54)


@dataclass(frozen=True, slots=True)
class _Machine:
    """A device, as the cost of a choice sees it.

    Attributes:
        units: How many units it has.
        shared: Bytes of shared memory of one.
        rate: Operations per nanosecond of one.
        bandwidth: Bytes per nanosecond of the device's memory.
        parts: Parts that operands are multiplied in.
        along: Whether the depth lies along memory in both operands.
        whole: Whether rows of both operands are apart by whole vectors of 16 bytes, as large copies need.
        most: Bytes of partial sums that a call may have.
    """

    units: int
    shared: int
    rate: float
    bandwidth: float
    parts: int
    along: bool
    whole: bool
    most: int


def choice_of(call: Call) -> Choice:
    """Return how a call is made on its target: the choice of least cost.

    Raises:
        MissingFactError: The target does not state its units and their shared memory.
    """
    return candidates_of(call)[0]


def candidates_of(call: Call) -> tuple[Choice, ...]:
    """Return every choice that a call's own is taken from, the one of least cost first."""
    p = product_of(call)
    dtype = operand_dtype(call)
    width = bits(dtype) // 8
    machine = _machine(call.device, dtype, p)
    return _ranked(machine, p.m, p.n, p.k, shapes.numel(p.batch), width)


def _machine(target: Target, dtype: str, p: Product) -> _Machine:
    units = int(target.fact("compute.units"))

    def rate(name: str) -> float:
        return float(target.facts.get(name, 0.0)) / units / 1e9

    plain = max(rate(f"compute.matrix_flops.{dtype}"), rate(f"compute.vector_flops.{dtype}"))
    in_parts = rate("compute.matrix_flops.bfloat16") / _PRODUCTS if dtype == "float32" else 0.0
    parts = _PARTS if in_parts > plain > 0 else 1
    bandwidth = float(target.facts.get("memory.copy_bandwidth", target.facts.get("memory.bandwidth", 0.0))) / 1e9
    shared = int(target.fact("memory.max_shared_memory_per_block"))
    most = split_size("matmul", "workspace_nbytes")
    along = p.a[-1] == 1 == p.b[-2]
    whole = all(stride * bits(dtype) % 128 == 0 for stride in (*p.a, *p.b) if stride != 1)
    return _Machine(units, shared, max(plain, in_parts) or _PLAIN, bandwidth, parts, along, whole, most)


@functools.lru_cache(maxsize=1024)
def _ranked(machine: _Machine, m: int, n: int, k: int, batches: int, width: int) -> tuple[Choice, ...]:
    is_turned = m < min(n, 64)
    if is_turned:
        m, n = n, m
    costs = {
        (tile, splits): _nanoseconds(machine, tile, splits, (m, n, k, batches), width)
        for tile, splits in _candidates(machine, m, n, k, batches, width)
    }
    group = 4 if machine.along else 8
    best = sorted(costs, key=lambda found: costs[found])  # of equals, the first
    return tuple(Choice(tile, splits, is_turned, machine.parts, group) for tile, splits in best)


# Rows, columns and warps of a program. Sums of more than 128 registers a thread, or of 64 where operands are split into
# parts, leave too few for the rest.
_SHAPES = (
    (128, 256, 8), (256, 128, 8), (128, 128, 8), (64, 256, 4), (64, 128, 4), (128, 64, 4), (64, 64, 4),
    (128, 32, 4), (64, 32, 4), (64, 16, 4), (32, 32, 4), (32, 16, 4), (16, 32, 4), (16, 16, 4),
)  # fmt: skip
_SHAPES_IN_PARTS = (
    (128, 64, 8), (64, 64, 4), (64, 32, 4), (64, 16, 4), (32, 32, 4), (32, 16, 4), (16, 32, 4), (16, 16, 4),
)  # fmt: skip


def _candidates(machine: _Machine, m: int, n: int, k: int, batches: int, width: int) -> Iterator[tuple[Tile, int]]:
    """Yield every tile and number of splits worth a look."""
    in_parts = machine.parts > 1
    most_rows, most_columns = (max(power_of_two(extent), 16) for extent in (m, n))
    for rows, columns, warps in _SHAPES_IN_PARTS if in_parts else _SHAPES:
        # Blocks of fewer than 64 rows are beneath the instructions of some units: they are for extents beneath that.
        if not min(64, most_rows) <= rows <= most_rows or columns > most_columns:
            continue
        if rows * columns * max(width // 4, 1) > 4096 * warps:
            continue
        for depth in (32, 64, 128) if machine.whole else (32,):
            deep = depth > (32 if in_parts else 64) and rows * columns > (2048 if in_parts else 8192)
            if deep or depth * width > 256 or depth >= 2 * max(power_of_two(k), 32):
                continue
            step = (rows + columns) * depth * width
            extra = (rows + columns) * depth * 2 * machine.parts if in_parts else 0
            for stages in _STAGES[:3] if in_parts else _STAGES:
                if step * stages + extra + _RESERVED > machine.shared:
                    break
                tile = Tile(rows, columns, depth, warps, stages)
                blocks = -(-m // rows) * -(-n // columns) * batches
                splits = 1
                sums = m * n * batches * max(width, 4)  # of one share
                while splits == 1 or (
                    splits <= _MOST_SPLITS
                    and splits * depth * 2 <= k
                    and blocks * splits <= 4 * machine.units
                    and splits * sums <= machine.most
                ):
                    yield tile, splits
                    splits *= 2


def _nanoseconds(machine: _Machine, tile: Tile, splits: int, extents: tuple[int, int, int, int], width: int) -> float:
    """Return about how long a choice takes.

    Programs share a unit as far as registers and shared memory allow. A step takes what its operations, its bytes or
    the wait for its operands take, whichever is longest; the device's memory bounds the whole.
    """
    m, n, k, batches = extents
    area, edge = tile.rows * tile.columns, tile.rows + tile.columns
    step_nbytes = edge * tile.depth * width
    resident = _resident(machine, tile, width)
    programs = -(-m // tile.rows) * -(-n // tile.columns) * batches * splits
    waves = -(-programs // (machine.units * resident))
    beside = min(resident, -(-programs // machine.units))
    steps = math.ceil(math.ceil(k / tile.depth) / splits)
    operations = beside * 2 * area * tile.depth / (machine.rate * _share(machine, tile))
    loading = beside * step_nbytes / _LOADED
    waiting = _LATENCY / (tile.stages - 1)
    storing = beside * area * width / _STORED
    took = waves * (steps * (_joined(operations, loading, waiting) + beside * _STEP) + _BETWEEN + storing)
    if machine.bandwidth:
        nbytes = batches * (m * k + n * k + m * n) * width
        took = _joined(took, nbytes / machine.bandwidth)
    if splits > 1:
        took += _SECOND + splits * batches * m * n * 8 / (machine.bandwidth or 1000.0)
    return took + _LAUNCHED


def _resident(machine: _Machine, tile: Tile, width: int) -> int:
    """Return how many programs a unit holds at once, by shared memory and registers."""
    area, edge = tile.rows * tile.columns, tile.rows + tile.columns
    extra = edge * tile.depth * 2 * machine.parts if machine.parts > 1 else 0
    registers = min(255.0, (1.2 if machine.parts == 1 else 3.0) * area * max(width / 4, 1) / (32 * tile.warps) + 40)
    by_memory = machine.shared // (edge * tile.depth * width * tile.stages + extra + _RESERVED)
    return max(int(min(by_memory, _REGISTERS // (32 * tile.warps * registers))), 1)


def _round(call: Call, p: Product, choice: Choice) -> Round:
    """Return what one round of `tile_kernel` is, for the price."""
    dtype, tile = operand_dtype(call), choice.tile
    machine, width = _machine(call.device, dtype, p), bits(dtype) // 8
    area = tile.rows * tile.columns
    return Round(
        flops=2 * area * tile.depth,
        nbytes=(tile.rows + tile.columns) * tile.depth * width,
        stored=area * (width if choice.splits == 1 else bits(accumulator_of(call)) // 8),
        resident=_resident(machine, tile, width),
        rate=1e9 * machine.rate * _share(machine, tile),
        threads=128 * min(machine.parts, 2),  # parts are made and multiplied in turns
        nanoseconds=_STEP,
        between=_BETWEEN,
    )


def _joined(*times: float) -> float:
    """Return how long what overlaps takes: a little more than the longest of ``times``."""
    return sum(time**_POWER for time in times) ** (1 / _POWER)


def _share(machine: _Machine, tile: Tile) -> float:
    """Return the share of a unit's rate that a program's instructions reach."""
    area = tile.rows * tile.columns
    shares = _SHARES_IN_PARTS if machine.parts > 1 else _SHARES_ALONG if machine.along else _SHARES
    return shares[(area >= 1 << 13) + (area >= 1 << 14) + (area >= 1 << 15)]
