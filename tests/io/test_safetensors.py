import gc
import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbxtensor.backend.cpu import pool
from nbxtensor.dtype.itemsize import from_safetensors, numpy_dtype
from nbxtensor.errors import ArgumentError, DtypeError, FormatError, ShapeError
from nbxtensor.io.safetensors import open_file, to_bf16_bits

NUMPY = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
NUMPY += ["float64", "float32", "float16", "bool"]
reuse_tmp_path = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def file_of(path, header, data=b"", *, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@given(st.lists(st.tuples(st.sampled_from(NUMPY), st.lists(st.integers(0, 4), max_size=3)), max_size=6), st.booleans())
@reuse_tmp_path
def test_what_the_formats_own_library_writes_is_read_back(tmp_path, tensors, free_text):
    generator = np.random.default_rng(len(tensors))
    arrays = {
        f"layer.{n}": generator.integers(0, 2, shape).astype(dtype) + np.zeros((), dtype)
        for n, (dtype, shape) in enumerate(tensors)
    }
    arrays = {name: np.asarray(a, dtype) for (name, a), (dtype, _) in zip(arrays.items(), tensors, strict=True)}
    metadata = {"format": "np", "ä": "ö"} if free_text else None
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata)
    file = open_file(path)
    assert set(file.names) == set(file) == set(arrays)
    assert len(file) == len(arrays)
    assert file.metadata == (metadata or {})
    for name, array in arrays.items():
        assert file.spec(name) == (array.dtype.name, array.shape)
        found = file.array(name)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes() == file[name].tobytes()
        assert not found.flags.writeable


@pytest.mark.parametrize(
    ("code", "shape", "nbytes"),
    [("BF16", [3, 2], 12), ("F8_E4M3", [5], 5), ("F8_E5M2", [2, 2], 4), ("C64", [2], 16), ("F4", [3, 4], 6)],
)
def test_dtypes_that_numpy_lacks_come_as_their_carriers(tmp_path, code, shape, nbytes):
    data = bytes(range(nbytes))
    header = {"w": {"dtype": code, "shape": shape, "data_offsets": [0, nbytes]}}
    file = open_file(file_of(tmp_path / "x", header, data))
    dtype = from_safetensors(code)
    assert file.spec("w") == (dtype, tuple(shape))
    found = file["w"]
    assert found.tobytes() == data
    assert found.dtype == numpy_dtype(dtype)
    assert found.shape == ((nbytes,) if code == "F4" else tuple(shape))


def test_arrays_are_views_of_one_mapping_that_they_keep_alive(tmp_path):
    path = tmp_path / "x"
    array = np.arange(1 << 18, dtype=np.float32)
    safetensors.numpy.save_file({"a": array, "b": array + 1}, path)
    file = open_file(path)
    a, again, b = file["a"], file["a"], file["b"]
    assert np.shares_memory(a, again)
    assert not a.flags.owndata
    assert b.ctypes.data - a.ctypes.data == a.nbytes
    path.unlink()
    del file, again
    gc.collect()
    assert np.array_equal(a, array)
    assert np.array_equal(b, array + 1)


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def broken():
    def row(**changes):
        return {"w": {**F32, **changes}}

    yield "8 bytes", b"", None
    yield "header is inside the file", {"w": F32}, {"length": 1 << 40}
    yield "header is inside the file", {"w": F32}, {"length": 2000}
    yield "JSON in UTF-8", b'{"w": ', None
    yield "JSON in UTF-8", b'{"w\xff": 1}', None
    yield "JSON in UTF-8", b"[" * 5000, None
    yield "JSON object", b"[1]", None
    yield "JSON object", b" {}", None
    yield "stands once", b'{"w": 1, "w": 2}', None
    yield "__metadata__", {"__metadata__": {"a": 1}}, None
    yield "__metadata__", {"__metadata__": "a"}, None
    yield "'w' has dtype, shape", {"w": 3}, None
    yield "'w' has dtype, shape", {"w": {"dtype": "F32", "shape": [2]}}, None
    yield "'w' has dtype, shape", row(extra=1), None
    yield "'w' has dtype, shape", row(data_offsets=[0]), None
    yield "'w' has dtype, shape", row(data_offsets=[0, 8.0]), None
    yield "'w' are zero or more", row(shape=[-2]), None
    yield "'w' are zero or more", row(shape=[2.0]), None
    yield "'w' at offset 0 has a dtype that is not read.*F33", row(dtype="F33"), None
    yield "takes 8 bytes", row(data_offsets=[0, 4]), None
    yield "takes 8 bytes", row(data_offsets=[8, 0]), None
    yield "takes 8 bytes", row(data_offsets=[-8, 0]), None
    yield "takes 12 bytes", row(shape=[3]), None
    yield "whole bytes", {"w": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}, None
    yield "'v' at offset 4 overlaps", {"w": F32, "v": {**F32, "data_offsets": [4, 12]}}, None
    yield "'v' at offset 0 overlaps", {"w": F32, "v": F32}, None
    yield "'w' at offset 4 leaves a hole", row(data_offsets=[4, 12]), None
    yield "'v' at offset 12 leaves a hole", {"w": F32, "v": {**F32, "data_offsets": [12, 20]}}, None
    yield (
        "'v' at offset 8 ends at 32, the data at 20",
        {
            "w": F32,
            "v": {"dtype": "F64", "shape": [3], "data_offsets": [8, 32]},
        },
        None,
    )
    yield "fill the file", {"w": F32}, None
    yield "fill the file", {}, None


