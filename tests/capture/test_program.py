"""Programs and recordings: what a plan promises is what runs."""

from __future__ import annotations

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.errors import (
    ArgumentError,
    CaptureError,
    DtypeError,
    FormatError,
    NbxError,
    OutOfMemoryError,
    PlanError,
    ShapeError,
)
from nbxtensor.memory import set_limit
from nbxtensor.ops.launch_observer import set_launch_observer


def model(weights, x, ids):
    rows = nbx.embedding(weights["table"], ids)
    y = nbx.linear(x + rows, weights["w"], weights["b"])
    return nbx.softmax(y, axis=-1), nbx.sum(y * y, axis=0)


WEIGHTS = {"table": (11, 8), "w": (6, 8), "b": (6,)}
SPECS = {name: nbx.Spec(shape, "float32") for name, shape in WEIGHTS.items()}
INPUTS = (nbx.Spec((5, 8), "float32"), nbx.Spec((5,), "int64"))


def drawn(seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((5, 8)).astype(np.float32), rng.integers(0, 11, 5)


@pytest.fixture(scope="module")
def weights():
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in WEIGHTS.items()}


@pytest.fixture(scope="module")
def program(weights):
    return nbx.plan(nbx.trace(model, *INPUTS, weights=SPECS)).load(weights)


def wanted(weights, x, ids):
    y = (x + weights["table"][ids]).astype(np.float64) @ weights["w"].T + weights["b"]
    e = np.exp(y - y.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True), (y * y).sum(0)


def close(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-6)


