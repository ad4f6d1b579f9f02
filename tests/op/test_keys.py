"""What calls are looked up by: equal only for arguments that nothing tells apart."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.op import argument_key, typed

numbers = st.one_of(st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, -0.0, 1.0, 2.0, math.nan, math.inf]))
plain = st.recursive(
    st.one_of(numbers, st.text(max_size=1), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.lists(inner, max_size=2).map(tuple)),
    max_leaves=4,
)


@given(plain, plain)
def test_two_arguments_have_one_key_only_if_nothing_tells_them_apart(a, b):
    one, other = argument_key(a), argument_key(b)
    assert (one == other) == (repr(a) == repr(b))
    if one == other:
        assert hash(one) == hash(other)


class Operand:
    def __init__(self, key):
        self.__key__ = None
        self.key = key

    def __keyed__(self):
        return self.key


def test_operands_answer_for_themselves():
    one, other = Operand("here"), Operand(None)
    assert argument_key(one) == "here"
    assert argument_key([one, 1]) == (list, ("here", (int, 1)))
    assert argument_key(other) is None
    assert argument_key([one, other]) is None
    other.__key__ = "kept"
    assert argument_key([one, other]) == (list, ("here", "kept"))


@pytest.mark.parametrize("value", [object(), {}, np.zeros(2), np.float32(0.0), {1}, (1, object())])
def test_what_may_change_or_is_not_known_has_no_key(value):
    assert argument_key(value) is None


@given(numbers, numbers)
def test_hashable_values_are_told_apart_by_type_and_sign(a, b):
    assert (typed((a, 1)) == typed((b, 1))) == (repr(a) == repr(b))
