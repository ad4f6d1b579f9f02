"""Conversions between element types, each rounded once, as LLVM IR text."""

from __future__ import annotations

from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.vector_math_value import Value, select
from nbxtensor.errors import UnsupportedError

__all__ = ["cast"]

_INTEGERS = ("i1", "i8", "i16", "i32", "i64")
_FLOATS = ("half", "bfloat", "float", "double")


def cast(
    b: Builder,
    value: str,
    source: str,
    target: str,
    lanes: int,
    *,
    unsigned_source: bool = False,
    unsigned_target: bool = False,
    rounding: str = "rtne",
) -> str:
    """Write the conversion of a value between element types and return the result.

    The rules are those of :mod:`nbxtensor.dtype.convert`, so that kernels and host agree to the bit:

    * Between floats, and from an integer to a float, the exact value is rounded once: to nearest even, or towards
      zero for "rtz" (between floats only). Past the largest finite number to nearest even gives infinity.
    * A NaN that is narrowed becomes the target's positive quiet NaN (0x7FC0 for bfloat16, 0x7E00 for float16,
      0x7FC00000 for float32); widening keeps it.
    * A float becomes an integer towards zero; beyond the range it takes the nearest end, and NaN becomes 0.
    * An integer becomes a narrower integer by its low bits (i1: the lowest one), a wider one by its sign unless
      ``unsigned_source``.
    * A float becomes an i1 that says whether it is not zero: NaN is true, -0.0 is false.

    Args:
        b: Where to write.
        value: Operand of ``source`` elements.
        source: LLVM's element type: i1, i8, i16, i32, i64, half, bfloat, float or double.
        target: The same, of the result.
        lanes: Elements of the vector, 0 for a scalar.
        unsigned_source: Whether a source integer has no sign; an i1 of a truth value is such.
        unsigned_target: Whether a target integer of a float has no sign.
        rounding: "rtne" or "rtz".

    Raises:
        UnsupportedError: For another type, or a rounding that a pair has not.

    >>> b = Builder()
    >>> cast(b, "%x", "float", "double", 4), b.lines
    ('%v1', ['  %v1 = fpext <4 x float> %x to <4 x double>'])
    """
    for element in (source, target):
        if element not in _INTEGERS + _FLOATS:
            accepted = ", ".join(_INTEGERS + _FLOATS)
            raise UnsupportedError(f"cast: a type is one that kernels compute with. Got {element}. {accepted}.")
    if rounding not in {"rtne", "rtz"} or (rounding == "rtz" and not (source in _FLOATS and target in _FLOATS)):
        raise UnsupportedError(
            f"cast: a rounding belongs to its pair. Got {rounding!r} from {source} to {target}. "
            "'rtne' is accepted, and 'rtz' between floats."
        )
    if source == target:
        return value
    x = Value(b, value, source, lanes)
    if source in _FLOATS:
        if target in _FLOATS:
            return _between_floats(x, target, towards_zero=rounding == "rtz").text
        return _to_integer(x, target, unsigned=unsigned_target).text
    if target in _FLOATS:
        return _from_integer(x, target, unsigned=unsigned_source).text
    narrower = int(target[1:]) < int(source[1:])
    return x.converted("trunc" if narrower else "zext" if unsigned_source else "sext", target).text


def _between_floats(x: Value, target: str, *, towards_zero: bool = False) -> Value:
    if x.element in {"half", "bfloat"}:
        x = _widened(x)
    elif x.element == "double" and target in {"half", "bfloat"}:
        # float32 rounded to odd keeps what the last rounding must know.
        x = _narrowed_down(x) if towards_zero else _rounded_to_odd(x)
    if x.element == target:
        return x
    if target == "double":
        return x.converted("fpext", "double")
    if target == "bfloat":
        return _to_bfloat(x, towards_zero=towards_zero)
    result = _narrowed_down(x, target) if towards_zero else x.converted("fptrunc", target)
    return select(x.is_nan(), float("nan"), result)


def _widened(x: Value) -> Value:
    """Return half or bfloat values as float, exactly."""
    if x.element == "half":
        return x.converted("fpext", "float")
    return (x.bits().converted("zext", "i32") << 16).as_float()


def _to_bfloat(x: Value, *, towards_zero: bool) -> Value:
    bits = x.bits()
    if not towards_zero:
        bits = bits + (bits.shifted_down(16) & 1) + 0x7FFF
    bits = select(x.is_nan(), 0x7FC00000, bits)
    return bits.shifted_down(16).converted("trunc", "i16").converted("bitcast", "bfloat")


def _narrowed_down(x: Value, target: str = "float") -> Value:
    """Return ``x`` in a narrower format, rounded towards zero."""
    near = x.converted("fptrunc", target)
    wide = near.converted("fpext", x.element)
    step = (abs(wide) > abs(x)).converted("sext", f"i{near.width}")  # -1 where it was rounded away from zero
    return (near.bits() + step).converted("bitcast", target)


def _rounded_to_odd(x: Value) -> Value:
    """Return a double as a float: rounded towards zero, then with the last bit set unless that was exact."""
    down = _narrowed_down(x)
    inexact = down.converted("fpext", "double").compare("une", x).converted("zext", "i32")
    return (down.bits() | inexact).as_float()


def _to_integer(x: Value, target: str, *, unsigned: bool) -> Value:
    if x.element in {"half", "bfloat"}:
        x = _widened(x)
    if target == "i1":
        return x.compare("une", 0.0)
    name = f"llvm.fpto{'u' if unsigned else 's'}i.sat"
    shape = f"v{x.lanes}" if x.lanes else ""
    result = x.with_text("", target)
    function = f"{name}.{shape}{target}.{shape}{'f32' if x.element == 'float' else 'f64'}"
    return result.with_text(x.b.call(result.type, function, [(x.type, x.text)], pure=True))


def _from_integer(x: Value, target: str, *, unsigned: bool) -> Value:
    convert = "uitofp" if unsigned else "sitofp"
    if target in {"float", "double"}:
        return x.converted(convert, target)
    if target == "half":
        # What float32 does not hold exactly is past the largest half anyway.
        return x.converted(convert, "float").converted("fptrunc", "half")
    if x.width <= 16:
        return _to_bfloat(x.converted(convert, "float"), towards_zero=False)
    if x.width == 64:
        return _between_floats(_gathered(x, unsigned=unsigned), target)
    return _between_floats(x.converted(convert, "double"), target)


def _gathered(x: Value, *, unsigned: bool) -> Value:
    """Return i64 values as doubles that round to eight bits as the integers do.

    From 2**52 on, the low 11 bits, which a double does not hold, are gathered into one that it does.
    """
    if unsigned:
        large = x.compare("ugt", (1 << 52) - 1)
        high = x.shifted_down(11)
    else:
        large = select(x < 0, -x, x).compare("ugt", (1 << 52) - 1)
        high = x >> 11
    sticky = (x & 0x7FF).compare("ne", 0).converted("zext", "i64")
    exact = select(large, high | sticky, x).converted("sitofp", "double")
    return select(large, exact * 2048.0, exact)
