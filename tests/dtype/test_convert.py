"""Conversions: every pair, exhaustive for sources of 16 bits and fewer, against an oracle built from ml_dtypes' values.

The oracle knows a float format only as the sorted list of its values, decoded by ml_dtypes, and rounds by
comparing with the middle of two neighbours; integers are Python's.
"""

import functools
import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nbxtensor.dtype import convert as C
from nbxtensor.dtype.convert import bf16_bits_to_f16, bf16_bits_to_f32, convert, f32_to_bf16_bits, pack, unpack
from nbxtensor.dtype.itemsize import bits, facts, kind, names, numpy_dtype
from nbxtensor.errors import ArgumentError, DtypeError, ShapeError, UnknownDtypeError

NAMES = names()
ML = {name: np.dtype(getattr(ml_dtypes, name)) for name in NAMES if hasattr(ml_dtypes, name)}
SMALL_FLOATS = [name for name in NAMES if kind(name) == "float" and bits(name) <= 16]
LISTED = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn"]
INTS = [name for name in NAMES if kind(name) in {"int", "uint"}]
EXHAUSTIVE = [name for name in NAMES if bits(name) <= 16 and name != "bool"]
WIDE = [name for name in NAMES if name not in EXHAUSTIVE]

# The pattern a NaN becomes in each format, and what a value past the largest becomes.
NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E, "float8_e4m3fnuz": 0x80,
       "float8_e5m2fnuz": 0x80, "float8_e8m0fnu": 0xFF, "float4_e2m1fn": 0x07}  # fmt: skip
OVER = {"float16": 0x7C00, "bfloat16": 0x7F80, "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7C, "float8_e4m3fnuz": 0x80,
        "float8_e5m2fnuz": 0x80, "float4_e2m1fn": 0x07}  # fmt: skip


def patterns(array):
    return array.view(f"u{array.dtype.itemsize}")


def every_code(name):
    carrier = numpy_dtype(name)
    return np.arange(1 << bits(name), dtype=f"u{carrier.itemsize}").view(carrier)


def decoded(array, name):
    """The values of a carrier as float64 (exact for every source of 32 bits and fewer) or as Python's integers."""
    if name in {"int4", "uint4"}:
        nibble = array.astype(np.int64) & 15
        return np.where(nibble > 7, nibble - 16, nibble) if name == "int4" else nibble
    if name in ML:
        with np.errstate(invalid="ignore"):
            return array.view(ML[name]).astype(np.float64)
    return array.astype(np.int64) if kind(name) == "bool" else array


@functools.cache
def magnitudes(name):
    """The finite values that are not negative, by code from 0, and one step further."""
    sign = 1 << bits(name) - 1
    values = decoded(every_code(name)[:sign], name).astype(np.float64)
    finite = values[np.isfinite(values)]
    assert np.all(np.diff(finite) > 0)
    return np.append(finite, 2 * finite[-1] - finite[-2])


def rounded(values, name):
    """The pattern of the nearest value of a listed format, the even code of two equally near."""
    values = np.asarray(values, dtype=np.float64)
    steps = magnitudes(name)
    with np.errstate(invalid="ignore"):
        size = np.abs(values)
        low = np.clip(np.searchsorted(steps, size, side="right") - 1, 0, steps.size - 2)
        middle = (steps[low] + steps[low + 1]) / 2
    up = (size > middle) | ((size == middle) & (low % 2 == 1))
    code = low + up
    sign = 1 << bits(name) - 1
    code = np.where(code == steps.size - 1, OVER[name], code)
    code = np.where(np.signbit(values) & ~((NAN[name] == sign) & (code % sign == 0)), code | sign, code)
    return np.where(np.isnan(values), NAN[name], code)


def scale(values):
    """float8_e8m0fnu: the exponent of the nearest power of two, upwards from the middle."""
    out = []
    for value in values.tolist():
        if not math.isfinite(value) or value <= 0:
            out.append(255)
            continue
        exponent = value.bit_length() if isinstance(value, int) else math.frexp(value)[1]
        up = Fraction(value) >= Fraction(3, 2) * Fraction(2) ** (exponent - 1)
        out.append(min(max(exponent - 1 + up + 127, 0), 255))
    return np.array(out)


