import faulthandler
import os
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nbxtensor.backend.cpu import blas, pool
from nbxtensor.errors import ArgumentError, SettingError


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    faulthandler.dump_traceback_later(60, exit=True)  # a pool that waits for itself would wait for ever
    monkeypatch.setattr(pool, "_costs", {"heavy": 1.0, "free": 1e-13})  # seconds an element
    pool.set_threads(3)
    yield
    pool.set_threads(None)
    faulthandler.cancel_dump_traceback_later()


def pieces_of(n, kind, probe=None):
    found, lock = [], threading.Lock()

    def body(start, stop):
        with lock:
            found.append((start, stop, threading.get_ident()))

    pool.parallel_for(n, body, kind, probe)
    return sorted(found)


@given(st.integers(0, 50), st.integers(1, 5), st.sampled_from(["heavy", "free", "never seen"]))
@hypothesis_settings(deadline=None)
def test_every_element_is_worked_on_once_in_contiguous_pieces(n, size, kind):
    pool.set_threads(size)
    pieces = pieces_of(n, kind)
    assert [index for start, stop, _ in pieces for index in range(start, stop)] == list(range(n))
    assert all(start < stop for start, stop, _ in pieces)
    if kind == "heavy":
        assert len(pieces) == min(n, size)
        lengths = [stop - start for start, stop, _ in pieces]
        assert max(lengths, default=0) - min(lengths, default=0) <= 1


def threads_of_a_call():
    """Run one piece on each of the pool's three threads, each waiting for the others."""
    meet = threading.Barrier(3, timeout=30)
    found = {}

    def body(start, stop):
        meet.wait()
        found[start] = threading.get_ident()

    pool.parallel_for(3, body, "heavy")
    return found


def test_pieces_run_on_threads_of_their_own_which_stay():
    first, second = threads_of_a_call(), threads_of_a_call()
    assert len(set(first.values())) == 3
    assert first[0] == second[0] == threading.get_ident()
    assert set(first.values()) == set(second.values())


def test_below_the_threshold_work_runs_inline_in_one_piece():
    assert pieces_of(1000, "free") == [(0, 1000, threading.get_ident())]
    assert pool.threshold("free") > 1000
    assert pool.threshold("heavy") == 2
    assert pool.threshold("never seen") == 0


def test_a_kind_is_measured_by_its_probe_once():
    calls = []

    def probe(n):
        calls.append(n)
        return lambda start, stop: np.exp(np.zeros(n, dtype=np.float32)[start:stop])

    pieces_of(10, "probed", probe)
    assert calls
    assert 1e-12 < pool._costs["probed"] < 1e-3
    calls.clear()
    pieces_of(10, "probed", probe)
    assert not calls


def test_a_kind_without_a_probe_is_measured_on_its_first_elements():
    x = np.linspace(-3, 3, 1 << 21, dtype=np.float32)
    out = np.empty_like(x)
    pool.parallel_for(x.size, lambda a, b: np.exp(x[a:b], out=out[a:b]), "unprobed")
    assert out.tobytes() == np.exp(x).tobytes()
    assert pool._costs["unprobed"] > 0


def test_calls_from_a_piece_run_inline():
    found = {}

    def body(start, stop):
        inner = pieces_of(100, "heavy")
        found[start] = (inner, threading.get_ident())

    pool.parallel_for(3, body, "heavy")
    assert len(found) == 3
    assert all(inner == [(0, 100, ident)] for inner, ident in found.values())
    assert len(pieces_of(3, "heavy")) == 3


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_of_a_piece_is_raised_after_all_have_ended(failing):
    ended = []

    def body(start, stop):
        if start == failing:
            raise KeyError(start)
        time.sleep(0.05)  # so that an error that does not wait for the others is seen
        ended.append(start)

    with pytest.raises(KeyError, match=str(failing)):
        pool.parallel_for(3, body, "heavy")
    assert sorted(ended) == sorted({0, 1, 2} - {failing})
    assert len(pieces_of(3, "heavy")) == 3


def test_the_error_of_the_first_failing_piece_is_raised():
    def body(start, stop):
        raise ValueError(f"piece {start}")

    with pytest.raises(ValueError, match="piece 0"):
        pool.parallel_for(3, body, "heavy")


def test_several_threads_may_call_at_once():
    sums = {}

    def work(name):
        x = np.arange(30.0)
        out = np.zeros_like(x)
        for _ in range(50):
            pool.parallel_for(30, lambda a, b: np.add(out[a:b], x[a:b], out=out[a:b]), "heavy")
        sums[name] = out

    callers = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(np.array_equal(total, np.arange(30.0) * 50) for total in sums.values())
    assert len(sums) == 4


def test_the_size_is_measured_unless_set():
    assert pool.threads() == 3
    pool.set_threads(None)
    assert pool.threads() == pool.measured_threads() >= 1


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True])
def test_what_is_no_thread_count_is_refused(count):
    with pytest.raises(SettingError, match="threads"):
        pool.set_threads(count)
    assert pool.threads() == 3


def test_a_negative_number_of_elements_is_refused():
    with pytest.raises(ArgumentError, match="parallel_for"):
        pool.parallel_for(-1, lambda start, stop: None, "heavy")


def test_blas_has_one_thread_in_pieces_and_the_pools_size_outside():
    if blas.state().scope != "process":
        pytest.skip(f"the threads of this BLAS are not set for the process: {blas.state()}")
    inside = []
    pool.set_threads(2)
    assert blas.state().threads == 2
    pool.parallel_for(2, lambda start, stop: inside.append(blas.state().threads), "heavy")
    assert inside == [1, 1]
    assert blas.state().threads == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own():
    threads_of_a_call()
    time.sleep(0.05)  # the workers are asleep again
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if len(threads_of_a_call()) == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
