import ctypes

import numpy as np
import pytest

from nbxtensor.backend.cpu import blas
from nbxtensor.errors import ArgumentError


@pytest.fixture(autouse=True)
def same_threads_after():
    before = blas.state().threads
    yield
    if before is not None:
        blas.hold(before)


def test_numpys_openblas_is_found_where_numpy_says_it_has_one():
    name = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    if "openblas" not in name:
        pytest.skip(f"numpy was built with {name}")
    state = blas.state()
    assert (state.library, state.scope) == ("openblas", "process")
    assert "openblas" in state.path
    assert state.threads >= 1


def test_hold_and_region_reach_the_library():
    state = blas.state()
    if state.scope != "process":
        pytest.skip(f"not set for the process: {state}")
    library = ctypes.CDLL(state.path)
    getters = [f"{a}openblas_get_num_threads{b}" for a in ("scipy_", "") for b in ("64_", "")]
    get = next(getattr(library, name) for name in getters if hasattr(library, name))
    blas.hold(2)
    assert get() == blas.state().threads == 2
    with blas.region(2):
        assert get() == 1
        with blas.region(2):
            blas.hold(2)  # waits for the region to end
            assert get() == 1
        assert get() == 1
    assert get() == 2


def test_a_thread_count_below_one_is_refused():
    with pytest.raises(ArgumentError, match="blas"):
        blas.hold(0)


def test_an_unknown_blas_is_stated_and_left_alone(monkeypatch):
    monkeypatch.setattr(blas, "_control", lambda: None)
    assert blas.state() == blas.BlasState("unknown", "", "none", None)
    blas.hold(3)
    with blas.region(3), blas.piece():
        pass


def test_a_blas_that_is_set_per_thread_is_held_in_pieces_only(monkeypatch):
    calls = []
    control = blas._Control("accelerate", "/vecLib", "thread", lambda: 0, calls.append)
    monkeypatch.setattr(blas, "_control", lambda: control)
    assert blas.state() == blas.BlasState("accelerate", "/vecLib", "thread", None)
    blas.hold(4)
    with blas.region(4):
        assert calls == []
        with blas.piece():
            assert calls == [1]
    assert calls == [1, 0]
