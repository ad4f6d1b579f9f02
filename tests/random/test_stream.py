import hashlib
import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbxtensor.errors import ArgumentError, DtypeError, ShapeError
from nbxtensor.random import Stream, philox4x32
from nbxtensor.random import stream as stream_module

FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
seeds = st.integers(0, 2**64 - 1)

DRAWS = {
    **{f"uniform {d}": lambda s, n, d=d: s.uniform((n,), d) for d in FLOATS},
    **{f"normal {d}": lambda s, n, d=d: s.normal((n,), d) for d in FLOATS},
    **{f"integers {d}": lambda s, n, d=d: s.integers(0, 100, (n,), d) for d in INTEGERS},
    "bernoulli": lambda s, n: s.bernoulli(0.3, (n,)),
    "words": lambda s, n: s.words(n),
}


@given(st.sampled_from(sorted(DRAWS)), seeds, st.integers(0, 9), st.lists(st.integers(0, 30), max_size=5))
def test_pieces_draw_what_one_call_draws(kind, seed, start, pieces):
    draw = DRAWS[kind]
    whole, parts = Stream(seed, position=start), Stream(seed, position=start)
    expected = draw(whole, sum(pieces))
    found = [draw(parts, count) for count in pieces]
    assert np.concatenate([expected[:0], *found]).tobytes() == expected.tobytes()
    assert parts.position == whole.position


@pytest.mark.parametrize("kind", ["uniform float32", "normal float64"])
def test_pieces_past_the_internal_piece_size(kind, monkeypatch):
    expected = DRAWS[kind](Stream(5), 1000)
    monkeypatch.setattr(stream_module, "_PIECE", 7)
    assert DRAWS[kind](Stream(5), 1000).tobytes() == expected.tobytes()


@given(seeds, seeds, st.integers(0, 2**65 - 40), st.integers(0, 40))
def test_words_are_the_generators_blocks_in_order(seed, lane, position, count):
    found = Stream(seed, lane=lane, position=position).words(count)
    first = position // 4
    counters = [[n % 2**32, n >> 32, lane % 2**32, lane >> 32] for n in range(first, first + 11)]
    blocks = philox4x32(np.array(counters, dtype=np.uint32), (seed % 2**32, seed >> 32)).reshape(-1)
    assert found.tolist() == blocks[position % 4 : position % 4 + count].tolist()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *((f"uniform {dtype}", words) for dtype, words in zip(FLOATS, (1, 2, 1, 1), strict=True)),
        *((f"normal {dtype}", words) for dtype, words in zip(FLOATS, (2, 4, 2, 2), strict=True)),
        *((kind, 2) for kind in ("integers int64", "integers uint8")),
        ("bernoulli", 1),
    ],
)
def test_an_element_takes_the_stated_words_so_that_seek_finds_it(kind, words):
    whole = DRAWS[kind](Stream(11), 50)
    stream = Stream(11)
    stream.seek(17 * words)
    assert DRAWS[kind](stream, 3).tobytes() == whole[17:20].tobytes()
    assert stream.position == 20 * words


def test_the_bits_of_every_draw_are_pinned():
    """What any machine must draw: a change here changes what users have stored."""
    digests = {
        kind: hashlib.sha256(draw(Stream(2026), 4096).tobytes()).hexdigest()[:16] for kind, draw in DRAWS.items()
    }
    digests["permutation"] = hashlib.sha256(Stream(2026).permutation(500).tobytes()).hexdigest()[:16]
    digests["child"] = repr(Stream(2026).child(3))
    assert digests == PINNED