def as_integer(values, name):
    low = -(1 << bits(name) - 1) if kind(name) == "int" else 0
    high = low + (1 << bits(name)) - 1
    out = []
    for value in values.tolist():
        if isinstance(value, int):
            whole = value
        elif math.isnan(value):
            whole = 0
        elif math.isinf(value):
            whole = high if value > 0 else low
        else:
            whole = min(max(math.trunc(value), low), high)
        out.append(whole & (1 << bits(name)) - 1)
    return np.array(out, dtype=f"u{numpy_dtype(name).itemsize}")


def check(source, target, array, result):
    """Compare a conversion with the oracle, bit for bit (any NaN for a NaN that widens)."""
    assert result.dtype == numpy_dtype(target)
    assert result.shape == array.shape
    if source == target:
        assert result.tobytes() == array.tobytes()
        return
    values = decoded(array, source)
    if kind(target) == "bool":
        np.testing.assert_array_equal(result, np.array([value != 0 for value in values.tolist()]))
    elif kind(target) in {"int", "uint"}:
        np.testing.assert_array_equal(patterns(result), as_integer(values, target))
    elif target == "float8_e8m0fnu":
        np.testing.assert_array_equal(result, scale(values))
    elif target in LISTED:
        np.testing.assert_array_equal(patterns(result), rounded(values, target))
    elif kind(target) == "complex":
        part = facts(target).part
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(result.real, np.real(values).astype(part))
            np.testing.assert_array_equal(result.imag, np.imag(values).astype(part))
    else:
        with np.errstate(all="ignore"):
            expected = values.astype(target)
        np.testing.assert_array_equal(result, expected)
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(result)[number], np.signbit(expected)[number])


