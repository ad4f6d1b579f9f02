import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from nbxtensor.backend.contract import Bound, KernelRequest
from nbxtensor.errors import ArgumentError, CompileError
from nbxtensor.op import Source

pytest.importorskip("triton")

TEXT = """
import triton
import triton.language as tl


@triton.jit
def affine(out, x, n, scale, FUNCTION: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    value = tl.load(x + i, mask=m).to(DTYPE)
    tl.store(out + i, (FUNCTION(value) * scale).to(out.dtype.element_ty), mask=m)


@triton.jit
def place(out, n):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny = tl.num_programs(0), tl.num_programs(1)
    tl.store(out + (z * ny + y) * nx + x, x + 1000 * y + 1000000 * z + n)
"""
PLUS_ONE = "import triton\n\n\n@triton.jit\ndef plus_one(x):\n    return x + 1\n"
SIGNATURE = {"out": "*fp32", "x": "*fp32", "n": "i32", "scale": "fp32"}
CONSTANTS = {"FUNCTION": Source("plus_one", PLUS_ONE), "DTYPE": "tl.float32", "BLOCK": 128}


def request(**changes):
    fields = {"module": "", "name": "affine", "text": TEXT, "signature": SIGNATURE, "constants": CONSTANTS}
    return KernelRequest(**(fields | changes))


@pytest.fixture
def load(subject):
    """From the changes of a request to its kernel, loaded."""

    def loaded(**changes):
        made = subject.backend.compile(request(**changes), subject.backend.target(subject.index))
        return subject.backend.load(made, subject.index)

    return loaded


@pytest.fixture
def arrays(subject, memory):
    """Puts arrays on the device and reads them back; what it put there goes at the end of the test."""
    held = []

    class Arrays:
        def put(self, array):
            address = memory.allocate(array.nbytes)
            memory.copy_in(address, memoryview(array))
            held.append(address)
            return address

        def get(self, address, like):
            out = np.empty_like(like)
            memory.copy_out(memoryview(out), address)
            return out if subject.computes else None

        def same(self, address, expected):
            found = self.get(address, expected)
            return found is None or np.array_equal(found, expected)

    yield Arrays()
    subject.backend.synchronize(subject.index)
    for address in held:
        memory.free(address)


