"""How a typed stub becomes an op, and what its calls accept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.errors import ArgumentError, UnsupportedError
from nbxtensor.op import Cost, Kernel, Spec, Target, declare


class Value:
    """An operand that tells what it was run with."""

    def __run__(self, op, operands, params):
        return op, operands, params


def kernel(name, needs=(), accepts=None):
    return Kernel(name, lambda call: Cost(0, 0, 0), lambda call: (), frozenset(needs), accepts)


def declared(*kernels):
    @declare(result=lambda call: call["x"], reference=lambda x: x, kernels=kernels, cases=())
    def scale(
        x: "Tensor | float",  # noqa: F821
        by: "Tensor | float",  # noqa: F821
        *,
        bias: "Tensor | None" = None,  # noqa: F821
        others: "Sequence[Tensor]" = (),  # noqa: F821
        axis: int = -1,
    ) -> "Tensor":  # noqa: F821
        """Scale.

        More about it.
        """

    return scale


scale = declared(kernel("plain"))
x, y, z = Value(), Value(), Value()


def test_the_stub_gives_name_signature_docs_and_operands():
    op = scale.op
    assert (op.name, scale.__name__, repr(op)) == ("scale", "scale", "<op scale>")
    assert op.module.endswith(".kernel")
    assert op.operands == ("x", "by", "bias", "others")
    assert op.doc == "Scale.\n\nMore about it."
    assert list(op.signature.parameters) == ["x", "by", "bias", "others", "axis"]
    assert not op.elementwise


def test_a_call_runs_on_its_first_tensor_with_defaults_filled_in():
    op, operands, params = scale(x, 2.0)
    assert op is scale.op
    assert operands == {"x": x}
    assert params == {"by": 2.0, "bias": None, "axis": -1}


def test_operands_keep_the_order_of_the_signature_whatever_the_order_of_the_call():
    _, operands, params = scale(others=[y, z], axis=0, bias=y, by=z, x=x)
    assert list(operands.items()) == [("x", x), ("by", z), ("bias", y), ("others.0", y), ("others.1", z)]
    assert params == {"axis": 0}


@given(st.lists(st.sampled_from([x, y, z]), max_size=6))
def test_a_sequence_is_one_operand_per_member(members):
    _, operands, _ = scale(x, 1, others=members)
    assert [operands[f"others.{i}"] for i in range(len(members))] == members
    assert len(operands) == 1 + len(members)


def test_a_tensor_where_a_number_could_be_is_an_operand_too():
    assert scale(1, y)[1] == {"by": y}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: scale(1, 2), ArgumentError, r"scale: at least one of x, by, bias, others is a tensor. Got none"),
        (lambda: scale(x), TypeError, r"scale: missing a required argument: 'by'. Its signature is scale\(x"),
        (lambda: scale(x, 1, 2), TypeError, r"scale: too many positional arguments"),
        (lambda: scale(x, 1, axs=2), TypeError, r"scale: got an unexpected keyword argument 'axs'"),
        (lambda: scale(x, 1, axis=y), ArgumentError, r"scale: axis is not a tensor parameter. Got a tensor"),
        (
            lambda: scale(x, 1, others=[y, 3.0]),
            ArgumentError,
            r"scale: others is a sequence of tensors. Got float at 1",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


class Keyed(Value):
    """An operand that prepares its calls, and counts how often."""

    made = 0

    def __init__(self, name):
        self.name, self.__key__ = name, None

    def __keyed__(self):
        self.__key__ = self.name
        return self.__key__

    def __prepare__(self, op, operands, params, places):
        Keyed.made += 1

        def run(values):
            found = [values[place] if member is None else values[place][member] for place, member in places]
            return op, dict(zip(operands, found, strict=True)), params

        return run


operand = st.sampled_from(["a", "b"]).map(Keyed)
calls = st.fixed_dictionaries(
    {"x": operand, "by": st.one_of(operand, st.sampled_from([1, 1.0, True, 0.0, -0.0]))},
    optional={
        "bias": st.one_of(st.none(), operand),
        "others": st.lists(operand, max_size=2),
        "axis": st.integers(-1, 1),
    },
)


@given(calls, st.integers(0, 2), st.randoms(use_true_random=False))
def test_a_prepared_call_runs_on_the_values_it_is_given(given_values, positional, random):
    """However the values are handed in, and whatever call prepared it: as binding sorts them."""
    op, order = scale.op, list(given_values)
    order.sort(key=["x", "by", "bias", "others", "axis"].index)
    args = [given_values[name] for name in order[:positional]]
    named = order[positional:]
    random.shuffle(named)
    kwargs = {name: given_values[name] for name in named}
    found, operands, params = scale(*args, **kwargs)
    wanted, others = op.bind(args, kwargs)
    assert found is op
    assert [(n, id(v)) for n, v in operands.items()] == [(n, id(v)) for n, v in wanted.items()]
    assert repr(params) == repr(others)  # repr tells 1, 1.0 and True apart


def test_calls_alike_are_prepared_once():
    before = Keyed.made
    fresh = declared(kernel("plain"))
    for number in (2.0, 2.0, 3.0, 2.0):
        fresh(Keyed("a"), number)
    fresh(Keyed("b"), 2.0)
    assert Keyed.made - before == 3
    fresh(Keyed("a"), by=2.0)
    fresh(by=2.0, x=Keyed("a"))
    fresh(Keyed("a"), 2.0, axis=-1)
    assert Keyed.made - before == 6  # other spellings are other calls
    fresh(Value(), Keyed("a"))
    assert Keyed.made - before == 6  # an operand without a key


def call_on(op, *features):
    return op.call({"x": Spec((4,), "float32")}, {}, Target("cpu", "x86-64-v3", frozenset(features)))


def test_the_first_kernel_that_serves_a_call_is_chosen():
    op = declared(
        kernel("matrix", needs={"matrix"}),
        kernel("long", accepts=lambda call: call["x"].numel > 10),
        kernel("plain"),
        kernel("never"),
    ).op
    assert op.kernel(call_on(op)).name == "plain"
    assert op.kernel(call_on(op, "matrix", "more")).name == "matrix"
    long = op.call({"x": Spec((40,), "float32")}, {}, Target("cpu", "x86-64-v3"))
    assert op.kernel(long).name == "long"


def test_a_call_that_no_kernel_serves_is_refused_with_what_it_takes():
    op = declared(kernel("matrix", needs={"matrix", "float8"}), kernel("odd", accepts=lambda call: False)).op
    with pytest.raises(UnsupportedError) as caught:
        op.kernel(call_on(op, "avx2"))
    for part in ("scale: no kernel serves cpu x86-64-v3", "x float32[4]", "matrix needs float8, matrix", "has avx2"):
        assert part in str(caught.value)
    bare = declared().op
    with pytest.raises(UnsupportedError, match="It declares none; the target has no features"):
        bare.kernel(call_on(bare))


def test_one_spec_or_several_are_results():
    single = declared(kernel("plain")).op
    assert call_on(single).outputs == (Spec((4,), "float32"),)
