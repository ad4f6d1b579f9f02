import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.errors import ArgumentError, MissingFactError
from nbxtensor.op import Cost, Kernel, Pointer, Spec, Target, declare


def tensors(x: "Tensor", others: "Sequence[Tensor]" = (), axis: int = -1) -> "Tensor":  # noqa: F821
    """Stand for an op with an operand, a sequence of operands and a parameter."""


op = declare(
    result=lambda call: (call["x"], call["x"].with_dtype("int8")),
    reference=lambda x, others=(), axis=-1: (x, x),
    kernels=(Kernel("nothing", lambda call: Cost(0, 0, 0), lambda call: ()),),
    cases=(),
)(tensors).op
X = Spec((2, 3), "float32", (1, 2))


def test_a_call_names_its_operands_and_results():
    call = op.call({"x": X, "others.0": Spec((1,), "int8"), "others.1": Spec((2,), "bool")}, {"axis": 0})
    assert call["x"] == X
    assert [s.shape for s in call.sequence("others")] == [(1,), (2,)]
    assert call.input("x", 4) == Pointer("input", "x", "float32", 4)
    assert call.output() == Pointer("output", 0, "float32")
    assert call.output(1, 2) == Pointer("output", 1, "int8", 2)
    assert call.workspace("sums", "float64") == Pointer("workspace", "sums", "float64")
    assert call.operand_nbytes == 24 + 1 + 2
    assert call.result_nbytes == 24 + 6


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=4))
def test_the_bytes_of_an_operand_count_each_element_once(axes):
    array = np.zeros([n for n, stretched in axes if not stretched], np.float32)
    shape = tuple(n for n, _ in axes)
    kept = iter(Spec(array.shape, "float32").strides)
    strides = tuple(0 if stretched else next(kept) for _, stretched in axes)
    assert op.call({"x": Spec(shape, "float32", strides)}, {}).operand_nbytes == array.nbytes


def test_an_operand_that_is_not_there_is_named():
    with pytest.raises(ArgumentError, match=r"tensors: no operand 'y'. It was called with x"):
        op.call({"x": X}, {})["y"]


def test_a_call_without_a_target_has_no_device():
    with pytest.raises(MissingFactError, match="the target of tensors is not known"):
        _ = op.call({"x": X}, {}).device
    target = Target("cpu", "x86-64-v3")
    assert op.call({"x": X}, {}, target).device is target


def test_a_target_states_its_facts_and_is_known_by_what_code_depends_on():
    target = Target("null", "sm_90", frozenset({"bfloat16"}), {"memory.copy_bandwidth": 4.28e12})
    assert target.fact("memory.copy_bandwidth") == 4.28e12
    with pytest.raises(MissingFactError, match=r"no_such of null sm_90 is not known.*backend/devices/"):
        target.fact("no_such")
    bare = Target("null", "sm_90", frozenset({"bfloat16"}))
    assert target == bare
    assert hash(target) == hash(bare)
    assert bare != Target("null", "sm_80", frozenset({"bfloat16"}))
