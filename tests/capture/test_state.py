"""Programs with state: what a run leaves, the next one finds, launched or replayed, alone or shared."""

from __future__ import annotations

import gc
import os
import signal
import threading

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.errors import ArgumentError, CaptureError, DtypeError, PlanError, ShapeError

LENGTH, WIDTH = 8, 4
CACHE = nbx.Spec((LENGTH, WIDTH), "float32")
ROW = nbx.Spec((1, WIDTH), "float32")
WEIGHTS = {"w": nbx.Spec((WIDTH, WIDTH), "float32"), "v": nbx.Spec((WIDTH, WIDTH), "float32")}
STATE = {"cache": CACHE, "position": nbx.Spec((), "int32"), "sum": ROW}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


def step(weights, state, x):
    """Write a row at the position, return what all rows give, and advance."""
    both = nbx.concat([weights["w"], weights["v"]], axis=0)  # folded at load
    y = nbx.linear(x, both)[:, :WIDTH]
    before = state["sum"] * 1.0
    cache = nbx.cache_update(state["cache"], y, state["position"], axis=0)
    total = nbx.sum(cache, axis=0, keepdims=True)
    new = {"cache": cache, "position": state["position"] + 1, "sum": state["sum"] + total}
    return (total, before), new


def several(weights, state, x):
    """Write many rows at once."""
    both = nbx.concat([weights["w"], weights["v"]], axis=0)
    y = nbx.linear(x, both)[:, :WIDTH]
    cache = nbx.cache_update(state["cache"], y, state["position"], axis=0)
    return (), {"cache": cache, "position": state["position"] + x.shape[0], "sum": state["sum"]}


class Model:
    """The same in numpy."""

    def __init__(self, weights):
        self.w = weights["w"].astype(np.float64)
        self.cache, self.position, self.sum = np.zeros((LENGTH, WIDTH)), 0, np.zeros((1, WIDTH))

    def __call__(self, x):
        at = min(self.position, LENGTH - 1)
        self.cache[at] = x[0] @ self.w.T
        self.position += 1
        total, before = self.cache.sum(0, keepdims=True), self.sum
        self.sum = before + total
        return total, before


@pytest.fixture(scope="module")
def weights():
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal(spec.shape).astype(np.float32) for name, spec in WEIGHTS.items()}


def made(device, fn, *specs, **kwargs):
    return nbx.plan(nbx.trace(fn, *specs, weights=WEIGHTS, state=STATE), device=device, **kwargs)


def row(number):
    return np.random.default_rng(number).standard_normal((1, WIDTH)).astype(np.float32)


