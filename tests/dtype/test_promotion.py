"""Promotion: the Array API standard's tables as literal data, NEP 50's scalars, and the rules both leave open."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.dtype.itemsize import facts, is_storage_only, kind, names
from nbxtensor.dtype.promotion import binary_result, float_math_input, promoted, result_type, scalar_result
from nbxtensor.errors import ArgumentError, DtypeError, UnknownDtypeError

SHORT = {
    "b": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16",
    "u4": "uint32", "u8": "uint64", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128",
}  # fmt: skip

# https://data-apis.org/array-api/latest/API_specification/type_promotion.html, one table after the other; the
# rows with uint64 are absent from the mixed table: the standard does not define them.
TABLES = """
    i1 i2 i4 i8
i1  i1 i2 i4 i8
i2  i2 i2 i4 i8
i4  i4 i4 i4 i8
i8  i8 i8 i8 i8

    u1 u2 u4 u8
u1  u1 u2 u4 u8
u2  u2 u2 u4 u8
u4  u4 u4 u4 u8
u8  u8 u8 u8 u8

    u1 u2 u4
i1  i2 i4 i8
i2  i2 i4 i8
i4  i4 i4 i8
i8  i8 i8 i8

    f4 f8  c8  c16
f4  f4 f8  c8  c16
f8  f8 f8  c16 c16
c8  c8 c16 c8  c16
c16 c16 c16 c16 c16

    b
