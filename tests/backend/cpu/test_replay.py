import ctypes
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.backend.cpu.native_kernels import kernel, native

from nbxtensor.backend.contract import Bound
from nbxtensor.backend.cpu.host_replay import HostReplay
from nbxtensor.backend.cpu.runtime import has_futex
from nbxtensor.backend.cpu.team import Scratch, Team

WAYS = [pytest.param(False, id="condition"), *([pytest.param(True, id="futex")] if has_futex() else [])]


class Setting:
    """A team of a size that a test may change."""

    def __init__(self, futex, size):
        self.native = native(futex)
        self.team = Team(self.native)
        self.scratch = Scratch()
        self.size = size

    def record(self, launches):
        return HostReplay(launches, self.native, self.team, self.scratch, lambda: self.size)


@pytest.fixture(scope="module", params=WAYS)
def setting(request):
    made = Setting(request.param, 2)
    yield made
    made.team.close()


def shifts(buffers, count, nanoseconds):
    """Launches that pass a vector to and fro, each reading what its neighbours wrote in the one before."""
    n = buffers.shape[1]
    address = buffers.ctypes.data
    places = (address, address + 8 * n)
    return [
        Bound(kernel("shift"), (n, 1, 1), (places[1 - k % 2], places[k % 2], n), nanoseconds(k)) for k in range(count)
    ]


def shifted(start, count):
    return np.roll(start, -count) + count


# Predicted times decide who runs a launch: 1 ns the first worker alone, 0 and 1e9 all of them.
times = st.lists(st.sampled_from([0.0, 1.0, 1e9]), min_size=1, max_size=4)


@given(st.integers(1, 40), st.integers(0, 60), times, st.sampled_from([1, 2, 3, 5]))
def test_a_launch_sees_all_that_the_one_before_wrote(setting, n, count, nanoseconds, size):
    setting.size = size
    start = np.arange(n) * 1000
    buffers = np.stack([start, np.full(n, -1)])
    replay = setting.record(shifts(buffers, count, lambda k: nanoseconds[k % len(nanoseconds)]))
    replay.run()
    assert np.array_equal(buffers[count % 2], shifted(start, count))


@pytest.mark.parametrize("size", [2, 3])
def test_thousands_of_barriers(setting, size):
    setting.size = size
    buffers = np.zeros((2, 3), np.int64)
    setting.record(shifts(buffers, 5000, lambda _: 0.0)).run()
    assert np.array_equal(buffers[0], np.full(3, 5000))


def test_every_worker_runs_its_range(setting):
    setting.size = 3
    out = np.zeros((10, 4), np.int64)
    replay = setting.record([Bound(kernel("note"), (5, 2, 1), (out.ctypes.data,))])
    replay.run()
    assert out[:, 2:].tolist() == [[5, 2]] * 10
    assert sorted({tuple(row) for row in out[:, :2].tolist()}) == [(0, 3), (3, 6), (6, 10)]


def test_workers_have_scratch_of_their_own(setting):
    setting.size = 3
    out = np.zeros(3000, np.int64)
    setting.record([Bound(kernel("lean"), (3000, 1, 1), (out.ctypes.data,))]).run()
    assert np.array_equal(out, np.arange(3000) * 512)


def test_a_change_of_the_number_of_threads_is_followed(setting):
    out = np.zeros((12, 4), np.int64)
    replay = setting.record([Bound(kernel("note"), (12, 1, 1), (out.ctypes.data,))])
    for size in (1, 4, 2, 3, 1):
        setting.size = size
        replay.run()
        assert len({tuple(row) for row in out.tolist()}) == size


def test_nothing_recorded_is_nothing_run(setting):
    replay = setting.record([])
    replay.run()
    assert replay.profile() == ()


@pytest.mark.parametrize("size", [1, 2])
def test_profile_runs_once_and_times_every_launch(setting, size):
    setting.size = size
    buffers = np.zeros((2, 4), np.int64)
    replay = setting.record(shifts(buffers, 3, lambda _: 0.0))
    measured = replay.profile()
    assert np.array_equal(buffers[1], np.full(4, 3))
    assert len(measured) == 3
    assert all(0 <= ns < 1e10 for ns in measured)


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_allocates_nothing(setting, size):
    setting.size = size
    buffers = np.zeros((2, 64), np.int64)
    replay = setting.record(shifts(buffers, 20, lambda k: float(k % 2)))
    replay.run()
    run = replay.run
    tracemalloc.start()
    try:
        run()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(200):
            run()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The bound is a few frames of the interpreter, which Python 3.10 keeps for the next call: less than 16 bytes a run.
    assert after - before <= 1024
    assert peak - before <= 1024 + 128


class Mallinfo(ctypes.Structure):
    _fields_ = tuple((f"field{i}", ctypes.c_size_t) for i in range(10))

    @property
    def in_use(self):
        return self.field7 + self.field4  # bytes in use in the heap, and in blocks mapped on their own


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_leaves_the_c_heap_as_it_is(setting, size):
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("the C library does not tell what is in use")
    library.mallinfo2.restype = Mallinfo
    setting.size = size
    buffers = np.zeros((2, 64), np.int64)
    run = setting.record(shifts(buffers, 20, lambda k: float(k % 2))).run
    run()
    before, after = [], []
    for _ in range(5):  # the interpreter itself may allocate now and then: the heap has to be still at least once
        before.append(library.mallinfo2().in_use)
        for _ in range(100):
            run()
        after.append(library.mallinfo2().in_use)
    assert any(a == b for a, b in zip(after, before, strict=True))


def test_threads_that_run_at_once_do_not_disturb_each_other(setting):
    setting.size = 2
    results = []

    def work(seed):
        start = np.arange(50) + seed
        buffers = np.stack([start, start * 0])
        out = np.zeros(50, np.int64)
        replay = setting.record(
            [*shifts(buffers, 40, lambda k: float(k % 3)), Bound(kernel("lean"), (50, 1, 1), (out.ctypes.data,), 1.0)]
        )
        for turn in range(20):
            replay.run()
            start = shifted(start, 40)
            results.append(np.array_equal(buffers[0], start) and np.array_equal(out, np.arange(50) * 512))
            out[:] = turn

    threads = [threading.Thread(target=work, args=(100 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


def test_a_closed_team_runs_on_its_caller_alone():
    made = Setting(has_futex(), 3)
    out = np.zeros((9, 4), np.int64)
    replay = made.record([Bound(kernel("note"), (9, 1, 1), (out.ctypes.data,))])
    replay.run()
    before = threading.active_count()
    made.team.close()
    assert threading.active_count() == before - 2
    out[:] = 0
    replay.run()
    assert replay.profile()[0] >= 0
    assert {tuple(row) for row in out.tolist()} == {(0, 9, 9, 1)}


def test_a_team_that_nobody_holds_sends_its_helpers_home():
    made = Setting(has_futex(), 3)
    made.record([Bound(kernel("nothing"), (9, 1, 1), ())]).run()
    helpers = [thread for thread in threading.enumerate() if thread.name.startswith("nbxtensor-")]
    before = len(helpers)
    del made
    for helper in helpers:
        helper.join(0.01)
    alive = sum(helper.is_alive() for helper in helpers)
    assert alive <= before - 2
