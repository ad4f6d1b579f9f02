"""The generated pointwise kernel: layouts, scalars, chains, dtype rules, and what integers do."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ops import harness

from nbxtensor.errors import ArgumentError, DtypeError, ShapeError
from nbxtensor.op import Case, Expression, Scalar, Spec, Step
from nbxtensor.ops.pointwise import activation, arithmetic, comparison, elementary, selection
from nbxtensor.ops.pointwise.fused import expression_of, fused, operands_of, scalars_of
from nbxtensor.run.binding import request

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def call(op, operands, **params):
    return harness.call_of(op, Case(operands, params))


def launch_of(op, operands, backend, **params):
    made = harness.call_of(op, Case(operands, params), backend.target(0))
    return op.kernel(made).launch(made)


# ---- layouts


@st.composite
def stretched(draw):
    """A shape of up to four axes and layouts of two operands that broadcast to it."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 17]), min_size=1, max_size=4)))
    specs = []
    for _ in range(2):
        own = tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in shape)[draw(st.integers(0, len(shape) - 1)) :]
        order = draw(st.permutations(range(len(own))))
        gap = draw(st.sampled_from([1, 1, 2]))
        strides, step = [0] * len(own), gap
        for axis in order:
            strides[axis] = step * draw(st.sampled_from([1, 1, 1, -1]))
            step *= own[axis] + draw(st.sampled_from([0, 0, 1]))
        specs.append((own, tuple(strides)))
    return specs


@FEW
@given(stretched(), st.booleans())
def test_any_two_layouts_give_what_numpy_gives(backend, specs, bake):
    rng = np.random.default_rng(7)
    laid = {
        name: harness.lay(rng.standard_normal(shape).astype(np.float32), "float32", strides)
        for name, (shape, strides) in zip(("x1", "x2"), specs, strict=True)
    }
    try:
        shape = np.broadcast_shapes(*(s for s, _ in specs))
    except ValueError:
        with pytest.raises(ShapeError):
            call(arithmetic.subtract.op, {n: v.spec for n, v in laid.items()})
        return
    (got,) = harness.evaluate(arithmetic.subtract.op, laid, {}, backend, bake=bake)
    assert got.shape == shape
    np.testing.assert_array_equal(got, laid["x1"].values - laid["x2"].values)


def test_operands_of_equal_size_and_other_shapes_are_stretched_not_paired(backend):
    a, b = np.arange(6, dtype=np.float32), 10 * np.arange(6, dtype=np.float32)
    laid = {
        "x1": harness.lay(a.reshape(1, 1, 6, 1), "float32"),
        "x2": harness.lay(b.reshape(1, 1, 1, 6), "float32"),
    }
    (got,) = harness.evaluate(arithmetic.add.op, laid, {}, backend)
    np.testing.assert_array_equal(got[0, 0], a[:, None] + b[None, :])


def test_layouts_past_two_gigaelements_are_addressed_in_64_bits(backend):
    big = Spec((3, 2**30), "int8")
    (launch,) = launch_of(arithmetic.add.op, {"x1": big, "x2": big}, backend)
    assert ".to(tl.int64)" in launch.kernel.text
    far = Spec((3, 40), "float32", (2**31, 1))
    (launch,) = launch_of(arithmetic.negative.op, {"x": far}, backend)
    assert launch.kernel.text.count(".to(tl.int64)") >= 2
    (launch,) = launch_of(arithmetic.negative.op, {"x": Spec((3, 40), "float32")}, backend)
    assert "int64" not in launch.kernel.text


def test_no_element_takes_no_launch_and_costs_nothing(backend):
    made = harness.call_of(
        arithmetic.add.op, Case({"x1": Spec((0, 3), "float32"), "x2": Spec((3,), "float32")}), backend.target(0)
    )
    kernel = arithmetic.add.op.kernel(made)
    assert kernel.launch(made) == ()
    assert (kernel.cost(made).flops, kernel.cost(made).read, kernel.cost(made).written) == (0, 0, 0)


# ---- scalars


