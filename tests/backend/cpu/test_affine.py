"""Symbolic integers against plain ones."""

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from nbxtensor.backend.cpu.affine import ONE, ZERO, Fact, Facts, Integer, Poly

NAMES = ["%a", "%b", "%c"]
polys = st.dictionaries(
    st.lists(st.sampled_from(NAMES), max_size=2).map(lambda names: tuple(sorted(names))), st.integers(-9, 9), max_size=4
).map(Poly)
values = st.fixed_dictionaries({name: st.integers(-20, 20) for name in NAMES})


def at(poly, numbers):
    total = 0
    for monomial, coefficient in poly.terms.items():
        product = coefficient
        for name in monomial:
            product *= numbers[name]
        total += product
    return total


@given(polys, polys, values, st.integers(-5, 5))
def test_arithmetic(p, q, numbers, factor):
    assert at(p + q, numbers) == at(p, numbers) + at(q, numbers)
    assert at(p - q, numbers) == at(p, numbers) - at(q, numbers)
    assert at(p * q, numbers) == at(p, numbers) * at(q, numbers)
    assert at(p.scaled(factor), numbers) == factor * at(p, numbers)
    assert (p - p) == ZERO
    assert (p * ONE) == p


@given(polys, polys, values)
def test_substitution(p, q, numbers):
    assert at(p.substituted({"%a": q}), numbers) == at(p, numbers | {"%a": at(q, numbers)})


@given(polys, st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4)), values)
def test_bounds_and_multiples_hold(p, fact, numbers):
    low, reach, multiple = fact
    facts = Facts()
    for name in NAMES:
        number = (low + abs(numbers[name]) % (reach + 1)) * multiple
        facts[name] = Fact(low * multiple, (low + reach) * multiple, multiple)
        numbers = numbers | {name: number}
    number = at(p, numbers)
    least, most = facts.bounds(p)
    assert least is None or least <= number
    assert most is None or number <= most
    common = facts.multiple(p)
    assert number == 0 if common == 0 else number % common == 0
    assert facts.positive(p) in {None, number > 0}


def test_a_symbol_without_facts_is_unbounded():
    assert Facts().bounds(Poly.symbol("%x")) == (None, None)
    assert Facts().positive(Poly.symbol("%x")) is None


@given(
    st.integers(0, 200), st.integers(1, 8), st.integers(0, 6), st.integers(1, 16),
    st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 3, 4, 7, 8, 16, 32, 64]), st.integers(0, 70),
)  # fmt: skip
def test_division_lane_by_lane(number, multiple, lane, lanes, factor, divisor, constant):
    """Where a quotient is given, it and the remainder are those of every lane."""
    number *= multiple
    facts = Facts({"%x": Fact(0, 200 * multiple, multiple)})
    made = {}

    def split(poly, by):
        q, r = f"%q{len(made)}", f"%r{len(made)}"
        whole = at(poly, {"%x": number})
        made[q], made[r] = divmod(whole, by)
        facts[q], facts[r] = Fact(0), Fact(0, by - 1)
        return Poly.symbol(q), Poly.symbol(r)

    base = Poly.symbol("%x").scaled(factor) + Poly.constant(constant)
    parts = Integer(base, Poly.constant(lane)).divided(divisor, lanes, facts, split)
    assume(parts is not None)
    quotient, rest = parts
    known = {"%x": number, **made}
    for k in range(lanes):
        whole = at(base, known) + lane * k
        got = at(quotient.base, known) + at(quotient.lane, known) * k, at(rest.base, known) + at(rest.lane, known) * k
        assert got == divmod(whole, divisor)


def test_division_keeps_vectors_whole():
    """Sixteen lanes from a multiple of 16 stay inside a row of 64."""
    facts = Facts({"%i": Fact(0, 1008, 16)})
    parts = Integer(Poly.symbol("%i"), ONE).divided(64, 16, facts, lambda p, d: (Poly.symbol("%q"), Poly.symbol("%r")))
    assert parts == (Integer(Poly.symbol("%q")), Integer(Poly.symbol("%r"), ONE))


@pytest.mark.parametrize("low", [None, -1])
def test_numbers_that_may_be_negative_are_not_divided(low):
    facts = Facts({"%x": Fact(low, 100)})
    assert Integer(Poly.symbol("%x")).divided(4, 1, facts, lambda p, d: None) is None


@given(polys, polys, values, st.integers(0, 7), st.sampled_from(NAMES))
def test_substitution_of_lanes(p, q, numbers, lane, name):
    assume(all(m.count(name) <= 1 for m in p.terms))
    moved = Integer(p).substituted({name: Integer(q, ONE)})
    got = at(moved.base, numbers) + lane * at(moved.lane, numbers)
    assert got == at(p, numbers | {name: at(q, numbers) + lane})


def test_text():
    assert repr(Poly.symbol("%x").scaled(3) + Poly.constant(6)) == "3*%x + 6"
    assert repr(ZERO) == "0"
