"""Arguments that are no use: each is refused by name, none is silently dropped, wrapped or passed on to a compiler."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.dtype import itemsize
from nbxtensor.dtype.policy import get_policy
from nbxtensor.errors import (
    ArgumentError,
    MissingFactError,
    NbxError,
    OutOfMemoryError,
    PlanError,
    ShapeError,
    UnknownDtypeError,
    UnsupportedError,
)
from nbxtensor.memory import set_limit
from nbxtensor.planning.plan import plan as plan_for
from nbxtensor.random import Stream

f = nbx.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))
i = nbx.asarray(np.arange(12, dtype=np.int32).reshape(3, 4))
q = f[None, None]
s = nbx.asarray(np.float32(2))
z = nbx.zeros((0, 3))
e8 = nbx.ones((3, 3), dtype="float8_e4m3fn")


@pytest.mark.parametrize(
    "call",
    [
        lambda: nbx.linear(f, f, 1.0),
        lambda: nbx.addmm(1.0, f, f.T),
        lambda: nbx.attention(q, q, q, True),
        lambda: nbx.embedding(f, 1),
        lambda: f @ 2,
        lambda: nbx.batch_norm(f, 0.0, 1.0),
    ],
)
def test_a_number_where_only_a_tensor_has_a_meaning_is_not_dropped(call):
    """A bias of 1.0 was taken, and nothing was added."""
    with pytest.raises(ArgumentError, match=r"is a tensor. Got"):
        call()


def test_extras_without_an_epilogue_are_not_dropped():
    with pytest.raises(ArgumentError, match="Got no epilogue"):
        nbx.matmul(f, f.T, extras=[f])


REFUSED = """
nbx.sum(f, axis=1.0) | nbx.sum(f, axis="a") | nbx.sum(f, axis=(0, 0)) | nbx.sum(f, axis=(0, -2))
nbx.sum(f, axis=2) | nbx.sum(f, keepdims="yes") | nbx.sum(f, dtype="int3") | nbx.max(z) | nbx.var(f, correction="a")
nbx.softmax(f, axis=None) | nbx.softmax(f, axis=(0, 1)) | nbx.softmax(s) | nbx.softmax(i)
nbx.layer_norm(f, (4,), eps="a") | nbx.layer_norm(f, (4.0,)) | nbx.group_norm(f, 1.5)
nbx.vector_norm(f, ord="fro") | nbx.matmul(f, f) | nbx.matmul(f, s) | nbx.matmul(f, f.T, dtype="nope")
nbx.matmul(f, f.T, epilogue="relu") | nbx.linear(f, f, f) | nbx.linear_packed(f, nbx.zeros((1, 4, 7)), n=3)
nbx.linear_packed(f, nbx.zeros((1, 4, 8)), n=2.5) | nbx.addmm(nbx.zeros(3), f, f.T, alpha="a")
nbx.addmm(nbx.zeros(3), f, f.T, alpha=None) | nbx.attention(q, q, q, scale="a")
nbx.attention(q, q, q, is_causal=2) | nbx.attention(q, q, q, i) | nbx.attention(q, q, q, e8)
nbx.attention(q, q, q, nbx.zeros((5, 5))) | nbx.attention(*[nbx.zeros((1, 1, 3, 0))] * 2, q)
nbx.take(f, f, axis=0) | nbx.take(f, i[0], axis=1.0) | nbx.take(f, i[0]) | nbx.take_along_axis(f, i, axis=None)
nbx.pad(f, 1.5) | nbx.pad(f, (1, 2)) | nbx.pad(f, None) | nbx.pad(f, -1) | nbx.pad(f, 1, constant_values="a")
nbx.pad(i, 1, constant_values=1.7) | nbx.pad(i, 1, constant_values=2**40) | nbx.concat(f) | nbx.concat([])
nbx.concat([f, 1]) | nbx.concat([f, i]) | nbx.concat([f, f], axis=None) | nbx.stack(f) | nbx.stack([f, 1])
nbx.stack([]) | nbx.broadcast_arrays(f, 1) | nbx.permute_dims(np.ones((2, 2)), (1, 0))
nbx.reshape(np.ones(3), (3,)) | nbx.split(f, 2.5) | nbx.split(f, "ab") | nbx.split(f, [1, 1])
nbx.tile(f, (2.0, 1)) | nbx.repeat(f, [1, 2, 3]) | nbx.roll(f, 1.5) | nbx.elu(f, None) | nbx.nan_to_num(f, nan=None)
f + 10**400 | f + 1j | f + None | f.reshape("a") | f.reshape(None) | f.reshape((2, 6), 3) | f.reshape(-2, 6)
f.reshape(np.array([2, 6])) | f.view("int32") | f.permute("ab") | f.permute(1.0, 0) | f.narrow(0, 1.0, 1)
f.select(0, 1.5) | f.expand("a") | f.unsqueeze(None) | f.flatten(1, 0) | f.squeeze("a") | f[0:2.5] | f[s] | f[f]
f[3] | bool(f) | f in [f + 1, f] | f.to(None) | f.to(3) | f.to("nonsense") | nbx.zeros(3, dtype=None)
nbx.zeros(2.5) | nbx.zeros((2, -1)) | nbx.zeros((10**12, 10**12)) | nbx.full((2,), [1, 2])
nbx.full((2,), 300, dtype="int8") | nbx.asarray(300, dtype="int8") | nbx.asarray([-1], dtype="uint8")
nbx.asarray(2**70) | nbx.asarray([[1], [1, 2]]) | nbx.asarray([1], device=3) | nbx.from_numpy_array([1, 2])
nbx.asarray([1, 2], dtype="int4") | nbx.arange(0, 5, 0) | nbx.arange("a") | nbx.arange(None) | nbx.arange(10**18)
nbx.arange(0, float("nan")) | nbx.arange(300, dtype="int8") | nbx.linspace(0, 1, -1) | nbx.linspace(0, 1, 2.5)
nbx.eye(-1) | nbx.eye(2.5) | nbx.device(5) | nbx.device(None) | nbx.device("cpu:x") | nbx.plan(3)
nbx.load_plan(None) | nbx.trace(3, f.spec) | nbx.trace(lambda w, x: x, f.spec, weights=[f.spec])
nbx.trace(lambda x: x, (3,))
"""


@pytest.mark.parametrize("text", [t.strip() for line in REFUSED.strip().splitlines() for t in line.split(" | ")])
def test_bad_arguments_are_the_librarys_errors(text):
    with pytest.raises(NbxError) as caught:
        eval(text, globals())
    assert "Triton" not in str(caught.value)
    assert len(str(caught.value)) > 20


def test_a_dtype_has_every_spelling_wherever_one_is_taken():
    assert nbx.astype(f, "half").dtype == f.astype(np.float16).dtype == f.to("torch.float16").dtype == "float16"
    assert nbx.sum(f, dtype="double").dtype == nbx.matmul(f, f.T, dtype=np.float64).dtype == "float64"


def test_numpys_numbers_mean_the_same_traced_and_run():
    traced = nbx.trace(lambda x: x * np.float64(2) + np.int64(1), f.spec)
    assert traced.outputs[0].spec.dtype == (f * np.float64(2) + np.int64(1)).dtype == "float32"


def test_a_dtype_that_is_neither_dtype_nor_device_is_named_as_both():
    with pytest.raises(MissingFactError, match=r"As a dtype.*float32.*As a device.*cpu"):
        f.to("flaot32")


def test_what_is_filled_is_held_to_the_limit():
    """Zeros came from numpy: no limit saw them."""
    try:
        set_limit(1 << 20)
        with pytest.raises(OutOfMemoryError):
            nbx.zeros((1 << 20,))
    finally:
        set_limit(None)


def test_elements_go_to_other_libraries_and_come_back():
    assert np.from_dlpack(f).tolist() == f.tolist()
    assert f.__dlpack_device__() == (1, 0)
    with pytest.raises((BufferError, RuntimeError), match="dtype"):  # numpy's own
        np.from_dlpack(nbx.ones(2, dtype="bfloat16"))
    with pytest.raises(ValueError, match="copy=False"):
        np.array(f, dtype=np.float64, copy=False)


def test_a_shape_that_does_not_broadcast_names_the_op():
    for name, call in (("add", lambda: f + nbx.zeros(3)), ("linear", lambda: nbx.linear(f, f, nbx.zeros(4)))):
        with pytest.raises(ShapeError, match=f"^{name}: "):
            call()


def test_a_long_tensor_of_a_dtype_numpy_lacks_prints_its_ends_alone():
    text = repr(nbx.broadcast_to(nbx.ones((), dtype="bfloat16"), (3, 10**12)))
    assert "..." in text
    assert "bfloat16" in text
    assert nbx.asarray(1.5, dtype="bfloat16").tolist() == 1.5


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda x: nbx.sum(x, axis=True), ArgumentError, "axis is an integer. Got True"),
        (lambda x: nbx.softmax(x, axis=False), ArgumentError, "axis is an int. Got bool"),
        (lambda x: nbx.from_numpy_array(np.ones(2), copy="x"), ArgumentError, "copy is True, False or None. Got 'x'"),
        (lambda x: nbx.arange(True), ArgumentError, "arange: finite numbers. Got 0, True"),
        (lambda x: nbx.linspace("a", 1, 3), ArgumentError, "linspace: finite numbers. Got 'a', 1"),
        (lambda x: Stream(1).bernoulli("x"), ArgumentError, "a probability is needed. Got 'x'"),
        (lambda x: Stream(1).integers(1.5, 3), ArgumentError, "a bound is an integer. Got 1.5"),
        (lambda x: itemsize.nbytes("int4", 1.5), ArgumentError, "numel is a count of elements. Got 1.5"),
        (lambda x: itemsize.nbytes("int4", "3"), ArgumentError, "numel is a count of elements. Got '3'"),
        (lambda x: get_policy(None), ArgumentError, "params, compute and output, each once. Got None"),
        (lambda x: plan_for(nbx.trace(lambda y: y + 1, x), "h200"), ArgumentError, "a Target. Got Graph and str"),
        (lambda x: plan_for(3, nbx.device("cpu").target), ArgumentError, "a Target. Got int and Target"),
        (lambda x: nbx.pad(x, True), ArgumentError, "one count. Got True"),
        (lambda x: x[True:], ArgumentError, "bounds are integers. Got True"),
        (lambda x: nbx.rms_norm(x, (True,)), ShapeError, "extents are integers. Got (True,)"),
        (lambda x: nbx.asarray(x, device="gpu"), MissingFactError, "backend 'gpu' is not known"),
        (lambda x: nbx.from_dlpack(np.ones(2), device="gpu"), MissingFactError, "backend 'gpu' is not known"),
        (lambda x: nbx.from_dlpack(np.ones(2), copy="x"), ArgumentError, "copy is True, False or None. Got 'x'"),
        (lambda x: nbx.attention(*[nbx.zeros((1, 1, 2, 600))] * 3), UnsupportedError, "heads of at most 512 elements"),
    ],
)
def test_what_is_not_taken_says_what_is(call, error, told):
    with pytest.raises(error, match=re.escape(told)):
        call(nbx.ones((2, 3)))


_SHAPED = {
    "zeros": nbx.zeros,
    "ones": nbx.ones,
    "full": lambda shape: nbx.full(shape, 1.0),
    "empty": nbx.empty,
    "broadcast_to": lambda shape: nbx.broadcast_to(nbx.ones((1,) * len(shape)), shape),
    "reshape": lambda shape: nbx.zeros((0,) if 0 in shape else (1,)).reshape(shape),
    "Spec": lambda shape: nbx.Spec(shape, "int8"),
}


@pytest.mark.parametrize("name", _SHAPED)
@pytest.mark.parametrize("shape", [(2**70, 0), (2**62, 0), (2**59, 1), (2**40, 2**40), (2**30, 0, 2**30)])
def test_a_shape_whose_bytes_63_bits_do_not_count(name, shape):
    with pytest.raises(ShapeError, match=r"63 bits. Got .* Fewer than 2\*\*59 elements|the number of elements stays"):
        _SHAPED[name](shape)


@pytest.mark.parametrize("name", _SHAPED)
@pytest.mark.parametrize("shape", [(True,), (True, 1), (np.True_, 1)])
def test_a_bool_is_no_extent(name, shape):
    with pytest.raises(ShapeError, match="extents are integers"):
        _SHAPED[name](shape)


@pytest.mark.parametrize(
    "call",
    [
        lambda: nbx.asarray([1], dtype=""),
        lambda: nbx.asarray(f, dtype=""),
        lambda: nbx.asarray(f, dtype="cpu"),
        lambda: nbx.full((2,), 1, dtype=""),
        lambda: nbx.arange(3, dtype=""),
        lambda: nbx.linspace(0, 1, 3, dtype=""),
        lambda: nbx.from_numpy_array(np.ones(2), ""),
    ],
)
def test_an_empty_name_is_no_dtype_left_out(call):
    with pytest.raises(UnknownDtypeError, match="unknown dtype"):
        call()


def test_a_shape_of_no_elements_may_have_long_extents():
    assert nbx.zeros((2**58, 0)).shape == (2**58, 0)
    assert nbx.zeros((2**58, 0)).numpy().shape == (2**58, 0)


def test_a_program_and_a_recording_cannot_be_pickled_but_saved():
    program = nbx.plan(nbx.trace(lambda x: x + 1, nbx.Spec((2,), "float32"))).load({})
    for made in (program, program.capture()):
        with pytest.raises(PlanError, match=r"it holds a device's memory.*Program\.save"):
            pickle.dumps(made)
    for made in (program.plan, program.plan.graph):
        with pytest.raises(PlanError, match=r"a graph is not pickled\. save_plan writes"):
            pickle.dumps(made)


def test_a_device_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(nbx.device("cpu"))) is nbx.device("cpu")
