"""The numpy references themselves, against closed forms, the math module and values known from elsewhere."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops import harness

from nbxtensor.ops.norm import op as norm
from nbxtensor.ops.pointwise import activation, arithmetic, comparison, elementary, selection
from nbxtensor.ops.reduce import op as reduce
from nbxtensor.ops.softmax import op as softmax

REAL = st.floats(-30, 30).filter(lambda v: v == 0 or abs(v) > 1e-3)


def of(function, *arrays, **params):
    """Call the reference as the harness calls it, on one-element arrays for numbers."""
    op = function.op
    named = {n: np.asarray(a) for n, a in zip(op.operands, arrays, strict=False)}
    defaults = {n: p.default for n, p in op.signature.parameters.items() if n not in named}
    results = harness.reference(op, named, {**defaults, **params})
    return results[0] if len(results) == 1 else results


MATH = [
    (elementary.exp, math.exp),
    (elementary.exp2, lambda x: 2.0**x),
    (elementary.expm1, math.expm1),
    (elementary.sin, math.sin),
    (elementary.cos, math.cos),
    (elementary.tan, math.tan),
    (elementary.atan, math.atan),
    (elementary.sinh, math.sinh),
    (elementary.cosh, math.cosh),
    (elementary.tanh, math.tanh),
    (elementary.asinh, math.asinh),
    (elementary.erf, math.erf),
    (elementary.erfc, math.erfc),
    (elementary.floor, math.floor),
    (elementary.ceil, math.ceil),
    (elementary.trunc, math.trunc),
    (elementary.round, round),
    (elementary.sigmoid, lambda x: 1 / (1 + math.exp(-x))),
    (elementary.frac, lambda x: math.modf(x)[0]),
    (arithmetic.abs, abs),
    (arithmetic.negative, lambda x: -x),
    (arithmetic.square, lambda x: x * x),
    (activation.relu, lambda x: max(x, 0.0)),
    (activation.relu6, lambda x: min(max(x, 0.0), 6.0)),
    (activation.silu, lambda x: x / (1 + math.exp(-x))),
    (activation.gelu, lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2)))),
    (activation.elu, lambda x: x if x > 0 else math.expm1(x)),
    (activation.celu, lambda x: x if x > 0 else math.expm1(x)),
    (activation.leaky_relu, lambda x: x if x > 0 else 0.01 * x),
    (activation.softplus, lambda x: x if x > 20 else math.log1p(math.exp(x))),
    (activation.mish, lambda x: x * math.tanh(math.log1p(math.exp(x)))),
    (activation.hardsigmoid, lambda x: min(max((x + 3) / 6, 0.0), 1.0)),
    (activation.hardswish, lambda x: x * min(max((x + 3) / 6, 0.0), 1.0)),
    (activation.hardtanh, lambda x: min(max(x, -1.0), 1.0)),
    (activation.log_sigmoid, lambda x: -math.log1p(math.exp(-x))),
    (activation.softsign, lambda x: x / (1 + abs(x))),
]


@pytest.mark.parametrize(("function", "expected"), MATH, ids=lambda f: getattr(getattr(f, "op", None), "name", ""))
@given(REAL)
def test_of_one_number(function, expected, x):
    np.testing.assert_allclose(of(function, x), expected(x), rtol=1e-9, atol=1e-13)


POSITIVE = [
    (elementary.log, math.log),
    (elementary.log2, math.log2),
    (elementary.log10, math.log10),
    (elementary.log1p, math.log1p),
    (arithmetic.sqrt, math.sqrt),
    (arithmetic.rsqrt, lambda x: 1 / math.sqrt(x)),
    (arithmetic.reciprocal, lambda x: 1 / x),
    (elementary.acosh, lambda x: math.acosh(x) if x >= 1 else math.nan),
    (elementary.asin, lambda x: math.asin(x) if x <= 1 else math.nan),
    (elementary.acos, lambda x: math.acos(x) if x <= 1 else math.nan),
    (elementary.atanh, lambda x: math.atanh(x) if x < 1 else math.nan),
    (elementary.logit, lambda x: math.log(x) - math.log(1 - x) if x < 1 else math.nan),
]


@pytest.mark.parametrize(("function", "expected"), POSITIVE, ids=lambda f: getattr(getattr(f, "op", None), "name", ""))
@given(st.one_of(st.floats(0.01, 0.99), st.floats(1.01, 50)))
def test_of_one_positive_number(function, expected, x):
    np.testing.assert_allclose(of(function, x), expected(x), rtol=1e-9, atol=1e-12)


PAIRS = [
    (arithmetic.pow, lambda x, y: abs(x) ** y, True),
    (arithmetic.hypot, math.hypot, False),
    (arithmetic.atan2, math.atan2, False),
    (arithmetic.copysign, math.copysign, False),
    (arithmetic.fmod, math.fmod, False),
    (arithmetic.remainder, lambda x, y: x % y, False),
    (arithmetic.floor_divide, lambda x, y: x // y, False),
    (arithmetic.logaddexp, lambda x, y: math.log(math.exp(x) + math.exp(y)), False),
    (arithmetic.maximum, max, False),
    (arithmetic.minimum, min, False),
    (arithmetic.nextafter, math.nextafter, False),
    (comparison.less, lambda x, y: x < y, False),
    (comparison.not_equal, lambda x, y: x != y, False),
]


@pytest.mark.parametrize(
    ("function", "expected", "positive"), PAIRS, ids=lambda f: getattr(getattr(f, "op", None), "name", "")
)
@given(REAL.filter(bool), REAL.filter(bool))
def test_of_two_numbers(function, expected, positive, x, y):
    got = of(function, abs(x) if positive else x, y)
    np.testing.assert_allclose(got, expected(x, y), rtol=1e-9, atol=1e-12)


@given(st.integers(-128, 127), st.integers(-128, 127))
def test_of_two_integers(x, y):
    a, b = np.int8(x), np.int8(y)

    def wrapped(value):
        return np.array(value, np.int64).astype(np.int8)

    assert of(arithmetic.floor_divide, a, b) == wrapped(x // y if y else 0)
    assert of(arithmetic.remainder, a, b) == wrapped(x % y if y else 0)
    assert of(comparison.bitwise_left_shift, a, b) == wrapped(x << y if 0 <= y < 8 else 0)
    assert of(comparison.bitwise_right_shift, a, b) == wrapped(x >> y if 0 <= y < 8 else (-1 if x < 0 else 0))
    power = pow(x, y, 256) if y >= 0 else {1: 1, -1: 1 if y % 2 == 0 else -1}.get(x, 0)
    assert of(arithmetic.pow, a, b) == wrapped(power)


@given(st.floats(-300, 300) | st.sampled_from([math.nan, math.inf, -math.inf]), st.sampled_from(["int8", "uint8"]))
def test_casts_to_integers_saturate(x, dtype):
    low, high = (-128, 127) if dtype == "int8" else (0, 255)
    want = 0 if math.isnan(x) else low if x <= low else high if x >= high else math.trunc(x)
    assert of(selection.astype, x, dtype=dtype) == want


def test_known_activations():
    # torch 2.13, float64: torch.nn.functional.gelu(x, approximate="tanh"), selu, mish
    x = np.array([-2.0, -0.5, 0.0, 1.0, 3.0])
    known = {
        (activation.gelu, "tanh"): [
            -0.04540230591222494,
            -0.15428599017485606,
            0,
            0.8411919906082768,
            2.996362607918227,
        ],
        (activation.selu, None): [-1.5201664685956948, -0.6917581878028713, 0, 1.0507009873554805, 3.1521029620664414],
        (activation.mish, None): [-0.2525014826957089, -0.22074377465173, 0, 0.8650983882673103, 2.9865350049679575],
    }
    for (function, word), want in known.items():
        got = of(function, x, **({} if word is None else {"approximate": word}))
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_selection():
    x = np.array([np.nan, np.inf, -np.inf, 1.5])
    np.testing.assert_array_equal(of(selection.nan_to_num, x, nan=1.0, posinf=2.0, neginf=3.0), [1, 2, 3, 1.5])
    np.testing.assert_array_equal(of(selection.clip, x, min=-1.0, max=1.0), [np.nan, 1, -1, 1])
    np.testing.assert_array_equal(of(selection.where, np.array([True, False]), 1.0, 2.0), [1, 2])
    np.testing.assert_array_equal(of(selection.masked_fill, x, x == 1.5, value=0.0), [np.nan, np.inf, -np.inf, 0])
    np.testing.assert_array_equal(of(arithmetic.lerp, np.array([2.0]), 6.0, weight=0.25), [3.0])
    np.testing.assert_array_equal(of(arithmetic.addcmul, 1.0, 2.0, 3.0, value=0.5), 4.0)
    np.testing.assert_array_equal(of(arithmetic.addcdiv, 1.0, 2.0, 4.0, value=3.0), 2.5)
    np.testing.assert_array_equal(of(activation.threshold, x, threshold=1.5, value=7.0), [np.nan, np.inf, 7, 7])


def test_reductions_of_a_small_matrix():
    x = np.array([[3.0, 4.0], [0.0, -12.0]])
    assert of(reduce.sum, x, axis=None) == -5
    np.testing.assert_array_equal(of(reduce.prod, x, axis=1), [12, 0])
    np.testing.assert_array_equal(of(reduce.mean, x, axis=0), [1.5, -4])
    np.testing.assert_array_equal(of(reduce.var, x, axis=1), [0.25, 36])
    np.testing.assert_array_equal(of(reduce.std, x, axis=1, correction=1), [math.sqrt(0.5), math.sqrt(72)])
    np.testing.assert_array_equal(of(reduce.vector_norm, x, axis=1), [5, 12])
    np.testing.assert_array_equal(of(reduce.vector_norm, x, axis=1, ord=1), [7, 12])
    np.testing.assert_array_equal(of(reduce.vector_norm, x, axis=1, ord=0), [2, 1])
    np.testing.assert_array_equal(of(reduce.vector_norm, x, axis=1, ord=math.inf), [4, 12])
    np.testing.assert_array_equal(of(reduce.vector_norm, x, axis=1, ord=-math.inf), [3, 0])
    np.testing.assert_allclose(of(reduce.vector_norm, x, axis=1, ord=3), [91 ** (1 / 3), 12])
    np.testing.assert_array_equal(of(reduce.argmax, x, axis=1), [1, 0])
    np.testing.assert_array_equal(of(reduce.argmin, x, axis=None), 3)
    np.testing.assert_array_equal(of(reduce.count_nonzero, x, axis=0), [1, 2])
    np.testing.assert_array_equal(of(reduce.all, x, axis=1), [True, False])
    np.testing.assert_array_equal(of(reduce.any, x * 0, axis=1), [False, False])
    np.testing.assert_allclose(of(reduce.logsumexp, np.log(np.array([1.0, 2.0, 5.0])), axis=0), math.log(8))


def test_softmax_of_logarithms_gives_their_shares():
    shares = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(of(softmax.softmax, np.log(shares) + 700), shares)
    np.testing.assert_allclose(of(softmax.log_softmax, np.log(shares) - 700), np.log(shares))


def test_normalised_rows_have_mean_zero_and_variance_one():
    x = np.random.default_rng(0).standard_normal((4, 6, 5)) * 3 + 7
    y = of(norm.layer_norm, x, normalized_shape=(6, 5), eps=0.0)
    np.testing.assert_allclose(y.mean((1, 2)), 0, atol=1e-14)
    np.testing.assert_allclose(y.var((1, 2)), 1)
    z = of(norm.rms_norm, x, normalized_shape=5, eps=0.0)
    np.testing.assert_allclose((z * z).mean(2), 1)
    g = of(norm.group_norm, x, groups=2, eps=0.0)
    np.testing.assert_allclose(g.reshape(4, 2, 15).var(2), 1)
    i = of(norm.instance_norm, x, eps=0.0)
    np.testing.assert_allclose(i.mean(2), 0, atol=1e-14)
    b = of(norm.batch_norm, x, x.mean((0, 2)), x.var((0, 2)), eps=0.0)
    np.testing.assert_allclose(b.var((0, 2)), 1)
    np.testing.assert_allclose(b.mean((0, 2)), 0, atol=1e-14)