PINNED = {
    "uniform float32": "20bab53bf5dd5f17",
    "uniform float64": "936dcfbe2b3d80f9",
    "uniform float16": "8e85062e48038b9e",
    "uniform bfloat16": "eac24dbf01188f57",
    "normal float32": "3aefbc178a7e145b",
    "normal float64": "c2b69f9a7b83ab5f",
    "normal float16": "908b18b3d71285b4",
    "normal bfloat16": "74cd962da3e6d373",
    "integers int8": "50ab13431b4e7796",
    "integers int16": "afae89ae869282d3",
    "integers int32": "e2bb6b8ae67e9229",
    "integers int64": "97f5d4f23be11308",
    "integers uint8": "50ab13431b4e7796",
    "integers uint16": "afae89ae869282d3",
    "integers uint32": "e2bb6b8ae67e9229",
    "integers uint64": "97f5d4f23be11308",
    "bernoulli": "604f140dc0320249",
    "words": "2088d469849cde9d",
    "permutation": "a2d971ae245fc40b",
    "child": "Stream(538877595226201909, lane=10021595252489980483, position=0)",
}


def test_shapes_dtypes_and_ranges():
    for dtype in FLOATS:
        carrier = np.uint16 if dtype == "bfloat16" else np.dtype(dtype)
        for draw in (Stream(1).uniform, Stream(1).normal):
            assert draw((2, 0, 3), dtype).shape == (2, 0, 3)
            assert draw((), dtype).shape == ()
            assert draw(5, dtype).shape == (5,)
            assert draw((3, 4), dtype).dtype == carrier
    for dtype in ("float16", "bfloat16"):
        drawn = Stream(3).uniform((20000,), dtype)
        values = drawn.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else drawn
        assert values.min().astype(float) >= 0
        assert values.max().astype(float) < 1.0


def test_half_normals_are_the_float32_ones_rounded_to_nearest_even():
    full = Stream(9).normal((5000,))
    assert np.array_equal(Stream(9).normal((5000,), "float16"), full.astype(np.float16))
    expected = full.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(Stream(9).normal((5000,), "bfloat16"), expected)


@given(seeds, st.sampled_from(INTEGERS), st.data())
def test_integers_stay_between_their_bounds(seed, dtype, data):
    limits = np.iinfo(dtype)
    low = data.draw(st.integers(int(limits.min), int(limits.max)))
    high = data.draw(st.integers(low + 1, int(limits.max) + 1))
    drawn = Stream(seed).integers(low, high, (20,), dtype)
    assert drawn.dtype == np.dtype(dtype)
    assert all(low <= int(value) < high for value in drawn)
    words = Stream(seed).words(40).astype(object)
    exact = [low + (((a | b << 32) * (high - low)) >> 64) for a, b in words.reshape(-1, 2)]
    assert drawn.tolist() == exact


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(3, 3, "int64"), (5, 2, "int8"), (0, 129, "int8"), (-1, 4, "uint8"), (0, 2**64, "int64")]
)
def test_integer_bounds_are_checked(low, high, dtype):
    with pytest.raises(ArgumentError, match="integers"):
        Stream(0).integers(low, high, (2,), dtype)


@given(seeds, st.integers(0, 60))
def test_a_permutation_is_one(seed, count):
    drawn = Stream(seed).permutation(count)
    assert drawn.dtype == np.int64
    assert sorted(drawn.tolist()) == list(range(count))


@given(seeds, st.integers(0, 100))
def test_children_do_not_depend_on_what_was_drawn(seed, drawn):
    parent = Stream(seed)
    before = parent.child(2)
    parent.words(drawn)
    assert repr(parent.child(2)) == repr(before) == repr(parent.split(3)[2])
    assert parent.position == drawn


def test_children_of_two_generations_are_distinct_and_independent():
    family = [Stream(0), Stream(1)]
    for parent in list(family):
        family += parent.split(30)
    family += family[5].split(30)
    keys = {(s.seed, s.lane) for s in family}
    assert len(keys) == len(family)
    signs = np.array([s.bernoulli(0.5, (4096,)) for s in family], dtype=np.float64) * 2 - 1
    correlations = (signs @ signs.T / 4096)[np.triu_indices(len(family), 1)]
    assert np.max(np.abs(correlations)) < 5.5 / math.sqrt(4096)


