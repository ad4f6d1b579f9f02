"""Kernels that keep one resource of the processor busy, written as LLVM IR: its arithmetic, or its memory."""

from __future__ import annotations

from collections.abc import Callable

from nbxtensor.backend.cpu.ir import Builder, vector_type
from nbxtensor.backend.cpu.microkernel_arithmetic import NBYTES, Arithmetic, arithmetic, multiply, tiles

__all__ = ["PRODUCTS", "SCRATCH_NBYTES", "operations", "probe_names", "probes_text"]

PRODUCTS = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat", "int8": "i8"}
"""Dtype of a matrix product's operands -> LLVM's name of it."""

SCRATCH_NBYTES = 4096  # where a probe leaves its results, so that they count as used
_LINE = 64
_TILE, _TILE_SUMS = 16, 4  # rows of a tile; tiles of sums, beside two of A and two of W


def operations(dtype: str, level: str, features: frozenset[str]) -> int:
    """Return the arithmetic operations of one turn of the probe of ``dtype`` (a multiplication and an addition: 2)."""
    unit = tiles((PRODUCTS[dtype], PRODUCTS[dtype]), level, features)
    if unit is not None:
        return 2 * _TILE * _TILE * (_LINE // NBYTES[unit.a]) * _TILE_SUMS
    how = _how(dtype, level, features)
    return 2 * how.lanes * how.depth * _chains(how)


def probe_names() -> tuple[str, ...]:
    """Return the kernels that `probes_text` defines."""
    return (*(f"multiply_{dtype}" for dtype in PRODUCTS), "read", "copy", "nothing")


def probes_text(level: str, features: frozenset[str]) -> str:
    """Return the LLVM IR of all probes, kernels of the usual form.

    ``multiply_<dtype>(i64 turns)`` runs the instruction that a matrix product of that dtype is made of, in independent
    chains. ``read(ptr source, i64 nbytes)`` and ``copy(ptr source, i64 nbytes, ptr target)`` go through ``nbytes``
    bytes, a multiple of 512, per program. ``nothing()`` returns.
    """
    parts: list[str] = []
    declarations: set[str] = set()
    writers: dict[str, Callable[[Builder], None]] = {
        "read": lambda b: _read(b, level),
        "copy": lambda b: _copy(b, level),
        "nothing": lambda _: None,
    }
    for dtype in PRODUCTS:
        unit = tiles((PRODUCTS[dtype], PRODUCTS[dtype]), level, features)
        if unit is not None:
            writers[f"multiply_{dtype}"] = lambda b, unit=unit: _multiply_tiles(b, unit)
        else:
            how = _how(dtype, level, features)
            writers[f"multiply_{dtype}"] = lambda b, how=how: _multiply(b, how)
    width = 8 * NBYTES["float"] * _how("float32", level, features).lanes
    for name, write in writers.items():
        builder = Builder(level)
        write(builder)
        declarations |= builder.declarations
        parts += [
            f"define void @{name}(ptr %args, ptr %scratch, i64 %lo, i64 %hi, i64 %gx, i64 %gy) #0 {{",
            "entry:",
            *builder.lines,
            "  ret void",
            "}",
        ]
    attributes = f'"prefer-vector-width"="{width}" "min-legal-vector-width"="{width}" "target-cpu"="{level}"'
    return "\n".join((*sorted(declarations), *parts, f"attributes #0 = {{ nounwind {attributes} }}", ""))


def _how(dtype: str, level: str, features: frozenset[str]) -> Arithmetic:
    return arithmetic((PRODUCTS[dtype], PRODUCTS[dtype]), level, features)


def _chains(how: Arithmetic) -> int:
    return how.registers - 4  # two for the operands, two for what the compiler needs


def _argument(b: Builder, index: int, type_: str) -> str:
    return b.op(f"load {type_}, ptr {b.op(f'getelementptr i64, ptr %args, i64 {index}')}")


def _multiply(b: Builder, how: Arithmetic) -> None:
    turns = _argument(b, 0, "i64")
    total = vector_type(how.sum, how.lanes)
    factor = vector_type(how.a if how.depth == 1 else how.group, how.lanes)
    weight = vector_type("i8" if how.depth == 4 else how.w, how.lanes * how.depth)
    a = b.op(f"load {factor}, ptr %scratch, align 4")
    w = b.op(f"load {weight}, ptr %scratch, align 4")
    start = b.op(f"load {total}, ptr %scratch, align 4")

    def turn(_: str, sums: list[str]) -> list[str]:
        return [multiply(b, how, value, a, w) for value in sums]

    sums = b.loop("0", turns, "1", turn, [(total, start)] * _chains(how))
    for index, value in enumerate(sums):
        place = b.op(f"getelementptr i8, ptr %scratch, i64 {_LINE * (index + 1)}")
        b.do(f"store {total} {value}, ptr {place}, align 4")


def _multiply_tiles(b: Builder, unit: Arithmetic) -> None:
    """Write turns of one product into each of four tiles of sums, from two tiles of A and two of W, all of zeros."""
    turns = _argument(b, 0, "i64")
    b.do("store <64 x i8> zeroinitializer, ptr %scratch, align 64")
    b.do("store i8 1, ptr %scratch, align 64")  # palette 1, then bytes per row and rows of each tile
    for tile in range(_TILE_SUMS + 4):
        for value, place in ((f"i16 {_LINE}", 16 + 2 * tile), (f"i8 {_TILE}", 48 + tile)):
            b.do(f"store {value}, ptr {b.op(f'getelementptr i8, ptr %scratch, i64 {place}')}, align 1")
    b.call("void", "llvm.x86.ldtilecfg", [("ptr", "%scratch")])
    for tile in range(_TILE_SUMS + 4):
        b.call("void", "llvm.x86.tilezero", [("i8", str(tile))])

    def turn(_: str, __: list[str]) -> list[str]:
        for total in range(_TILE_SUMS):
            a, w = _TILE_SUMS + total // 2, _TILE_SUMS + 2 + total % 2
            b.call("void", unit.instruction, [("i8", str(tile)) for tile in (total, a, w)])
        return []

    b.loop("0", turns, "1", turn)
    b.call("void", "llvm.x86.tilerelease", [])


def _range(b: Builder) -> tuple[str, str, str]:
    """Write what both memory probes begin with: source, and first and last byte of the worker's programs."""
    source, nbytes = _argument(b, 0, "ptr"), _argument(b, 1, "i64")
    return source, b.op(f"mul i64 %lo, {nbytes}"), b.op(f"mul i64 %hi, {nbytes}")


def _read(b: Builder, level: str) -> None:
    source, low, high = _range(b)
    nbytes = 64 if level == "x86-64-v4" else 32
    kind = f"<{nbytes // 4} x i32>"

    def turn(at: str, sums: list[str]) -> list[str]:
        place = b.op(f"getelementptr i8, ptr {source}, i64 {at}")
        loads = [
            b.op(f"load {kind}, ptr {b.op(f'getelementptr i8, ptr {place}, i64 {nbytes * i}')}, align 4")
            for i in range(len(sums))
        ]
        return [b.op(f"xor {kind} {s}, {x}") for s, x in zip(sums, loads, strict=True)]

    for index, value in enumerate(b.loop(low, high, str(nbytes * 8), turn, [(kind, "zeroinitializer")] * 8)):
        place = b.op(f"getelementptr i8, ptr %scratch, i64 {_LINE * index}")
        b.do(f"store {kind} {value}, ptr {place}, align 4")


def _copy(b: Builder, level: str) -> None:
    source, low, high = _range(b)
    target = _argument(b, 2, "ptr")
    nbytes = 64 if level == "x86-64-v4" else 32
    kind = f"<{nbytes // 4} x i32>"

    def turn(at: str, _: list[str]) -> list[str]:
        for i in range(4):
            offset = b.op(f"add i64 {at}, {nbytes * i}")
            value = b.op(f"load {kind}, ptr {b.op(f'getelementptr i8, ptr {source}, i64 {offset}')}, align 4")
            b.do(f"store {kind} {value}, ptr {b.op(f'getelementptr i8, ptr {target}, i64 {offset}')}, align 4")
        return []

    b.loop(low, high, str(nbytes * 4), turn)
