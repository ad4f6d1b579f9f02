"""What dtypes a pointwise op takes, computes in and returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nbxtensor.dtype.itemsize import kind
from nbxtensor.dtype.promotion import float_math_input, result_type
from nbxtensor.errors import ArgumentError, DtypeError

__all__ = [
    "ACTIVATION",
    "BITS",
    "EXACT",
    "FLOAT",
    "FLOATS",
    "FLOAT_BITS",
    "INTEGER",
    "NUMBER",
    "PREDICATE",
    "REAL",
    "SUMS",
    "Rule",
    "widened",
]

FLOATS = ("float16", "bfloat16", "float32", "float64")
SUMS = {dtype: 8 * error for dtype, error in zip(FLOATS, (2.0**-11, 2.0**-8, 2.0**-24, 2.0**-53), strict=True)}
"""Largest error, relative to the largest result, of functions that end in a sum whose terms may cancel."""
_COMPUTED = frozenset(FLOATS) | {f"{sign}{bits}" for sign in ("int", "uint") for bits in (8, 16, 32, 64)} | {"bool"}


@dataclass(frozen=True, slots=True)
class Rule:
    """How the dtype that the operands promote to decides what is computed.

    Attributes:
        kinds: Kinds of dtype accepted.
        compute: Dtype of every operand inside the kernel, from the promoted one.
        result: Dtype of the result, from the promoted one.
    """

    kinds: frozenset[str]
    compute: Callable[[str], str]
    result: Callable[[str], str]

    def common(self, op: str, operands: tuple[str | float, ...]) -> str:
        """Return the dtype that operands (dtypes by name, and Python numbers) promote to.

        Raises:
            DtypeError: They do not promote, or to a dtype that the op refuses.
            ArgumentError: An integer is outside the range of the tensors' dtype.
        """
        try:
            found = result_type(*operands)
        except (DtypeError, ArgumentError) as error:
            raise type(error)(f"{op}: {error}") from None
        if found not in _COMPUTED or kind(found) not in self.kinds:
            accepted = ", ".join(sorted(n for n in _COMPUTED if kind(n) in self.kinds))
            given = ", ".join(str(operand) for operand in operands)
            raise DtypeError(f"{op}: the operands' dtype is not defined for it. Got {given}. {accepted} are accepted.")
        return found


def widened(dtype: str) -> str:
    """Return the dtype that arithmetic on ``dtype`` is done in: float32 for the half formats, else itself."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _same(dtype: str) -> str:
    return dtype


def _bool(dtype: str) -> str:  # noqa: ARG001 - a rule's function of the promoted dtype
    return "bool"


def _float_compute(dtype: str) -> str:
    return widened(float_math_input(dtype))


_ALL = frozenset({"float", "int", "uint", "bool"})

REAL = Rule(_ALL, widened, _same)
"""Arithmetic with a meaning for bools too."""

NUMBER = Rule(_ALL - {"bool"}, widened, _same)
"""Arithmetic on floats and integers."""

FLOAT = Rule(_ALL, _float_compute, float_math_input)
"""Functions of real numbers: integers and bools are read as float32."""

PREDICATE = Rule(_ALL, widened, _bool)
"""Comparisons, tests and logic: the result is a bool; any nonzero value (NaN too) counts as true."""

ACTIVATION = Rule(frozenset({"float"}), widened, _same)
"""Functions of real numbers that are defined on floats only."""

EXACT = Rule(_ALL, _same, _same)
"""Selection and moves of bits: nothing is rounded."""

FLOAT_BITS = Rule(frozenset({"float"}), _same, _same)
"""Functions of the bits of a float."""

BITS = Rule(frozenset({"int", "uint", "bool"}), _same, _same)
"""Bitwise logic."""

INTEGER = Rule(frozenset({"int", "uint"}), _same, _same)
"""Functions of integers."""
