"""Functions and casts compiled into small loops and held against numpy in float64 and the host's conversions."""

import ctypes
import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.backend.cpu import codegen, elf, levels, vector_math
from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.dtype.convert import convert
from nbxtensor.errors import ArgumentError, UnsupportedError

V3, V4 = "x86-64-v3", "x86-64-v4"
HERE = levels.detect()
CARRIER = {
    "i1": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "half": np.uint16, "bfloat": np.uint16, "float": np.float32, "double": np.float64,
}  # fmt: skip
TILE = 64  # every lane count in use divides it
SHAPES = [(V4, 16), (V4, 64), (V4, 8), (V4, 0), (V3, 8), (V3, 16), (V3, 0)]


@functools.cache
def compiled(write, source, target, level, lanes, arity):
    """``kernel(in..., out, n)``, where ``write(b, values, lanes)`` makes the result; and what keeps its code."""
    b = Builder(level)
    step = max(lanes, 1)

    def kind(element):
        return f"<{lanes} x {element}>" if lanes else element

    def body(index, _):
        stored = {"i1": "i8"}
        values = []
        for k in range(arity):
            at = b.op(f"getelementptr {stored.get(source, source)}, ptr %x{k}, i64 {index}")
            value = b.op(f"load {kind(stored.get(source, source))}, ptr {at}, align 1")
            if source == "i1":
                value = b.op(f"trunc {kind('i8')} {value} to {kind('i1')}")
            values.append(value)
        result = write(b, values, lanes)
        if target == "i1":
            result = b.op(f"zext {kind('i1')} {result} to {kind('i8')}")
        at = b.op(f"getelementptr {stored.get(target, target)}, ptr %y, i64 {index}")
        b.do(f"store {kind(stored.get(target, target))} {result}, ptr {at}, align 1")
        return []

    b.loop("0", "%n", str(step), body)
    parameters = ", ".join([f"ptr %x{k}" for k in range(arity)] + ["ptr %y", "i64 %n"])
    text = "\n".join([f"define void @kernel({parameters}) {{", "entry:", *b.lines, "  ret void", "}", *b.declarations])
    module = elf.load(codegen.object_code(text, level))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (arity + 1), ctypes.c_int64)(module.address("kernel")), module


def run(write, source, target, level, lanes, *arrays):
    """Apply ``write`` to arrays of carriers of any length."""
    if level == V4 != HERE:
        pytest.skip(f"{level} needs AVX-512; this machine has {HERE}")
    size = arrays[0].size
    padded = [np.concatenate([a.ravel(), np.ones(-size % TILE, a.dtype)]) for a in arrays]
    out = np.empty(padded[0].size, CARRIER[target])
    kernel, _ = compiled(write, source, target, level, lanes, len(arrays))
    kernel(*[a.ctypes.data for a in padded], out.ctypes.data, out.size)
    return out[:size]


@functools.cache
def applied(name, element):
    return lambda b, values, lanes: vector_math.function(b, name, values, element, lanes)


def evaluate(name, *arrays, element="float", level=HERE, lanes=16):
    target = "i1" if name in {"isnan", "isinf", "isfinite", "isnormal"} else element
    return run(applied(name, element), element, target, level, lanes, *arrays)


# -- references: float64, or x87's 80 bits for float64 ---------------------------------------------------------------


def lifted(function):
    return lambda x: np.fromiter(map(function, x.tolist()), np.float64, x.size)


REFERENCE = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atanh": np.arctanh, "cbrt": np.cbrt, "cos": np.cos, "cosh": np.cosh, "erf": lifted(math.erf),
    "erfc": lifted(math.erfc), "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log10": np.log10,
    "log1p": np.log1p, "log2": np.log2, "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "sinh": np.sinh,
    "tan": np.tan, "tanh": np.tanh, "sqrt": np.sqrt,
}  # fmt: skip
SPECIAL = np.array([0, 1, 2, 0.5, np.inf, np.finfo(np.float32).max, 2.0**-126, 2.0**-149, 2.0**24, 3, 1e-10])
SPECIAL = np.concatenate([SPECIAL, -SPECIAL, [np.nan]])