def test_a_scalar_is_an_argument_and_never_part_of_the_kernel(backend):
    op, x = arithmetic.multiply.op, {"x1": Spec((100,), "float32")}
    requests = {request(op, launch_of(op, x, backend, x2=v)[0], bake=True).text for v in (0.1, 0.2, 1.0, 0.0)}
    assert len(requests) == 1
    signatures = {
        tuple(request(op, launch_of(op, x, backend, x2=v)[0], bake=True).signature.items()) for v in (0.1, 1.0)
    }
    assert len(signatures) == 1


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "int8"])
def test_scalars_keep_all_their_digits(dtype, backend):
    value = {"float64": 0.1, "int64": 2**62 + 1, "uint64": 2**63 + 3, "int8": -7}[dtype]
    x = np.array([1, 2, 3], dtype)
    (got,) = harness.evaluate(arithmetic.add.op, {"x1": harness.lay(x, dtype)}, {"x2": value}, backend)
    np.testing.assert_array_equal(got, x + np.array(value, dtype))


def test_a_number_may_stand_on_the_left(backend):
    x = np.array([1.0, 2.0, 4.0], np.float32)
    (got,) = harness.evaluate(arithmetic.divide.op, {"x2": harness.lay(x, "float32")}, {"x1": 2}, backend)
    np.testing.assert_array_equal(got, 2 / x)


# ---- chains

UNARY = [
    arithmetic.negative,
    arithmetic.abs,
    arithmetic.square,
    elementary.exp,
    elementary.sin,
    elementary.floor,
    activation.relu,
    activation.hardswish,
    activation.softsign,
]
BINARY = [
    arithmetic.add,
    arithmetic.subtract,
    arithmetic.multiply,
    arithmetic.divide,
    arithmetic.maximum,
    arithmetic.copysign,
]


@st.composite
def chains(draw):
    """Steps over values: each takes one value before it, or two, or one and a number."""
    dtypes = draw(st.lists(st.sampled_from(["float32", "float16", "bfloat16"]), min_size=1, max_size=3))
    count = len(dtypes)
    steps = []
    for _ in range(draw(st.integers(2, 5))):
        values = st.integers(0, count + len(steps) - 1)
        if draw(st.booleans()):
            steps.append((draw(st.sampled_from(UNARY)), (draw(values),), None))
        elif draw(st.booleans()):
            steps.append((draw(st.sampled_from(BINARY)), (draw(values), draw(values)), None))
        else:
            steps.append((draw(st.sampled_from(BINARY)), (draw(values),), draw(st.sampled_from([0.1, -1.7, 3.0]))))
    return dtypes, steps


@FEW
@given(chains(), st.integers(0, 2**16))
def test_a_fused_chain_gives_the_bits_of_its_steps_one_by_one(backend, chain, seed):
    dtypes, steps = chain
    rng = np.random.default_rng(seed)
    shapes = [(4, 33), (33,), (4, 1)]
    laid = [harness.operand(Spec(shapes[i], d), rng) for i, d in enumerate(dtypes)]
    values = list(laid)
    made, scalars = [], []
    for function, arguments, number in steps:
        names = list(function.op.operands)
        given_operands = {n: values[a] for n, a in zip(names, arguments, strict=False)}
        params = {} if number is None else {names[1]: number}
        one = call(function.op, {n: v.spec for n, v in given_operands.items()}, **params)
        (step,) = expression_of(one).steps
        places = [Scalar(len(scalars), a.dtype) if isinstance(a, Scalar) else arguments[a] for a in step.arguments]
        scalars += scalars_of(one)
        made.append(Step(step.function, tuple(places), step.compute, step.dtype, step.reference, step.flops))
        (result,) = harness.evaluate(function.op, given_operands, params, backend)
        values.append(harness.lay(result, one.outputs[0].dtype))
    last = len(values) - 1
    expression = Expression(tuple(dtypes), tuple(made), (last,), len(scalars))
    whole = {f"operands.{i}": v for i, v in enumerate(laid)}
    (got,) = harness.evaluate(fused(expression), whole, {"scalars": tuple(scalars)}, backend)
    want = np.broadcast_to(values[-1].values, got.shape)
    nan = np.isnan(got.astype(np.float32))
    np.testing.assert_array_equal(nan, np.isnan(want.astype(np.float32)))
    bits = np.dtype(f"u{got.itemsize}")
    np.testing.assert_array_equal(got.view(bits)[~nan], np.ascontiguousarray(want).view(bits)[~nan])


