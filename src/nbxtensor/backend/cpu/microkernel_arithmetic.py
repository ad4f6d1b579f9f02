"""Operands of a matrix product, and how each pair of elements is multiplied at each level."""

from __future__ import annotations

from dataclasses import dataclass

from nbxtensor.backend.cpu.ir import Builder, vector_type
from nbxtensor.errors import UnsupportedError

__all__ = [
    "NBYTES",
    "Arithmetic",
    "Matrix",
    "add",
    "arithmetic",
    "at",
    "convert",
    "load",
    "multiply",
    "offset",
    "store",
]

NBYTES = {"double": 8, "float": 4, "i32": 4, "bfloat": 2, "half": 2, "i16": 2, "i8": 1, "u8": 1}
_SUFFIXES = {"double": "f64", "float": "f32", "bfloat": "bf16", "half": "f16"}
_SUMS = {
    ("float", "float"): "float",
    ("float", "bfloat"): "float",
    ("float", "half"): "float",
    ("bfloat", "bfloat"): "float",
    ("half", "half"): "float",
    ("double", "double"): "double",
    ("i8", "i8"): "i32",
}
_VECTOR_NBYTES = {"x86-64-v3": 32, "x86-64-v4": 64, "aarch64-neon": 16}
_REGISTERS = {"x86-64-v3": 16, "x86-64-v4": 32, "aarch64-neon": 32}


@dataclass(frozen=True)
class Matrix:
    """An operand in memory while a product runs. Columns are adjacent.

    Attributes:
        pointer: LLVM operand of type ptr; the alignment of one element is enough (64 bytes is faster).
        row: Elements between rows, an i64 operand or literal.
        element: "float", "double", "bfloat", "half", "i8" or "i32".
        depth: Rows that are interleaved into one, as weights may be packed: element (i, j) lies at
            ``i // depth * row + j * depth + i % depth``.
    """

    pointer: str
    row: str
    element: str
    depth: int = 1


