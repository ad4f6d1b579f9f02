"""How attention is cut into blocks, by kind of device, width and dtype."""

from __future__ import annotations

from dataclasses import dataclass

from nbxtensor.op import Call, Target
from nbxtensor.ops.tiling_policy import split_size

__all__ = ["Blocks", "decode_blocks", "decode_splits", "is_decode", "prefill_blocks"]

_DECODED = ("float16", "bfloat16", "float32")
_MOST_ROWS = 64  # of a decoding program's block: queries times heads of a group
_MOST_QUERIES = 16
_PROGRAMS = 128  # what keys are split for: about a program for each unit of the largest cards
_MOST_SPLITS = 64
_LEAST_KEYS = 128  # for which a program of its own is worth while
_CPU_PROGRAMS, _CPU_LEAST_KEYS, _CPU_KEYS = 16, 512, 64  # the same of a CPU, and the keys of a block there
_LONG = 4096  # keys: twice as many are split in any case, so that programs end more evenly


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a program works.

    Attributes:
        rows: Query rows to a block.
        keys: Keys to a block.
        width: Columns of a block of queries and keys, a power of two.
        width_v: Columns of a block of values, a power of two.
        warps: Warps of a program.
        stages: Depth of pipelining.
        precision: How products of float32 are made.
        gpu: Whether the device is none that shares the host's caches: loops are split, exponentials of base 2.
    """

    rows: int
    keys: int
    width: int
    width_v: int
    warps: int = 4
    stages: int = 2
    precision: str = "ieee"
    gpu: bool = True


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _widths(call: Call, least: int) -> tuple[int, int]:
    return max(least, _power_of_two(call["q"].shape[3])), max(least, _power_of_two(call["v"].shape[3]))


def _capability(target: Target) -> int:
    """Return 90 for an NVIDIA GPU of compute capability 9.0; 0 for all else."""
    return int(target.arch.removeprefix("sm_")) if target.arch.startswith("sm_") else 0


# (query rows, keys, warps, stages) by the wider of the two widths, the smallest that holds it; measured on an H200
# (tools/gpu_attention.py --sweep). Up to a width of 128 in the half formats, and of 64 in float32, none spills
# registers there (tests/ops/attention holds them to it); beyond, a few spilled cost less than smaller blocks.
_Tiles = tuple[tuple[int, tuple[int, int, int, int]], ...]
_PLAIN: _Tiles = ((512, (64, 32, 4, 2)),)  # for widths up to 128, fits the shared memory of every card
_HALF_80: _Tiles = ((64, (128, 64, 4, 3)), (128, (128, 64, 8, 2)), (256, (64, 32, 8, 2)), (512, (32, 32, 8, 1)))
_HALF_90: _Tiles = (
    (32, (64, 128, 4, 2)), (64, (128, 64, 8, 3)), (128, (128, 64, 8, 4)), (256, (128, 64, 8, 2)), (512, (32, 32, 8, 1)),
)  # fmt: skip
_SMALL_90 = (64, 64, 4, 3)  # for widths above 32 and up to 128, where larger blocks would leave units idle
_FEW = 264  # programs of 128 rows: two for each unit of an H200
_FLOAT_80: _Tiles = ((32, (64, 32, 4, 2)), (64, (64, 32, 8, 2)), (256, (16, 32, 8, 1)), (512, (16, 32, 4, 1)))
_FLOAT_90: _Tiles = (
    (32, (64, 64, 4, 2)), (64, (128, 64, 8, 1)), (128, (32, 32, 4, 2)), (256, (16, 32, 8, 1)), (512, (16, 32, 4, 1)),
)  # fmt: skip
# Where every row sees every key, there is one loop and registers for larger blocks.
_FLOAT_90_FULL: _Tiles = ((32, (64, 128, 4, 1)), *_FLOAT_90[1:])
_MOST_TRIPLED = 256  # the width up to which float32 products are made of three


def prefill_blocks(call: Call) -> Blocks:
    """Return the blocks of ``attention_kernel``.

    On a CPU both and the accumulator stay in the second-level cache. On a GPU they fit its shared memory and registers.
    """
    queries, keys = call["q"].shape[2], call["k"].shape[2]
    if call.device.backend == "cpu":
        rows, columns = min(256, _power_of_two(queries)), min(128, _power_of_two(keys))
        return Blocks(rows, columns, *_widths(call, 1), gpu=False)
    width, width_v = _widths(call, 16)
    dtype, capability = call["q"].dtype, _capability(call.device)
    if capability < 80 or dtype == "float64":
        tiles = _PLAIN
    elif dtype == "float32":
        full = not call.params["is_causal"] and "kv_length" not in call.inputs
        tiles = (_FLOAT_90_FULL if full else _FLOAT_90) if capability >= 90 else _FLOAT_80
    else:
        tiles = _HALF_90 if capability >= 90 else _HALF_80
    tile = next(tile for most, tile in tiles if max(width, width_v) <= most)
    if tiles is _HALF_90 and 32 < max(width, width_v) <= 128:
        few = -(-queries // 128) * call["q"].shape[0] * call["q"].shape[1] <= _FEW
        causal = call.params["is_causal"] and max(width, width_v) <= 64  # a diagonal block wastes half its products
        tile = _SMALL_90 if few or causal else tile
    rows, columns, warps, stages = tile
    rows, columns = max(16, min(rows, _power_of_two(queries))), max(16, min(columns, _power_of_two(keys)))
    return Blocks(rows, columns, width, width_v, warps, stages, _precision(call, max(width, width_v)))


def _precision(call: Call, width: int) -> str:
    """Three products of the upper and lower halves of float32 numbers, on matrix units that round to 11 bits."""
    three = call["q"].dtype == "float32" and _capability(call.device) >= 80 and width <= _MOST_TRIPLED
    return "tf32x3" if three else "ieee"


# ---- few queries


def _rows(call: Call) -> int:
    return call["q"].shape[1] // call["k"].shape[1] * call["q"].shape[2]


def is_decode(call: Call) -> bool:
    """Return whether ``decode_kernel`` serves a call: few queries, all rows of a group of heads in one block.

    A CPU gains by it what the heads of a group do not read again; with several queries of float32, nothing.
    """
    q, v = call["q"], call["v"]
    rows, most = _rows(call), _MOST_ROWS // 4 if q.dtype == "float32" else _MOST_ROWS
    few = 0 < q.shape[2] <= _MOST_QUERIES and rows <= most
    if call.device.backend == "cpu" and q.dtype == "float32":
        few = q.shape[2] == 1
    return few and q.dtype in _DECODED and "mask" not in call.inputs and max(q.shape[3], v.shape[3]) <= _MOST_TRIPLED


def decode_splits(call: Call) -> int:
    """Return how many programs share the keys of a group of heads: a power of two."""
    groups, keys = call["q"].shape[0] * call["k"].shape[1], call["k"].shape[2]
    programs, least, long = _PROGRAMS, _LEAST_KEYS, min(2, keys // _LONG)
    if call.device.backend == "cpu":
        programs, least, long = _CPU_PROGRAMS, _CPU_LEAST_KEYS, 1
    elif call["q"].dtype == "float32":  # blocks are smaller
        programs *= 2
    wanted = min(-(-programs // max(groups, 1)), keys // least, _MOST_SPLITS)
    results = call["q"].numel // max(call["q"].shape[3], 1) * (call["v"].shape[3] + 1)  # of a share, and its weights
    room = split_size("attention", "workspace_nbytes") // max(4 * results, 1)
    return 1 << max(min(max(wanted, long), room), 1).bit_length() - 1


# (keys, warps, stages) by the wider of the two widths: two or three blocks of keys and values are on their way at once.
_DECODE_HALF = ((128, (64, 4, 3)), (256, (32, 4, 3)))
_DECODE_HALF_ALONE = ((128, (128, 4, 2)), (256, (32, 4, 3)))  # where nothing is split, since groups are many
_DECODE_FLOAT = ((128, (32, 4, 3)), (256, (16, 8, 3)))


def decode_blocks(call: Call) -> Blocks:
    """Return the blocks of ``decode_kernel``."""
    if call.device.backend == "cpu":
        columns = min(_CPU_KEYS, _power_of_two(call["k"].shape[2]))
        return Blocks(_power_of_two(_rows(call)), columns, *_widths(call, 1), gpu=False)
    width, width_v = _widths(call, 16)
    tiles = _DECODE_HALF if decode_splits(call) > 1 else _DECODE_HALF_ALONE
    if call["q"].dtype == "float32":
        tiles = _DECODE_FLOAT
    columns, warps, stages = next(tile for most, tile in tiles if max(width, width_v) <= most)
    if _capability(call.device) < 80:
        columns, stages = min(columns, 32), 2
    rows, columns = max(16, _power_of_two(_rows(call))), max(16, min(columns, _power_of_two(call["k"].shape[2])))
    return Blocks(rows, columns, width, width_v, warps, stages, _precision(call, max(width, width_v)))