def test_a_fused_op_may_have_several_results_and_is_one_object_per_expression(backend):
    square = expression_of(call(arithmetic.square.op, {"x": Spec((5,), "float32")})).steps[0]
    small = expression_of(call(comparison.less.op, {"x1": Spec((5,), "float32")}, x2=2)).steps[0]
    small = Step(small.function, (1, Scalar(0, "float32")), small.compute, small.dtype, small.reference)
    expression = Expression(("float32",), (square, small), (1, 2, 0), 1)
    assert fused(expression) is fused(Expression(("float32",), (square, small), (1, 2, 0), 1))
    x = np.array([0.5, 1.0, 1.5, -2.0, 3.0], np.float32)
    results = harness.evaluate(fused(expression), {"operands.0": harness.lay(x, "float32")}, {"scalars": (2,)}, backend)
    for got, want in zip(results, (x * x, x * x < 2, x), strict=True):
        np.testing.assert_array_equal(got, want)
    references = harness.reference(fused(expression), {"operands.0": x}, {"scalars": (2,)})
    for got, want in zip(references, (x * x, x * x < 2, x), strict=True):
        np.testing.assert_allclose(got, want)


def test_a_call_becomes_an_expression_with_its_operands_and_scalars():
    one = call(selection.clip.op, {"x": Spec((5,), "float16"), "max": Spec((), "float16")}, min=-1)
    assert operands_of(one) == ("x", "max")
    assert scalars_of(one) == (-1,)
    expression = expression_of(one)
    assert expression.inputs == ("float16", "float16")
    assert expression.steps[0].arguments == (0, Scalar(0, "float32"), 1)
    with pytest.raises(ArgumentError, match="operand for each input"):
        call(fused(expression), {"operands.0": Spec((5,), "float32")}, scalars=(1,))


# ---- rules


@pytest.mark.parametrize(
    ("function", "operands", "params", "dtype"),
    [
        (arithmetic.add, ("float16", "bfloat16"), {}, "float32"),
        (arithmetic.add, ("int8", "uint8"), {}, "int16"),
        (arithmetic.add, ("int32",), {"x2": 1.5}, "float64"),
        (arithmetic.add, ("float16",), {"x2": 3}, "float16"),
        (arithmetic.add, ("bool", "bool"), {}, "bool"),
        (arithmetic.divide, ("int32", "int32"), {}, "float32"),
        (arithmetic.floor_divide, ("int32", "int64"), {}, "int64"),
        (elementary.exp, ("int64",), {}, "float32"),
        (elementary.exp, ("bfloat16",), {}, "bfloat16"),
        (comparison.equal, ("int8", "float32"), {}, "bool"),
        (comparison.isnan, ("int8",), {}, "bool"),
        (elementary.round, ("uint16",), {}, "uint16"),
    ],
)
def test_result_dtypes(function, operands, params, dtype):
    specs = {n: Spec((3,), d) for n, d in zip(function.op.operands, operands, strict=False)}
    assert call(function.op, specs, **params).outputs[0].dtype == dtype


@pytest.mark.parametrize(
    ("function", "operands", "params", "error", "words"),
    [
        (arithmetic.subtract, ("bool", "bool"), {}, DtypeError, r"subtract: .* Got bool, bool\. .*float32"),
        (arithmetic.add, ("int64", "uint64"), {}, DtypeError, "add: .*uint64"),
        (arithmetic.add, ("int8",), {"x2": 1000}, ArgumentError, "add: .*1000"),
        (arithmetic.add, ("complex64", "float32"), {}, DtypeError, "add: .*complex64"),
        (arithmetic.add, ("float32",), {"x2": "2"}, ArgumentError, "add: x2 is a tensor or a number. Got str"),
        (activation.silu, ("int32",), {}, DtypeError, "silu: .*Got int32"),
        (activation.gelu, ("float32",), {"approximate": "erf"}, ArgumentError, "gelu: .*'erf'.*\"tanh\""),
        (comparison.bitwise_and, ("float32", "float32"), {}, DtypeError, "bitwise_and: "),
        (comparison.bitwise_left_shift, ("bool", "bool"), {}, DtypeError, "bitwise_left_shift: "),
        (selection.astype, ("float32",), {"dtype": "complex64"}, DtypeError, "astype: .*float32 to complex64"),
        (selection.astype, ("float8_e5m2",), {"dtype": "float32"}, DtypeError, "astype: .*float8_e5m2"),
    ],
)
def test_refusals_name_the_op_what_was_given_and_what_is_accepted(function, operands, params, error, words):
    specs = {n: Spec((3,), d) for n, d in zip(function.op.operands, operands, strict=False)}
    with pytest.raises(error, match=words):
        function.op.pointwise(call(function.op, specs, **params))