def edges(name):
    """Values of a wide dtype at and beside every limit of the others."""
    if kind(name) == "bool":
        return np.array([False, True])
    if kind(name) in {"int", "uint"}:
        exponents = range(bits(name) + 1)
        points = {sign * (1 << e) + d for e in exponents for d in range(-3, 4) for sign in (1, -1)}
        points |= {3 * (1 << e) + d for e in exponents for d in range(-3, 4)}
        info = np.iinfo(name)
        return np.array([p for p in sorted(points) if info.min <= p <= info.max], dtype=name)
    part = facts(name).part or name
    points = [0.0, np.inf, np.nan, *(float(f) for f in range(20))]
    with np.errstate(all="ignore"):
        for e in range(-1074, 1024):
            points += [math.ldexp(f, e) for f in (1.0, 1.25, 1.5, 1.75)]
        values = np.array(points).astype(part)
        values = np.concatenate(
            [values, np.nextafter(values, part_of(np.inf, part)), np.nextafter(values, part_of(0, part))]
        )
    values = np.unique(np.concatenate([values, -values]))
    values = np.append(values, part_of(-0.0, part))
    if kind(name) == "complex":
        values = values[:: max(1, values.size // 997)]
        both = np.empty(values.size, name)
        both.real, both.imag = values, values[::-1]
        return np.append(both, np.array([0, complex(0, np.nan), complex(-0.0, -0.0)], dtype=name))
    return values


def part_of(value, part):
    return np.dtype(part).type(value)


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", EXHAUSTIVE)
def test_every_code_of_a_narrow_source(source, target):
    codes = every_code(source)
    check(source, target, codes, convert(codes, source, target))


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", WIDE)
def test_the_edges_of_a_wide_source(source, target):
    if kind(source) == "complex" and kind(target) not in {"complex", "bool"}:
        with pytest.raises(DtypeError, match="imaginary"):
            convert(edges(source), source, target)
        return
    values = edges(source)
    check(source, target, values, convert(values, source, target))


@pytest.mark.parametrize("wide", ["float32", "float64"])
@pytest.mark.parametrize("target", LISTED)
def test_every_middle_of_two_neighbours_rounds_to_even_and_what_is_beside_it_to_the_nearest(target, wide):
    steps = magnitudes(target)
    inf = part_of(np.inf, wide)
    with np.errstate(over="ignore"):
        middle = ((steps[:-1] + steps[1:]) / 2).astype(wide)
        values = np.concatenate([middle, np.nextafter(middle, -inf), np.nextafter(middle, inf), steps.astype(wide)])
    values = np.concatenate([values, -values])
    np.testing.assert_array_equal(patterns(convert(values, wide, target)), rounded(values, target))


@pytest.mark.parametrize("wide", ["float32", "float64"])
@pytest.mark.parametrize("target", [*SMALL_FLOATS])
def test_random_floats_round_as_ml_dtypes_does(target, wide):
    rng = np.random.default_rng(7)
    pattern = rng.integers(0, 1 << 32, 40_000, dtype=np.uint32).view(np.float32)
    near_one = (rng.standard_normal(40_000) * 2.0 ** rng.integers(-20, 20, 40_000)).astype(np.float32)
    with np.errstate(all="ignore"):
        # From float32 alone: ml_dtypes rounds a float64 twice on its way to some formats.
        values = np.concatenate([pattern, near_one])
        expected = values.astype(ML.get(target, np.dtype(target)))
        values = values.astype(wide)
    number = ~np.isnan(values) & ~np.isnan(expected)
    if target == "float8_e8m0fnu":
        # ml_dtypes rounds up whatever is past its least value, 2**-127; the nearest power is checked above.
        number &= ~((values > 2.0**-127) & (values < 1.5 * 2.0**-127))
    result = convert(values, wide, target)
    np.testing.assert_array_equal(patterns(result)[number], patterns(expected)[number])
    is_nan = np.isnan(result.view(expected.dtype))
    np.testing.assert_array_equal(is_nan, np.isnan(expected) & (target != "float4_e2m1fn"))


def test_the_listed_expectations_are_ml_dtypes_own():
    """The oracle's own constants, held against ml_dtypes (which keeps a NaN's sign and has no NaN rule for fp4)."""
    for target in LISTED:
        dtype = ML.get(target, np.dtype(target))
        with np.errstate(all="ignore"):
            assert np.array([np.inf, 1e39]).astype(dtype).view(f"u{dtype.itemsize}").tolist() == [OVER[target]] * 2
        if target != "float4_e2m1fn":
            assert np.isnan(np.array([NAN[target]], f"u{dtype.itemsize}").view(dtype).astype(np.float32))[0]
            assert np.array([np.nan], np.float32).astype(dtype).view(f"u{dtype.itemsize}")[0] == NAN[target]


def nearest_integer_code(value, target):
    """The code of an integer in a float format, by exact arithmetic."""
    steps = magnitudes(target)
    size = Fraction(abs(value))
    low = max(i for i in range(steps.size) if Fraction(float(steps[i])) <= size) if steps.size < 300 else None
    if low is None:
        low = int(np.searchsorted(steps, min(float(size), 1e300), side="right")) - 1
        while low + 1 < steps.size and Fraction(float(steps[low + 1])) <= size:
            low += 1
        while Fraction(float(steps[low])) > size:
            low -= 1
    code = low
    if low < steps.size - 1:
        middle = (Fraction(float(steps[low])) + Fraction(float(steps[low + 1]))) / 2
        code += size > middle or (size == middle and low % 2)
    code = OVER[target] if code >= steps.size - 1 else code
    sign = 1 << bits(target) - 1
    return code | sign if value < 0 and not (NAN[target] == sign and code in {0, sign}) else code


def wide_integers(low, high):
    """Integers close to a tie of some precision: a few leading bits, then a half, then nearly nothing."""
    near = st.builds(
        lambda lead, shift, nudge, sign: sign * ((lead << shift) + nudge),
        st.integers(1, 1 << 12), st.integers(0, 62), st.integers(-3, 3), st.sampled_from([1, -1]),
    ).filter(lambda n: low <= n <= high)  # fmt: skip
    return st.one_of(near, st.integers(low, high))


@pytest.mark.parametrize("target", LISTED)
@pytest.mark.parametrize("source", ["int64", "uint64"])
def test_a_64_bit_integer_is_rounded_once(source, target):
    info = np.iinfo(source)

    @given(st.lists(wide_integers(info.min, info.max), min_size=1, max_size=20))
    def run(values):
        result = patterns(convert(np.array(values, dtype=source), source, target))
        assert result.tolist() == [nearest_integer_code(value, target) for value in values]

    run()


@pytest.mark.parametrize("source", ["int64", "uint64"])
def test_a_64_bit_integer_becomes_the_nearest_wide_float(source):
    info = np.iinfo(source)

    def at_precision(value, p):
        size = abs(value)
        drop = max(size.bit_length() - p, 0)
        kept, rest = size >> drop, size & (1 << drop) - 1
        half = (1 << drop) >> 1
        kept += drop > 0 and (rest > half or (rest == half and kept & 1))
        return math.copysign(kept << drop, value)

    @given(st.lists(wide_integers(info.min, info.max), min_size=1, max_size=20))
    def run(values):
        array = np.array(values, dtype=source)
        assert convert(array, source, "float64").tolist() == [at_precision(v, 53) for v in values]
        assert convert(array, source, "float32").tolist() == [at_precision(v, 24) for v in values]
        assert convert(array, source, "complex64").real.tolist() == [at_precision(v, 24) for v in values]

    run()


@given(hnp.arrays(np.float64, st.integers(1, 50), elements=st.floats(width=64)))
def test_float64_to_float32_is_the_nearest(values):
    result = convert(values, "float64", "float32")
    for value, got in zip(values.tolist(), result, strict=True):
        if not math.isfinite(value) or not math.isfinite(got):
            assert np.isnan(got) == math.isnan(value)
            assert not math.isfinite(value) or abs(value) >= 2.0**128 - 2.0**103
            continue
        error = abs(Fraction(value) - Fraction(float(got)))
        with np.errstate(over="ignore"):
            neighbours = np.nextafter(got, np.array([np.inf, -np.inf], np.float32))
        for other in neighbours:
            if np.isfinite(other):
                gap = abs(Fraction(value) - Fraction(float(other)))
                assert error < gap or (error == gap and patterns(result[:1] * 0 + got)[0] % 2 == 0)


@pytest.mark.parametrize(("source", "target"), [("float32", "float16"), ("float64", "float16"), ("float64", "float32")])
def test_a_nan_that_narrows_is_the_quiet_one(source, target):
    unsigned = f"u{numpy_dtype(source).itemsize}"
    quiet = patterns(np.array([np.nan], source))[0]
    nans = np.array([quiet, quiet + 1, quiet | (1 << bits(source) - 1)], dtype=unsigned).view(source)
    expected = patterns(np.array([np.nan], target))[0]
    assert patterns(convert(nans, source, target)).tolist() == [expected] * 3


@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_integers_past_their_range(wide):
    values = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, -0.9, 3.99, -3.99], dtype=wide)
    for target in INTS:
        low, high = (
            (-(1 << bits(target) - 1), (1 << bits(target) - 1) - 1)
            if kind(target) == "int"
            else (0, (1 << bits(target)) - 1)
        )
        back = decoded(convert(values, wide, target), target).tolist()
        assert back == [0, high, low, high, low, 0, 3, -3 if low else 0]