b   b
"""


def standard():
    for table in TABLES.strip("\n").split("\n\n"):
        columns, *rows = (line.split() for line in table.split("\n"))
        for head, *cells in rows:
            for column, cell in zip(columns, cells, strict=True):
                yield SHORT[head], SHORT[column], SHORT[cell]


STANDARD = sorted(set(standard()))
ARITHMETIC = [name for name in names() if not is_storage_only(name)]
STORED = [name for name in names() if is_storage_only(name)]
HALVES = ["float16", "bfloat16"]
KINDS = ("bool", "uint", "int", "float", "complex")


def test_the_tables_are_whole():
    pairs = {frozenset(row[:2]) for row in STANDARD}
    assert len(pairs) == 1 + 10 + 10 + 12 + 10
    # Every dtype of the standard with itself and with every one that the standard pairs it with.
    assert {name for pair in pairs for name in pair} == set(SHORT.values())


@pytest.mark.parametrize(("a", "b", "expected"), STANDARD)
def test_the_standards_tables_in_both_orders(a, b, expected):
    assert binary_result(a, b) == binary_result(b, a) == expected
    assert result_type(a, b) == expected


@pytest.mark.parametrize("a", SHORT.values())
@pytest.mark.parametrize("b", SHORT.values())
def test_one_kind_promotes_as_numpy_does(a, b):
    if kind(a) == kind(b) or {kind(a), kind(b)} == {"float", "complex"}:
        assert binary_result(a, b) == np.promote_types(a, b).name


@pytest.mark.parametrize("signed", ["int8", "int16", "int32", "int64"])
def test_a_signed_integer_with_uint64_is_refused_by_name(signed):
    for pair in ((signed, "uint64"), ("uint64", signed)):
        with pytest.raises(DtypeError, match=rf"{pair[0]}, {pair[1]}"):
            binary_result(*pair)
        # With a float, both integers are of a lower kind.
        assert result_type(*pair, "float16") == "float16"


@pytest.mark.parametrize(("low", "high"), list(itertools.combinations(KINDS, 2)))
def test_the_higher_kind_keeps_its_own_width(low, high):
    if (low, high) in {("uint", "int"), ("float", "complex")}:
        return
    for a in ARITHMETIC:
        for b in ARITHMETIC:
            if (kind(a), kind(b)) == (low, high):
                assert binary_result(a, b) == binary_result(b, a) == b


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("float16", "bfloat16", "float32"),
        ("float16", "float32", "float32"),
        ("bfloat16", "float64", "float64"),
        ("bfloat16", "complex64", "complex64"),
        ("float16", "complex128", "complex128"),
        ("int64", "bfloat16", "bfloat16"),
        ("bool", "float16", "float16"),
    ],
)
def test_the_half_formats(a, b, expected):
    assert binary_result(a, b) == binary_result(b, a) == expected


@pytest.mark.parametrize("name", names())
def test_a_dtype_promotes_with_itself(name):
    assert binary_result(name, name) == result_type(name) == result_type(name, name, name) == name


@pytest.mark.parametrize("stored", STORED)
def test_a_storage_only_dtype_promotes_with_itself_alone(stored):
    for other in names():
        if other != stored:
            for pair in ((stored, other), (other, stored)):
                with pytest.raises(DtypeError, match=rf"storage-only.*{pair[0]}, {pair[1]}"):
                    binary_result(*pair)


def outcome(*operands):
    try:
        return result_type(*operands)
    except DtypeError:
        return "refused"


@pytest.mark.parametrize("first", names())
def test_three_operands_promote_alike_in_every_order(first):
    for second, third in itertools.combinations_with_replacement(names(), 2):
        trio = (first, second, third)
        assert len({outcome(*order) for order in itertools.permutations(trio)}) == 1
        for a, b, c in itertools.permutations(trio):
            # Two at a time gives the same, wherever each pair is defined.
            left = outcome(a, b)
            if left != "refused" and outcome(left, c) != "refused":
                assert outcome(left, c) == outcome(*trio)


NUMPY_SCALARS = [name for name in ARITHMETIC if name != "bfloat16"]


@pytest.mark.parametrize("name", NUMPY_SCALARS)
@pytest.mark.parametrize("scalar", [True, False, 0, 1, -1, 100, 300, 0.5, -1e30, 1j])
def test_a_python_scalar_is_weak_as_numpy_says(name, scalar):
    if isinstance(scalar, int) and not isinstance(scalar, bool) and kind(name) in {"int", "uint"}:
        info = np.iinfo(name)
        if not info.min <= scalar <= info.max:
            with pytest.raises(ArgumentError, match=rf"{scalar} with {name}"):
                scalar_result(name, scalar)
            return
    # numpy's own answer to `array + scalar` (its result_type does not look at an int's range).
    with np.errstate(all="ignore"):
        expected = np.result_type(np.empty(1, name), scalar).name
    assert scalar_result(name, scalar) == expected
    assert result_type(name, scalar) == result_type(scalar, name) == expected


@pytest.mark.parametrize(
    ("scalar", "expected"), [(True, "bfloat16"), (7, "bfloat16"), (0.5, "bfloat16"), (1j, "complex64")]
)
def test_a_scalar_with_bfloat16(scalar, expected):
    assert scalar_result("bfloat16", scalar) == expected


@given(st.sampled_from([n for n in names() if kind(n) in {"int", "uint"}]), st.integers())
def test_an_int_outside_the_range_is_refused(name, scalar):
    width = facts(name).bits
    low = -(1 << width - 1) if kind(name) == "int" else 0
    if low <= scalar < low + (1 << width):
        assert scalar_result(name, scalar) == name
    else:
        with pytest.raises(ArgumentError, match=name):
            scalar_result(name, scalar)


@pytest.mark.parametrize("name", STORED)
def test_a_scalar_of_a_higher_kind_with_a_storage_only_dtype_is_refused(name):
    assert scalar_result(name, True) == scalar_result(name, 1) == name
    higher = [1j] if kind(name) == "float" else [0.5, 1j]
    for scalar in higher:
        with pytest.raises(DtypeError, match=name):
            scalar_result(name, scalar)


@pytest.mark.parametrize("scalar", [np.float64(1), np.float32(1), np.int8(1), None, "1", [1], np.array(1.0)])
def test_what_is_no_python_number_is_not_weak(scalar):
    with pytest.raises(DtypeError, match="Python number"):
        scalar_result("float16", scalar)


def test_scalars_come_after_the_dtypes():
    assert result_type(1.5, "int32", "float16") == "float16"
    assert result_type("int8", 100, "int16", 300) == "int16"
    with pytest.raises(ArgumentError, match="dtype"):
        result_type(1.5, 2)


@pytest.mark.parametrize(
    "call",
    [lambda n: binary_result(n, "float16"), lambda n: scalar_result(n, 1), lambda n: promoted([n]), float_math_input],
)
@pytest.mark.parametrize("name", ["half", "fp8", "", "complex32"])
def test_an_unknown_dtype_is_refused(call, name):
    with pytest.raises(UnknownDtypeError):
        call(name)


FLOATS = [name for name in ARITHMETIC if kind(name) == "float"]


@given(st.lists(st.sampled_from([n for n in ARITHMETIC if kind(n) != "complex"]), min_size=1, max_size=5))
def test_promoted_is_the_widest_float_past_two_bytes(inputs):
    floats = [name for name in inputs if name in FLOATS]
    if not floats:
        with pytest.raises(DtypeError, match="float"):
            promoted(inputs)
        return
    wide = max(floats, key=lambda name: facts(name).bits)
    if len(set(floats)) > 1 and facts(wide).bits == 16:
        assert promoted(inputs) is None
    else:
        assert promoted(inputs) == wide


def test_promoted_with_a_complex():
    assert promoted(["complex64", "float64"]) == "complex128"
    assert promoted(["complex64", "float16"]) == "complex64"
    with pytest.raises(DtypeError, match="none"):
        promoted([])


@pytest.mark.parametrize("name", names())
def test_float_math_reads_a_float_as_it_is_and_the_rest_as_float32(name):
    as_is = {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"}
    assert float_math_input(name) == (name if name in as_is else "float32")
