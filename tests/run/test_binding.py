"""From declared launches to compiled ones: what becomes an argument, what is compiled in, and where pointers point."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.backend.contract import Compiled
from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import CompileError, UnsupportedError
from nbxtensor.op import Cost, Kernel, Launch, Number, Pointer, Source, Spec, Target, declare
from nbxtensor.run.binding import grid3, prepare, request


@declare(
    result=lambda call: call["x"],
    reference=lambda x: x,
    kernels=(Kernel("k", lambda call: Cost(300, 40, 60), lambda call: ()),),
    cases=(),
)
def doubled(x: "Tensor") -> "Tensor":  # noqa: F821
    """Stand for an op."""


op = doubled.op
(kernel,) = op.kernels
TARGET = Target("fake", "level")


@dataclass
class Loaded:
    compiled: Compiled


class Backend:
    """Compiles to the signature itself and keeps the requests; refuses the kernel called "broken"."""

    name = "fake"

    def __init__(self):
        self.requests = []

    def compile(self, asked, target):
        if asked.name == "broken":
            raise CompileError("broken: no lowering of tl.unknown.")
        self.requests.append(asked)
        return Compiled(asked.name, b"", tuple(reversed(asked.signature.items())))

    def load(self, compiled, index=0):
        return Loaded(compiled)


def asked(arguments, *, bake, **more):
    return request(op, Launch("k", (1,), arguments, **more), bake=bake)


@given(st.integers(-(2**40), 2**40))
def test_integers_are_compiled_in_for_programs_and_passed_by_eager_calls(value):
    baked, eager = (asked({"n": value}, bake=bake) for bake in (True, False))
    assert (baked.constants, baked.signature) == ({"n": value}, {})
    if value in (0, 1):
        assert (eager.constants, eager.signature) == ({"n": value}, {})
    else:
        wide = not -(2**31) < value < 2**31
        mark = "" if value % 16 else "@16"
        assert (eager.constants, eager.signature) == ({}, {"n": ("i64" if wide else "i32") + mark})


@pytest.mark.parametrize("bake", [True, False])
def test_what_stays_an_argument_whatever_its_value(bake):
    arguments = {
        "x": Pointer("input", "x", "bfloat16"),
        "one": Number(1, "int32"),
        "zero": Number(0.0, "float64"),
        "scale": 1.0,
    }
    found = asked(arguments, bake=bake)
    assert found.signature == {"x": "*bf16", "one": "i32", "zero": "fp64", "scale": "fp32"}
    assert found.constants == {}


@given(st.sampled_from(["float32", "int8", "float64", "bfloat16"]), st.integers(0, 99), st.booleans())
def test_a_pointer_is_marked_where_value_and_offset_are_aligned(dtype, offset, begins):
    pointer = Pointer("input", "x", dtype, offset)
    found = request(op, Launch("k", (1,), {"x": pointer}), bake=True, aligned=lambda p: begins and p is pointer)
    marked = begins and offset * bits(dtype) // 8 % 16 == 0
    assert found.signature["x"].endswith("@16") == marked
    assert not asked({"x": pointer}, bake=True).signature["x"].endswith("@16")  # nothing is known


@given(st.integers(-64, 64))
def test_a_number_of_a_stated_dtype_is_never_marked(value):
    assert asked({"n": Number(value, "int32")}, bake=False).signature == {"n": "i32"}


@pytest.mark.parametrize("bake", [True, False])
def test_bools_and_constants_are_compiled_in(bake):
    found = asked({"causal": True, "other": False}, bake=bake, constants={"BLOCK": 64}, warps=8, stages=3)
    assert found.constants == {"BLOCK": 64, "causal": True, "other": False}
    assert [type(v) for v in found.constants.values()] == [int, bool, bool]
    assert (found.warps, found.stages) == (8, 3)


MOST = (2**31 - 1, 65535, 65535)


@pytest.mark.parametrize(
    ("grid", "known"),
    [
        ((2**31 - 1,), False),
        ((2**20, 65535, 1), False),
        ((1, 65536), True),
        ((4, 1, 65536), True),
        ((7, 70_000, 3), True),
    ],
)
def test_a_grid_longer_than_the_target_allows_is_part_of_the_kernel(grid, known):
    found = request(op, Launch("k", grid, {}), bake=False, most=MOST)
    assert found.grid == (grid if known else ())
    assert request(op, Launch("k", grid, {}), bake=False).grid == ()
    assert request(op, Launch("k", grid, {}), bake=True, most=MOST).grid == grid


@pytest.mark.parametrize("grid", [(2**31,), (2**20, 65536), (2**31, 2, 2)])
@pytest.mark.parametrize("bake", [True, False])
def test_more_programs_than_the_target_takes_are_refused_by_the_name_of_the_op(grid, bake):
    target = Target("fake", "level", facts={"dispatch.max_grid": MOST})
    call = op.call({"x": Spec((9,), "float32")}, {}, target)
    with pytest.raises(UnsupportedError, match=r"doubled: a launch has at most 2147483647 programs.*Got \("):
        prepare(call, kernel, (Launch("k", grid, {}),), Backend(), 0, bake=bake)


def test_a_kernel_comes_from_the_module_of_the_op_or_brings_its_text():
    named = asked({}, bake=True)
    assert (named.module, named.name, named.text, named.functions) == (op.module, "k", "", op.module)
    made = request(op, Launch(Source("made", "def made(): pass"), (1,), {}), bake=True)
    assert (made.module, made.name, made.text, made.functions) == ("", "made", "def made(): pass", op.module)


@pytest.mark.parametrize(
    ("grid", "three"), [((7,), (7, 1, 1)), ((7, 2), (7, 2, 1)), ((7, 2, 3), (7, 2, 3)), ((), (1, 1, 1))]
)
def test_a_grid_has_three_axes(grid, three):
    assert grid3(grid) == three


@given(st.lists(st.tuples(st.sampled_from(["float32", "int8", "float64", "bfloat16"]), st.integers(0, 99)), max_size=5))
def test_arguments_follow_the_compiled_order_and_offsets_are_bytes(pointers):
    arguments = {f"p{i}": Pointer("input", "x", dtype, offset) for i, (dtype, offset) in enumerate(pointers)}
    arguments |= {"n": 5, "scalar": Number(3, "int64"), "scale": 0.5}
    call = op.call({"x": Spec((9,), "float32")}, {}, TARGET)
    (ready,) = prepare(call, kernel, (Launch("k", (2, 3), arguments),), Backend(), 0, bake=False)
    bound = ready.bind(lambda pointer: 1000)
    want = {f"p{i}": 1000 + offset * bits(dtype) // 8 for i, (dtype, offset) in enumerate(pointers)}
    want |= {"n": 5, "scalar": 3, "scale": 0.5}
    names = [name for name, _ in bound.kernel.compiled.parameters]
    assert dict(zip(names, bound.arguments, strict=True)) == want
    assert bound.grid == (2, 3, 1)


def test_the_predicted_time_is_shared_among_the_launches():
    call = op.call({"x": Spec((9,), "float32")}, {}, TARGET)
    one = prepare(call, kernel, (Launch("k", (1,), {}),), Backend(), 0, bake=True)
    four = prepare(call, kernel, (Launch("k", (1,), {}),) * 4, Backend(), 0, bake=True)
    assert one[0].nanoseconds > 0
    assert sum(p.nanoseconds for p in four) == pytest.approx(one[0].nanoseconds)


def test_a_kernel_that_does_not_compile_is_named_with_its_op():
    call = op.call({"x": Spec((9,), "float32")}, {}, TARGET)
    with pytest.raises(CompileError, match=r"doubled: broken: no lowering of tl\.unknown"):
        prepare(call, kernel, (Launch("broken", (1,), {}),), Backend(), 0, bake=True)
