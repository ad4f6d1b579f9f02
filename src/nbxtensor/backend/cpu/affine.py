"""Integers known symbolically: polynomials over named scalars, with a multiple of the lane number on top."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["ONE", "ZERO", "Fact", "Facts", "Integer", "Poly"]


class Poly:
    """A polynomial with integer coefficients over symbols (names of scalars); immutable.

    >>> x = Poly.symbol("%x")
    >>> print((x + Poly.constant(2)).scaled(3))
    3*%x + 6
    """

    __slots__ = ("_key", "terms")

    def __init__(self, terms: Mapping[tuple[str, ...], int]) -> None:
        self.terms: dict[tuple[str, ...], int] = {m: c for m, c in terms.items() if c}
        self._key = tuple(sorted(self.terms.items()))

    @staticmethod
    def constant(value: int) -> Poly:
        """Return the polynomial that is ``value``."""
        return Poly({(): value})

    @staticmethod
    def symbol(name: str) -> Poly:
        """Return the polynomial that is the symbol ``name``."""
        return Poly({(name,): 1})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __add__(self, other: Poly) -> Poly:
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return Poly(terms)

    def __sub__(self, other: Poly) -> Poly:
        return self + other.scaled(-1)

    def __mul__(self, other: Poly) -> Poly:
        terms: dict[tuple[str, ...], int] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in other.terms.items():
                monomial = tuple(sorted(m1 + m2))
                terms[monomial] = terms.get(monomial, 0) + c1 * c2
        return Poly(terms)

    def __repr__(self) -> str:
        def term(monomial: tuple[str, ...], coefficient: int) -> str:
            names = "*".join(monomial)
            return f"{coefficient}*{names}" if names and coefficient != 1 else names or str(coefficient)

        return " + ".join(term(m, c) for m, c in sorted(self.terms.items(), reverse=True)) or "0"

    def scaled(self, factor: int) -> Poly:
        """Return ``self * factor``."""
        return Poly({m: c * factor for m, c in self.terms.items()})

    def is_constant(self) -> bool:
        """Whether no symbol occurs."""
        return not self.terms or self.terms.keys() == {()}

    def value(self) -> int:
        """Return the constant term: all of it when :meth:`is_constant`."""
        return self.terms.get((), 0)

    def symbols(self) -> set[str]:
        """Return the symbols that occur."""
        return {name for monomial in self.terms for name in monomial}

    def substituted(self, values: Mapping[str, Poly]) -> Poly:
        """Return the polynomial with symbols replaced."""
        result = ZERO
        for monomial, coefficient in self.terms.items():
            product = Poly.constant(coefficient)
            for name in monomial:
                product = product * values.get(name, Poly.symbol(name))
            result = result + product
        return result


ZERO = Poly({})
ONE = Poly.constant(1)


@dataclass(frozen=True)
class Fact:
    """What is known of a symbol: low <= value <= high (None: no bound) and ``value % multiple == 0``."""

    low: int | None = None
    high: int | None = None
    multiple: int = 1


class Facts(dict[str, Fact]):
    """What is known of each symbol, and what follows for polynomials."""

    def bounds(self, poly: Poly) -> tuple[int | None, int | None]:
        """Return the least and the greatest value that ``poly`` can have, as far as known."""
        low: int | None = 0
        high: int | None = 0
        for monomial, coefficient in poly.terms.items():
            least, most = self._monomial(monomial)
            if coefficient < 0:
                least, most = most, least
            low = None if low is None or least is None else low + coefficient * least
            high = None if high is None or most is None else high + coefficient * most
        return low, high

    def _monomial(self, monomial: tuple[str, ...]) -> tuple[int | None, int | None]:
        least: int | None = 1
        most: int | None = 1
        for name in monomial:
            fact = self.get(name, Fact())
            if len(monomial) == 1:
                return fact.low, fact.high
            if fact.low is None or fact.low < 0:
                return None, None  # products are followed only between numbers that are not negative
            least = None if least is None else least * fact.low
            most = None if most is None or fact.high is None else most * fact.high
        return least, most

    def multiple(self, poly: Poly) -> int:
        """Return a number that ``poly`` is always a multiple of (0 when it is zero)."""
        result = 0
        for monomial, coefficient in poly.terms.items():
            factor = abs(coefficient)
            for name in monomial:
                factor *= self.get(name, Fact()).multiple
            result = math.gcd(result, factor)
        return result

    def positive(self, poly: Poly) -> bool | None:
        """Return whether ``poly > 0``; None when that is not known."""
        low, high = self.bounds(poly)
        if low is not None and low > 0:
            return True
        return False if high is not None and high <= 0 else None


@dataclass(frozen=True)
class Integer:
    """An integer in every lane: ``base + lane * k`` in lane k.

    It stands for the exact integer: arithmetic on indices is taken not to wrap, as Triton's own analysis of
    contiguity takes it. Where an op needs the bits instead, the value is written out and wrapped to ``bits``.

    Attributes:
        base: Value in lane 0.
        lane: Step from lane to lane; zero when all lanes are equal.
        bits: Width of the TTIR type it has.
    """

    base: Poly
    lane: Poly = ZERO
    bits: int = 64

    @property
    def uniform(self) -> bool:
        """Whether all lanes are equal."""
        return not self.lane.terms

    def added(self, other: Integer, sign: int = 1) -> Integer:
        """Return ``self + sign * other``."""
        return Integer(self.base + other.base.scaled(sign), self.lane + other.lane.scaled(sign), self.bits)

    def scaled(self, factor: Poly) -> Integer:
        """Return ``self * factor``."""
        return Integer(self.base * factor, self.lane * factor, self.bits)

    def multiplied(self, other: Integer) -> Integer | None:
        """Return the product, unless both differ from lane to lane."""
        if other.uniform:
            return self.scaled(other.base)
        if self.uniform:
            return Integer(other.base * self.base, other.lane * self.base, self.bits)
        return None

    def substituted(self, values: Mapping[str, Integer]) -> Integer:
        """Return the integer with symbols replaced by integers; a symbol with lanes may occur only linearly."""
        bases = {name: v.base for name, v in values.items()}
        lane = self.lane.substituted(bases)
        for name, v in values.items():
            if not v.uniform:
                linear = Poly({tuple(n for n in m if n != name): c for m, c in self.base.terms.items() if name in m})
                lane = lane + linear.substituted(bases) * v.lane
        return Integer(self.base.substituted(bases), lane, self.bits)

    def divided(
        self, divisor: int, lanes: int, facts: Facts, split: Callable[[Poly, int], tuple[Poly, Poly] | None]
    ) -> tuple[Integer, Integer] | None:
        """Return quotient and remainder by a positive constant where all lanes keep one step, else None.

        Args:
            divisor: The constant.
            lanes: Number of lanes (1 for a scalar).
            facts: What is known of the symbols.
            split: Writes quotient and remainder of a polynomial that is known not to be negative, if it can.
        """
        low, _ = facts.bounds(self.base)
        step = self.lane.value()
        if not self.lane.is_constant() or step < 0 or low is None or low < 0:
            return None
        reach = step * (lanes - 1)
        whole = Poly({m: c // divisor for m, c in self.base.terms.items() if c % divisor == 0})
        rest = self.base - whole.scaled(divisor)
        low, high = facts.bounds(rest)
        spread = 0 if step % divisor == 0 else reach  # how far the lanes move the remainder
        if low is None or low < 0 or high is None or high + spread >= divisor:
            if spread >= math.gcd(facts.multiple(rest), divisor):
                return None
            parts = split(self.base, divisor)
            if parts is None:
                return None
            whole, rest = parts
        if spread:
            return Integer(whole, ZERO, self.bits), Integer(rest, self.lane, self.bits)
        return Integer(whole, Poly.constant(step // divisor), self.bits), Integer(rest, ZERO, self.bits)