@pytest.mark.parametrize(("message", "header", "options"), [(m, h, o or {}) for m, h, o in broken()])
def test_a_file_that_breaks_the_format_is_refused_and_says_where(tmp_path, message, header, options):
    path = tmp_path / "x"
    if header == b"":
        path.write_bytes(b"1234567")
    else:
        file_of(path, header, bytes(20), **options)
    with pytest.raises(FormatError, match=rf"(?s)^{path}: .*{message}"):
        open_file(path)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(path.read_bytes())


offsets = st.lists(st.integers(-1, 30), min_size=2, max_size=2)
rows = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "U8", "BF16", "BOOL", "F4", "X"]),
        "shape": st.lists(st.integers(0, 4), max_size=2),
        "data_offsets": offsets,
    }
)


@given(st.dictionaries(st.sampled_from("abc"), rows, max_size=3), st.integers(0, 24))
@reuse_tmp_path
def test_a_file_is_read_exactly_when_the_formats_own_library_reads_it(tmp_path, header, size):
    path = file_of(tmp_path / "x", header, bytes(size))
    try:
        expected = safetensors.deserialize(path.read_bytes())
    except (safetensors.SafetensorError, OverflowError):
        with pytest.raises(FormatError):
            open_file(path)
    else:
        assert {name: bytes(row["data"]) for name, row in expected} == {
            n: a.tobytes() for n, a in open_file(path).items()
        }


def test_a_tensor_that_is_not_there_is_refused_by_name(tmp_path):
    path = tmp_path / "x"
    safetensors.numpy.save_file({"a": np.zeros(1)}, path)
    file = open_file(path)
    for ask in (file.array, file.spec):
        with pytest.raises(ArgumentError, match=r"no tensor 'b'\. It has a"):
            ask("b")
    with pytest.raises(KeyError):
        file["b"]
    assert file.get("b") is None
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "gone")


@given(st.sampled_from([np.float32, np.float16]), st.integers(0, 2**32), st.integers(1, 4), st.booleans())
@settings(deadline=None)
def test_to_bf16_bits_is_one_call_of_ml_dtypes(dtype, seed, threads, given_out):
    bits = np.random.default_rng(seed).integers(0, 2**32, (3, 700), dtype=np.uint32)
    array = bits.view(np.float32) if dtype is np.float32 else bits.astype(np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        expected = array.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    expected = np.where(np.isnan(array), 0x7FC0, expected)
    out = np.empty(array.shape, np.uint16) if given_out else None
    pool.set_threads(threads)
    try:
        found = to_bf16_bits(array, out)
    finally:
        pool.set_threads(None)
    assert (found is out) == given_out
    assert np.array_equal(found, expected)
    assert np.array_equal(to_bf16_bits(array.T), expected.T)


def test_to_bf16_bits_is_split_over_the_pool(monkeypatch):
    array = np.linspace(-3, 3, 1001, dtype=np.float32)
    pieces = []

    def record(n, body, kind):
        pieces.append((n, kind))
        body(0, 400)
        body(400, n)

    monkeypatch.setattr(pool, "parallel_for", record)
    assert np.array_equal(to_bf16_bits(array), array.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert pieces == [(1001, "to_bf16_bits float32")]


def test_to_bf16_bits_refuses_what_it_cannot_round():
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(DtypeError, match="float64"):
        to_bf16_bits(x.astype(np.float64))
    with pytest.raises(DtypeError, match="uint16"):
        to_bf16_bits(x, np.empty((2, 3), np.int16))
    for out in (np.empty((3, 2), np.uint16), np.empty((2, 6), np.uint16)[:, ::2]):
        with pytest.raises(ShapeError, match="to_bf16_bits: out"):
            to_bf16_bits(x, out)