@pytest.mark.parametrize("source", [n for n in NAMES if kind(n) != "complex"])
def test_the_same_dtype_is_a_copy(source):
    codes = every_code(source) if source in EXHAUSTIVE else edges(source)
    result = convert(codes, source, source)
    assert result.tobytes() == codes.tobytes()
    assert not np.shares_memory(result, codes)


PAIRS = [("float32", "bfloat16"), ("bfloat16", "float16"), ("float64", "float8_e4m3fn"), ("int4", "float16"),
         ("float32", "int4"), ("complex128", "complex64"), ("int64", "bool"), ("float16", "complex64")]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_pieces_written_into_one_output_are_the_whole(source, target):
    rng = np.random.default_rng(3)
    carrier = numpy_dtype(source)
    data = rng.integers(0, 256, carrier.itemsize * 600, dtype=np.uint8).view(carrier)
    data = (data != 0) if kind(source) == "bool" else data
    whole = convert(data, source, target)

    @given(st.lists(st.integers(0, data.size), max_size=6))
    def run(cuts):
        out = np.full(data.size, 1, numpy_dtype(target))
        bounds = [0, *sorted(cuts), data.size]
        for a, b in itertools.pairwise(bounds):
            piece = convert(data[a:b], source, target, out[a:b])
            assert piece.base is out or piece.size == 0
        assert out.tobytes() == whole.tobytes()

    run()


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_strides_and_shapes_change_nothing(source, target):
    rng = np.random.default_rng(5)
    carrier = numpy_dtype(source)
    data = rng.integers(0, 256, carrier.itemsize * 6 * 8 * 10, dtype=np.uint8).view(carrier).reshape(6, 8, 10)
    whole = convert(data, source, target)
    for view in (np.s_[::2, ::-1, 3], np.s_[:, 1::3, ::2], np.s_[5], np.s_[0, 0, 0:1], np.s_[..., None], np.s_[3:3]):
        assert convert(data[view], source, target).tobytes() == np.ascontiguousarray(whole[view]).tobytes()
    assert convert(data.transpose(2, 0, 1), source, target).tobytes() == whole.transpose(2, 0, 1).tobytes()
    out = np.zeros((10, 8, 6), whole.dtype).transpose(2, 1, 0)
    assert convert(data, source, target, out) is out
    assert out.tobytes() == whole.tobytes()
    scalar = convert(data[0, 0, 0].reshape(()), source, target)
    assert scalar.shape == ()
    assert scalar.tobytes() == whole[0, 0, 0].tobytes()


