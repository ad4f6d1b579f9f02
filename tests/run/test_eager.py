"""Single ops on tensors with data: what is kept between calls, where operands lie, what an observer sees."""

import functools
import gc
import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbxtensor as nbx
from nbxtensor.backend.null.description import described_target
from nbxtensor.backend.registry import backend
from nbxtensor.errors import ArgumentError, ShapeError
from nbxtensor.op import Target
from nbxtensor.ops.launch_observer import set_launch_observer
from nbxtensor.run.eager import _Params
from nbxtensor.settings import replace

plain = st.recursive(
    st.one_of(st.booleans(), st.integers(-3, 3), st.floats(width=16), st.text(max_size=2), st.none()),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


def distinct(value):
    """What tells two parameters apart, written independently: repr keeps 1, 1.0, True, -0.0 and nan apart."""
    return repr(value)


@given(plain, plain)
def test_parameters_are_one_key_only_if_nothing_tells_them_apart(a, b):
    one, other = _Params({"p": a}), _Params({"p": b})
    assert (one == other) == (distinct(a) == distinct(b))
    if one == other:
        assert hash(one) == hash(other)


def test_parameters_of_other_names_are_other_keys():
    assert _Params({"a": 1}) != _Params({"b": 1})
    assert _Params({"a": 1}) != {"a": 1}


def test_numpy_scalars_and_lists_are_plain_numbers_and_tuples():
    params = _Params({"p": [np.float32(1.5), [np.int64(2)]], "q": np.array(True)})
    assert dict(params) == {"p": (1.5, (2,)), "q": True}
    assert [type(v) for v in (params["p"][0], params["p"][1][0], params["q"])] == [float, int, bool]
    assert params == _Params({"p": (1.5, (2,)), "q": True})


@pytest.mark.parametrize("value", [{}, np.zeros(2), {1}])
def test_a_parameter_that_is_no_plain_data_is_refused(value):
    with pytest.raises(ArgumentError, match=f"a parameter is plain data .*Got {type(value).__name__}"):
        _Params({"p": value})


def test_calls_that_differ_in_the_kind_of_a_number_alone_do_not_share_a_kernel():
    x = nbx.asarray(np.arange(4, dtype=np.int32))
    assert [nbx.add(x, one).dtype for one in (1, 1.0, True, 1)] == ["int32", "float64", "int32", "int32"]
    y = nbx.asarray(np.ones(3, np.float32))
    signs = [math.copysign(1, nbx.multiply(y, zero).tolist()[0]) for zero in (0.0, -0.0, 0.0)]
    assert signs == [1, -1, 1]


@pytest.fixture
def compilations(monkeypatch):
    """Kernels compiled or fetched while the test runs, by name."""
    found = []
    cpu = nbx.device("cpu").backend
    compile_kernel = cpu.compile
    monkeypatch.setattr(
        cpu, "compile", lambda asked, target: (found.append(asked.name), compile_kernel(asked, target))[1]
    )
    return found


def test_a_call_seen_before_compiles_nothing(compilations):
    x = nbx.asarray(np.arange(21, dtype=np.float32).reshape(3, 7))
    nbx.hypot(x, 0.25)
    first = len(compilations)
    assert first > 0
    nbx.hypot(x + 1, 0.25)
    assert len(compilations) == first + 1  # that of the addition


@st.composite
def narrowed(draw):
    """An array, and the (axis, start, length) that views are narrowed by in turn."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    cuts, extents = [], list(shape)
    for _ in range(draw(st.integers(0, 3))):
        axis = draw(st.integers(0, len(shape) - 1))
        start = draw(st.integers(0, extents[axis]))
        length = draw(st.integers(0, extents[axis] - start))
        cuts.append((axis, start, length))
        extents[axis] = length
    return shape, cuts, draw(st.permutations(range(len(shape))))


@given(narrowed(), st.sampled_from(["float32", "int8", "float64", "int16"]))
def test_an_op_reads_a_view_where_it_starts(view, dtype):
    shape, cuts, order = view
    array = (np.arange(math.prod(shape)) % 50).reshape(shape).astype(dtype)
    tensor = nbx.asarray(array)
    for axis, start, length in cuts:
        tensor = tensor.narrow(axis, start, length)
        array = array[(slice(None),) * axis + (slice(start, start + length),)]
    tensor, array = nbx.permute_dims(tensor, tuple(order)), array.transpose(order)
    result = nbx.add(tensor, 1)
    assert result.is_contiguous()
    np.testing.assert_array_equal(result.numpy(), array + np.ones((), dtype))


def launched(device, call):
    """The launches that ``call`` makes on a device that is only described."""
    before = len(device.backend.launches(device.index))
    call()
    return device.backend.launches(device.index)[before:]


def marks(launches):
    """(argument is marked, its value is a multiple of 16) of every integer and pointer; marked ones have to be."""
    return [
        (kind.endswith("@16"), value % 16 == 0)
        for launch in launches
        for (_, kind), value in zip(launch.kernel.compiled.parameters, launch.arguments, strict=True)
        if kind[0] in "*i"
    ]


@given(st.integers(1, 70), st.integers(0, 9), st.integers(0, 9), st.sampled_from(["float32", "int8", "float64"]))
def test_what_a_kernel_is_told_of_addresses_holds_for_every_view(count, first, second, dtype):
    x = nbx.asarray(np.zeros(100, dtype)).to(described_h200())
    views = [x.narrow(0, first, count), x.narrow(0, second, count), x.narrow(0, first + second, 1)]
    for call in (
        lambda: nbx.add(views[0], views[1]),
        lambda: nbx.add(views[1], views[0]),
        lambda: nbx.where(views[0] > 0, views[1], views[2]),
        lambda: nbx.sum(views[0]),
        lambda: nbx.concat([views[0], views[1]]),
    ):
        found = marks(launched(x.device, call))
        assert all(holds for marked, holds in found if marked)
        assert any(marked for marked, _ in found)  # the result at least lies in a block of its own


def test_what_a_kernel_of_a_program_is_told_of_addresses_holds():
    def fn(x, w):
        return nbx.softmax(nbx.matmul(x[1:], w)[:, 3:8]) + x[:5, :1]

    x, w = nbx.Spec((6, 7), "float32"), nbx.Spec((7, 9), "float32")
    program = nbx.plan(nbx.trace(fn, x, w), device=described_h200(), optimize=False).load({})
    found = marks(program.launches)
    assert all(holds for marked, holds in found if marked)
    assert {marked for marked, _ in found} == {True, False}


def test_views_at_any_byte_of_foreign_memory_give_the_same_results():
    memory = np.arange(4 * 80, dtype=np.uint8)
    for start in range(0, 20, 4):
        array = memory[start : start + 4 * 64].view(np.int32)
        np.testing.assert_array_equal(nbx.add(nbx.from_dlpack(array), 1).numpy(), array + 1)


def test_a_grid_longer_than_the_device_allows_is_told_to_the_compiler(monkeypatch):
    device, asked = described_h200(), []
    compile_kernel = device.backend.compile
    monkeypatch.setattr(device.backend, "compile", lambda r, target: (asked.append(r), compile_kernel(r, target))[1])
    for count in (1000, 100_000_000):
        call = functools.partial(nbx.take, nbx.empty(7, device=device), nbx.empty(count, dtype="int32", device=device))
        (launch,) = launched(device, call)
        assert asked[-1].grid == (launch.grid[:2] if launch.grid[1] > 65_535 else ())
    assert launch.grid[1] > 65_535


def test_results_are_fresh_memory_and_workspace_goes_back():
    x = nbx.asarray(np.ones((64, 64), np.float32))
    allocator = nbx.device("cpu").allocator
    gc.collect()  # what other tests left in cycles
    allocator.trim()  # nor do parked blocks serve, which may be larger than what is asked for
    nbx.matmul(x, x)
    live = allocator.live
    kept = nbx.matmul(x, x)
    assert allocator.live == live + kept.nbytes
    other = nbx.matmul(x, x)
    assert other.storage.address != kept.storage.address


def test_a_result_without_elements_launches_nothing(compilations):
    x, w = nbx.asarray(np.zeros((0, 3), np.float32)), nbx.asarray(np.zeros((3, 5), np.float32))
    assert nbx.trunc(x).shape == (0, 3)
    assert nbx.matmul(x, w).shape == (0, 5)
    assert nbx.softmax(x).shape == (0, 3)
    assert compilations == []


@functools.cache
def described_h200():
    """A device that is only described, made once."""
    return nbx.device(f"null:{backend('null').add(described_target('nvidia', 'h200'), 1 << 40)}")


@pytest.fixture
def described():
    """A device that is only described."""
    index = backend("null").add(Target("cuda", "sm_90", frozenset({"bfloat16", "float64"})), 1 << 20)
    return nbx.device(f"null:{index}")


def test_operands_on_two_devices_are_refused_by_name(described):
    here = nbx.asarray(np.zeros((2, 3), np.float32))
    there = here.to(described)
    assert (here.device.name, there.device) == ("cpu", described)
    with pytest.raises(ArgumentError, match=rf"add: operands share a device. Got cpu and {described} for x2"):
        nbx.add(here, there)
    with pytest.raises(ArgumentError, match=r"where: operands share a device"):
        nbx.where(there > 0, there, here)


def test_a_device_that_executes_nothing_still_refuses_and_counts(described):
    x = nbx.asarray(np.zeros((4, 8), np.float32)).to(described)
    before = described.allocator.requests
    assert nbx.softmax(x).shape == (4, 8)
    assert described.allocator.requests > before
    with pytest.raises(ShapeError, match="matmul"):
        nbx.matmul(x, x)


class Observer:
    def __init__(self):
        self.keys, self.runs, self.on = [], [], True

    def active(self):
        return self.on

    def record(self, tuned, key):
        self.keys.append((tuned, key))

    def shadow_run(self, *launch):
        self.runs.append(launch)


@pytest.fixture
def observer():
    found = Observer()
    set_launch_observer(found)
    replace(poison=True)
    yield found
    set_launch_observer(None)
    replace(poison=False)


def test_in_a_dry_run_launches_are_recorded_and_nothing_is_written(observer):
    x = nbx.asarray(np.ones((4, 8), np.float32))
    result = nbx.exp(x)
    assert result.numpy().tobytes() == b"\xff" * result.nbytes
    assert len(observer.keys) == len(observer.runs) == 1
    (tuned, (name, grid)), (launch,) = observer.keys[0], observer.runs[0]
    assert tuned is False
    assert (name, grid) == (launch.kernel.compiled.name, launch.grid)
    assert result.storage.address in launch.arguments
    observer.on = False
    np.testing.assert_allclose(nbx.exp(x).numpy(), np.full((4, 8), np.e, np.float32), rtol=1e-6)
    assert len(observer.keys) == 1


CALLS = [
    lambda x, y, a, b, k, named: (nbx.add(x1=x, x2=y) if named else nbx.add(x, y), a + b),
    lambda x, y, a, b, k, named: (nbx.subtract(x2=y, x1=x) if named else x - y, a - b),
    lambda x, y, a, b, k, named: (x * float(k), a * k),
    lambda x, y, a, b, k, named: (x * k, a * k),
    lambda x, y, a, b, k, named: (nbx.concat([x, y] if named else (x, y, x)), np.concatenate([a, b, a][: 3 - named])),
    lambda x, y, a, b, k, named: (nbx.sum(x, axis=(0,), keepdims=named), a.sum(axis=0, keepdims=named)),
]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 4), st.booleans()), min_size=1, max_size=9)
)
def test_calls_prepared_before_give_the_results_of_their_own_operands(steps):
    memory = np.arange(40, dtype=np.float32)
    shared = nbx.asarray(memory.copy())

    for which, first, second, named in steps:
        starts = (first, second)
        x, y = (shared.narrow(0, start, 8) for start in starts)
        a, b = (memory[start : start + 8] for start in starts)
        got, want = CALLS[which](x, y, a, b, second, named)
        np.testing.assert_array_equal(got.numpy(), want)


def test_a_call_prepared_before_still_refuses_what_it_refuses(described):
    x = nbx.asarray(np.ones(8, np.float32))
    nbx.add(x, x)
    with pytest.raises(ArgumentError, match="operands share a device"):
        nbx.add(x, x.to(described))
    with pytest.raises(ShapeError):
        nbx.add(x, nbx.asarray(np.ones(7, np.float32)))
    spec = nbx.Spec((8,), "float32")
    assert nbx.trace(lambda a: nbx.add(a, a), spec).nodes[0].op.name == "add"


def test_a_call_prepared_before_is_recorded_in_a_dry_run(observer):
    observer.on = False
    x = nbx.asarray(np.ones((4, 8), np.float32))
    nbx.exp(x)
    observer.on = True
    result = nbx.exp(x)
    assert len(observer.keys) == 1
    assert {result.storage.address, x.storage.address} <= set(observer.runs[0][0].arguments)
    assert result.numpy().tobytes() == b"\xff" * result.nbytes


def test_threads_run_one_prepared_call_on_operands_of_their_own():
    wrong = []

    def work(number):
        x = nbx.asarray(np.full(100, number, np.float32))
        wrong.extend(number for _ in range(200) if not (nbx.add(x, x).numpy() == 2 * number).all())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_equal_calls_record_equal_keys(observer):
    for shape in ((4, 8), (4, 8), (400, 800)):
        nbx.exp(nbx.asarray(np.ones(shape, np.float32)))
    first, second, third = (key for _, key in observer.keys)
    assert first == second
    assert hash(first) == hash(second)
    assert first != third
