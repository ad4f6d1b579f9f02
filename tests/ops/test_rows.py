"""softmax and the normalisations: rows computed from several operands, kept values, any axis, refusals."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ops import harness

from nbxtensor.errors import ArgumentError, BoundsError, DtypeError, ShapeError, UnsupportedError
from nbxtensor.op import Case, Expression, Scalar, Spec, Step
from nbxtensor.ops.norm import op as norm
from nbxtensor.ops.softmax import op as softmax

FEW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FUNCTIONS = "nbxtensor.ops.pointwise.kernel"


def sum_of(x: str, y: str, result: str) -> Expression:
    """x + 0.5 * y, rounded to ``result``."""
    half = Step(f"{FUNCTIONS}:multiply", (1, Scalar(0, "float32")), ("float32", "float32"), y, np.multiply)
    total = Step(f"{FUNCTIONS}:add", (0, 2), ("float32", "float32"), result, np.add)
    return Expression((x, y), (half, total), (3,), 1)


@st.composite
def rows(draw):
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 17, 40]), min_size=1, max_size=4)))
    strides, step = [0] * len(shape), 1
    for axis in draw(st.permutations(range(len(shape)))):
        strides[axis] = step
        step *= shape[axis] + draw(st.sampled_from([0, 0, 1]))
    return shape, tuple(strides), draw(st.integers(0, len(shape) - 1))


@FEW
@given(rows(), st.booleans())
def test_softmax_along_any_axis_of_any_layout(backend, row, bake):
    shape, strides, axis = row
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    (got,) = harness.evaluate(
        softmax.softmax.op, {"x": harness.lay(x, "float32", strides)}, {"axis": axis}, backend, bake=bake
    )
    e = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(got, e / e.sum(axis=axis, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("length", [50, 20000])
def test_rows_with_nothing_to_share_are_nan_and_no_others(length, backend):
    x = np.zeros((4, length), np.float32)
    x[1] = -np.inf
    x[2, : length // 2] = -np.inf  # a whole stretch of a walk
    x[3, 7] = np.nan
    (got,) = harness.evaluate(softmax.softmax.op, {"x": harness.lay(x, "float32")}, {}, backend)
    assert np.isnan(got[1]).all()
    assert np.isnan(got[3]).all()
    np.testing.assert_allclose(got[0], 1 / length, rtol=1e-6)
    np.testing.assert_allclose(got[2, length // 2 :], 1 / (length - length // 2), rtol=1e-6)
    assert (got[2, : length // 2] == 0).all()


@pytest.mark.parametrize("length", [60, 9001])
@pytest.mark.parametrize("result", ["float32", "float16"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_a_prologue_gives_the_bits_of_the_op_on_its_value(name, result, length, backend):
    op = getattr(softmax if "softmax" in name else norm, name).op
    rng = np.random.default_rng(4)
    own = {} if "softmax" in name else {"normalized_shape": (length,)}
    weights = {} if "softmax" in name else {"weight": harness.operand(Spec((length,), "float32"), rng)}
    laid = {
        "x": harness.operand(Spec((2, 3, length), "float16"), rng),
        "extras.0": harness.operand(Spec((3, length), "float32"), rng),
    }
    prologue = sum_of("float16", "float32", result)
    fused = {**own, "prologue": prologue, "scalars": (0.5,)}
    (got,) = harness.evaluate(op, laid | weights, fused, backend)
    half = laid["extras.0"].values * np.float32(0.5)
    value = (laid["x"].values.astype(np.float32) + half).astype(result)
    (want,) = harness.evaluate(op, {"x": harness.lay(value, result)} | weights, own, backend)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == result


def test_a_kept_value_is_the_second_result(backend):
    rng = np.random.default_rng(4)
    laid = {
        "x": harness.operand(Spec((5, 70), "float32"), rng),
        "extras.0": harness.operand(Spec((5, 70), "float32", (1, 5)), rng),
    }
    params = {
        "normalized_shape": 70,
        "prologue": sum_of("float32", "float32", "float32"),
        "scalars": (0.5,),
        "keep": True,
    }
    got, kept = harness.evaluate(norm.layer_norm.op, laid, params, backend)
    value = laid["x"].values + laid["extras.0"].values * np.float32(0.5)
    np.testing.assert_array_equal(kept, value)
    wide = value.astype(np.float64)
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_layer_norm_survives_a_mean_far_from_zero(backend):
    x = (10000 + np.random.default_rng(0).standard_normal((3, 500))).astype(np.float32)
    (got,) = harness.evaluate(norm.layer_norm.op, {"x": harness.lay(x, "float32")}, {"normalized_shape": 500}, backend)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, want, atol=2e-3)


@pytest.mark.parametrize(
    ("function", "operands", "params", "error", "words"),
    [
        (softmax.softmax, {"x": Spec((3,), "int32")}, {}, DtypeError, "softmax: .*int32"),
        (softmax.softmax, {"x": Spec((3,), "float32")}, {"axis": 1}, BoundsError, "softmax: .*axis 1"),
        (softmax.softmax, {"x": Spec((3,), "float32")}, {"dtype": "int8"}, DtypeError, "softmax: .*int8"),
        (
            softmax.softmax,
            {"x": Spec((3,), "float32"), "extras.0": Spec((3,), "float16")},
            {"prologue": sum_of("float32", "float32", "float32"), "scalars": (1.0,)},
            DtypeError,
            "softmax: x, extras and scalars fit the prologue.*float16",
        ),
        (
            norm.layer_norm,
            {"x": Spec((3, 4), "float32")},
            {"normalized_shape": 3},
            ShapeError,
            r"layer_norm: .*\(3, 4\)",
        ),
        (norm.layer_norm, {"x": Spec((3, 4), "float32")}, {"normalized_shape": ()}, ShapeError, "layer_norm: "),
        (norm.rms_norm, {"x": Spec((3, 4), "int32")}, {"normalized_shape": 4}, DtypeError, "rms_norm: .*int32"),
        (
            norm.rms_norm,
            {"x": Spec((3, 4), "float32"), "weight": Spec((3,), "float32")},
            {"normalized_shape": 4},
            ShapeError,
            r"rms_norm: weight .*\(3,\)",
        ),
        (norm.group_norm, {"x": Spec((3, 4), "float32")}, {"groups": 3}, ArgumentError, "group_norm: .*3 for 4"),
        (norm.group_norm, {"x": Spec((3,), "float32")}, {"groups": 1}, ShapeError, "group_norm: "),
        (
            norm.batch_norm,
            {"x": Spec((3, 4), "float32"), "mean": Spec((3,), "float32"), "variance": Spec((4,), "float32")},
            {},
            ShapeError,
            r"batch_norm: .*mean \(3,\)",
        ),
    ],
)
def test_refusals(function, operands, params, error, words):
    with pytest.raises(error, match=words):
        harness.call_of(function.op, Case(operands, params))


@pytest.mark.parametrize(
    ("function", "spec", "params"),
    [
        (norm.layer_norm, Spec((2, 3, 4), "float32", (24, 8, 1)), {"normalized_shape": (3, 4)}),
        (norm.group_norm, Spec((2, 3, 4, 5), "float32", (200, 40, 10, 1)), {"groups": 1}),
    ],
    ids=["layer_norm", "group_norm"],
)
def test_axes_that_are_no_single_walk_are_refused_with_the_way_out(function, spec, params, backend):
    call = harness.call_of(function.op, Case({"x": spec}, params), backend.target(0))
    with pytest.raises(UnsupportedError, match=r"one walk through memory.*contiguous\(\)"):
        function.op.kernel(call).launch(call)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "batch_norm", "group_norm"])
def test_rows_past_two_gigaelements_are_addressed_in_64_bits(name, backend):
    op = getattr(softmax if name == "softmax" else norm, name).op
    operands = {"x": Spec((3, 4, 100), "float32", (2**31, 100, 1))}
    if name == "batch_norm":
        operands |= {"mean": Spec((4,), "float32"), "variance": Spec((4,), "float32")}
    params = {"layer_norm": {"normalized_shape": 100}, "group_norm": {"groups": 2}}.get(name, {})
    call = harness.call_of(op, Case(operands, params), backend.target(0))
    (launch,) = op.kernel(call).launch(call)
    assert "pid = tl.program_id(0).to(tl.int64)" in launch.kernel.text
    for line in launch.kernel.text.splitlines():
        if "tl.arange" in line:
            assert line.endswith(".to(tl.int64)")
