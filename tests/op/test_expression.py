"""Expressions: composing them composes the functions they stand for, and their source computes what they say."""

import ast
import sys
import types

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbxtensor.errors import ArgumentError
from nbxtensor.op import Expression, Number, Scalar, Step

# What a step can call: name, number of arguments, function on numpy arrays, dtype of the result.
FUNCTIONS = (
    ("plus", 2, lambda a, b: np.add(a, b, dtype=np.float64), "float64"),
    ("minus", 2, lambda a, b: np.subtract(a, b, dtype=np.float64), "float64"),
    ("twice", 1, lambda a: 2 * a, "float64"),
    ("larger", 2, np.maximum, "float64"),
    ("less", 2, np.less, "bool"),
    ("choose", 3, np.where, "float64"),
    ("rounded", 1, np.floor, "int64"),
)
NUMPY = {"tl.float64": np.float64, "tl.float32": np.float32, "tl.int64": np.int64, "tl.bfloat16": ml_dtypes.bfloat16}


@st.composite
def expressions(draw, most_inputs=3, outputs=1):
    """An expression over float64 inputs whose steps may use inputs, earlier results and scalars."""
    inputs = draw(st.integers(1, most_inputs))
    scalars = draw(st.integers(0, 2))
    steps, dtypes = [], ["float64"] * inputs
    for _ in range(draw(st.integers(0, 5))):
        name, arity, function, dtype = draw(st.sampled_from(FUNCTIONS))
        arguments = []
        for place in range(arity):
            if scalars and place and draw(st.booleans()):
                arguments.append(Scalar(draw(st.integers(0, scalars - 1)), "float64"))
            else:
                arguments.append(draw(st.integers(0, len(dtypes) - 1)))
        compute = ["float64"] * arity
        if name == "choose":
            compute[0] = "bool"
        steps.append(Step(f"functions_of_the_test:{name}", tuple(arguments), tuple(compute), dtype, function))
        dtypes.append(dtype)
    results = tuple(draw(st.integers(0, len(dtypes) - 1)) for _ in range(outputs))
    return Expression(("float64",) * inputs, tuple(steps), results, scalars)


def arrays(rng, count):
    return [np.round(rng.normal(size=6), 1) for _ in range(count)]


def same(got, want):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float64), np.asarray(b, np.float64))