def check(program, model):
    np.testing.assert_allclose(program.state["cache"].numpy(), model.cache, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(program.state["sum"].numpy(), model.sum, rtol=1e-5, atol=1e-6)
    assert program.state["position"].item() == model.position


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("recorded", [True, False])
def test_runs_go_on_from_what_the_run_before_left(device, weights, optimize, recorded):
    """Inputs vary, nothing waits until the end, and outputs are kept over all runs: none may change later."""
    program = made(device, step, ROW, optimize=optimize).load(weights)
    call = program.capture(row(99)) if recorded else program
    model = Model(weights)
    kept = [call(row(n)) for n in range(6)]
    for n, got in enumerate(kept):
        for a, b in zip(got, model(row(n)), strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-6)
    check(program, model)


def test_replays_without_inputs_advance_by_themselves(device, weights):
    """A position that was compiled in would write one row again and again."""
    program = made(device, step, ROW).load(weights)
    recording = program.capture()
    model = Model(weights)
    program.fill((row(0),))
    for times in (1, 1, LENGTH - 2):
        recording.replay(times)
    for _ in range(LENGTH):
        model(row(0))
    check(program, model)
    assert len(np.unique(program.state["cache"].numpy(), axis=0)) == 1
    with pytest.raises(ArgumentError, match="1 or more"):
        recording.replay(0)


def test_replays_are_counted_by_any_whole_number_and_the_state_is_set_by_name(device, weights):
    running = made(device, step, ROW).load(weights)
    recording = running.capture()
    recording.replay(np.int64(3))
    for times in (2.0, "3", None, -1):
        with pytest.raises(ArgumentError, match="a number of replays, 1 or more"):
            recording.replay(times)
    with pytest.raises(AttributeError, match="state"):
        running.state = {}  # no value would get anywhere
    assert running.state["position"].numpy().item() == 3


def test_replays_are_interrupted_between_two(device, weights):
    running = made(device, step, ROW).load(weights)
    recording = running.capture()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            recording.replay(10**12)
    finally:
        signal.signal(signal.SIGINT, before)
    position = running.state["position"].numpy().item()
    recording.replay(2)
    assert running.state["position"].numpy().item() == position + 2


def test_updates_are_made_where_the_state_lies(device, weights):
    plan = made(device, step, ROW)
    names = [node.op.name for node in plan.graph.nodes]
    assert "copy" not in names
    update = next(node for node in plan.graph.nodes if node.op.name == "cache_update")
    assert update.outputs[0] == update.operands["cache"]
    states = {i for i, _ in plan.graph.of_kind("state")}
    assert {ref.buffer for node in plan.graph.nodes for ref in node.outputs} >= states
    assert plan.state_nbytes == 3 * 256
    assert set(plan.state) == set(STATE)
    assert nbx.save_plan(nbx.load_plan(nbx.save_plan(plan), device=device)) == nbx.save_plan(plan)


def test_a_capture_leaves_the_state_as_it_was(device, weights):
    program = made(device, step, ROW).load(weights)
    for n in range(3):
        program(row(n))
    before = {name: tensor.copy().numpy() for name, tensor in program.state.items()}
    assert program.capture(row(7)).verified
    for name, value in before.items():
        np.testing.assert_array_equal(program.state[name].numpy(), value)


def test_a_replay_that_leaves_another_state_is_never_handed_out(device, weights, monkeypatch):
    program = made(device, several, nbx.Spec((2, WIDTH), "float32")).load(weights)
    backend = program.device.backend
    real = type(backend).record

    def without_the_last(self, launches, *rest):
        return real(self, launches[:-1])

    monkeypatch.setattr(type(backend), "record", without_the_last)
    with pytest.raises(CaptureError, match="State"):
        program.capture()
    assert program.state["position"].item() == 0


def test_state_is_read_set_and_reset_between_runs(device, weights):
    program = made(device, step, ROW).load(weights)
    assert dict(program.state) == {**program.state}
    assert list(program.state) == list(STATE)
    assert not any(tensor.numpy().any() for tensor in program.state.values())
    model = Model(weights)
    program.state["position"] = np.int32(2)
    program.state["cache"] = nbx.ones((LENGTH, WIDTH))
    model.position, model.cache = 2, np.ones((LENGTH, WIDTH))
    for n in range(2):
        program(row(n))
        model(row(n))
    check(program, model)
    square = made(device, lambda w, s, x: (x, {**s, "sum": s["sum"]}), ROW).load(weights)
    square.state["cache"] = np.arange(32, dtype=np.float32).reshape(8, 4)
    square.state["cache"] = square.state["cache"].numpy()[::-1]
    np.testing.assert_array_equal(square.state["cache"].numpy(), np.arange(32).reshape(8, 4)[::-1])
    program.state.reset()
    assert not any(tensor.numpy().any() for tensor in program.state.values())
    with pytest.raises(ShapeError, match="state cache"):
        program.state["cache"] = np.zeros((3, 4), np.float32)
    with pytest.raises(DtypeError, match="state position"):
        program.state["position"] = np.float32(0)
    with pytest.raises(ArgumentError, match=r"no state 'cash'.*cache, position, sum"):
        program.state["cash"] = 0
    with pytest.raises(KeyError):
        program.state["cash"]


@pytest.mark.usefixtures("collection_waits")
def test_programs_share_weights_and_state(device, weights):
    decode = made(device, step, ROW).load(weights)
    prefill_plan = made(device, several, nbx.Spec((4, WIDTH), "float32"))
    live = decode.device.allocator.live
    prefill = prefill_plan.load(share=decode)
    own = prefill.device.allocator.live - live
    assert own < prefill_plan.nbytes
    assert prefill.state["cache"].storage.address == decode.state["cache"].storage.address
    rows = np.concatenate([row(n) for n in range(4)])
    model = Model(weights)
    prefill.capture(rows)(rows)
    for n in range(4):
        model.cache[n] = row(n)[0] @ model.w.T
    model.position = 4
    for n in range(4, 7):
        for a, b in zip(decode(row(n)), model(row(n)), strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-6)
    check(prefill, model)
    again = nbx.load_plan(nbx.save_plan(prefill_plan), device=device).load(share=prefill)
    again(rows)
    assert decode.state["position"].item() == 11


@pytest.mark.usefixtures("collection_waits")
def test_what_is_shared_lives_as_long_as_either_program(device, weights):
    allocator = nbx.device(device).allocator
    gc.collect()
    before = allocator.live
    first = made(device, step, ROW).load(weights)
    second = made(device, step, ROW).load(share=first)
    third = made(device, step, ROW).load({}, share=second)
    first(row(0))
    del first, second
    gc.collect()
    model = Model(weights)
    model(row(0))
    third(row(1))
    model(row(1))
    check(third, model)
    view = third.state["cache"]
    del third
    gc.collect()
    np.testing.assert_allclose(view.numpy(), model.cache, rtol=1e-5, atol=1e-6)
    del view
    gc.collect()
    assert allocator.live == before


def test_what_cannot_be_shared_is_named(device, weights):
    first = made(device, step, ROW).load(weights)

    def refused(words, fn=step, weights_=WEIGHTS, state=STATE):
        plan = nbx.plan(nbx.trace(fn, ROW, weights=weights_, state=state), device=device)
        with pytest.raises(PlanError, match=words):
            plan.load(share=first)

    longer = {**STATE, "cache": nbx.Spec((LENGTH + 1, WIDTH), "float32")}
    refused(r"state 'cache' float32\[9, 4\] is float32\[8, 4\] there", state=longer)
    refused("state 'sum' float16.* is float32", state={**STATE, "sum": nbx.Spec((1, WIDTH), "float16")},
            fn=lambda w, s, x: (nbx.linear(x, nbx.concat([w["w"], w["v"]], axis=0)), s))  # fmt: skip
    refused("state 'more' .* is not there", state={**STATE, "more": ROW},
            fn=lambda w, s, x: (step(w, s, x)[0], {**step(w, s, x)[1], "more": s["more"]}))  # fmt: skip
    refused("weight 'w' .* is not there", fn=lambda w, s, x: (nbx.layer_norm(x, 4, w["w"][0]), s))

    def turned(w, s, x):
        return nbx.linear(x, nbx.concat([w["v"], w["w"]], axis=0)), s

    refused("made from .*v.*is made otherwise there", fn=turned)
    squares = {"w": nbx.Spec((4, 4), "float32"), "v": nbx.Spec((4, 4), "float32")}

    def padded(value):
        return nbx.trace(lambda w, x: nbx.pad(w["w"], 1, constant_values=value) @ x,
                         nbx.Spec((6,), "float32"), weights=squares)  # fmt: skip

    ones = nbx.plan(padded(1), device=device).load(weights)
    with pytest.raises(PlanError, match="made from w, is made otherwise"):
        nbx.plan(padded(2), device=device).load(share=ones)
    nbx.plan(padded(1), device=device).load(share=ones)
    with pytest.raises(ArgumentError, match="share is a program"):
        made(device, step, ROW).load(share=first.plan)
    # Values closed over are each program's own.
    other = nbx.plan(
        nbx.trace(lambda w, s, x: (x + nbx.asarray(row(5)), step(w, s, x)[1]), ROW, weights=WEIGHTS, state=STATE),
        device=device,
    ).load(share=first)
    np.testing.assert_allclose(other(row(1)).numpy(), row(1) + row(5))
    assert first.state["position"].item() == 1


def test_what_a_function_with_state_returns_is_checked():
    def refused(error, words, result, state=STATE):
        with pytest.raises(error, match=words):
            nbx.trace(result, ROW, state=state)

    refused(CaptureError, "a mapping from every state", lambda s, x: x)
    refused(CaptureError, "a mapping from every state", lambda s, x: (x, [s["sum"]]))
    refused(CaptureError, "none for cache, position", lambda s, x: (x, {"sum": x}))
    refused(CaptureError, "no state: more", lambda s, x: (x, {**s, "more": x}))
    refused(CaptureError, "is a tensor", lambda s, x: (x, {**s, "sum": 3}))
    refused(ShapeError, "'sum' keeps its shape", lambda s, x: (x, {**s, "sum": x[0]}))
    refused(DtypeError, "'sum' stays float32", lambda s, x: (x, {**s, "sum": x.astype("float16")}))
    refused(ArgumentError, "state are a mapping", lambda s, x: (x, s), state=[ROW])


def test_a_value_that_goes_to_a_state_is_not_fused_away(device):
    def fn(state, x):
        new = state["sum"] + x
        return nbx.relu(new) * 2.0, {"sum": new}

    program = nbx.plan(nbx.trace(fn, ROW, state={"sum": ROW}), device=device).load()
    total = np.zeros((1, WIDTH), np.float32)
    for n in range(3):
        total = total + row(n)
        np.testing.assert_allclose(program(row(n)).numpy(), np.maximum(total, 0) * 2, rtol=1e-6)
        np.testing.assert_allclose(program.state["sum"].numpy(), total, rtol=1e-6)


def test_states_that_swap_and_constants_that_reset(device):
    def fn(state, x):
        return state["a"] - state["b"], {"a": state["b"], "b": state["a"], "c": nbx.ones((1, WIDTH)), "d": x}

    program = nbx.plan(nbx.trace(fn, ROW, state=dict.fromkeys("abcd", ROW)), device=device).load()
    program.state["a"], program.state["b"] = row(1), row(2)
    for call in (program, program.capture(), program):
        program.state["c"] = row(9)
        first, second = program.state["a"].copy().numpy(), program.state["b"].copy().numpy()
        np.testing.assert_allclose(call(row(3)).numpy(), first - second)
        np.testing.assert_array_equal(program.state["a"].numpy(), second)
        np.testing.assert_array_equal(program.state["b"].numpy(), first)
        np.testing.assert_array_equal(program.state["c"].numpy(), np.ones((1, WIDTH)))
        np.testing.assert_array_equal(program.state["d"].numpy(), row(3))


def test_python_numbers_take_the_dtype_of_their_place():
    def step(state, x):
        return x * state["scale"], {"count": state["count"] + 1, "scale": state["scale"]}

    state = {"count": nbx.Spec((), "int32"), "scale": nbx.Spec((), "bfloat16")}
    program = nbx.plan(nbx.trace(step, nbx.Spec((), "float32"), state=state)).load({})
    program.state["count"] = 7
    program.state["scale"] = 3
    assert float(program(2.0)) == 6.0
    assert int(program.state["count"]) == 8
    with pytest.raises(DtypeError, match=r"state count was planned as int32. Got float64"):
        program.state["count"] = 1.5
    with pytest.raises(ArgumentError, match="range of int32"):
        program.state["count"] = 2**40
