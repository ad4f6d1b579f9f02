import ctypes
import functools
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backend.cpu.guarded_memory import guarded

from nbxtensor.backend.cpu import elf, levels, native, tile_unit
from nbxtensor.backend.cpu.codegen import object_code
from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.microkernel import Matrix, arithmetic_of, gemm, scratch_nbytes
from nbxtensor.errors import ArgumentError, UnsupportedError

DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "bfloat": ml_dtypes.bfloat16,
    "half": np.float16,
    "i8": np.int8,
    "i32": np.int32,
}
V4, V3 = "x86-64-v4", "x86-64-v3"
PAIRS, BYTES = ("bfloat", "bfloat", "float"), ("i8", "i8", "i32")
ELEMENTS = [
    ("float", "float", "float"),
    ("float", "bfloat", "float"),
    ("float", "half", "float"),
    ("double", "double", "double"),
    ("half", "half", "float"),
    PAIRS,
    BYTES,
]
ALL = frozenset({"amx-tile", "amx-bf16", "amx-int8", "avx512bf16", "avx512vnni"})
# Level, features, elements of A, W and C.
WAYS = [
    *((level, frozenset[str](), *elements) for level in (V4, V3) for elements in ELEMENTS),
    (V4, frozenset({"avx512bf16"}), *PAIRS),
    (V4, frozenset({"avx512vnni"}), *BYTES),
    (V3, frozenset({"avxvnni"}), *BYTES),
    (V4, ALL, *PAIRS),
    (V4, ALL, *BYTES),
]


def runs(level, features):
    here = levels.level_of("x86_64", levels._flags()) if levels._machine() == "x86_64" else ""
    known = level == here or (level, here) == (V3, V4)
    return known and features <= tile_unit.usable(levels.features())


def name_of(way):
    level, features, a, w, _ = way
    return "-".join((level, a, w, *sorted(features)))


def each(chosen):
    return pytest.mark.parametrize(
        "way",
        [
            pytest.param(
                way, id=name_of(way), marks=pytest.mark.skipif(not runs(*way[:2]), reason="not this processor's")
            )
            for way in chosen
        ],
    )


ways = each(WAYS)
floats = each([way for way in WAYS if way[2] != "i8"])
integers = each([way for way in WAYS if way[2] == "i8"])


def text_of(way, m, n, k, rows, depth=1):
    level, features, a, w, c = way
    b = Builder(level)
    gemm(
        b,
        m,
        n,
        k,
        Matrix("%a", rows[0], a),
        Matrix("%w", rows[1], w, depth),
        Matrix("%c", rows[2], c),
        level=level,
        features=features,
        scratch="%scratch",
    )
    width = 512 if level == "x86-64-v4" else 256
    return "\n".join(
        (
            *sorted(b.declarations),
            "define void @f(ptr %a, ptr %w, ptr %c, ptr %scratch, i64 %ar, i64 %wr, i64 %cr, i64 %m) #0 {",
            "entry:",
            *b.lines,
            "  ret void",
            "}",
            f'attributes #0 = {{ nounwind "prefer-vector-width"="{width}" "min-legal-vector-width"="{width}" }}',
            "",
        )
    )


@functools.cache
def compiled(way, m, n, k, rows, depth=1):
    module = elf.load(object_code(text_of(way, m, n, k, rows, depth), way[0], way[1]))
    return SimpleNamespace(module=module, run=native.entry(module.address("f")))


