"""Reductions over any axes and layouts, cut sums, extremes, stability, refusals."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ops import harness

import nbxtensor as nbx
from nbxtensor.errors import ArgumentError, BoundsError, DtypeError, ShapeError
from nbxtensor.op import Case, Spec
from nbxtensor.ops.reduce import op as reduce

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def evaluate(backend, function, x, dtype="float32", strides=(), *, bake=False, **params):
    laid = {"x": harness.lay(x, dtype, strides)}
    return harness.evaluate(function.op, laid, params, backend, bake=bake)[0]


@st.composite
def reductions(draw):
    """A shape, strides of a layout of it, and axes to reduce (one, several, none or all)."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 6, 35, 0]), min_size=0, max_size=4)))
    strides, step = [0] * len(shape), draw(st.sampled_from([1, 1, 2]))
    for axis in draw(st.permutations(range(len(shape)))):
        strides[axis] = step * draw(st.sampled_from([1, 1, 1, -1]))
        step *= max(shape[axis], 1) + draw(st.sampled_from([0, 0, 1]))
    axes = draw(st.one_of(st.none(), st.sets(st.integers(0, len(shape) - 1)).map(tuple) if shape else st.just(())))
    return shape, tuple(strides), axes


@FEW
@given(reductions(), st.booleans(), st.booleans())
def test_integer_sums_over_any_axes_of_any_layout_are_numpys(backend, reduction, keepdims, bake):
    shape, strides, axes = reduction
    x = np.random.default_rng(3).integers(-9, 10, shape).astype(np.int32)
    got = evaluate(backend, reduce.sum, x, "int32", strides, bake=bake, axis=axes, keepdims=keepdims)
    np.testing.assert_array_equal(got, np.sum(x, axis=axes, keepdims=keepdims, dtype=np.int64))


@FEW
@given(reductions(), st.booleans())
def test_places_of_extremes_are_the_first_ones(backend, reduction, bake):
    shape, strides, _ = reduction
    x = np.random.default_rng(5).integers(0, 3, shape).astype(np.float32)  # many ties
    for axis in (None, *range(len(shape))):
        if not (x.size if axis is None else shape[axis]):
            continue
        got = evaluate(backend, reduce.argmax, x, "float32", strides, bake=bake, axis=axis)
        np.testing.assert_array_equal(got, np.argmax(x, axis=axis))


@pytest.mark.parametrize("function", [reduce.sum, reduce.var, reduce.argmax, reduce.logsumexp], ids=lambda f: f.op.name)
@pytest.mark.parametrize("shape", [(2, 70001), (70001, 2), (3, 70001, 2), (9, 8191, 3)])
def test_few_results_of_many_elements_are_cut_and_joined_again(function, shape, backend):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    axis = int(np.argmax(shape))
    op = function.op
    call = harness.call_of(op, Case({"x": Spec(shape, "float32")}, {"axis": axis}), backend.target(0))
    passes = 1 if function is reduce.sum else 2
    if shape[axis] > 65536:
        assert len(op.kernel(call).launch(call)) == 2 * passes
        assert len(op.kernel(call).cost(call).buffers) == 2 * passes - 1
    got = evaluate(backend, function, x, axis=axis)
    (want,) = harness.reference(op, {"x": x}, call.params)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-4 if function is reduce.sum else 0)


def test_a_whole_sum_is_cut_too_and_repeats_its_bits(backend):
    x = np.random.default_rng(2).standard_normal((512, 1031)).astype(np.float32)
    results = {evaluate(backend, reduce.sum, x).tobytes() for _ in range(3)}
    assert len(results) == 1
    (total,) = np.frombuffer(results.pop(), np.float32)
    assert abs(total - np.sum(x, dtype=np.float64)) < 1e-6 * np.abs(x).sum()