def reference(name, x, kind=np.float64):
    with np.errstate(all="ignore"):
        return REFERENCE[name](x.astype(kind))


def ulps(result, exact, limit):
    """Distance in units in the last place of the type that ``limit`` describes, 0 where both agree or are NaN."""
    with np.errstate(all="ignore"):
        wide = result.astype(exact.dtype)
        exponent = np.maximum(np.frexp(np.where(np.isfinite(exact), exact, 1))[1] - 1, int(limit.minexp))
        exponent = np.minimum(exponent, int(limit.maxexp) - 1)
        unit = np.ldexp(exact.dtype.type(1), exponent - int(limit.nmant))
        top = np.ldexp(exact.dtype.type(1), int(limit.maxexp))  # an infinity counts as the number that it rounds from
        bounded = np.clip(exact, -top, top)
        error = np.abs(np.clip(wide, -top, top) - bounded) / unit
        return np.where(np.isnan(wide) & np.isnan(exact), 0, np.where(np.isnan(error), np.inf, error))


@functools.cache
def sample():
    """About a million float32: every sign and exponent (subnormals too), dense near 1, small and large integers."""
    random = np.random.default_rng(20)
    bits = np.arange(512, dtype=np.uint32)[:, None] << np.uint32(23)
    strata = (bits | random.integers(0, 1 << 23, (512, 1500), dtype=np.uint32)).ravel().view(np.float32)
    near = random.uniform(-2, 2, 120000).astype(np.float32)
    wide = random.uniform(-110, 110, 120000).astype(np.float32)
    turns = (np.arange(-3000, 3000) * (np.pi / 2)).astype(np.float32)
    return np.concatenate([strata, near, wide, turns, SPECIAL.astype(np.float32)])


UNARY = sorted(set(vector_math.FLOAT32_ULPS) - {"atan2", "powf"})


def test_every_function_has_its_bound():
    assert set(REFERENCE) - {"sqrt"} == set(UNARY)


@pytest.mark.parametrize("name", UNARY)
def test_float32_is_within_its_bound(name, record_property):
    x = sample()
    exact = reference(name, x)
    result = evaluate(name, x)
    error = ulps(result, exact, np.finfo(np.float32))
    worst = error.argmax()
    record_property("worst", f"{name}: {error[worst]:.3f} ulp at {x[worst]!r}")
    bound = vector_math.FLOAT32_ULPS[name]
    assert error[worst] <= bound, (x[worst], result[worst], exact[worst])
    assert error[worst] > 0.75 * bound, "the documented bound is far above what is measured"
    number = ~np.isnan(exact)
    assert np.array_equal(np.signbit(result[number]), np.signbit(exact[number]))


@pytest.mark.parametrize(("level", "lanes"), SHAPES)
@pytest.mark.parametrize("name", UNARY)
def test_every_shape_and_level_gives_the_same_bits(name, level, lanes):
    x = np.concatenate([sample()[::97], SPECIAL.astype(np.float32), [np.float32(1e30), np.float32(2.0**18 + 1)]])
    assert_same_bits(evaluate(name, x, level=level, lanes=lanes), evaluate(name, x, level=V3, lanes=8))


@pytest.mark.parametrize("name", ["sin", "cos", "tanh", "erf"])
def test_nothing_passes_one(name):
    assert np.nanmax(np.abs(evaluate(name, sample()))) == 1


def assert_same_bits(a, b):
    both = np.isnan(a) & np.isnan(b)
    kind = f"u{a.itemsize}"
    assert np.array_equal(np.where(both, 0, a.view(kind)), np.where(both, 0, b.view(kind)))


