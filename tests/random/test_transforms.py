import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.random import transforms


def words(*columns):
    return np.array(columns, dtype=np.uint32).T.copy()


EDGES = [0, 1, 2, 255, 256, 1 << 30, (1 << 31) - 1, 1 << 31, 3 << 30, 2**32 - 257, 2**32 - 2, 2**32 - 1]
SOME = np.random.default_rng(0).integers(0, 2**32, 20000, dtype=np.uint64).astype(np.uint32)


def exact_normal(u, v):
    return np.sqrt(-2 * np.log(u.astype(np.longdouble))) * np.cos(2 * np.longdouble(np.pi) * v)


def test_float32_normals_are_box_mullers_to_float32_accuracy():
    pairs = np.array([(a, b) for a in EDGES for b in EDGES], dtype=np.uint32)
    pairs = np.concatenate([pairs, SOME.reshape(-1, 2)])
    found = transforms.normal32(pairs)
    assert found.dtype == np.float32
    u = (pairs[:, 0].astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)).astype(np.float64)
    v = (pairs[:, 1] >> 8).astype(np.float64) * 2.0**-24
    radius = np.sqrt(-2 * np.log(u))
    assert np.max(np.abs(found - radius * np.cos(2 * np.pi * v)) / np.maximum(radius, 1e-3)) < 4e-7
    assert np.all(np.isfinite(found))
    assert np.max(np.abs(found)) < 6.77


def test_float64_normals_are_box_mullers_to_float64_accuracy():
    quads = SOME.reshape(-1, 4)
    found = transforms.normal64(quads)
    assert found.dtype == np.float64
    join = quads.astype(np.uint64)
    u = (join[:, 0] | join[:, 1] << np.uint64(32)).astype(np.float64) * 2.0**-64 + 2.0**-65
    v = ((join[:, 2] | join[:, 3] << np.uint64(32)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    radius = np.sqrt(-2 * np.log(u))
    exact = radius * np.cos(2 * np.pi * v)
    assert np.max(np.abs(found - exact) / np.maximum(radius, 1e-3)) < 3e-15
    ends = np.array([[0, 0, 0, 0], [2**32 - 1] * 4], dtype=np.uint32)
    assert np.allclose(transforms.normal64(ends), [np.sqrt(130 * np.log(2)), 0.0])


@pytest.mark.parametrize("bits", [8, 11, 24])
def test_fractions_stay_below_one_and_are_whole_multiples(bits):
    found = transforms.uniform(words([0, 2**32 - 1, 1 << 31]), bits)
    assert found.tolist() == [0.0, 1 - 2.0**-bits, 0.5]


def test_float64_fractions_take_the_low_word_first():
    found = transforms.uniform64(words([0, 2**32 - 1, 0, 1 << 11], [0, 2**32 - 1, 1 << 31, 0]))
    assert found.tolist() == [0.0, 1 - 2.0**-53, 0.5, 2.0**-53]


word = st.integers(0, 2**32 - 1)


@given(st.lists(st.tuples(word, word), min_size=1, max_size=8), st.integers(1, 2**64))
def test_integer_offsets_are_the_high_half_of_the_product(pairs, count):
    found = transforms.integer_offsets(np.array(pairs, dtype=np.uint32), count)
    assert found.tolist() == [((low | high << 32) * count) >> 64 for low, high in pairs]