@dataclass(frozen=True)
class Arithmetic:
    """One instruction that multiplies and adds.

    Attributes:
        instruction: The intrinsic; "fma" stands for llvm.fma of the sum's type, "mul" for a product and an addition.
        sum: Element of the sums.
        lanes: Sums in one vector.
        registers: Vector registers of the level.
        depth: Adjacent elements of k that one instruction multiplies and adds into one sum.
        a: What A's elements are when they are multiplied.
        w: What W's elements are when they are multiplied; "u8" is i8 + 128.
        padded: Groups of ``depth`` elements that k is padded to a multiple of.
    """

    instruction: str
    sum: str
    lanes: int
    registers: int
    depth: int
    a: str
    w: str
    padded: int = 1

    @property
    def group(self) -> str:
        """LLVM type of the ``depth`` adjacent elements of A that meet one vector of W."""
        return "i32" if self.depth > 1 else self.a

    def steps(self, k: int) -> int:
        """Return the groups of ``depth`` elements that a sum over ``k`` takes; the last are padded with zeros."""
        return -(-k // (self.depth * self.padded)) * self.padded


def arithmetic(elements: tuple[str, str], level: str, features: frozenset[str]) -> Arithmetic:
    """Return how vectors of A and W are multiplied.

    Half and bfloat are widened to float, unless "avx512bf16" multiplies pairs of bfloat. That instruction takes
    subnormal operands and results as zero and rounds to nearest even whatever the rounding mode; each step rounds at
    most three times, so a sum over k differs from the exact one by less than 2 k ulp of the sum of magnitudes.
    Where "amx-bf16" is declared too it is left alone: those processors run it at half the rate of a float FMA
    (measured on one: 1 in 2 cycles against 2 in 1), and tiles take its place.
    Integers are exact, modulo 2**32: W + 128 by A with "avx512vnni" or "avxvnni" (the excess is taken off by row sums
    of A), i8 by i8 with "dotprod", else pairs of i16 or single i32.

    Raises:
        UnsupportedError: When the pair of elements or the level has no entry.
    """
    if elements not in _SUMS or level not in _VECTOR_NBYTES:
        pairs = ", ".join(f"{x} by {y}" for x, y in _SUMS)
        raise UnsupportedError(
            f"gemm: elements and a level that are written. Got {elements[0]} by {elements[1]} at {level}. "
            f"{pairs} at {' or '.join(_VECTOR_NBYTES)} are accepted."
        )
    total = _SUMS[elements]
    lanes, registers = _VECTOR_NBYTES[level] // NBYTES[total], _REGISTERS[level]
    if total == "i32":
        instruction, depth, a, w = _integer_products(level, features, lanes)
        return Arithmetic(instruction, total, lanes, registers, depth, a, w)
    pairs_of_bfloat = "avx512bf16" in features and "amx-bf16" not in features
    if elements == ("bfloat", "bfloat") and level == "x86-64-v4" and pairs_of_bfloat:
        return Arithmetic("llvm.x86.avx512bf16.dpbf16ps.512", total, lanes, registers, 2, "bfloat", "bfloat")
    return Arithmetic("fma", total, lanes, registers, 1, total, total)


def _integer_products(level: str, features: frozenset[str], lanes: int) -> tuple[str, int, str, str]:
    if level == "aarch64-neon":
        if "dotprod" in features:
            return "llvm.aarch64.neon.sdot.v4i32.v16i8", 4, "i8", "i8"
        return "mul", 1, "i32", "i32"
    wide = level == "x86-64-v4"
    if ("avx512vnni" if wide else "avxvnni") in features:
        return f"llvm.x86.avx512.vpdpbusd.{lanes * 32}", 4, "i8", "u8"
    return "llvm.x86.avx512.pmaddw.d.512" if wide else "llvm.x86.avx2.pmadd.wd", 2, "i16", "i16"


def tiles(elements: tuple[str, str], level: str, features: frozenset[str]) -> Arithmetic | None:
    """Return how 16 by 16 tiles of sums are multiplied, or None where no tile unit is declared for the elements.

    The unit takes subnormal bfloat operands and results as zero, and rounds as "avx512bf16" does; integers are exact.
    A process asks the kernel for the unit's state before it runs such code: arch_prctl(ARCH_REQ_XCOMP_PERM, 18).
    """
    if level != "x86-64-v4" or "amx-tile" not in features:
        return None
    if elements == ("bfloat", "bfloat") and "amx-bf16" in features:
        return Arithmetic("llvm.x86.tdpbf16ps", "float", 16, 32, 2, "bfloat", "bfloat", padded=16)
    if elements == ("i8", "i8") and "amx-int8" in features:
        return Arithmetic("llvm.x86.tdpbssd", "i32", 16, 32, 4, "i8", "i8", padded=16)
    return None


def llvm_element(element: str) -> str:
    """Return LLVM's type of an element: "u8" is i8 to LLVM."""
    return "i8" if element == "u8" else element


def multiply(b: Builder, how: Arithmetic, total: str, a: str, w: str) -> str:
    """Write ``total + a * w``: ``a`` is a vector of equal groups, ``w`` of ``lanes * depth`` elements."""
    kind = vector_type(how.sum, how.lanes)
    if how.instruction == "fma":
        name = f"llvm.fma.v{how.lanes}{_SUFFIXES[how.sum]}"
        return b.call(kind, name, [(kind, a), (kind, w), (kind, total)])
    if how.instruction == "mul":
        return add(b, how.sum, how.lanes, total, b.op(f"mul {kind} {a}, {w}"))
    if how.w == "u8":
        w = b.op(f"bitcast <{how.lanes * 4} x i8> {w} to {kind}")
        return b.call(kind, how.instruction, [(kind, total), (kind, w), (kind, a)])
    factors = f"<{how.lanes * how.depth} x {how.a}>"
    a = b.pure(f"bitcast {kind.replace(how.sum, 'i32')} {a} to {factors}")
    if how.a == "i16":
        return add(b, how.sum, how.lanes, total, b.call(kind, how.instruction, [(factors, a), (factors, w)]))
    return b.call(kind, how.instruction, [(kind, total), (factors, a), (factors, w)])


def add(b: Builder, element: str, lanes: int, x: str, y: str) -> str:
    """Write ``x + y``."""
    return b.op(f"{'add' if element == 'i32' else 'fadd'} {vector_type(element, lanes)} {x}, {y}")


def convert(b: Builder, value: str, lanes: int, source: str, target: str) -> str:
    """Write the conversion of a vector (a scalar for 0 lanes) between elements that a product multiplies."""
    if source == target:
        return value
    kind = vector_type(source, lanes)
    if target == "u8":
        return b.op(f"xor {kind} {value}, {b.splat('-128', 'i8', lanes)}")
    return b.op(f"{'sext' if target[0] == 'i' else 'fpext'} {kind} {value} to {vector_type(target, lanes)}")


def offset(b: Builder, *terms: tuple[str, str]) -> str:
    """Return the i64 sum of products; literals are folded."""
    literal, total = 0, ""
    for x, y in terms:
        if _literal(x) and _literal(y):
            literal += int(x) * int(y)
            continue
        if "0" in (x, y):
            continue
        product = y if x == "1" else x if y == "1" else b.pure(f"mul nsw i64 {x}, {y}")
        total = b.pure(f"add nsw i64 {total}, {product}") if total else product
    if not total:
        return str(literal)
    return b.pure(f"add nsw i64 {total}, {literal}") if literal else total


def _literal(value: str) -> bool:
    return not value.startswith("%")


def at(b: Builder, pointer: str, element: str, index: str) -> str:
    """Return the address of element ``index`` behind ``pointer``."""
    return pointer if index == "0" else b.pure(f"getelementptr {llvm_element(element)}, ptr {pointer}, i64 {index}")


def _mask(lanes: int, used: int) -> str:
    return "<" + ", ".join(f"i1 {int(i < used)}" for i in range(lanes)) + ">"


def load(b: Builder, pointer: str, element: str, lanes: int, used: int) -> str:
    """Write the load of a vector whose first ``used`` lanes are in memory; the others become zero."""
    kind = vector_type(llvm_element(element), lanes)
    if used == lanes:
        return b.op(f"load {kind}, ptr {pointer}, align {NBYTES[element]}")
    if NBYTES[element] < 4:  # masked loads of narrow elements are not selected below AVX-512
        value = "zeroinitializer"
        for lane in range(used):
            one = b.op(
                f"load {llvm_element(element)}, ptr {at(b, pointer, element, str(lane))}, align {NBYTES[element]}"
            )
            value = b.op(f"insertelement {kind} {value}, {llvm_element(element)} {one}, i64 {lane}")
        return value
    name = f"llvm.masked.load.v{lanes}{_SUFFIXES.get(element, llvm_element(element))}.p0"
    mask = (f"<{lanes} x i1>", _mask(lanes, used))
    return b.call(kind, name, [("ptr", pointer), ("i32", str(NBYTES[element])), mask, (kind, "zeroinitializer")])


def store(b: Builder, value: str, pointer: str, element: str, lanes: int, used: int) -> None:
    """Write the store of a vector's first ``used`` lanes."""
    kind = vector_type(llvm_element(element), lanes)
    if used == lanes:
        b.do(f"store {kind} {value}, ptr {pointer}, align {NBYTES[element]}")
        return
    name = f"llvm.masked.store.v{lanes}{_SUFFIXES.get(element, llvm_element(element))}.p0"
    mask = (f"<{lanes} x i1>", _mask(lanes, used))
    b.call("void", name, [(kind, value), ("ptr", pointer), ("i32", str(NBYTES[element])), mask])
