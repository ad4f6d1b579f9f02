"""Making tensors and reading them back."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.errors import ArgumentError, DtypeError, NbxError

NUMPY = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_arrays_come_and_go(dtype):
    values = (np.arange(12) % 7).astype(dtype).reshape(3, 4)
    tensor = nbx.asarray(values)
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == (dtype, (3, 4), values.nbytes)
    np.testing.assert_array_equal(np.asarray(tensor), values)
    np.testing.assert_array_equal(tensor.tolist(), values.tolist())
    assert [type(v) for v in tensor.tolist_flat()] == [type(v) for v in values.reshape(-1).tolist()]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_numpy_lacks_come_as_ml_dtypes_and_leave_as_bits(dtype):
    values = np.array([0.5, -2.0, 1.5, 0.0], getattr(ml_dtypes, dtype))
    tensor = nbx.asarray(values)
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.numpy().view(values.dtype), values)
    assert tensor.tolist() == [0.5, -2.0, 1.5, 0.0]
    bits = nbx.from_numpy_array(tensor.numpy(), dtype)
    assert bits.tolist() == tensor.tolist()


def test_python_numbers_have_numpys_dtypes():
    assert (nbx.asarray(1).dtype, nbx.asarray(1.5).dtype, nbx.asarray([True]).dtype) == ("int64", "float64", "bool")
    assert nbx.asarray([1, 2], dtype="float16").dtype == "float16"
    assert nbx.asarray(1j).dtype == "complex128"


def test_memory_is_shared_only_where_it_may_be():
    values = np.zeros(8, np.float32)
    shared, own = nbx.asarray(values), nbx.asarray(values, copy=True)
    values[0] = 5
    assert (shared.tolist()[0], own.tolist()[0]) == (5.0, 0.0)
    with pytest.raises(ArgumentError, match="copy=False"):
        nbx.asarray(values, dtype="float64", copy=False)
    del values
    gc.collect()
    assert shared.tolist()[0] == 5.0


def test_any_strides_are_taken():
    values = np.arange(24, dtype=np.int32).reshape(4, 6)
    for view in (values.T, values[::-1, ::2], values[:, ::-1], np.broadcast_to(values[0], (3, 6))):
        np.testing.assert_array_equal(nbx.asarray(view).numpy(), view)
        np.testing.assert_array_equal(nbx.asarray(view).copy().numpy(), view)


@pytest.mark.parametrize("bad", ["text", object(), [[1], [1, 2]], np.array(["a"]), np.array([1], "M8[s]"), None])
def test_what_is_no_numbers_is_refused(bad):
    with pytest.raises((NbxError, ValueError)):
        nbx.asarray(bad)


def test_a_foreign_byte_order_is_refused():
    with pytest.raises(DtypeError, match="byte order"):
        nbx.asarray(np.zeros(3, ">f4"))


def test_creation_functions_are_numpys():
    np.testing.assert_array_equal(nbx.zeros((2, 3)).numpy(), np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(nbx.ones(4, dtype="int8").numpy(), np.ones(4, np.int8))
    np.testing.assert_array_equal(nbx.full((2,), 7).numpy(), np.full(2, 7))
    np.testing.assert_array_equal(nbx.arange(2, 9, 3).numpy(), np.arange(2, 9, 3))
    np.testing.assert_array_equal(nbx.linspace(0, 1, 5).numpy(), np.linspace(0, 1, 5))
    np.testing.assert_array_equal(nbx.eye(3, 4, k=1).numpy(), np.eye(3, 4, 1, dtype=np.float32))
    assert nbx.empty((0, 3)).shape == (0, 3)
    with pytest.raises(NbxError, match="-1"):
        nbx.zeros((2, -1))


def test_dlpack_takes_numpy_and_refuses_the_rest():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(nbx.from_dlpack(values).numpy(), values)
    with pytest.raises(ArgumentError, match="__dlpack__"):
        nbx.from_dlpack(3)


def test_item_and_conversions():
    assert nbx.asarray(np.float32(2.5)).item() == 2.5
    assert int(nbx.asarray([3])) == 3
    assert bool(nbx.asarray(0.0)) is False
    assert [10, 20, 30][nbx.asarray(np.int32(1))] == 20
    with pytest.raises(ArgumentError, match="one element"):
        nbx.zeros(2).item()
    with pytest.raises(TypeError, match="integer"):
        [1][nbx.zeros(())]
    with pytest.raises(TypeError, match="axis"):
        len(nbx.zeros(()))


def test_repr_shows_values_dtype_and_device():
    assert repr(nbx.asarray(np.array([1.0, 2.5], np.float32))) == "Tensor([1. , 2.5], dtype=float32, device=cpu)"
    assert "bfloat16" in repr(nbx.asarray([1.0], dtype="bfloat16"))


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(NbxError, match="nonesuch"):
        nbx.zeros(2, device="nonesuch")
    with pytest.raises(NbxError):
        nbx.zeros(2).to("cpu:7")


def test_tensors_are_copied_and_pickled_by_value():
    import copy
    import pickle

    tensor = nbx.asarray(np.arange(6, dtype=np.float32).reshape(2, 3)).T.to("bfloat16")
    for again in (copy.deepcopy(tensor), copy.copy(tensor), pickle.loads(pickle.dumps(tensor))):
        assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
        assert again.tolist() == tensor.tolist()
        assert again.storage is not tensor.storage
    assert 3.0 in tensor
    assert 7.0 not in tensor


@pytest.mark.parametrize("other", [np.ones(3, np.float32), [1, 2, 3], None, "a", object()])
def test_what_stands_beside_a_tensor_is_a_tensor_or_a_number(other):
    tensor = nbx.zeros((2, 3))
    for operation in (lambda: tensor + other, lambda: other + tensor, lambda: nbx.where(tensor > 0, tensor, other)):
        with pytest.raises(ArgumentError, match="a tensor or a number"):
            operation()