@pytest.mark.parametrize(("name", "oracle"), [("powf", np.power), ("atan2", np.arctan2)])
def test_float32_of_two_arguments(name, oracle, record_property):
    random = np.random.default_rng(3)
    special = SPECIAL.astype(np.float32)
    grid = np.array(list(itertools.product(special, special)), np.float32)
    bases = np.exp(random.uniform(-80, 80, 200000)).astype(np.float32)
    powers = (random.uniform(-100, 100, bases.size) / np.log(bases)).astype(np.float32)
    whole = random.integers(-9, 9, bases.size).astype(np.float32)
    x = np.concatenate([grid[:, 0], bases, -bases, sample()[:200000]])
    y = np.concatenate([grid[:, 1], powers, whole, np.roll(sample()[:200000], 7)])
    with np.errstate(all="ignore"):
        exact = oracle(x.astype(np.float64), y.astype(np.float64))
    result = evaluate(name, x, y)
    error = ulps(result, exact, np.finfo(np.float32))
    worst = error.argmax()
    record_property("worst", f"{name}: {error[worst]:.3f} ulp at {x[worst]!r}, {y[worst]!r}")
    assert error[worst] <= vector_math.FLOAT32_ULPS[name], (x[worst], y[worst], result[worst], exact[worst])
    number = ~np.isnan(exact)
    assert np.array_equal(np.signbit(result[number]), np.signbit(exact[number]))
    for level, lanes in ((V3, 8), (V4, 0)):
        assert_same_bits(evaluate(name, x[:1500], y[:1500], level=level, lanes=lanes), result[:1500])


@pytest.mark.parametrize("element", ["half", "bfloat"])
@pytest.mark.parametrize("name", UNARY)
def test_every_half_argument(name, element):
    dtype = {"half": "float16", "bfloat": "bfloat16"}[element]
    bits = np.arange(1 << 16, dtype=np.uint16)
    carrier = bits.view(np.float16) if element == "half" else bits
    exact = reference(name, convert(carrier, dtype, "float64"))
    result = evaluate(name, bits, element=element)
    value = convert(result.view(carrier.dtype), dtype, "float64")
    limit = np.finfo(np.float16) if element == "half" else BFLOAT
    assert ulps(value, exact, limit).max() <= 0.5 + 2.0**-7 * vector_math.FLOAT32_ULPS[name]


class BFLOAT:
    minexp, maxexp, nmant = -126, 128, 7


FLOAT64_ULPS = {
    "exp": 1.0, "exp2": 1.0, "log": 0.9, "rsqrt": 1.5, "sqrt": 0.5, "sin": 0.6, "tanh": 2.2, "log1p": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(("level", "lanes"), [(V4, 8), (V4, 16), (V3, 4), (V4, 0)])
@pytest.mark.parametrize("name", sorted(FLOAT64_ULPS))
def test_float64(name, level, lanes):
    random = np.random.default_rng(5)
    x = np.concatenate(
        [
            random.integers(0, 1 << 64, 20000, dtype=np.uint64).view(np.float64),
            random.uniform(-750, 750, 20000),
            random.uniform(-1, 3, 20000),
            SPECIAL,
            [5e-324, -5e-324, 1e-310],
        ]
    )
    exact = reference(name, x, np.longdouble)
    if np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("the reference needs a long double wider than float64")
    error = ulps(evaluate(name, x, element="double", level=level, lanes=lanes), exact, np.finfo(np.float64))
    assert error.max() <= FLOAT64_ULPS[name], (x[error.argmax()], error.max())


ROUNDINGS = {
    "absf": np.abs, "ceil": np.ceil, "floor": np.floor, "roundeven": np.rint, "trunc": np.trunc,
    "round": lambda x: np.where(np.isinf(x), x, np.copysign(np.floor(np.abs(x) + 0.5), x)),
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "isnormal": lambda x: np.isfinite(x) & (np.abs(x) >= 2.0**-126),
}  # fmt: skip


@pytest.mark.parametrize("lanes", [0, 8, 16])
@pytest.mark.parametrize("name", sorted(ROUNDINGS))
def test_exact_functions(name, lanes):
    x = np.concatenate([sample()[::31], np.arange(-9, 9, 0.25, np.float32), SPECIAL.astype(np.float32)])
    with np.errstate(all="ignore"):
        exact = ROUNDINGS[name](x.astype(np.float64))
    result = evaluate(name, x, lanes=lanes)
    if result.dtype == np.uint8:
        assert np.array_equal(result.astype(bool), exact)
    else:
        assert_same_bits(result, exact.astype(np.float32))


def test_copysign_and_its_bits():
    x = np.array([1.5, -1.5, 0.0, -np.inf, np.nan], np.float32)
    assert_same_bits(evaluate("copysign", x, -x[::-1].copy()), np.copysign(x, -x[::-1]))


finite = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**60), max_value=2.0**60)


