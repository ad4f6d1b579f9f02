"""Policies: the classes of the autocast tables, and what a policy makes of them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.dtype.limits import finfo
from nbxtensor.dtype.policy import Policy, get_policy, op_class
from nbxtensor.dtype.promotion import result_type
from nbxtensor.errors import ArgumentError, DtypeError, UnknownDtypeError

MIXED = get_policy("params=float32,compute=float16,output=float32")
FLOATS = ["float16", "bfloat16", "float32"]

# Some of each list of the autocast op reference in PyTorch's documentation.
COMPUTE = ["addmm", "baddbmm", "bmm", "conv1d", "conv2d", "conv_transpose3d", "linear", "matmul", "mm", "mv", "prelu"]
FLOAT32 = ["acos", "cosh", "cumsum", "erfinv", "exp", "group_norm", "layer_norm", "log_softmax", "log1p", "mse_loss",
           "nll_loss", "norm", "pow", "prod", "reciprocal", "rsqrt", "softmax", "softplus", "sum", "tan"]  # fmt: skip
WIDEST = ["addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "index_put", "scatter_add", "tensordot"]
NONE = ["add", "mul", "relu", "gelu", "silu", "cat", "embedding", "view", "addmm_", "max"]


@pytest.mark.parametrize(
    ("ops", "group"), [(COMPUTE, "compute"), (FLOAT32, "float32"), (WIDEST, "widest"), (NONE, None)]
)
def test_the_documentations_lists(ops, group):
    assert {op: op_class(op) for op in ops} == dict.fromkeys(ops, group)


@pytest.mark.parametrize(
    ("traced", "listed"),
    [
        ("_softmax", "softmax"),
        ("native_layer_norm", "layer_norm"),
        ("convolution", "conv2d"),
        ("grid_sampler_2d", "grid_sample"),
    ],
)
def test_the_names_of_a_traced_graph(traced, listed):
    for spelling in (traced, f"aten::{traced}", f"aten.{traced}.default"):
        assert op_class(spelling) == op_class(listed) is not None


@given(st.sampled_from(COMPUTE), st.lists(st.sampled_from(FLOATS), min_size=1, max_size=3), st.sampled_from(FLOATS))
def test_a_matrix_product_computes_in_the_policys_dtype(op, inputs, compute):
    assert MIXED.replace(compute=compute).compute_dtype(op, inputs) == compute


@given(st.sampled_from(FLOAT32), st.lists(st.sampled_from(FLOATS), min_size=1, max_size=3), st.sampled_from(FLOATS))
def test_some_ops_compute_in_float32_whatever_the_policy(op, inputs, compute):
    assert MIXED.replace(compute=compute).compute_dtype(op, inputs) == "float32"


@given(st.sampled_from(WIDEST), st.lists(st.sampled_from(FLOATS), min_size=1, max_size=3), st.sampled_from(FLOATS))
def test_some_ops_compute_in_the_widest_of_their_inputs(op, inputs, compute):
    expected = "float32" if "float32" in inputs else inputs[0] if len(set(inputs)) == 1 else compute
    assert MIXED.replace(compute=compute).compute_dtype(op, inputs) == expected


@given(st.sampled_from(NONE), st.lists(st.sampled_from([*FLOATS, "int64", "bool"]), min_size=1, max_size=3))
def test_an_op_in_no_class_keeps_its_inputs_dtypes(op, inputs):
    assert MIXED.compute_dtype(op, inputs) == result_type(*inputs)


@pytest.mark.parametrize("op", ["mm", "softmax", "addcmul", "add"])
@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["float64", "float64"], "float64"),
        (["float64", "float16"], "float64"),
        (["int8", "int8"], "int8"),
        (["complex64", "complex64"], "complex64"),
        (["complex64", "float16"], "complex64"),
    ],
)
def test_inputs_that_autocast_does_not_cover_keep_their_dtypes(op, inputs, expected):
    assert MIXED.compute_dtype(op, inputs) == expected


def test_integer_operands_beside_a_float_take_no_part():
    assert MIXED.compute_dtype("index_put", ["float16", "int64", "float16"]) == "float16"
    assert MIXED.compute_dtype("nll_loss", ["float16", "int64"]) == "float32"


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["float16", "bfloat16", "float32", "float64", "float8_e5m2"]),
)
def test_a_fill_is_held_to_the_finite_range(value, dtype):
    filled = MIXED.fill_value("masked_fill", value, dtype)
    assert finfo(dtype).min <= filled <= finfo(dtype).max
    assert filled == value or abs(value) > finfo(dtype).max


def test_the_lowest_float32_of_a_mask_is_finite_in_every_half_format():
    lowest = float(np.finfo(np.float32).min)
    assert MIXED.fill_value("aten.masked_fill.Scalar", lowest, "float16") == -65504.0
    assert MIXED.fill_value("where", lowest, "bfloat16") == -3.3895313892515355e38
    assert MIXED.fill_value("full", lowest, "float32") == lowest


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_an_infinity_asked_for_is_kept(value):
    np.testing.assert_equal(MIXED.fill_value("masked_fill", value, "float16"), value)


def test_an_op_that_does_not_fill_and_an_integer_array_keep_the_value():
    assert MIXED.fill_value("add", -3.39e38, "float16") == -3.39e38
    assert MIXED.fill_value("masked_fill", -(1 << 40), "int32") == -(1 << 40)


@given(*[st.sampled_from([*FLOATS, "float64"])] * 3)
def test_a_policy_reads_back_from_its_text(params, compute, output):
    policy = Policy(params, compute, output)
    assert get_policy(str(policy)) == policy
    assert get_policy(f"o={output}, p={params} ,c={compute}") == policy


def test_one_dtype_is_all_three():
    assert get_policy("half") == Policy("float16", "float16", "float16")


def test_a_policy_never_changes():
    with pytest.raises(dataclasses.FrozenInstanceError):
        MIXED.compute = "bfloat16"
    other = MIXED.replace(compute="bf16", output="torch.bfloat16")
    assert (other.params, other.compute, other.output) == ("float32", "bfloat16", "bfloat16")
    assert MIXED.compute == "float16"
    assert hash(MIXED) == hash(get_policy(str(MIXED)))


@pytest.mark.parametrize(
    "spec",
    ["params=float32", "params=float32,compute=float16", "params=float32,compute=float16,out=float32",
     "p=float32,params=float32,compute=float16", "params=float32,compute=float16,output=float32,o=float32"],
)  # fmt: skip
def test_a_text_that_is_no_policy_is_refused(spec):
    with pytest.raises(ArgumentError, match="get_policy"):
        get_policy(spec)


@pytest.mark.parametrize("name", ["int8", "bool", "complex64", "float8_e4m3fn"])
def test_a_policy_of_no_arithmetic_float_is_refused(name):
    with pytest.raises(DtypeError, match=name):
        get_policy(name)
    with pytest.raises(DtypeError, match=f"compute is.*{name}"):
        MIXED.replace(compute=name)


@pytest.mark.parametrize(
    "call",
    [
        lambda: get_policy("fp8"),
        lambda: MIXED.replace(output="f8"),
        lambda: Policy("half", "float16", "float16"),
        lambda: MIXED.compute_dtype("mm", ["half"]),
        lambda: MIXED.fill_value("full", 1.0, "half"),
    ],
)
def test_an_unknown_dtype_is_refused(call):
    with pytest.raises(UnknownDtypeError):
        call()