def product(way, a, w, c, *, literal=True, counted=True, depth=1):
    """C + A @ W by the emitted code, in memory that ends with the operands; the scratch is checked too."""
    level, features, *elements = way
    (m, k), n = a.shape, w.shape[1]
    packed = w if depth == 1 else w.reshape(k // depth, depth, n).transpose(0, 2, 1).reshape(k // depth, n * depth)
    memory = []
    for source, element, gap in ((a, elements[0], 3), (packed, elements[1], 5), (c, elements[2], 2)):
        array = guarded(source.shape[0], source.shape[1] + gap, source.shape[1], DTYPES[element])
        array[...] = source
        memory.append(array)
    strides = [x.strides[0] // x.itemsize for x in memory]
    rows = tuple(map(str, strides)) if literal else ("%ar", "%wr", "%cr")
    nbytes = scratch_nbytes(m, n, k, (elements[0], elements[1]), level, features)
    scratch = guarded(1, 0, -(-nbytes // 64) * 64 + 64, np.uint8)
    code = compiled(way, m if counted else "%m", n, k, rows, depth)
    pointers = (ctypes.c_void_p(x.ctypes.data) for x in (*memory, scratch))
    code.run(*pointers, *map(ctypes.c_int64, (*strides, m)))
    assert (scratch[0, nbytes:] == 0xFF).all()
    return memory[2].copy()


def numbers(rng, shape, element, *, whole):
    """Normal numbers, or small integers whose sums of products every arithmetic here gives exactly."""
    if element in ("i8", "i32"):
        return rng.integers(-128, 128, shape).astype(DTYPES[element])
    return (rng.integers(-8, 9, shape) if whole else rng.standard_normal(shape)).astype(DTYPES[element])


def wide(x):
    return x.astype(np.int64) if x.dtype.kind == "i" else x.astype(np.float64)


extents = st.tuples(st.integers(1, 40), st.integers(1, 140), st.integers(1, 140))


@ways
@settings(max_examples=8, deadline=None)
@given(extents=extents, seed=st.integers(0, 2**32 - 1), literal=st.booleans(), counted=st.booleans())
def test_products_of_whole_numbers_are_exact(way, extents, seed, literal, counted):
    m, n, k = extents
    rng = np.random.default_rng(seed)
    a, w, c = (
        numbers(rng, shape, element, whole=True)
        for shape, element in zip(((m, k), (k, n), (m, n)), way[2:], strict=True)
    )
    got = product(way, a, w, c, literal=literal, counted=counted)
    np.testing.assert_array_equal(wide(got), wide(c) + wide(a) @ wide(w))


@ways
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 64, 256),
        (6, 64, 64),
        (7, 64, 64),
        (13, 32, 33),
        (64, 96, 100),
        (128, 128, 128),
        (33, 17, 65),
        (2, 1, 1),
        (48, 200, 64),
    ],
)
def test_tile_shapes_and_their_neighbours(way, m, n, k):
    rng = np.random.default_rng(m * n + k)
    for more in (0, 1):
        shapes = ((m + more, k + more), (k + more, n + more), (m + more, n + more))
        a, w, c = (numbers(rng, s, e, whole=True) for s, e in zip(shapes, way[2:], strict=True))
        np.testing.assert_array_equal(wide(product(way, a, w, c)), wide(c) + wide(a) @ wide(w))


@ways
@settings(max_examples=4, deadline=None)
@given(extents=extents, seed=st.integers(0, 2**32 - 1))
def test_sums_stay_within_the_bound_of_their_roundings(way, extents, seed):
    m, n, k = extents
    rng = np.random.default_rng(seed)
    a, w, c = (
        numbers(rng, shape, element, whole=False)
        for shape, element in zip(((m, k), (k, n), (m, n)), way[2:], strict=True)
    )
    got = wide(product(way, a, w, c))
    magnitude = abs(wide(c)) + abs(wide(a)) @ abs(wide(w))
    unit = {"float": 2.0**-23, "double": 2.0**-52, "i32": 0.0}[way[4]]
    assert (abs(got - (wide(c) + wide(a) @ wide(w))) <= 2 * (k + 1) * unit * magnitude).all()


@integers
def test_int8_extremes_wrap_like_int32(way):
    for m in (3, 20):
        a, w = np.full((m, 70), -128, np.int8), np.full((70, 33), -128, np.int8)
        a[1] = 127
        c = np.full((m, 33), 2**31 - 1, np.int32)
        want = wide(c) + wide(a) @ wide(w)
        np.testing.assert_array_equal(product(way, a, w, c), want.astype(np.int32))


@floats
def test_what_is_not_a_number_spreads_to_its_row_and_column_only(way):
    rng = np.random.default_rng(5)
    for m in (4, 20):
        a, w, c = (numbers(rng, s, e, whole=True) for s, e in zip(((m, 9), (9, 40), (m, 40)), way[2:], strict=True))
        a[2, 3], w[8, 21] = np.nan, np.inf
        got = wide(product(way, a, w, c))
        with np.errstate(invalid="ignore"):
            want = wide(c) + wide(a) @ wide(w)
        np.testing.assert_array_equal(got, want)


@ways
def test_two_runs_are_the_same_bytes(way):
    rng = np.random.default_rng(11)
    a, w, c = (numbers(rng, s, e, whole=False) for s, e in zip(((37, 90), (90, 70), (37, 70)), way[2:], strict=True))
    assert product(way, a, w, c).tobytes() == product(way, a, w, c).tobytes()


def depth_of(way, m):
    """How many rows of W one instruction multiplies."""
    return arithmetic_of(m, (way[2], way[3]), way[0], way[1]).depth


@ways
@pytest.mark.parametrize("m", [2, 5, 16, 45])
def test_weights_may_come_interleaved_as_they_are_multiplied(way, m):
    rng = np.random.default_rng(m)
    for k in (64, 72):
        a, w, c = (numbers(rng, s, e, whole=True) for s, e in zip(((m, k), (k, 50), (m, 50)), way[2:], strict=True))
        got = product(way, a, w, c, depth=depth_of(way, m))
        np.testing.assert_array_equal(wide(got), wide(c) + wide(a) @ wide(w))


def test_declared_features_are_used_and_no_others():
    def instructions(m, elements, *features):
        way = (V4, frozenset(features), *elements)
        return text_of(way, m, 64, 64, ("64", "64", "64"))

    assert "dpbf16ps" not in instructions(64, PAIRS)
    assert "dpbf16ps.512" in instructions(64, PAIRS, "avx512bf16")
    assert "dpbf16ps.512" not in instructions(4, PAIRS, "avx512bf16")  # few rows keep exact products
    assert "tdpbf16ps" in instructions(64, PAIRS, "avx512bf16", "amx-tile", "amx-bf16")
    assert "tdpbf16ps" not in instructions(4, PAIRS, "avx512bf16", "amx-tile", "amx-bf16")
    assert "tdpbssd" in instructions(64, BYTES, "amx-tile", "amx-int8")
    assert "vpdpbusd.512" in instructions(64, BYTES, "avx512vnni")
    assert "pmaddw" in instructions(64, BYTES)
    neon = ("aarch64-neon", frozenset({"dotprod"}), *BYTES)
    assert "neon.sdot.v4i32" in text_of(neon, 64, 64, 64, ("64", "64", "64"))


@pytest.mark.parametrize(
    ("elements", "level"), [(("half", "float"), "x86-64-v4"), (("i8", "float"), "x86-64-v3"), (("i8", "i8"), "sse")]
)
def test_unknown_elements_and_levels_are_refused_by_name(elements, level):
    with pytest.raises(UnsupportedError, match=rf"Got {elements[0]} by {elements[1]} at {level}"):
        scratch_nbytes(4, 4, 4, elements, level)


def test_extents_and_sums_are_checked():
    def write(m=4, c="float", depth=1):
        w = Matrix("%w", "4", "float", depth)
        a, c_ = Matrix("%a", "4", "float"), Matrix("%c", "4", c)
        gemm(Builder("x86-64-v4"), m, 4, 4, a, w, c_, level="x86-64-v4", scratch="%s")

    with pytest.raises(ArgumentError, match="extents are positive"):
        write(m=0)
    with pytest.raises(ArgumentError, match=r"Got i32\. float is accepted"):
        write(c="i32")
    with pytest.raises(ArgumentError, match=r"interleaved.*Got 2"):
        write(depth=2)