@given(expressions(), expressions(outputs=2), st.data())
def test_composing_expressions_composes_their_functions(first, second, data):
    value = data.draw(st.integers(0, len(second.inputs) - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, others = arrays(rng, len(first.inputs)), arrays(rng, len(second.inputs) - 1)
    a, b = rng.normal(size=first.scalars), rng.normal(size=second.scalars)
    (middle,) = first.evaluate(x, a)
    given_second = [*others[:value], middle, *others[value:]]
    whole = first.then(second, value)
    assert len(whole.inputs) == len(first.inputs) + len(second.inputs) - 1
    assert len(whole.steps) == len(first.steps) + len(second.steps)
    same(whole.evaluate([*x, *others], [*a, *b]), second.evaluate(given_second, b))


@given(expressions(), expressions(most_inputs=1), expressions(most_inputs=1))
def test_composition_is_associative(first, second, third):
    assert first.then(second, 0).then(third, 0) == first.then(second.then(third, 0), 0)


@given(expressions())
def test_the_identity_changes_nothing(expression):
    identity = Expression(("float64",), (), (0,))
    assert identity.then(expression, 0) == expression
    assert expression.then(identity, 0) == expression


def test_only_one_result_goes_on():
    pair = Expression(("float32",), (), (0, 0))
    with pytest.raises(ArgumentError, match=r"then: an expression with one result. Got 2"):
        pair.then(Expression(("float32",), (), (0,)), 0)


def test_a_step_without_a_reference_is_named():
    step = Step("module:unknown", (0,), ("float32",), "float32")
    with pytest.raises(ArgumentError, match=r"evaluate: the step module:unknown has no reference"):
        Expression(("float32",), (step,), (1,)).evaluate([np.zeros(2)])


def test_references_are_not_part_of_what_an_expression_is():
    with_one, without = (Step("m:f", (0,), ("int8",), "int8", f) for f in (np.negative, None))
    assert Expression(("int8",), (with_one,), (1,)) == Expression(("int8",), (without,), (1,))
    assert hash(with_one) == hash(without)


def test_a_result_that_is_no_float_is_rounded_to_its_dtype():
    cast = Step("", (0,), ("float64",), "int8")
    (got,) = Expression(("float64",), (cast,), (1,)).evaluate([np.array([1.7, -3.2])])
    assert got.dtype == np.int8
    assert got.tolist() == [1, -3]


@pytest.mark.parametrize(
    ("dtype", "value", "number"),
    [
        ("float32", 2, Number(2.0, "float32")),
        ("float64", 0.1, Number(0.1, "float64")),
        ("bfloat16", 0.5, Number(0.5, "float32")),
        ("int64", 3, Number(3, "int64")),
        ("uint64", 3, Number(3, "uint64")),
        ("uint8", 3.0, Number(3, "int32")),
        ("bool", 7, Number(1, "int32")),
    ],
)
def test_scalars_are_passed_in_a_dtype_that_holds_them(dtype, value, number):
    step = Step("m:f", (0, Scalar(0, dtype)), ("float32", dtype), "float32")
    (got,) = Expression(("float32",), (step,), (1,), 1).numbers([value])
    assert got == number
    assert type(got.value) is type(number.value)


@pytest.fixture
def host_triton(monkeypatch):
    """Modules that stand for Triton and for the functions of this test, on numpy arrays."""
    language = types.ModuleType("triton.language")
    for name, dtype in NUMPY.items():
        setattr(language, name.removeprefix("tl."), dtype)
    language.cast = lambda value, dtype: np.asarray(value).astype(dtype)
    triton = types.ModuleType("triton")
    triton.language, triton.jit = language, lambda function: function
    functions = types.ModuleType("functions_of_the_test")
    for name, _, function, _ in FUNCTIONS:
        setattr(functions, name, function)
    for module in (language, triton, functions):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def compiled(source):
    space = {}
    exec(source.text, space)
    return space[source.name]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(expressions(outputs=2), st.data())
def test_the_source_computes_what_the_references_say(host_triton, expression, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, a = arrays(rng, len(expression.inputs)), list(rng.normal(size=expression.scalars))
    values = data.draw(st.integers(0, 4))
    scalars = data.draw(st.integers(0, 3))
    source = expression.device_function("body", values, scalars)
    (function,) = [n for n in ast.parse(source.text).body if isinstance(n, ast.FunctionDef)]
    names = [p.arg for p in function.args.args]
    count, numbers = max(values, len(x)), max(scalars, len(a))
    assert names == [f"v{i}" for i in range(count)] + [f"s{i}" for i in range(numbers)]
    unused = [None] * (count - len(x)), [None] * (numbers - len(a))
    same(compiled(source)(*x, *unused[0], *a, *unused[1]), expression.evaluate(x, a))


def test_every_step_is_rounded_to_the_dtype_it_would_be_stored_in(host_triton):
    """A chain gives the bits of one kernel per step: 1/3 in bfloat16, then doubled in float32."""
    third = Step("functions_of_the_test:twice", (0,), ("float32",), "bfloat16")
    again = Step("functions_of_the_test:twice", (1,), ("float32",), "float32")
    source = Expression(("float32",), (third, again), (2,)).device_function("body")
    x = np.array([1 / 3, 1e-3], np.float32)
    stored = (2 * x).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(compiled(source)(x), 2 * stored)


def test_equal_structures_share_their_source():
    one, other = (Expression(("float32",), (Step("m:f", (0,), ("float32",), "float16", r),), (1,)) for r in (None, abs))
    assert one.device_function("body") == other.device_function("body")
