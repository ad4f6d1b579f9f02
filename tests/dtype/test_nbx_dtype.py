"""The enum: frozen values, and tables that are the one table's."""

import numpy as np
import pytest

from nbxtensor.dtype import itemsize as reader
from nbxtensor.dtype.nbx_dtype import NBXDtype, dtype_size, parse_dtype
from nbxtensor.errors import DtypeError, UnknownDtypeError

# These values are stored in files: a change here is a broken file.
FROZEN = {
    "float16": 0, "bfloat16": 1, "float32": 2, "float64": 3, "int8": 4, "int16": 5, "int32": 6, "int64": 7,
    "uint8": 8, "bool": 9, "complex64": 10, "complex128": 11, "uint16": 12, "uint32": 13, "uint64": 14,
    "float8_e4m3fn": 15, "float8_e5m2": 16, "float8_e4m3fnuz": 17, "float8_e5m2fnuz": 18, "float8_e8m0fnu": 19,
    "float4_e2m1fn": 20, "int4": 21, "uint4": 22,
}  # fmt: skip


def test_the_values_are_frozen():
    assert {member.name: member.value for member in NBXDtype} == FROZEN


def test_the_enum_and_the_table_hold_the_same_dtypes_in_one_order():
    assert {name: reader.facts(name).enum for name in reader.names()} == FROZEN
    assert reader.names() == tuple(FROZEN)


@pytest.mark.parametrize("member", NBXDtype)
def test_a_member_is_its_name(member):
    assert str(member) == member.name
    assert parse_dtype(member) is parse_dtype(member.name) is NBXDtype(member.value) is member
    assert reader.canonical(member) == member.name


@pytest.mark.parametrize("member", NBXDtype)
def test_the_size_is_the_tables(member):
    if reader.bits(member.name) < 8:
        with pytest.raises(DtypeError, match=member.name):
            dtype_size(member)
    else:
        assert dtype_size(member) == reader.itemsize(member.name)


def test_bool_has_a_name_that_hides_no_builtin():
    assert NBXDtype.bool_ is NBXDtype.bool is parse_dtype("torch.bool") is parse_dtype(np.bool_)


def test_an_unknown_spelling_is_refused():
    with pytest.raises(UnknownDtypeError, match="quint8"):
        parse_dtype("torch.quint8")