def test_shapes_that_do_not_broadcast_are_refused():
    with pytest.raises(ShapeError):
        call(arithmetic.add.op, {"x1": Spec((3, 4), "float32"), "x2": Spec((3,), "float32")})


# ---- exact results


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_nextafter_is_the_neighbour_in_the_operands_own_dtype(dtype, backend):
    target = harness.value_dtype(dtype)
    limits = ml_dtypes.finfo(target)
    tiny = float(limits.smallest_subnormal)
    x = np.array([0.0, -0.0, 1.0, -1.0, tiny, -tiny, float(limits.max), np.nan, 1.0, np.inf], target)
    y = np.array([1.0, -1.0, 2.0, 2.0, 0.0, 0.0, np.inf, 1.0, 1.0, 0.0], target)
    laid = {"x1": harness.lay(x, dtype), "x2": harness.lay(y, dtype)}
    (got,) = harness.evaluate(arithmetic.nextafter.op, laid, {}, backend)
    with np.errstate(over="ignore"):
        want = np.nextafter(x, y)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_integer_division_is_numpys_for_every_pair_of_extremes(name, dtype, backend):
    info = np.iinfo(dtype)
    values = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7]
    values += [-1, -2, -3, -7] if info.min else []
    x = np.array(values, dtype)
    laid = {"x1": harness.lay(x[:, None], dtype), "x2": harness.lay(x, dtype)}
    (got,) = harness.evaluate(getattr(arithmetic, name).op, laid, {}, backend)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x[:, None], x)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_huge_quotients_are_exact(dtype, backend):
    info = np.finfo(dtype)
    x = np.array([info.max, 1e30, 3.5, -1e20, info.max, 5e-324 if dtype == "float64" else 1e-45, 7.25], dtype)
    y = np.array([3.0, 0.7, 1e-30, 1.1, info.smallest_subnormal * 3, info.max, -2.0], dtype)
    laid = {"x1": harness.lay(x, dtype), "x2": harness.lay(y, dtype)}
    (got,) = harness.evaluate(arithmetic.fmod.op, laid, {}, backend)
    np.testing.assert_array_equal(got, np.fmod(x, y))
    (got,) = harness.evaluate(arithmetic.remainder.op, laid, {}, backend)
    np.testing.assert_array_equal(got, np.remainder(x, y))


def test_rounding_goes_to_even_and_keeps_the_sign_of_zero(backend):
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 8388607.5, 8388609.0, 1e30, -0.0], np.float32)
    (got,) = harness.evaluate(elementary.round.op, {"x": harness.lay(x, "float32")}, {}, backend)
    np.testing.assert_array_equal(got, np.round(x))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))


def test_negative_and_abs_change_nothing_but_the_sign(backend):
    x = np.array([0.0, -0.0, np.inf, -np.inf, 1.5], np.float32)
    (got,) = harness.evaluate(arithmetic.negative.op, {"x": harness.lay(x, "float32")}, {}, backend)
    np.testing.assert_array_equal(got.view(np.uint32), (-x).view(np.uint32))
    (got,) = harness.evaluate(arithmetic.abs.op, {"x": harness.lay(x, "float32")}, {}, backend)
    np.testing.assert_array_equal(got.view(np.uint32), np.abs(x).view(np.uint32))


@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_casts_of_floats_to_integers_saturate_and_nan_is_zero(source, target, backend):
    info = np.iinfo(target)
    edge = [float(info.min), float(info.max), info.max * 0.5, info.min * 0.5 - 0.75, 1e30, -1e30, 0.9, -0.9]
    with np.errstate(over="ignore"):
        x = np.array([np.nan, np.inf, -np.inf, -0.0, *edge], np.float64).astype(harness.value_dtype(source))
    (got,) = harness.evaluate(selection.astype.op, {"x": harness.lay(x, source)}, {"dtype": target}, backend)
    inside = [
        info.max if v >= info.max else info.min if v <= info.min else int(v) for v in x[1:].astype(float).tolist()
    ]
    np.testing.assert_array_equal(got, np.array([0, *inside], object).astype(target))
