"""Ops that act on each element alone: arith.*, math.* and their kin, on scalars and vectors alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nbxtensor.backend.cpu import vector_math
from nbxtensor.backend.cpu.ir import float_literal, vector_type
from nbxtensor.backend.cpu.state import ARITHMETIC, LLVM, Register, State, bits
from nbxtensor.backend.cpu.ttir import Op

__all__ = ["FLOATS", "HEAVY", "NAMES", "WIDENING", "apply", "convert", "literal"]

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
"""Element types that are floating point."""

_HALVES = frozenset({"f16", "bf16"})

_BINARY = {
    "arith.addf": "fadd",
    "arith.subf": "fsub",
    "arith.mulf": "fmul",
    "arith.divf": "fdiv",
    "tt.precise_divf": "fdiv",
    "arith.remf": "frem",
    "arith.addi": "add",
    "arith.subi": "sub",
    "arith.muli": "mul",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
    "arith.shli": "shl",
    "arith.shrsi": "ashr",
    "arith.shrui": "lshr",
}
_INTRINSIC = {
    "arith.maxnumf": "maxnum",
    "arith.minnumf": "minnum",
    "arith.maximumf": "maximum",
    "arith.minimumf": "minimum",
    "arith.maxsi": "smax",
    "arith.minsi": "smin",
    "arith.maxui": "umax",
    "arith.minui": "umin",
    "math.absf": "fabs",
    "math.ceil": "ceil",
    "math.floor": "floor",
    "math.sqrt": "sqrt",
    "tt.precise_sqrt": "sqrt",
    "math.fma": "fma",
    "math.round": "round",
    "math.roundeven": "roundeven",
    "math.trunc": "trunc",
    "math.copysign": "copysign",
    "math.ctpop": "ctpop",
}
_DIVISION = {"arith.divsi": "sdiv", "arith.remsi": "srem", "arith.divui": "udiv", "arith.remui": "urem"}
_QUOTIENTS = frozenset({"arith.divf", "tt.precise_divf"})
_INTEGER_CASTS = {"arith.extsi": "sext", "arith.extui": "zext", "arith.trunci": "trunc"}
_FLOAT_CASTS = frozenset(
    {"arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp", "arith.fptosi", "arith.fptoui", "tt.fp_to_fp"}
)
_FUNCTIONS = frozenset(f"math.{name}" for name in vector_math.NAMES) - frozenset(_INTRINSIC)
_AS_THEY_ARE = frozenset({"arith.select", "tt.bitcast", "arith.bitcast"}) | _FUNCTIONS | _FLOAT_CASTS  # halves too

HEAVY = _FUNCTIONS | {"arith.divf", "tt.precise_divf", "arith.remf", "math.sqrt", "tt.precise_sqrt", *_DIVISION}
"""Ops whose results are worth keeping in memory rather than computing twice."""


def literal(value: float, element: str) -> str:
    """Return a number as LLVM writes a constant of the element type."""
    if element not in FLOATS:
        return str(int(value))
    text = float_literal(value, ARITHMETIC[element])
    return str(int(text[3:], 16)) if element in _HALVES else text


def convert(state: State, register: Register, element: str) -> Register:
    """Return a float register in another float type, rounded once to nearest even."""
    site = _Site(state, None, register.lanes)
    value = site.opened(register.value, register.element)
    kinds = ARITHMETIC[register.element], ARITHMETIC[element]
    value = site.closed(vector_math.cast(state.b, value, *kinds, register.lanes), element)
    return Register(value, element, register.lanes)


def apply(state: State, op: Op, operands: Sequence[Register]) -> Register:
    """Write one elementwise op; scalars are spread where another operand is a vector.

    Raises:
        CompileError: For an op that is not lowered; names it and the kernel.
    """
    lanes = max((r.lanes for r in operands), default=0)
    if op.name in _QUOTIENTS and lanes and not operands[1].lanes:
        return _divide_by_scalar(state, op, *operands)
    values = [state.vector(r, lanes) for r in operands]
    source = operands[0].element if operands else ""
    target = state.element(op.result.type)
    return Register(_write(_Site(state, op, lanes), values, source, target), target, lanes)


class _Site:
    """Where one op is written: how many lanes, with short hands for its types."""

    def __init__(self, state: State, op: Op | None, lanes: int) -> None:
        self.state, self.lanes = state, lanes
        self.b = state.b
        self.line = op.line if op else ""
        self.name = op.name if op else ""
        self.attributes = op.attributes if op else {}

    def type(self, element: str) -> str:
        return vector_type(LLVM[element], self.lanes)

    def opened(self, value: str, element: str) -> str:
        """A value as the type that arithmetic on it needs."""
        if element not in _HALVES:
            return value
        return self.b.pure(f"bitcast {self.type(element)} {value} to {vector_type(ARITHMETIC[element], self.lanes)}")

    def closed(self, value: str, element: str) -> str:
        """The result of arithmetic as the type that it travels as."""
        if element not in _HALVES:
            return value
        return self.b.pure(f"bitcast {vector_type(ARITHMETIC[element], self.lanes)} {value} to {self.type(element)}")

    def widened(self, value: str, element: str) -> str:
        """A half as a float."""
        return vector_math.cast(self.b, self.opened(value, element), ARITHMETIC[element], "float", self.lanes)

    def suffix(self, element: str) -> str:
        return f"v{self.lanes}{element}" if self.lanes else element

    def intrinsic(self, name: str, values: Sequence[str], element: str) -> str:
        kind = self.type(element)
        return self.b.call(kind, f"llvm.{name}.{self.suffix(element)}", [(kind, v) for v in values], pure=True)

    def constant(self, value: float, element: str) -> str:
        return self.b.splat(literal(value, element), LLVM[element], self.lanes)

    def select(self, condition: str, yes: str, no: str, element: str) -> str:
        kind = self.type(element)
        return self.b.pure(f"select {self.type('i1')} {condition}, {kind} {yes}, {kind} {no}")


def _write(site: _Site, values: list[str], source: str, target: str) -> str:
    name = site.name
    b = site.b
    if source in _HALVES and name not in _AS_THEY_ARE:  # rounded once more: the same as in halves, for one op
        wide = [site.widened(v, source) for v in values]
        result = _write(site, wide, "f32", "f32" if target == source else target)
        if target != source:
            return result
        return site.closed(vector_math.cast(b, result, "float", ARITHMETIC[target], site.lanes), target)
    if name in _BINARY:
        return _binary(site, _BINARY[name], values, target)
    if name in _INTRINSIC:
        return site.intrinsic(_INTRINSIC[name], values, target)
    if name in _FUNCTIONS:
        opened = [site.opened(v, source) for v in values]
        return site.closed(vector_math.function(b, name, opened, ARITHMETIC[source], site.lanes), target)
    if name in _INTEGER_CASTS:
        return b.pure(f"{_INTEGER_CASTS[name]} {site.type(source)} {values[0]} to {site.type(target)}")
    if name in _FLOAT_CASTS:
        return _cast(site, values[0], source, target)
    if name in _DIVISION:
        return _divide(site, _DIVISION[name], values, target)
    special = _SPECIAL.get(name)
    if special is None:
        accepted = "Ops of arith, math, scf and tt that ordinary kernels produce are accepted"
        raise site.state.error("an op is lowered", f"{name} in {site.line!r}", accepted)
    return special(site, values, source, target)


def _binary(site: _Site, instruction: str, values: list[str], element: str) -> str:
    if element == "i1" and (folded := _folded(instruction, values)) is not None:
        return folded
    return site.b.pure(f"{instruction} {site.type(element)} {values[0]}, {values[1]}")


def _is(value: str, *, truth: bool) -> bool:
    name, number = ("true", "-1") if truth else ("false", "0")
    return value in {name, number, f"splat (i1 {name})", f"splat (i1 {number})"} or (truth and value == "1")


def _folded(instruction: str, values: list[str]) -> str | None:
    """Return a logical op of booleans where one is known, so that masks that are always true vanish."""
    for one, other in (values, values[::-1]):
        if instruction == "and":
            if _is(one, truth=True) or _is(other, truth=False):
                return other
        elif instruction == "or" and (_is(one, truth=False) or _is(other, truth=True)):
            return other
    return None


def _compare(site: _Site, values: list[str], source: str, _: str) -> str:
    instruction = "fcmp" if source in FLOATS else "icmp"
    predicate = site.attributes["predicate"]
    return site.b.pure(f"{instruction} {predicate} {site.type(source)} {values[0]}, {values[1]}")


def _select(site: _Site, values: list[str], _: str, target: str) -> str:
    if _is(values[0], truth=True):
        return values[1]
    if _is(values[0], truth=False):
        return values[2]
    return site.select(values[0], values[1], values[2], target)


def _negate(site: _Site, values: list[str], _: str, target: str) -> str:
    return site.b.pure(f"fneg {site.type(target)} {values[0]}")


def _absolute(site: _Site, values: list[str], _: str, target: str) -> str:
    kind = site.type(target)
    return site.b.call(kind, f"llvm.abs.{site.suffix(target)}", [(kind, values[0]), ("i1", "0")], pure=True)


def _high_product(site: _Site, values: list[str], _: str, target: str) -> str:
    width = bits(target)
    wide = vector_type(f"i{2 * width}", site.lanes)
    a, c = (site.b.pure(f"zext {site.type(target)} {v} to {wide}") for v in values)
    product = site.b.pure(f"mul {wide} {a}, {c}")
    shift = site.b.splat(str(width), f"i{2 * width}", site.lanes)
    high = site.b.pure(f"lshr {wide} {product}, {shift}")
    return site.b.pure(f"trunc {wide} {high} to {site.type(target)}")


def _clamp(site: _Site, values: list[str], _: str, target: str) -> str:
    """Triton's clamp: NaN gives the low bound, or NaN where propagateNan says so."""
    keeps = site.attributes.get("propagateNan") == "all"
    low, high = ("maximum", "minimum") if keeps else ("maxnum", "minnum")
    return site.intrinsic(high, [site.intrinsic(low, [values[0], values[1]], target), values[2]], target)


