"""Vector values in LLVM IR text, with the operators that formulas are written in."""

from __future__ import annotations

from collections.abc import Sequence

from nbxtensor.backend.cpu.ir import Builder, vector_type

__all__ = ["Value", "copysign", "fma", "intrinsic", "polynomial", "select", "x86"]

_WIDTHS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}
_SUFFIXES = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}  # integers are spelled as they are
_ORDERS = {"<": ("olt", "slt"), "<=": ("ole", "sle"), ">": ("ogt", "sgt"), ">=": ("oge", "sge")}


class Value:
    """A scalar (``lanes`` 0) or vector operand; a Python number beside it becomes a constant of its type.

    Comparisons are ordered and signed and give i1 values; ``>>`` keeps the sign.
    """

    def __init__(self, b: Builder, text: str, element: str, lanes: int) -> None:
        self.b = b
        self.text = text
        self.element = element
        self.lanes = lanes

    @property
    def type(self) -> str:
        """LLVM's spelling of the type."""
        return vector_type(self.element, self.lanes)

    @property
    def floating(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.element in _WIDTHS

    @property
    def width(self) -> int:
        """Bits of one element."""
        return _WIDTHS[self.element] if self.floating else int(self.element[1:])

    def like(self, number: Value | float) -> Value:
        """Return ``number`` as a value of this one's type."""
        if isinstance(number, Value):
            return number
        return self.with_text(self.b.constant(number, self.element, self.lanes))

    def with_text(self, text: str, element: str | None = None) -> Value:
        """Return the operand ``text`` with this value's lanes and, unless given, its element."""
        return Value(self.b, text, element or self.element, self.lanes)

    def _binary(self, floating: str, integer: str, other: Value | float, *, swapped: bool = False) -> Value:
        operation = floating if self.floating else integer
        left, right = (self.like(other), self) if swapped else (self, self.like(other))
        return self.with_text(self.b.pure(f"{operation} {self.type} {left.text}, {right.text}"))

    def __add__(self, other: Value | float) -> Value:
        return self._binary("fadd", "add", other)

    def __radd__(self, other: float) -> Value:
        return self._binary("fadd", "add", other, swapped=True)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary("fsub", "sub", other)

    def __rsub__(self, other: float) -> Value:
        return self._binary("fsub", "sub", other, swapped=True)

    def __mul__(self, other: Value | float) -> Value:
        return self._binary("fmul", "mul", other)

    def __rmul__(self, other: float) -> Value:
        return self._binary("fmul", "mul", other, swapped=True)

    def __truediv__(self, other: Value | float) -> Value:
        return self._binary("fdiv", "sdiv", other)

    def __rtruediv__(self, other: float) -> Value:
        return self._binary("fdiv", "sdiv", other, swapped=True)

    def __neg__(self) -> Value:
        if not self.floating:
            return 0 - self
        return self.with_text(self.b.pure(f"fneg {self.type} {self.text}"))

    def __abs__(self) -> Value:
        return intrinsic("fabs", self)

    def __and__(self, other: Value | int) -> Value:
        return self._binary("", "and", other)

    def __or__(self, other: Value | int) -> Value:
        return self._binary("", "or", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._binary("", "xor", other)

    def __lshift__(self, other: Value | int) -> Value:
        return self._binary("", "shl", other)

    def __rshift__(self, other: Value | int) -> Value:
        return self._binary("", "ashr", other)

    def shifted_down(self, other: Value | int) -> Value:
        """Return the bits shifted down with zeros coming in."""
        return self._binary("", "lshr", other)

    def compare(self, predicate: str, other: Value | float) -> Value:
        """Return the i1 value of LLVM's comparison ``predicate`` ("oeq", "uno", "ult", "eq")."""
        operation = "fcmp" if self.floating else "icmp"
        text = self.b.pure(f"{operation} {predicate} {self.type} {self.text}, {self.like(other).text}")
        return self.with_text(text, "i1")

    def _order(self, sign: str, other: Value | float) -> Value:
        floating, integer = _ORDERS[sign]
        return self.compare(floating if self.floating else integer, other)

    def __lt__(self, other: Value | float) -> Value:
        return self._order("<", other)

    def __le__(self, other: Value | float) -> Value:
        return self._order("<=", other)

    def __gt__(self, other: Value | float) -> Value:
        return self._order(">", other)

    def __ge__(self, other: Value | float) -> Value:
        return self._order(">=", other)

    def equals(self, other: Value | float) -> Value:
        """Return the i1 value of ordered equality."""
        return self.compare("oeq" if self.floating else "eq", other)

    def is_nan(self) -> Value:
        """Return the i1 value "not a number"."""
        return self.compare("uno", self)

    def converted(self, instruction: str, element: str, lanes: int | None = None) -> Value:
        """Return the value after a conversion ``instruction`` ("fpext", "sitofp", "zext") to ``element``."""
        lanes = self.lanes if lanes is None else lanes
        text = self.b.pure(f"{instruction} {self.type} {self.text} to {vector_type(element, lanes)}")
        return Value(self.b, text, element, lanes)

    def bits(self) -> Value:
        """Return the bits of a floating-point value as an integer of its width."""
        return self.converted("bitcast", f"i{self.width}")

    def as_float(self) -> Value:
        """Return the floating-point value (float or double) whose bits this integer holds."""
        return self.converted("bitcast", "float" if self.width == 32 else "double")

    def part(self, start: int, lanes: int) -> Value:
        """Return ``lanes`` elements from ``start`` on."""
        mask = ", ".join(f"i32 {start + i}" for i in range(lanes))
        text = self.b.pure(f"shufflevector {self.type} {self.text}, {self.type} poison, <{lanes} x i32> <{mask}>")
        return Value(self.b, text, self.element, lanes)


def joined(parts: Sequence[Value]) -> Value:
    """Return the elements of ``parts`` (a power of two of equal vectors) one after another."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [_concatenated(low, high) for low, high in pairs]
    return parts[0]


def _concatenated(low: Value, high: Value) -> Value:
    lanes = 2 * low.lanes
    mask = ", ".join(f"i32 {i}" for i in range(lanes))
    text = low.b.pure(f"shufflevector {low.type} {low.text}, {low.type} {high.text}, <{lanes} x i32> <{mask}>")
    return Value(low.b, text, low.element, lanes)


def intrinsic(name: str, first: Value, *others: Value | float) -> Value:
    """Return LLVM's intrinsic ``name`` ("sqrt", "roundeven") of operands of one type."""
    suffix = _SUFFIXES.get(first.element, first.element)
    if first.lanes:
        suffix = f"v{first.lanes}{suffix}"
    arguments = [(first.type, first.like(x).text) for x in (first, *others)]
    return first.with_text(first.b.call(first.type, f"llvm.{name}.{suffix}", arguments, pure=True))


def fma(x: Value | float, y: Value | float, z: Value | float) -> Value:
    """Return x * y + z rounded once; at least one operand is a value."""
    shape = next(v for v in (x, y, z) if isinstance(v, Value))
    return intrinsic("fma", shape.like(x), y, z)


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Return the polynomial with ``coefficients`` from the lowest power up, by Horner's rule in fma."""
    result = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, c)
    return result


def select(condition: Value, yes: Value | float, no: Value | float) -> Value:
    """Return ``yes`` where ``condition`` holds, else ``no``; at least one of them is a value."""
    shape = yes if isinstance(yes, Value) else no
    if not isinstance(shape, Value):
        raise TypeError("select: one of the two choices must be a value")
    chosen = f"{shape.type} {shape.like(yes).text}, {shape.type} {shape.like(no).text}"
    return shape.with_text(shape.b.pure(f"select {condition.type} {condition.text}, {chosen}"))


def copysign(magnitude: Value, sign: Value) -> Value:
    """Return ``magnitude`` with the sign bit of ``sign``."""
    return intrinsic("copysign", magnitude, sign)


def has_x86(value: Value) -> bool:
    """Return whether the AVX-512 instructions of ``x86`` apply: level v4 and whole 512-bit registers (or 256)."""
    whole = 512 // value.width
    return value.b.level == "x86-64-v4" and (value.lanes == whole // 2 or value.lanes > 0 == value.lanes % whole)


def x86(name: str, x: Value, *others: Value, immediate: int | None = None) -> Value:
    """Return the AVX-512 instruction ``name`` ("scalef", "getexp", "getmant", "range") of float or double vectors.

    Vectors longer than a register are taken in register-long parts. ``immediate`` follows the operands.
    """
    whole = 512 // x.width
    if x.lanes > whole:
        count = x.lanes // whole
        if count & (count - 1):
            raise ValueError("x86: a vector is a power of two of registers")
        pieces = [[v.part(i * whole, whole) for v in (x, *others)] for i in range(count)]
        return joined([x86(name, *piece, immediate=immediate) for piece in pieces])
    register = x.lanes * x.width
    arguments = [(v.type, v.text) for v in (x, *others)]
    if immediate is not None:
        arguments.append(("i32", str(immediate)))
    arguments += [(x.type, "zeroinitializer"), ("i16" if x.lanes == 16 else "i8", "-1")]
    if register == 512:
        arguments.append(("i32", "4"))  # rounding as the current mode says
    kind = "ps" if x.element == "float" else "pd"
    return x.with_text(x.b.call(x.type, f"llvm.x86.avx512.mask.{name}.{kind}.{register}", arguments, pure=True))
