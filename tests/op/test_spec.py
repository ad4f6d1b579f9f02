import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import ShapeError, UnknownDtypeError
from nbxtensor.op import Spec

shapes = st.lists(st.integers(0, 5), max_size=5).map(tuple)
dtypes = st.sampled_from(["float32", "bfloat16", "float64", "bool", "int8", "complex128", "int4", "float4_e2m1fn"])


@given(shapes, dtypes)
def test_a_spec_without_strides_is_laid_out_as_numpy_lays_it_out(shape, dtype):
    spec = Spec(shape, dtype)
    array = np.zeros(shape, np.uint8)
    assert (spec.shape, spec.ndim, spec.numel) == (array.shape, array.ndim, array.size)
    assert spec.is_contiguous
    if array.size:
        assert all(s == n for s, n, extent in zip(spec.strides, array.strides, shape, strict=True) if extent > 1)


@given(shapes, dtypes)
def test_bytes_are_the_bits_rounded_up_once(shape, dtype):
    spec = Spec(shape, dtype)
    assert 8 * spec.nbytes - 7 <= spec.numel * bits(dtype) <= 8 * spec.nbytes


@given(shapes, st.data())
def test_strides_do_not_change_what_a_packed_spec_is(shape, data):
    strides = data.draw(st.tuples(*[st.integers(-40, 40) for _ in shape]))
    spec = Spec(shape, "float16", strides)
    assert spec.packed() == Spec(shape, "float16")
    assert spec.with_dtype("int8") == Spec(shape, "int8")
    assert spec.packed().is_contiguous
    assert spec.nbytes == spec.packed().nbytes


@given(shapes, dtypes)
def test_equal_specs_are_one_key(shape, dtype):
    numbers = tuple(np.int64(n) for n in shape)
    assert Spec(numbers, dtype) == Spec(shape, dtype)
    assert hash(Spec(numbers, dtype)) == hash(Spec(shape, dtype))
    assert all(type(n) is int for n in Spec(numbers, dtype).shape)
    assert Spec(shape, dtype) != Spec((*shape, 2), dtype)


@pytest.mark.parametrize(
    ("shape", "strides", "message"),
    [
        ((2, -1), (), r"Spec: an extent is negative. Got \(2, -1\)"),
        ((2.5,), (), r"Spec: extents are integers. Got \(2.5,\)"),
        ("ab", (), r"Spec: extents are integers. Got \('a', 'b'\)"),
        ((2, 3), (1,), r"Spec: one stride per axis. Got shape \(2, 3\) with strides \(1,\)"),
        ((2,), (1, 1), r"Spec: one stride per axis"),
        ((2,), (0.5,), r"Spec: strides are integers. Got \(0.5,\)"),
    ],
)
def test_what_is_no_layout_is_refused(shape, strides, message):
    with pytest.raises(ShapeError, match=message):
        Spec(shape, "float32", strides)


def test_a_dtype_is_given_by_any_spelling_and_kept_by_its_name():
    assert Spec((2,), "half") == Spec((2,), "float16")
    assert Spec((2,), np.dtype(np.int8)).dtype == "int8"
    with pytest.raises(UnknownDtypeError, match="'halve'"):
        Spec((2,), "halve")
