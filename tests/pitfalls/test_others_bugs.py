"""Bugs that other tensor libraries met in public, each asked of this one."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.backend.cpu import pool
from nbxtensor.dtype.convert import convert
from nbxtensor.settings import replace

BINARY = (
    nbx.add, nbx.subtract, nbx.multiply, nbx.divide, nbx.maximum, nbx.minimum, nbx.atan2, nbx.pow, nbx.remainder,
    nbx.floor_divide, nbx.hypot, nbx.copysign, nbx.logaddexp, nbx.less, nbx.equal, nbx.greater_equal,
)  # fmt: skip
NUMPY = {"atan2": np.arctan2, "pow": np.power}


def rng():
    return np.random.default_rng(0)


@pytest.fixture
def threads():
    yield pool.set_threads
    pool.set_threads(None)


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.op.name)
def test_operands_of_equal_size_but_other_shapes_broadcast(op):
    """They were taken for one another's layout, and a plane collapsed to its diagonal."""
    a = rng().uniform(0.5, 2, (1, 1, 9, 1)).astype(np.float32)
    b = rng().uniform(0.5, 2, (1, 1, 1, 9)).astype(np.float32)
    got = op(nbx.asarray(a), nbx.asarray(b))
    want = NUMPY.get(op.op.name, getattr(np, op.op.name, None))(a, b)
    assert got.shape == (1, 1, 9, 9)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_call_gives_the_same_bytes_every_time(workers, threads):
    """A scratch that was written and read without a barrier showed only past one tile."""
    threads(workers)
    x = nbx.asarray(rng().standard_normal((1030, 517)).astype(np.float32))
    q = nbx.asarray(rng().standard_normal((1, 4, 700, 33)).astype(np.float32))
    calls = (
        lambda: nbx.softmax(x, axis=-1),
        lambda: nbx.sum(x),
        lambda: nbx.var(x, axis=0),
        lambda: x @ x.T,
        lambda: nbx.attention(q, q, q, is_causal=True),
        lambda: nbx.argmax(x, axis=0),
    )
    for call in calls:
        first = call().numpy().tobytes()
        assert all(call().numpy().tobytes() == first for _ in range(6))


def test_the_number_of_threads_changes_no_bit(threads):
    x = nbx.asarray(rng().standard_normal((700, 900)).astype(np.float32))
    results = []
    for workers in (1, 2):
        threads(workers)
        results.append([f().numpy().tobytes() for f in (lambda: x @ x.T, lambda: nbx.sum(x), lambda: nbx.exp(x))])
    assert results[0] == results[1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_mask_sentinels_that_a_narrow_float_cannot_hold_make_no_nan(dtype):
    """finfo.min of a wider float became -inf, and a row of them NaN."""
    x = nbx.asarray(rng().standard_normal((2, 5)).astype(np.float32)).to(dtype)
    low = -3.0e38 if dtype != "float16" else -65504.0
    masked = nbx.where(nbx.asarray(np.array([[True] * 5, [True, False, True, False, True]])), x, low)
    assert np.isfinite(np.asarray(nbx.softmax(masked, axis=-1).tolist())).all()
    q = nbx.asarray(rng().standard_normal((1, 1, 3, 8)).astype(np.float32)).to(dtype)
    keep = nbx.asarray(np.array([[True, True, True], [False, False, False], [True, False, True]]))
    out = np.asarray(nbx.attention(q, q, q, keep).tolist())
    assert np.isfinite(out).all()
    assert (out[0, 0, 1] == 0).all(), "a query that sees no key gives zeros"


SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.5, 127.5, 128.0, -128.9, 255.0, 256.0, 65504.0,
     65520.0, 2.0**31, -(2.0**31), 2.0**63, -(2.0**63), 1e38, 3.4e38, 1e-45, 6e-8, 2.0**-133, np.pi]
)  # fmt: skip


@pytest.mark.parametrize(
    "target", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float64"]
)
@pytest.mark.parametrize("source", ["float32", "float64", "float16", "bfloat16"])
def test_kernels_cast_as_the_host_converts(source, target):
    carried = convert(SPECIAL, "float64", source)
    tensor = nbx.from_numpy_array(carried, source)
    got = tensor.astype(target).numpy()
    want = convert(carried, source, target)
    if target.startswith(("float", "bfloat")):
        wide = [convert(v, target, "float64") for v in (got, want)]
        np.testing.assert_array_equal(*wide)
    else:
        np.testing.assert_array_equal(got, want)