def _divide_by_scalar(state: State, op: Op, dividend: Register, divisor: Register) -> Register:
    """Divide a vector by one number: by its reciprocal, then corrected by the remainder, as IEEE 754 rounds it.

    A correctly rounded reciprocal, one step of the remainder and a fused multiply-add give the correctly rounded
    quotient but for cases rarer than one in a million, which are one unit off. A divisor whose reciprocal would leave
    the normal range is scaled, and the dividend with it, by a power of two.
    """
    element, lanes = dividend.element, dividend.lanes
    if element in _HALVES:
        wide = _divide_by_scalar(state, op, convert(state, dividend, "f32"), convert(state, divisor, "f32"))
        return convert(state, wide, element)
    b = state.b
    one, all_ = _Site(state, op, 0), _Site(state, op, lanes)
    kind = all_.type(element)
    scale = _scale(one, divisor.value, element)
    scaled = b.pure(f"fmul {one.type(element)} {divisor.value}, {scale}")
    reciprocal = b.pure(f"fdiv {one.type(element)} {one.constant(1.0, element)}, {scaled}")
    factor, number, inverse = (b.splat(v, LLVM[element], lanes) for v in (scale, scaled, reciprocal))
    x = b.pure(f"fmul {kind} {dividend.value}, {factor}")
    near = b.pure(f"fmul {kind} {x}, {inverse}")
    rest = all_.intrinsic("fma", [b.pure(f"fneg {kind} {near}"), number, x], element)
    quotient = all_.intrinsic("fma", [rest, inverse, near], element)
    # Where infinities met, or zero lost its sign, the first product is right.
    ordinary = b.pure(f"fcmp one {kind} {quotient}, {all_.constant(0.0, element)}")
    return Register(all_.select(ordinary, quotient, near, element), element, lanes)