def test_a_program_computes_and_a_replay_repeats_it(program, weights):
    recording = program.capture()
    assert recording.verified
    assert len(recording) == len(program.launches) > 0
    for seed in range(4):
        x, ids = drawn(seed)
        got = recording(x, ids)
        close(got, wanted(weights, x, ids))
        for a, b in zip(got, program(x, ids), strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()


def test_outputs_kept_over_replays_keep_their_values(program, weights):
    recording = program.capture()
    kept = [recording(*drawn(seed)) for seed in range(3)]
    for seed, got in enumerate(kept):
        close(got, wanted(weights, *drawn(seed)))


def test_borrowed_outputs_are_views_that_the_next_run_overwrites(program, weights):
    recording = program.capture()
    first = recording(*drawn(1), borrow=True)
    recording(*drawn(2), borrow=True)
    close(first, wanted(weights, *drawn(2)))


@pytest.mark.usefixtures("collection_waits")
def test_a_replay_allocates_nothing(program):
    recording = program.capture()
    allocator = program.device.allocator
    x, ids = drawn(0)
    recording(x, ids, borrow=True)
    before = allocator.requests, allocator.live
    for _ in range(5):
        recording(x, ids, borrow=True)
    assert (allocator.requests, allocator.live) == before


@pytest.mark.usefixtures("collection_waits")
def test_planned_bytes_are_the_bytes_that_loading_takes(weights):
    plan = nbx.plan(nbx.trace(model, *INPUTS, weights=SPECS))
    program = plan.load(weights)
    taken = sum(storage.nbytes for storage in program.areas.values())
    assert taken == plan.nbytes
    live = program.device.allocator.live
    del program
    assert program_is_gone(live, plan.nbytes)


def program_is_gone(live, nbytes):
    import gc

    gc.collect()
    return nbx.device("cpu").allocator.live <= live - nbytes


def test_bad_calls_are_refused_and_change_nothing(program, weights):
    x, ids = drawn(3)
    want = [t.numpy().copy() for t in program(x, ids)]
    for args, error, words in (
        ((x,), ArgumentError, "one value per input"),
        ((x[:4], ids), ShapeError, "input 0"),
        ((x.astype(np.float64), ids), DtypeError, "float64"),
        ((x, ids.astype(np.int32)), DtypeError, "int32"),
    ):
        with pytest.raises(error, match=words):
            program(*args)
    program.run()
    for a, b in zip(program.results(borrow=False), want, strict=True):
        assert a.numpy().tobytes() == b.tobytes()


def test_bad_weights_are_refused_by_name(weights):
    plan = nbx.plan(nbx.trace(model, *INPUTS, weights=SPECS))
    with pytest.raises(ArgumentError, match="w"):
        plan.load({k: v for k, v in weights.items() if k != "w"})
    with pytest.raises(ShapeError, match="table"):
        plan.load({**weights, "table": weights["table"][:5]})
    with pytest.raises(DtypeError, match="b was traced"):
        plan.load({**weights, "b": weights["b"].astype(np.float64)})
    for value in (None, "words", weights["b"].astype(">f4"), [[1.0], [2.0, 3.0]]):
        with pytest.raises(DtypeError, match=rf"weight b is a tensor or an array .* Got {type(value).__name__}"):
            plan.load({**weights, "b": value})


@pytest.mark.usefixtures("collection_waits")
def test_a_limit_is_held_to(weights):
    graph = nbx.trace(model, *INPUTS, weights=SPECS)
    plan = nbx.plan(graph)
    try:
        set_limit(plan.nbytes - 1)
        with pytest.raises(PlanError, match="limit"):
            nbx.plan(graph)
        with pytest.raises(OutOfMemoryError) as caught:
            plan.load(weights)
        assert caught.value.limit == plan.nbytes - 1
        plain = nbx.plan(graph, optimize=False)  # folds no weights at load
        set_limit(nbx.device("cpu").allocator.live + plain.nbytes)
        assert plain.load(weights).plan.state_nbytes == 0  # what has no bytes takes none
    finally:
        set_limit(None)


def test_a_plan_larger_than_the_device_is_refused():
    graph = nbx.trace(lambda x: nbx.exp(nbx.sum(x)), nbx.Spec((1 << 41,), "float32"))
    total = nbx.device("cpu").backend.memory(0).info().total
    with pytest.raises(PlanError, match=f"a limit of {total}"):
        nbx.plan(graph)
    assert nbx.plan(graph, device=nbx.device("cpu").target).arena_nbytes >= 1 << 43  # for a machine that is not there


@pytest.mark.usefixtures("collection_waits")
def test_folding_weights_at_load_takes_no_memory_beside_the_plan():
    def wide(weights, x):
        return nbx.linear(nbx.linear(x, weights["a"]), weights["b"])

    rng = np.random.default_rng(3)
    weights = {name: rng.standard_normal((256, 256), np.float32) / 16 for name in "ab"}
    x = rng.standard_normal((4, 256), np.float32)
    specs = {name: nbx.Spec(w.shape, "float32") for name, w in weights.items()}
    plan = nbx.plan(nbx.trace(wide, nbx.Spec(x.shape, "float32"), weights=specs))
    assert plan.prologue is not None
    assert len(plan.prologue.outputs) == 2
    allocator = nbx.device("cpu").allocator
    allocator.trim()
    allocator.reset_peak()
    before = allocator.live
    program = plan.load(weights)
    assert allocator.peak - before == plan.nbytes
    wanted = x.astype(np.float64) @ weights["a"].T @ weights["b"].T
    np.testing.assert_allclose(program(x).numpy(), wanted, rtol=0, atol=1e-5)


def test_a_dry_run_lists_the_launches_and_runs_none(program):
    class Observer:
        def __init__(self):
            self.seen, self.shadowed = [], 0

        def active(self):
            return True

        def record(self, tuned, key):
            self.seen.append(key)

        def shadow_run(self, *launch):
            self.shadowed += len(launch)

    observer = Observer()
    set_launch_observer(observer)
    try:
        program.run()
        with pytest.raises(CaptureError, match="dry run"):
            program.capture()
    finally:
        set_launch_observer(None)
    assert observer.shadowed == len(observer.seen)
    assert [key[0] for key in observer.seen[: len(program.launches)]] == [
        b.kernel.compiled.name for b in program.launches
    ]


def test_a_graph_without_launches_is_not_recorded():
    plan = nbx.plan(nbx.trace(lambda x: x.T, INPUTS[0]))
    program = plan.load({})
    x, _ = drawn(0)
    np.testing.assert_array_equal(program(x).numpy(), x.T)
    with pytest.raises(CaptureError, match="at least one launch"):
        program.capture()


def test_a_replay_that_differs_is_never_handed_out(program, monkeypatch):
    class Wrong:
        def __init__(self, launches):
            self.launches = launches

        def run(self):
            pass  # forgets to run: outputs stay what the scrub left

    backend = program.device.backend
    monkeypatch.setattr(type(backend), "record", lambda _self, launches, *_: Wrong(launches))
    with pytest.raises(CaptureError, match="byte for byte"):
        program.capture()


def test_profile_has_a_time_per_launch(program):
    times = program.capture().profile()
    assert len(times) == len(program.launches)
    assert all(t >= 0 for t in times)


def test_errors_have_one_root():
    for error in (ArgumentError, CaptureError, DtypeError, OutOfMemoryError, PlanError, ShapeError):
        assert issubclass(error, NbxError)


def test_a_plan_is_text_and_back(weights):
    def fn(p, x, ids):
        a, b = model(p, x, ids)
        return nbx.exp(nbx.relu(a) * 0.5 + 1.0), b

    plan = nbx.plan(nbx.trace(fn, *INPUTS, weights=SPECS))
    assert "fused_pointwise" in {n.op.name for n in plan.graph.nodes}
    text = nbx.save_plan(plan)
    again = nbx.load_plan(text)
    assert nbx.save_plan(again) == text
    x, ids = drawn(0)
    for a, b in zip(plan.load(weights)(x, ids), again.load(weights)(x, ids), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
    with pytest.raises(FormatError):
        nbx.load_plan(text.replace("softmax", "softmix"))