def test_indices_outside_never_read_outside():
    values = nbx.asarray(np.arange(12, dtype=np.float32).reshape(4, 3))
    huge = nbx.asarray(np.array([0, -1, 4, -5, 2**62, -(2**63), 2**63 - 1], np.int64))
    got = nbx.take(values, huge, axis=0).numpy()
    np.testing.assert_array_equal(got[:2], values.numpy()[[0, -1]])
    assert np.isnan(got[2:]).all()
    rows = nbx.embedding(values.astype("int32"), huge).numpy()
    assert (rows[2:] == 0).all()


def test_nothing_reads_memory_that_was_never_written():
    before = replace(poison=True)
    try:
        x = nbx.asarray(rng().standard_normal((37, 65)).astype(np.float32))
        for value in (
            nbx.softmax(x, axis=0), nbx.layer_norm(x, (65,)), x @ x.T, nbx.sum(x), nbx.concat([x, x]), x.T.copy(),
            nbx.cos(x), nbx.pad(x, 1), nbx.var(x), nbx.flip(x), nbx.any(x > 9, axis=0),
        ):  # fmt: skip
            assert np.isfinite(value.numpy()).all()
    finally:
        replace(poison=before.poison)


def test_a_borrowed_output_outlives_its_program():
    """An arena was freed under the views of it."""
    program = nbx.plan(nbx.trace(lambda x: nbx.exp(x) @ x, nbx.Spec((64, 64), "float32"))).load({})
    x = rng().standard_normal((64, 64)).astype(np.float32)
    kept = program(x, borrow=True).numpy()
    want = kept.copy()
    del program
    gc.collect()
    others = [nbx.full((64, 64), float(i)) for i in range(20)]
    np.testing.assert_array_equal(kept, want)
    del others


def test_inputs_that_change_every_step_are_all_seen():
    """A replay ran one step late, hidden by whatever synchronised to look."""
    recording = nbx.plan(nbx.trace(lambda x: nbx.cos(x) * 2.0 + x, nbx.Spec((33, 100), "float32"))).load({}).capture()
    steps = [np.full((33, 100), i / 7, np.float32) for i in range(50)]
    outputs = [recording(step) for step in steps]
    for step, output in zip(steps, outputs, strict=True):
        np.testing.assert_allclose(output.numpy(), np.cos(step) * 2 + step, rtol=1e-5)


def test_threads_run_programs_and_eager_ops_at_once():
    spec = nbx.Spec((200, 300), "float32")
    recordings = [
        nbx.plan(nbx.trace(lambda x, c=c: nbx.exp(x) * c + nbx.sum(x, axis=0), spec)).load({}).capture()
        for c in (2.0, 3.0)
    ]
    x = rng().standard_normal((200, 300)).astype(np.float32)
    failures = []

    def work(number):
        try:
            for step in range(30):
                value = x + step / 10
                got = recordings[number](value).numpy()
                np.testing.assert_allclose(got, np.exp(value) * (2 + number) + value.sum(0), rtol=1e-4, atol=1e-3)
                tensor = nbx.asarray(value)
                np.testing.assert_allclose((tensor * 2 + 1).numpy(), value * 2 + 1, rtol=1e-6)
        except AssertionError as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_memory_comes_back_after_many_calls_and_loads():
    allocator = nbx.device("cpu").allocator
    x = nbx.asarray(rng().standard_normal((64, 64)).astype(np.float32))
    weights = {"w": x}
    graph = nbx.trace(lambda p, x: nbx.relu(nbx.linear(x, p["w"])), x.spec, weights={"w": x.spec})
    gc.collect()
    live = allocator.live
    for _ in range(300):
        nbx.softmax(x @ x, axis=-1)
    for _ in range(20):
        nbx.plan(graph).load(weights).capture()(x)
    gc.collect()
    assert allocator.live == live


def test_a_process_forks_and_ends_while_a_team_exists():
    code = """
import os, numpy as np, nbxtensor as nbx
from nbxtensor.backend.cpu import pool
pool.set_threads(2)
x = nbx.asarray(np.ones((1500, 1500), np.float32))
assert float(nbx.sum(x @ x)) > 0
child = os.fork()
if child == 0:
    ok = float(nbx.sum(x @ x)) > 0
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert float(nbx.sum(x @ x)) > 0
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