def _scale(site: _Site, divisor: str, element: str) -> str:
    """A power of two that brings the divisor, and so its reciprocal, into the normal range."""
    exponent, step = (125, 64) if element == "f32" else (1021, 256)
    kind = site.type(element)
    size = site.intrinsic("fabs", [divisor], element)
    small = site.b.pure(f"fcmp olt {kind} {size}, {site.constant(2.0**-exponent, element)}")
    large = site.b.pure(f"fcmp ogt {kind} {size}, {site.constant(2.0**exponent, element)}")
    down = site.select(large, site.constant(2.0**-step, element), site.constant(1.0, element), element)
    return site.select(small, site.constant(2.0**step, element), down, element)


def _bitcast(site: _Site, values: list[str], source: str, target: str) -> str:
    if site.type(source) == site.type(target):
        return values[0]
    return site.b.pure(f"bitcast {site.type(source)} {values[0]} to {site.type(target)}")


def _index_cast(site: _Site, values: list[str], source: str, target: str) -> str:
    have, want = bits(source), bits(target)
    if have == want:
        return values[0]
    signed = "zext" if site.name.endswith("ui") else "sext"
    return site.b.pure(f"{'trunc' if want < have else signed} {site.type(source)} {values[0]} to {site.type(target)}")


def _to_pointer(site: _Site, values: list[str], source: str, _: str) -> str:
    return site.b.pure(f"inttoptr {site.type(source)} {values[0]} to {site.type('ptr')}")