def affine_launch(kernel, arrays, n, scale=2.0):
    x = np.arange(n, dtype=np.float32)
    out = arrays.put(np.full(n + 7, -1, np.float32))
    expected = np.concatenate([(x + 1) * np.float32(scale), np.full(7, -1, np.float32)])
    return Bound(kernel, (-(-n // 128), 1, 1), (out, arrays.put(x), n, scale)), out, expected


def test_parameters_are_those_of_the_request_in_order(load):
    assert load().compiled.parameters == tuple(SIGNATURE.items())


def test_the_same_request_gives_the_same_kernel(subject):
    target = subject.backend.target(subject.index)
    first, second = (subject.backend.compile(request(), target) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("n", [1, 127, 128, 129, 5000])
def test_a_launch_computes_every_element_and_no_other(subject, load, arrays, n):
    bound, out, expected = affine_launch(load(), arrays, n)
    subject.backend.launch(bound, subject.index)
    assert arrays.same(out, expected)


def test_a_launch_is_started_again_and_again(subject, load, arrays):
    bound, out, expected = affine_launch(load(), arrays, 300)
    for scale in (2.0, 3.0):
        again = replace(bound, arguments=(*bound.arguments[:3], scale))
        for launch in (again, again, bound):
            subject.backend.launch(launch, subject.index)
            assert arrays.same(out, np.where(expected < 0, -1, expected * (launch.arguments[3] / 2)))


@pytest.mark.parametrize("nanoseconds", [0.0, 1.0, 1e9])
@pytest.mark.parametrize("grid", [(3, 1, 1), (0, 1, 1)])
def test_a_launch_starts_on_other_addresses(subject, load, arrays, nanoseconds, grid):
    if not hasattr(subject.backend, "starter"):
        pytest.skip(f"{subject.backend.name} has no Backend.starter")
    first, out, _ = affine_launch(load(), arrays, 300)
    bound = Bound(first.kernel, grid, (0, 0, *first.arguments[2:]), nanoseconds)
    both = subject.backend.starter(bound, (0, 1), subject.index)
    one = subject.backend.starter(replace(first, grid=grid), (1,), subject.index)
    x = np.arange(300, dtype=np.float32)
    others = [(arrays.put(np.full(307, -1, np.float32)), arrays.put(x + k)) for k in range(3)]
    for _ in range(2):
        for target, source in others:
            both([target, source])
    one([others[2][1]])
    if 0 in grid:
        assert all(arrays.same(target, np.full(307, -1, np.float32)) for target, _ in others)
        return
    for k, (target, _) in enumerate(others):
        assert arrays.same(target, np.append((x + k + 1) * 2, np.full(7, -1)).astype(np.float32))
    assert arrays.same(out, np.append((x + 3) * 2, np.full(7, -1)).astype(np.float32))


def test_what_a_launch_refuses_is_refused_before_it_is_started(subject, load, arrays):
    if not hasattr(subject.backend, "starter"):
        pytest.skip(f"{subject.backend.name} has no Backend.starter")
    bound, _, _ = affine_launch(load(), arrays, 4)
    for wrong in (replace(bound, grid=(-1, 1, 1)), replace(bound, arguments=bound.arguments[:-1])):
        with pytest.raises(ArgumentError):
            subject.backend.starter(wrong, (0,), subject.index)


@pytest.mark.parametrize("nanoseconds", [0.0, 1.0, 1e9])
def test_a_predicted_time_changes_no_result(subject, load, arrays, nanoseconds):
    bound, out, expected = affine_launch(load(), arrays, 5000)
    subject.backend.launch(Bound(bound.kernel, bound.grid, bound.arguments, nanoseconds), subject.index)
    assert arrays.same(out, expected)


@pytest.mark.parametrize("grid", [(1, 1, 1), (7, 1, 1), (3, 5, 1), (2, 3, 4), (1, 1, 6)])
def test_a_grid_has_three_axes(subject, load, arrays, grid):
    kernel = load(name="place", signature={"out": "*i64", "n": "i64"}, constants={})
    count = math.prod(grid)
    out = arrays.put(np.zeros(count, np.int64))
    subject.backend.launch(Bound(kernel, grid, (out, -5)), subject.index)
    z, y, x = np.indices(grid[::-1])
    assert arrays.same(out, (x + 1000 * y + 1_000_000 * z - 5).reshape(-1).astype(np.int64))


@pytest.mark.parametrize("grid", [(0, 1, 1), (4, 0, 2)])
def test_an_empty_grid_runs_nothing(subject, load, arrays, grid):
    kernel = load(name="place", signature={"out": "*i64", "n": "i64"}, constants={})
    out = arrays.put(np.full(4, -1, np.int64))
    subject.backend.launch(Bound(kernel, grid, (out, 0)), subject.index)
    subject.backend.record([Bound(kernel, grid, (out, 0))], subject.index).run()
    assert arrays.same(out, np.full(4, -1, np.int64))


def test_functions_are_looked_up_and_dtypes_named(subject, load, arrays):
    text = TEXT.replace("FUNCTION(value)", "value")
    kernel = load(text=text, constants=CONSTANTS | {"DTYPE": "tl.int32"})
    bound, out, _ = affine_launch(kernel, arrays, 4, 0.5)
    subject.backend.launch(bound, subject.index)
    assert arrays.same(out, np.float32([0, 0.5, 1, 1.5, *[-1] * 7]))


def test_a_replay_runs_every_launch_in_order_each_time(subject, load, arrays):
    plus = load()
    n = 1000
    address = [arrays.put(np.zeros(n, np.float32)) for _ in range(2)]
    launches = [Bound(plus, (8, 1, 1), (address[1 - k % 2], address[k % 2], n, 1.0), float(k % 3)) for k in range(11)]
    replay = subject.backend.record(launches, subject.index)
    expected = np.zeros(n, np.float32)
    for turn in range(3):
        replay.run()
        last = 11 + 10 * turn  # each run starts from the buffer that the one before last wrote first
        expected[:] = last
        assert arrays.same(address[1], expected)


def test_launches_run_after_those_they_wait_for(subject, load, arrays):
    """Two branches of ten launches, one after the other in the list, and a launch that reads the ends of both."""
    plus, n, length = load(), 1000, 10
    chains = [[arrays.put(np.full(n, start, np.float32)) for _ in range(length + 1)] for start in (0, 100)]
    launches = [Bound(plus, (8, 1, 1), (out, x, n, 1.0)) for chain in chains for x, out in itertools.pairwise(chain)]
    launches.append(Bound(plus, (8, 1, 1), (chains[0][0], chains[1][-1], n, 1.0)))
    before = [[number - 1] if number % length else [] for number in range(2 * length)]
    replay = subject.backend.record(launches, subject.index, [*before, [length - 1, 2 * length - 1]])
    for start in (0, 111):
        replay.run()
        assert arrays.same(chains[0][length], np.full(n, start + length, np.float32))
        assert arrays.same(chains[1][length], np.full(n, 100 + length, np.float32))
        assert arrays.same(chains[0][0], np.full(n, 111, np.float32))


@pytest.mark.parametrize("dependencies", [[[]], [[], [1]], [[], [-1]], [[0], []], [[], [], []]])
def test_dependencies_name_earlier_launches(subject, load, arrays, dependencies):
    bound, _, _ = affine_launch(load(), arrays, 4)
    with pytest.raises(ArgumentError, match="record: "):
        subject.backend.record([bound, bound], subject.index, dependencies)


def test_a_recorded_launch_takes_other_arguments(subject, load, arrays):
    first, out, _ = affine_launch(load(), arrays, 300)
    other, _, _ = affine_launch(first.kernel, arrays, 300)
    replay = subject.backend.record([first, other], subject.index)
    replay.run()
    x = np.arange(200, dtype=np.float32)
    replay.rebind(0, (out, arrays.put(x), 200, 3.0))
    expected = np.concatenate([(x + 1) * 3, (np.arange(200, 300, dtype=np.float32) + 1) * 2, np.full(7, -1)])
    for _ in range(2):
        replay.run()
        assert arrays.same(out, expected.astype(np.float32))
    with pytest.raises(ArgumentError, match=r"affine: one value per parameter. Got 1"):
        replay.rebind(1, (out,))
    with pytest.raises(ArgumentError, match=r"rebind: the number of a launch. Got 2 of 2"):
        replay.rebind(2, (out, out, 1, 1.0))
    replay.run()
    assert arrays.same(out, expected.astype(np.float32))


def test_replays_are_started_one_after_another(subject, load, arrays):
    """Each adds one to what the one before left."""
    place = arrays.put(np.zeros(300, np.float32))
    replay = subject.backend.record([Bound(load(), (3, 1, 1), (place, place, 300, 1.0))], subject.index)
    for _ in range(20):
        replay.start()
    assert arrays.same(place, np.full(300, 20, np.float32))


def test_a_profile_runs_once_and_times_every_launch(subject, load, arrays):
    bound, out, expected = affine_launch(load(), arrays, 300)
    replay = subject.backend.record([bound, bound], subject.index)
    if not hasattr(replay, "profile"):
        pytest.skip("this backend cannot time launches one by one")
    measured = replay.profile()
    assert len(measured) == 2
    assert min(measured) >= 0
    assert arrays.same(out, expected)


def test_recording_runs_nothing(subject, load, arrays):
    bound, out, expected = affine_launch(load(), arrays, 300)
    replay = subject.backend.record([bound], subject.index)
    assert arrays.same(out, np.full(307, -1, np.float32))
    replay.run()
    assert arrays.same(out, expected)


def test_nothing_can_be_recorded(subject):
    subject.backend.record([], subject.index).run()


def test_a_replay_is_byte_equal_to_its_launches(subject, load, arrays):
    kernel = load()
    eager, out, _ = affine_launch(kernel, arrays, 777, 1 / 3)
    recorded, again, like = affine_launch(kernel, arrays, 777, 1 / 3)
    subject.backend.launch(eager, subject.index)
    replay = subject.backend.record([recorded], subject.index)
    for _ in range(3):
        replay.run()
        found = arrays.get(again, like)
        assert found is None or found.tobytes() == arrays.get(out, like).tobytes()


def test_kernels_outlive_whoever_loaded_them(subject, load, arrays):
    bound, out, expected = affine_launch(load(), arrays, 100)
    replay = subject.backend.record([bound], subject.index)
    del bound
    replay.run()
    assert arrays.same(out, expected)


@pytest.mark.parametrize("arguments", [(), (1, 2, 3), (1, 2, 3, 4.0, 5)])
def test_one_value_per_parameter(subject, load, arguments):
    bound = Bound(load(), (1, 1, 1), arguments)
    message = rf"affine: one value per parameter. Got {len(arguments)}. It takes \(out: \*fp32, x: \*fp32, n: i32"
    with pytest.raises(ArgumentError, match=message):
        subject.backend.launch(bound, subject.index)
    with pytest.raises(ArgumentError, match=message):
        subject.backend.record([bound], subject.index)


def test_a_grid_of_negative_size_is_refused(subject, load):
    with pytest.raises(ArgumentError, match=r"affine: a grid counts programs. Got \(1, -1, 1\)"):
        subject.backend.launch(Bound(load(), (1, -1, 1), (0, 0, 0, 1.0)), subject.index)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "missing"}, "missing"),
        ({"module": "no_such_module", "text": ""}, "no_such_module"),
        ({"constants": CONSTANTS | {"FUNCTION": "fn:missing"}, "functions": "textwrap"}, "missing"),
        ({"text": TEXT.replace("tl.load(x + i, mask=m)", "tl.load(x + i, mask=undefined)")}, "undefined"),
    ],
)
def test_what_cannot_be_compiled_is_named(subject, changes, message):
    if not subject.computes:
        pytest.skip("this backend compiles nothing")
    with pytest.raises(CompileError, match=message):
        subject.backend.compile(request(**changes), subject.backend.target(subject.index))
