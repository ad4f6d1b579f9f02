"""Elementary functions and casts of scalars and vectors, written as LLVM IR text.

The errors of float32 are those of :data:`FLOAT32_ULPS`. Zeros keep their signs, and infinities, NaN, subnormal and
overflowing results are those of C99 Annex F. Scalars, AVX2 and AVX-512 give the same bits.

float16 and bfloat16 are computed in float32 and rounded once more. float64 has its own exp, exp2, log, sqrt and rsqrt;
its other functions call the C math library lane by lane, which is as accurate and many times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nbxtensor.backend.cpu import vector_math_double as double
from nbxtensor.backend.cpu import vector_math_exponential as exponential
from nbxtensor.backend.cpu import vector_math_trigonometric as trigonometric
from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.vector_math_cast import cast
from nbxtensor.backend.cpu.vector_math_value import Value, intrinsic
from nbxtensor.errors import ArgumentError, UnsupportedError

__all__ = ["FLOAT32_ULPS", "NAMES", "cast", "function"]

_FLOAT32: Mapping[str, Callable[..., Value]] = {
    "acos": trigonometric.acos,
    "acosh": exponential.acosh,
    "asin": trigonometric.asin,
    "asinh": exponential.asinh,
    "atan": trigonometric.atan,
    "atan2": trigonometric.atan2,
    "atanh": exponential.atanh,
    "cbrt": exponential.cbrt,
    "cos": trigonometric.cos,
    "cosh": exponential.cosh,
    "erf": exponential.erf,
    "erfc": exponential.erfc,
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "log": exponential.log,
    "log10": exponential.log10,
    "log1p": exponential.log1p,
    "log2": exponential.log2,
    "powf": exponential.power,
    "rsqrt": double.rsqrt,
    "sin": trigonometric.sin,
    "sinh": exponential.sinh,
    "tan": trigonometric.tan,
    "tanh": exponential.tanh,
}
_FLOAT64: Mapping[str, Callable[..., Value]] = {
    "exp": double.exp,
    "exp2": double.exp2,
    "log": double.log,
    "rsqrt": double.rsqrt,
}
# One instruction, or a few, of any floating-point type; the first three are about bits, not numbers.
_INTRINSICS = {
    "absf": "fabs",
    "copysign": "copysign",
    "ceil": "ceil",
    "floor": "floor",
    "fma": "fma",
    "round": "round",
    "roundeven": "roundeven",
    "sqrt": "sqrt",
    "trunc": "trunc",
}
_BITWISE = frozenset({"absf", "copysign"})
_TESTS = frozenset({"isfinite", "isinf", "isnan", "isnormal"})
_ARGUMENTS = {"atan2": 2, "copysign": 2, "fma": 3, "powf": 2}
_ALIASES = {"abs": "absf", "pow": "powf"}

NAMES = frozenset({*_FLOAT32, *_INTRINSICS, *_TESTS, *_ALIASES})
"""Functions that :func:`function` writes, by the names of MLIR's math dialect."""

FLOAT32_ULPS: Mapping[str, float] = {
    "acos": 1.2,
    "acosh": 0.6,
    "asin": 1.9,
    "asinh": 0.6,
    "atan": 1.6,
    "atan2": 2.0,
    "atanh": 0.6,
    "cbrt": 0.9,
    "cos": 1.9,
    "cosh": 1.4,
    "erf": 1.9,
    "erfc": 4.1,
    "exp": 0.9,
    "exp2": 0.9,
    "expm1": 1.6,
    "log": 1.0,
    "log10": 1.6,
    "log1p": 1.0,
    "log2": 1.6,
    "powf": 0.6,
    "rsqrt": 1.5,
    "sin": 1.8,
    "sinh": 1.7,
    "tan": 0.6,
    "tanh": 1.5,
}
"""Greatest error of each float32 function in units in the last place: of all 2**32 arguments, rounded up to a tenth.

Of atan2 and powf it is that of a sample.
"""


def function(b: Builder, name: str, args: Sequence[str], element: str, lanes: int) -> str:
    """Write an elementary function and return its result.

    Args:
        b: Where to write.
        name: One of :data:`NAMES`; a leading "math." is ignored.
        args: Operands of ``element``: one, two for atan2 (y, x), powf (base, exponent) and copysign (magnitude, sign),
            three for fma.
        element: LLVM's element type: half, bfloat, float or double.
        lanes: Elements of the vectors, 0 for scalars.

    Returns:
        A value of ``element``; of i1 for the is* functions.

    Raises:
        UnsupportedError: For an unknown name or element.
        ArgumentError: For another number of operands.

    >>> b = Builder()
    >>> function(b, "sqrt", ["%x"], "float", 16), b.lines
    ('%v1', ['  %v1 = call <16 x float> @llvm.sqrt.v16f32(<16 x float> %x)'])
    """
    name = name.removeprefix("math.")
    name = _ALIASES.get(name, name)
    if name not in NAMES:
        raise UnsupportedError(f"vector_math: a function is known. Got {name!r}. {', '.join(sorted(NAMES))}.")
    if element not in {"half", "bfloat", "float", "double"}:
        raise UnsupportedError(
            f"{name}: operands are floats. Got {element}. half, bfloat, float and double are accepted."
        )
    if len(args) != _ARGUMENTS.get(name, 1):
        raise ArgumentError(f"{name}: it takes {_ARGUMENTS.get(name, 1)} operands. Got {len(args)}. No other number.")
    operands = [Value(b, text, element, lanes) for text in args]
    if element in {"half", "bfloat"}:
        return _through_float(b, name, operands)
    return _written(name, operands).text


def _through_float(b: Builder, name: str, operands: Sequence[Value]) -> str:
    element, lanes = operands[0].element, operands[0].lanes
    if name in _BITWISE and element == "half":
        return _written(name, operands).text
    wide = [Value(b, cast(b, v.text, element, "float", lanes), "float", lanes) for v in operands]
    result = _written(name, wide).text
    return result if name in _TESTS else cast(b, result, "float", element, lanes)


def _written(name: str, operands: Sequence[Value]) -> Value:
    if name in _INTRINSICS:
        return intrinsic(_INTRINSICS[name], *operands)
    if name in _TESTS:
        return _tested(name, operands[0])
    if operands[0].element == "float":
        return _FLOAT32[name](*operands)
    if name in _FLOAT64:
        return _FLOAT64[name](*operands)
    return double.library("pow" if name == "powf" else name, *operands)


def _tested(name: str, x: Value) -> Value:
    if name == "isnan":
        return x.is_nan()
    size, infinity = abs(x), float("inf")
    if name == "isinf":
        return size.equals(infinity)
    finite = size < infinity
    if name == "isfinite":
        return finite
    least = 2.0**-126 if x.element == "float" else 2.0**-1022
    return finite & (size >= least)