def _to_integer(site: _Site, values: list[str], _: str, target: str) -> str:
    return site.b.pure(f"ptrtoint {site.type('ptr')} {values[0]} to {site.type(target)}")


_SPECIAL: dict[str, Callable[[_Site, list[str], str, str], str]] = {
    "arith.cmpi": _compare,
    "arith.cmpf": _compare,
    "arith.select": _select,
    "arith.negf": _negate,
    "math.absi": _absolute,
    "tt.mulhiui": _high_product,
    "tt.clampf": _clamp,
    "arith.bitcast": _bitcast,
    "tt.bitcast": _bitcast,
    "arith.index_cast": _index_cast,
    "arith.index_castui": _index_cast,
    "tt.int_to_ptr": _to_pointer,
    "tt.ptr_to_int": _to_integer,
}

NAMES = frozenset(
    {*_BINARY, *_INTRINSIC, *_DIVISION, *_INTEGER_CASTS, *_FLOAT_CASTS, *_FUNCTIONS, *_SPECIAL, "arith.constant"}
)
"""Every op that :func:`apply` lowers."""

WIDENING = NAMES - {"arith.select", "tt.bitcast", "arith.bitcast", "arith.constant"}
"""Ops that compute halves as floats."""


def _cast(site: _Site, value: str, source: str, target: str) -> str:
    rounding = site.attributes.get("rounding", "rtne")
    if "roundingmode" in site.attributes or rounding not in {"rtne", "rtz"}:
        raise site.state.error("a cast rounds to nearest even or towards zero", site.line, "rtne and rtz are accepted")
    value = vector_math.cast(
        site.b,
        site.opened(value, source),
        ARITHMETIC[source],
        ARITHMETIC[target],
        site.lanes,
        unsigned_source=site.name == "arith.uitofp",
        unsigned_target=site.name == "arith.fptoui",
        rounding=rounding,
    )
    return site.closed(value, target)


def _divide(site: _Site, instruction: str, values: list[str], element: str) -> str:
    """Integer division. It never traps: a divisor of zero, or an overflow, divides by one instead."""
    kind = site.type(element)
    dividend, divisor = values
    if divisor.removeprefix("splat (").split()[-1].rstrip(")") not in {"0", "-1"} and "%" not in divisor:
        return site.b.pure(f"{instruction} {kind} {dividend}, {divisor}")
    one = site.constant(1, element)
    bad = site.b.pure(f"icmp eq {kind} {divisor}, {site.constant(0, element)}")
    if instruction.startswith("s"):
        least = site.constant(-(1 << (bits(element) - 1)), element)
        minus = site.b.pure(f"icmp eq {kind} {divisor}, {site.constant(-1, element)}")
        edge = site.b.pure(f"icmp eq {kind} {dividend}, {least}")
        both = site.b.pure(f"and {site.type('i1')} {minus}, {edge}")
        bad = site.b.pure(f"or {site.type('i1')} {bad}, {both}")
    divisor = site.select(bad, one, divisor, element)
    if site.lanes and bits(element) <= 32:
        return _divide_by_floats(site, instruction, dividend, divisor, element)
    return site.b.op(f"{instruction} {kind} {dividend}, {divisor}")


def _divide_by_floats(site: _Site, instruction: str, dividend: str, divisor: str, element: str) -> str:
    """Divide vectors through float64, which holds every quotient of 32-bit integers exactly before truncation."""
    kind, real = site.type(element), site.type("f64")
    to, back = ("sitofp", "fptosi") if instruction.startswith("s") else ("uitofp", "fptoui")
    a, c = (site.b.pure(f"{to} {kind} {v} to {real}") for v in (dividend, divisor))
    quotient = site.b.pure(f"{back} {real} {site.b.pure(f'fdiv {real} {a}, {c}')} to {kind}")
    if instruction.endswith("div"):
        return quotient
    product = site.b.pure(f"mul {kind} {quotient}, {divisor}")
    return site.b.pure(f"sub {kind} {dividend}, {product}")
