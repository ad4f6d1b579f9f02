import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.errors import ShapeError
from nbxtensor.random import philox4x32

word = st.integers(0, 2**32 - 1)

# The vectors "philox4x32 10" of the file kat_vectors that the generator's authors publish with Random123.
PUBLISHED = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(part, 16) for part in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_the_published_vectors(counter, key, expected):
    found = philox4x32(np.array([words(counter)], dtype=np.uint32), tuple(words(key)))
    assert found.dtype == np.uint32
    assert found[0].tolist() == words(expected)


def scalar_philox(counter, key):
    """The generator as its paper states it, in Python ints."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


@given(st.lists(st.tuples(word, word, word, word), min_size=1, max_size=5), st.tuples(word, word))
def test_every_counter_is_mapped_alone(counters, key):
    found = philox4x32(np.array(counters, dtype=np.uint32), key)
    assert found.tolist() == [scalar_philox(counter, key) for counter in counters]


@pytest.mark.parametrize("shape", [(4,), (2, 3), (1, 1, 4)])
def test_counters_of_another_shape_are_refused(shape):
    with pytest.raises(ShapeError, match="four words"):
        philox4x32(np.zeros(shape, dtype=np.uint32), (0, 0))