@given(finite, finite, finite)
def test_fma_rounds_once(x, y, z):
    result = evaluate("fma", *(np.array([v], np.float32) for v in (x, y, z)))[0]
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    below, above = np.nextafter(result, np.float32(-np.inf)), np.nextafter(result, np.float32(np.inf))
    distance = abs(Fraction(float(result)) - exact)
    assert distance <= min(abs(Fraction(float(n)) - exact) for n in (below, above))


# -- casts ----------------------------------------------------------------------------------------------------------

DTYPES = {
    "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "half": "float16",
    "bfloat": "bfloat16", "float": "float32", "double": "float64",
}  # fmt: skip
WIDENED = {"half": ("float", "double"), "bfloat": ("float", "double"), "float": ("double",)}
INTEGERS = ("i1", "i8", "i16", "i32", "i64")


@functools.cache
def casting(source, target, **options):
    return lambda b, values, lanes: vector_math.cast(b, *values, source, target, lanes, **options)


@functools.cache
def cast_sample(element):
    """Every 8- and 16-bit pattern; of wider ones random patterns, small integers, and numbers near ties of halves."""
    random = np.random.default_rng(11)
    if element == "i1":
        return np.array([0, 1], np.uint8)
    width = np.dtype(CARRIER[element]).itemsize * 8
    if width <= 16:
        return np.arange(1 << width, dtype=f"u{width // 8}").view(CARRIER[element])
    patterns = random.integers(0, 1 << width, 30000, dtype=f"u{width // 8}").view(CARRIER[element])
    if element in INTEGERS:
        powers = np.left_shift(CARRIER[element](1), np.arange(width - 1, dtype=CARRIER[element]))
        near = (powers[:, None] + random.integers(-3, 4, (width - 1, 40)).astype(CARRIER[element])).ravel()
        ties = np.concatenate([powers + (powers >> np.array(s, powers.dtype)) for s in (8, 9, 11, 12)])
        near = np.concatenate([near, ties, ties + 1, ties - 1, [0, np.iinfo(CARRIER[element]).max]])
        return np.concatenate([patterns, near, -near]).astype(CARRIER[element])
    halves = convert(np.arange(1 << 16, dtype=np.uint16), "bfloat16", "float64")[::7]
    floats = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)[::7]
    with np.errstate(all="ignore"):
        grid = np.concatenate([halves, floats])
        ties = np.concatenate([grid * (1 + 2.0**-s) for s in (8, 9, 11, 12)])
        near = np.concatenate([ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40), ties * (1 + 2.0**-23)])
        whole = random.integers(-(1 << 63), 1 << 63, 4000) >> random.integers(0, 63, 4000)
        ends = np.array([2.0**k + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0, 0.5)])
        return np.concatenate([patterns, near, whole, ends, -ends, SPECIAL]).astype(CARRIER[element])


@pytest.mark.parametrize(("level", "lanes"), [(V4, 16), (V4, 0), (V3, 8), (V4, 32)])
@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_casts_agree_with_the_host(source, target, level, lanes):
    x = cast_sample(source)
    unsigned = source == "i1"
    result = run(casting(source, target, unsigned_source=unsigned), source, target, level, lanes, x)
    if source in INTEGERS and target == "i1":
        expected = x.astype(np.uint8) & 1
    elif source == "i1" and target in INTEGERS:
        expected = x.astype(CARRIER[target])
    else:
        expected = convert(host_carrier(x, DTYPES[source]), DTYPES[source], DTYPES[target])
    if source in WIDENED and target in WIDENED[source]:
        assert_same_bits(result, expected)  # but for NaN: what is left of its payload is nobody's business
    else:
        assert result.tobytes() == expected.tobytes()