@pytest.mark.parametrize("shape", [(3, 4000), (3, 100000), (4000, 3)])
def test_variance_survives_a_mean_a_thousand_times_larger_than_the_spread(shape, backend):
    x = (1000 + np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    axis = int(np.argmax(shape))
    got = evaluate(backend, reduce.var, x, axis=axis)
    np.testing.assert_allclose(got, np.var(x.astype(np.float64), axis=axis), rtol=1e-4)


def test_nan_wins_every_extreme_and_its_place(backend):
    x = np.array([[1, np.nan, 3], [np.nan, np.nan, 0], [1, 2, 3]], np.float32)
    np.testing.assert_array_equal(evaluate(backend, reduce.max, x, axis=1), np.max(x, axis=1))
    np.testing.assert_array_equal(evaluate(backend, reduce.min, x, axis=1), np.min(x, axis=1))
    np.testing.assert_array_equal(evaluate(backend, reduce.argmax, x, axis=1), np.argmax(x, axis=1))
    np.testing.assert_array_equal(evaluate(backend, reduce.argmin, x, axis=1), np.argmin(x, axis=1))
    np.testing.assert_array_equal(evaluate(backend, reduce.any, x * 0, axis=1), [True, True, False])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64", "uint32"])
def test_extremes_of_integers_reach_the_ends_of_their_range(dtype, backend):
    info = np.iinfo(dtype)
    x = np.array([[info.min, info.min], [info.max, info.max], [0, info.max]], dtype)
    for function, numpys in ((reduce.max, np.max), (reduce.min, np.min), (reduce.argmax, np.argmax)):
        np.testing.assert_array_equal(evaluate(backend, function, x, dtype, axis=1), numpys(x, axis=1))


def test_integer_sums_do_not_wrap_where_numpys_do_not(backend):
    x = np.full((2, 1000), 2**31 - 1, np.int32)
    np.testing.assert_array_equal(evaluate(backend, reduce.sum, x, "int32", axis=1), np.sum(x, axis=1, dtype=np.int64))
    y = np.full((3, 40), 255, np.uint8)
    np.testing.assert_array_equal(evaluate(backend, reduce.sum, y, "uint8", axis=1), np.full(3, 255 * 40, np.uint64))


def test_half_formats_are_summed_in_float32(backend):
    x = np.full((1, 5000), 1.0, np.float16)
    assert evaluate(backend, reduce.sum, x, "float16", axis=1)[0] == 5000  # adding in float16 stops at 2048


def test_extreme_logsumexp(backend):
    x = np.array([[1000, 1000], [-1000, -1000], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    got = evaluate(backend, reduce.logsumexp, x, axis=1)
    np.testing.assert_allclose(got, [1000 + np.log(2), -1000 + np.log(2), -np.inf, np.inf], rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "spec", "params", "error", "words"),
    [
        (reduce.max, Spec((3, 0), "float32"), {"axis": 1}, ShapeError, r"max: .*\(3, 0\)"),
        (reduce.argmin, Spec((0,), "float32"), {}, ShapeError, "argmin: "),
        (reduce.sum, Spec((3,), "float32"), {"axis": 1}, BoundsError, "sum: .*axis 1"),
        (reduce.sum, Spec((3, 4), "float32"), {"axis": (0, -2)}, ArgumentError, "sum: .*twice"),
        (reduce.sum, Spec((3,), "float32"), {"dtype": "int32"}, DtypeError, "sum: .*int32 for float32"),
        (reduce.sum, Spec((3,), "complex64"), {}, DtypeError, "sum: .*complex64"),
        (reduce.mean, Spec((3,), "float8_e4m3fn"), {}, DtypeError, "mean: .*float8_e4m3fn"),
    ],
)
def test_refusals(function, spec, params, error, words):
    with pytest.raises(error, match=words):
        harness.call_of(function.op, Case({"x": spec}, params))


def test_an_empty_extreme_without_results_is_no_error():
    call = harness.call_of(reduce.max.op, Case({"x": Spec((0, 0), "float32")}, {"axis": 1}))
    assert call.outputs[0].shape == (0,)


@pytest.mark.parametrize("shape", [(3, 2**30), (2**30, 3)])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_elements_past_two_gigaelements_are_addressed_in_64_bits(shape, axis, backend):
    call = harness.call_of(reduce.argmax.op, Case({"x": Spec(shape, "int8")}, {"axis": axis}), backend.target(0))
    first = reduce.argmax.op.kernel(call).launch(call)[0]
    assert "pid = tl.program_id(0).to(tl.int64)" in first.kernel.text
    for line in first.kernel.text.splitlines():
        if "tl.arange" in line:
            assert line.endswith(".to(tl.int64)")


@pytest.mark.parametrize("shape", [(1, 128255), (3, 8193), (2, 16383), (1, 600001)])
def test_pieces_as_small_as_those_of_a_gpu(shape, monkeypatch):
    monkeypatch.setattr("nbxtensor.ops.reduce.plan._PIECES", {})
    x = np.random.default_rng(shape[1]).standard_normal(shape).astype(np.float32)
    x[:, shape[1] // 3] = x[:, -1] = 9  # the first of two
    tensor = nbx.asarray(x)
    call = nbx.argmax.op.call({"x": tensor.spec}, {"axis": 1, "keepdims": False}, nbx.device("cpu").target)
    assert len(nbx.argmax.op.kernel(call).launch(call)) == 4
    np.testing.assert_array_equal(nbx.argmax(tensor, axis=1).numpy(), x.argmax(1))
    np.testing.assert_array_equal(nbx.max(tensor, axis=1).numpy(), x.max(1))
    np.testing.assert_allclose(nbx.sum(tensor, axis=1).numpy(), x.astype(np.float64).sum(1), rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(nbx.var(tensor, axis=1).numpy(), x.astype(np.float64).var(1), rtol=1e-5)