@pytest.mark.parametrize("size", [C._PIECE - 1, C._PIECE, C._PIECE + 1, 2 * C._PIECE + 77])
def test_more_than_one_piece(size):
    values = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    expected = values.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(f32_to_bf16_bits(values), patterns(expected))


def test_the_named_conversions_are_the_pairs():
    with np.errstate(invalid="ignore"):
        values = every_code("bfloat16").view(ml_dtypes.bfloat16).astype(np.float32)
    codes = every_code("bfloat16")
    np.testing.assert_array_equal(bf16_bits_to_f32(codes), values)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(bf16_bits_to_f16(codes), values.astype(np.float16))
    back = f32_to_bf16_bits(values)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(back[number], codes[number])
    assert set(back[~number].tolist()) == {0x7FC0}


def test_a_wrong_carrier_is_refused_by_name():
    with pytest.raises(DtypeError, match=r"bfloat16.*float32.*uint16"):
        bf16_bits_to_f32(np.zeros(3, np.float32))
    with pytest.raises(DtypeError, match="out is the carrier of float8_e5m2"):
        convert(np.zeros(3, np.float32), "float32", "float8_e5m2", np.zeros(3, np.int8))
    with pytest.raises(DtypeError, match="float32"):
        f32_to_bf16_bits(np.zeros(3, np.dtype(np.float32).newbyteorder()))


def test_a_wrong_output_is_refused():
    values = np.zeros((2, 3), np.float32)
    with pytest.raises(ShapeError, match=r"\(3, 2\)"):
        convert(values, "float32", "float16", np.zeros((3, 2), np.float16))
    with pytest.raises(ArgumentError, match="overlap"):
        convert(values, "float32", "int32", values.view(np.int32))


@pytest.mark.parametrize("pair", [("float32", "fp8"), ("half", "float32")])
def test_an_unknown_dtype_is_refused(pair):
    with pytest.raises(UnknownDtypeError):
        convert(np.zeros(3, np.float32), *pair)


@given(hnp.arrays(np.uint8, st.integers(0, 33), elements=st.integers(0, 15)))
def test_packing_and_unpacking(codes):
    packed = pack(codes)
    assert packed.size == math.ceil(codes.size / 2)
    # As DLPack packs: element i in the bits from 4 * i, counted from the least.
    assert int.from_bytes(packed.tobytes(), "little") == sum(int(code) << 4 * i for i, code in enumerate(codes))
    np.testing.assert_array_equal(unpack(packed, codes.size), codes)


def test_packing_ignores_high_bits_and_refuses_a_wrong_count():
    assert pack(np.array([0xF1, 0xF2], np.uint8)).tolist() == [0x21]
    for packed, numel in ((2, 5), (0, -1), (3, 4)):
        with pytest.raises(ShapeError, match=f"Got {packed}"):
            unpack(np.zeros(packed, np.uint8), numel)


@pytest.mark.parametrize("source", ["int4", "uint4", "float4_e2m1fn"])
@pytest.mark.parametrize("target", NAMES)
def test_the_high_bits_of_a_narrow_element_are_ignored_when_read(source, target):
    codes = np.arange(256, dtype=np.uint8)
    if source != target:
        np.testing.assert_array_equal(convert(codes, source, target), convert(codes & np.uint8(15), source, target))
