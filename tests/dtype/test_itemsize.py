"""The table and its reader: every row against facts written down elsewhere."""

import json
import math
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.dtype import itemsize as reader
from nbxtensor.errors import ArgumentError, DtypeError, NbxError, UnknownDtypeError

NAMES = reader.names()
ML = {name: np.dtype(getattr(ml_dtypes, name)) for name in NAMES if hasattr(ml_dtypes, name)}
SUB_BYTE = ("float4_e2m1fn", "int4", "uint4")

# (DLPack code, bits), from dlpack.h.
DLPACK = {
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64), "int4": (0, 4),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64), "uint4": (1, 4),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16),
    "complex64": (5, 64), "complex128": (5, 128), "bool": (6, 8),
    "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8), "float4_e2m1fn": (17, 4),
}  # fmt: skip

# Tensor type code: (values per block, bytes per block), from ggml.
GGUF = {
    0: (1, 4), 1: (1, 2), 30: (1, 2), 28: (1, 8), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


def refusal(call, *args, error=NbxError, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_whole(name):
    row = reader.facts(name)
    assert row.name == name
    assert row.source
    assert reader.bits(name) == row.bits
    assert reader.kind(name) == row.kind
    assert (row.format is not None) == (row.kind in {"float", "complex"})
    assert reader.numpy_dtype(name).itemsize == math.ceil(row.bits / 8)
    if row.kind == "float":
        assert row.format.sign + row.format.exponent + row.format.mantissa == row.bits
    if row.kind == "complex":
        assert reader.bits(row.part) * 2 == row.bits


@pytest.mark.parametrize("name", NAMES)
def test_the_carrier_is_numpys_own_dtype_or_bit_patterns(name):
    carrier = reader.numpy_dtype(name)
    if name in ML:
        assert carrier == np.dtype(f"uint{carrier.itemsize * 8}")
        assert reader.from_numpy(ML[name]) == name
        assert ML[name].itemsize == carrier.itemsize
    else:
        assert carrier.name == name
        assert reader.from_numpy(carrier) == name


@pytest.mark.parametrize("name", NAMES)
def test_itemsize_is_whole_bytes_or_refused_by_name(name):
    if name in SUB_BYTE:
        assert name in refusal(reader.itemsize, name, error=DtypeError)
    else:
        assert reader.itemsize(name) * 8 == reader.bits(name)


@given(st.sampled_from(NAMES), st.integers(0, 1 << 40))
def test_nbytes_is_the_bits_rounded_up_to_bytes(name, numel):
    assert reader.nbytes(name, numel) == math.ceil(numel * reader.bits(name) / 8)


@pytest.mark.parametrize("numel", [-1, True, 1.5, "3"])
def test_a_count_that_is_none_is_refused(numel):
    with pytest.raises((ArgumentError, TypeError)):
        reader.nbytes("float16", numel)


def test_dlpack_codes_are_the_headers():
    assert {name: reader.dlpack_code(name) for name in NAMES} == DLPACK
    for name, code in DLPACK.items():
        assert reader.from_dlpack(*code) == name
    assert "lanes 2" in refusal(reader.from_dlpack, 17, 4, 2, error=UnknownDtypeError)
    refusal(reader.from_dlpack, 2, 8, error=UnknownDtypeError)


@pytest.mark.parametrize("name", NAMES)
def test_a_safetensors_reader_takes_the_code_for_that_width(name):
    if reader.facts(name).safetensors is None:
        assert name in refusal(reader.to_safetensors, name, error=DtypeError)
        return
    code = reader.to_safetensors(name)
    assert reader.from_safetensors(code) == name
    numel, size = 8, reader.nbytes(name, 8)

    def file(nbytes):
        entry = {"x": {"dtype": code, "shape": [numel], "data_offsets": [0, nbytes]}}
        header = json.dumps(entry).encode()
        return struct.pack("<Q", len(header)) + header + bytes(nbytes)

    [(_, tensor)] = safetensors.deserialize(file(size))
    assert len(tensor["data"]) == size
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(file(size + 1))


def test_gguf_codes_are_ggmls():
    for code, (block, nbytes) in GGUF.items():
        name = reader.from_gguf(code)
        assert reader.gguf_code(name) == code
        assert reader.representation_bytes(name, 3 * block) == 3 * nbytes
    coded = [n for n in NAMES if reader.facts(n).gguf is not None]
    coded += [n for n in reader.representations() if reader.representation(n).gguf is not None]
    assert len(coded) == len(GGUF)
    assert "complex64" in refusal(reader.gguf_code, "complex64", error=DtypeError)
    refusal(reader.from_gguf, 4, error=UnknownDtypeError)


@pytest.mark.parametrize("name", NAMES)
def test_triton_reads_its_spelling(name):
    generator = pytest.importorskip("triton.compiler.code_generator")
    if reader.facts(name).triton is None:
        assert name in refusal(reader.triton_type, name, error=DtypeError)
        return
    dtype = generator.str_to_ty(reader.triton_type(name), None)
    assert dtype.primitive_bitwidth == (1 if name == "bool" else reader.bits(name))
    assert reader.autotune_key(name) == str(dtype)
    if reader.kind(name) in {"int", "uint"}:
        assert dtype.name == name
    if reader.kind(name) == "float":
        assert dtype.fp_mantissa_width == reader.facts(name).format.mantissa
        assert dtype.exponent_bias == reader.facts(name).format.bias


@pytest.mark.parametrize("name", NAMES)
def test_a_launch_key_names_one_dtype(name):
    assert reader.from_autotune_key(reader.autotune_key(name)) == name


@pytest.mark.parametrize("name", NAMES)
def test_canonical_reads_every_spelling(name):
    for spelling in (name, *reader.facts(name).aliases):
        assert reader.canonical(spelling) == name
        assert reader.canonical(f"torch.{spelling}") == name
    assert reader.canonical(ML.get(name, np.dtype(reader.facts(name).carrier))) == name


def test_aliases_are_only_read_by_canonical():
    for name in NAMES:
        for alias in reader.facts(name).aliases:
            refusal(reader.itemsize, alias, error=UnknownDtypeError)


@pytest.mark.parametrize("spelling", ["fp8_unknown", "", "torch.", "Float32", None, 3, float, object(), ["float16"]])
def test_an_unknown_dtype_is_refused_by_name(spelling):
    for call in (reader.itemsize, reader.bits, reader.kind, reader.facts, reader.numpy_dtype, reader.canonical):
        message = refusal(call, spelling, error=ValueError)
        assert "unknown dtype" in message
        assert repr(spelling) in message


@pytest.mark.parametrize("dtype", [np.dtype("U3"), np.dtype("O"), np.dtype("M8[s]"), np.dtype([("a", "f4")])])
def test_a_numpy_dtype_outside_the_table_is_refused(dtype):
    refusal(reader.from_numpy, dtype, error=UnknownDtypeError)


def test_a_foreign_byte_order_is_refused():
    refusal(reader.from_numpy, np.dtype("f4").newbyteorder(), error=DtypeError)


@pytest.mark.parametrize("call", [reader.from_safetensors, reader.from_gguf, reader.from_autotune_key])
@pytest.mark.parametrize("code", ["float16", "XX", None, [], -1])
def test_an_unknown_code_is_refused(call, code):
    refusal(call, code, error=UnknownDtypeError)


@pytest.mark.parametrize("name", NAMES)
def test_a_store_without_float64_holds_the_narrower_dtype(name):
    assert reader.storage_dtype(name, stores_fp64=True) == name
    narrower = {"float64": "float32", "complex128": "complex64"}.get(name, name)
    assert reader.storage_dtype(name, stores_fp64=False) == narrower


@given(st.integers(0, 1000))
def test_a_packed_representation_stores_whole_blocks(blocks):
    # 128 values of 4 bits, a float16 scale and a float16 minimum.
    assert reader.representation_bytes("int4-g128-asym", 128 * blocks) == (64 + 2 + 2) * blocks
    assert "128" in refusal(reader.representation_bytes, "int4-g128-asym", 128 * blocks + 5, error=ArgumentError)


@pytest.mark.parametrize("name", NAMES)
def test_a_dtype_represents_itself(name):
    assert reader.representation_bytes(name, 7) == reader.nbytes(name, 7)


def test_an_unknown_representation_is_refused():
    refusal(reader.representation_bytes, "int3", 8, error=UnknownDtypeError)
    refusal(reader.representation, "float16", error=UnknownDtypeError)


def test_storage_only_dtypes_are_the_narrow_ones():
    assert {n for n in NAMES if reader.is_storage_only(n)} == {
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", *SUB_BYTE
    }  # fmt: skip


def test_the_table_is_read_at_the_first_question_and_needs_no_triton():
    code = (
        "import sys, nbxtensor.dtype as d, nbxtensor.dtype.nbx_dtype, nbxtensor.dtype.convert, nbxtensor.dtype.policy\n"
        "assert not {'yaml', 'triton', 'torch', 'ml_dtypes'} & set(sys.modules), sys.modules\n"
        "d.bits('float16'); assert 'yaml' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_reader_is_the_module_of_its_name():
    from nbxtensor import dtype

    assert dtype.itemsize is reader
    assert dtype.itemsize.itemsize("float16") == 2