def normal_cdf(x):
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


def kolmogorov(values, cdf):
    """The statistic sqrt(n) * D: above 2.0 with a probability below 7e-4 for the right distribution."""
    x = np.sort(values.astype(np.float64))
    steps = np.arange(x.size + 1) / x.size
    at = cdf(x)
    return math.sqrt(x.size) * max(np.max(steps[1:] - at), np.max(at - steps[:-1]))


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_and_normal_follow_their_distributions(seed, dtype):
    assert kolmogorov(Stream(seed).uniform((20000,), dtype), lambda x: x) < 2.0
    normal = Stream(seed).normal((20000,), dtype)
    assert kolmogorov(normal, normal_cdf) < 2.0
    serial = np.mean(normal[1:].astype(np.float64) * normal[:-1])
    assert abs(serial) < 5 / math.sqrt(normal.size)


def test_the_normal_moments_and_tail():
    x = Stream(4).normal((400000,)).astype(np.float64)
    for power, moment, spread in ((1, 0, 1), (2, 1, math.sqrt(2)), (3, 0, math.sqrt(15)), (4, 3, math.sqrt(96))):
        assert abs(np.mean(x**power) - moment) < 4.5 * spread / math.sqrt(x.size)
    beyond = np.mean(np.abs(x) > 3)
    assert abs(beyond - 0.0026998) < 4.5 * math.sqrt(0.0027 / x.size)


def test_integers_and_permutations_are_even():
    counts = np.bincount(Stream(6).integers(0, 10, (50000,)), minlength=10)
    assert np.sum((counts - 5000) ** 2 / 5000) < 34  # chi-square of 9: above 34 with probability 1e-4
    orders = dict.fromkeys(itertools.permutations(range(4)), 0)
    stream = Stream(8)
    for _ in range(4800):
        orders[tuple(stream.permutation(4).tolist())] += 1
    assert sum((n - 200) ** 2 / 200 for n in orders.values()) < 58  # of 23: above 58 with probability 1e-4


@pytest.mark.parametrize("probability", [0.0, 1e-3, 0.25, 0.5, 1.0])
def test_bernoulli_has_its_mean(probability):
    drawn = Stream(12).bernoulli(probability, (100000,))
    assert drawn.dtype == np.bool_
    assert abs(drawn.mean() - probability) <= 5 * math.sqrt(probability * (1 - probability) / drawn.size)


@settings(max_examples=20)
@given(st.sampled_from([-0.1, 1.1, math.nan, math.inf]))
def test_a_probability_is_checked(probability):
    with pytest.raises(ArgumentError, match="probability"):
        Stream(0).bernoulli(probability, 3)


def test_bad_input_is_refused_by_name():
    for seed in (-1, 2**64, 1.5, "1", None):
        with pytest.raises(ArgumentError, match="seed"):
            Stream(seed)
    for call in (
        lambda s: s.seek(-1),
        lambda s: s.seek(2**65 + 1),
        lambda s: s.words(-1),
        lambda s: s.split(-1),
        lambda s: s.child(2**63),
        lambda s: s.permutation(-2),
    ):
        with pytest.raises(ArgumentError, match="whole number"):
            call(Stream(0))
    for dtype in ("int32", "float8_e4m3fn", "nope"):
        with pytest.raises(DtypeError, match="uniform"):
            Stream(0).uniform((2,), dtype)
        with pytest.raises(DtypeError, match="normal"):
            Stream(0).normal((2,), dtype)
    with pytest.raises(DtypeError, match="integers"):
        Stream(0).integers(0, 2, (2,), "float32")
    with pytest.raises(ShapeError, match="normal"):
        Stream(0).normal((2, -1))


def test_a_stream_ends_by_name():
    stream = Stream(0, position=2**65 - 2)
    assert stream.words(2).size == 2
    with pytest.raises(ArgumentError, match="position"):
        stream.words(1)