def host_carrier(x, dtype):
    return x.view({"float16": np.float16, "bool": np.bool_}.get(dtype, x.dtype))


@pytest.mark.parametrize("lanes", [0, 16])
@pytest.mark.parametrize("wide", ["half", "bfloat", "float", "double"])
@pytest.mark.parametrize("integer", INTEGERS[1:])
def test_unsigned_casts(integer, wide, lanes):
    name = f"u{DTYPES[integer]}"
    x = cast_sample(integer)
    result = run(casting(integer, wide, unsigned_source=True), integer, wide, HERE, lanes, x)
    assert result.tobytes() == convert(x.view(name), name, DTYPES[wide]).tobytes()
    x = cast_sample(wide)
    result = run(casting(wide, integer, unsigned_target=True), wide, integer, HERE, lanes, x)
    assert result.tobytes() == convert(host_carrier(x, DTYPES[wide]), DTYPES[wide], name).tobytes()


def test_integer_extension_follows_the_flag():
    x = cast_sample("i8")
    assert np.array_equal(run(casting("i8", "i32"), "i8", "i32", HERE, 16, x), x.astype(np.int32))
    widened = run(casting("i8", "i32", unsigned_source=True), "i8", "i32", HERE, 16, x)
    assert np.array_equal(widened, x.view(np.uint8).astype(np.int32))
    assert run(casting("i1", "i8"), "i1", "i8", HERE, 0, np.array([0, 1], np.uint8)).tolist() == [0, -1]


@pytest.mark.parametrize("lanes", [0, 16])
@pytest.mark.parametrize(
    ("source", "target"),
    [("double", "float"), ("double", "half"), ("double", "bfloat"), ("float", "half"), ("float", "bfloat"),
     ("half", "bfloat"), ("bfloat", "half")],
)  # fmt: skip
def test_rounding_towards_zero(source, target, lanes):
    """The largest magnitude in the target that does not pass the source's."""
    x = cast_sample(source)
    result = run(casting(source, target, rounding="rtz"), source, target, HERE, lanes, x)
    exact = convert(host_carrier(x, DTYPES[source]), DTYPES[source], "float64")
    value = convert(host_carrier(result, DTYPES[target]), DTYPES[target], "float64")
    unsigned = result.view(f"u{result.itemsize}")
    following = convert(host_carrier((unsigned + 1).view(result.dtype), DTYPES[target]), DTYPES[target], "float64")
    number = ~np.isnan(exact)
    assert np.array_equal(np.isnan(value), ~number)
    assert np.array_equal(np.signbit(value[number]), np.signbit(exact[number]))
    assert (np.abs(value[number]) <= np.abs(exact[number])).all()
    more = number & (value != exact)
    assert (np.abs(following[more]) > np.abs(exact[more])).all()


def test_refusals_say_what_is_accepted():
    b = Builder()
    with pytest.raises(UnsupportedError, match=r"vector_math: a function is known. Got 'gamma'.*tanh"):
        vector_math.function(b, "gamma", ["%x"], "float", 4)
    with pytest.raises(UnsupportedError, match=r"exp: operands are floats. Got i32"):
        vector_math.function(b, "math.exp", ["%x"], "i32", 4)
    with pytest.raises(ArgumentError, match=r"powf: it takes 2 operands. Got 1"):
        vector_math.function(b, "pow", ["%x"], "float", 4)
    with pytest.raises(UnsupportedError, match=r"cast: a type is one that kernels compute with. Got i128"):
        vector_math.cast(b, "%x", "i128", "float", 4)
    with pytest.raises(UnsupportedError, match=r"'rtz' between floats"):
        vector_math.cast(b, "%x", "float", "i32", 4, rounding="rtz")
    assert not b.lines
