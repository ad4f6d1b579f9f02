"""Programs under use nobody plans for: threads, borrowed outputs, traces that are over, processes at once."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.errors import ArgumentError, CaptureError, DtypeError, PlanError
from nbxtensor.settings import replace

ROW = nbx.Spec((1000,), "float32")


def test_one_program_serves_threads_in_turn():
    """Two callers filled the same inputs, and read each other's outputs."""
    square = nbx.Spec((64, 64), "float32")
    program = nbx.plan(nbx.trace(lambda x: nbx.exp(x) @ x, square)).load({})
    recording = program.capture()
    wrong = []

    def work(number, call):
        for step in range(60):
            x = np.full((64, 64), number + step / 60, np.float32)
            if not np.allclose(call(x).numpy(), np.exp(x.astype(np.float64)) @ x, rtol=1e-4):
                wrong.append((number, step))

    workers = [threading.Thread(target=work, args=(n, (recording, program)[n % 2])) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("optimize", [True, False])
def test_borrowed_outputs_may_be_the_next_inputs_in_any_order(optimize):
    """An output that is an input's own buffer was overwritten by the first copy, before the second read it."""
    program = nbx.plan(nbx.trace(lambda a, b: (b, a, a + b), ROW, ROW), optimize=optimize).load({})
    a, b = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    for call in (program, program.capture()):
        for swap in (lambda x, y: (x, y), lambda x, y: (y, x), lambda x, y: (x.numpy(), y.numpy())):
            x, y, _ = call(a, b, borrow=True)
            first, second = swap(x, y)
            want = [np.array(t) for t in (first, second)]
            got = call(first, second)
            np.testing.assert_array_equal(got[0].numpy(), want[1])
            np.testing.assert_array_equal(got[1].numpy(), want[0])


def test_a_traced_tensor_is_of_no_use_after_its_trace():
    kept = []
    nbx.trace(lambda x: (kept.append(x), x + 1)[1], ROW)
    for use in (lambda: kept[0] + 1, lambda: nbx.ones(1000) + kept[0]):
        with pytest.raises(CaptureError, match="a trace that is over"):
            use()


def test_a_weight_may_not_have_a_name_of_the_librarys_own():
    with pytest.raises(ArgumentError, match="folded"):
        nbx.trace(lambda w, x: x + w["folded.0"], ROW, weights={"folded.0": ROW})
    with pytest.raises(ArgumentError, match="names"):
        nbx.trace(lambda w, x: x + w[0], ROW, weights={0: ROW})


def test_what_goes_into_a_program_is_named_when_it_is_refused():
    program = nbx.plan(nbx.trace(lambda x: x * 2, nbx.Spec((3,), "bfloat16"))).load({})
    with pytest.raises(DtypeError, match=r"input 0.*from_numpy_array takes bit patterns"):
        program(np.zeros(3, np.uint16))
    with pytest.raises(ArgumentError, match=r"input 0.*NoneType"):
        program(None)
    with pytest.raises(ArgumentError, match="mapping"):
        program.plan.load(None)


def test_a_plan_of_more_bytes_than_addresses_is_refused():
    with pytest.raises(PlanError, match="63 bits"):
        nbx.plan(nbx.trace(lambda x: x + 1, nbx.Spec((2**58,), "float64")))


@pytest.mark.parametrize("seed", range(3))
def test_eager_ops_under_poison_give_what_they_give_without(seed):
    x = nbx.asarray(np.random.default_rng(seed).standard_normal((37, 65)).astype(np.float32))
    row = x[0]
    calls = (
        lambda: nbx.softmax(x, axis=seed % 2), lambda: nbx.layer_norm(x, (65,), row), lambda: x @ x.T,
        lambda: nbx.var(x, axis=0), lambda: nbx.linear(x, x, x[:, 0]), lambda: nbx.argmax(x, axis=1),
        lambda: nbx.attention(*[x[None, None]] * 3, is_causal=True), lambda: nbx.concat([x, x], axis=1),
        lambda: nbx.take(x, nbx.asarray([0, 3]), axis=1), lambda: nbx.logsumexp(x),
        x.T.copy, lambda: nbx.pad(x, 1), lambda: nbx.zeros(9), lambda: nbx.group_norm(x, 5),
    )  # fmt: skip
    plain = [call().numpy().tobytes() for call in calls]
    before = replace(poison=True)
    try:
        assert [call().numpy().tobytes() for call in calls] == plain
    finally:
        replace(poison=before.poison)


def test_memory_and_blocks_stay_level_over_many_calls():
    allocator = nbx.device("cpu").allocator
    x = nbx.ones((32, 32))
    graph = nbx.trace(lambda x: nbx.relu(x @ x), x.spec)

    def spend(calls, loads):
        for _ in range(calls):
            nbx.softmax(x @ x + 1, axis=-1)
        for _ in range(loads):
            nbx.plan(graph).load({}).capture()(x)
        gc.collect()

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    spend(50, 3)
    live, size = allocator.live, resident()
    spend(1000, 50)
    assert allocator.live == live
    assert resident() - size < 24 << 20


CODE = """
import numpy as np, nbxtensor as nbx
x = nbx.asarray(np.arange(600, dtype=np.float32).reshape(20, 30) / 600)
np.testing.assert_allclose(nbx.softmax(x).numpy().sum(-1), np.ones(20), rtol=1e-5)
"""


def test_processes_share_a_cold_cache_and_one_finds_it_damaged_while_it_runs(tmp_path):
    environment = os.environ | {"NBX_CACHE_DIR": str(tmp_path)}

    def start(code):
        return subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True)

    for process in [start(CODE), start(CODE)]:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    damage = (
        "import pathlib\n"
        f"for path in pathlib.Path({str(tmp_path)!r}).rglob('*'):\n"
        "    path.is_file() and path.write_bytes(path.read_bytes()[:-400] + bytes(400))\n"
    )
    for code in (CODE + damage + CODE + "nbx.exp(x).numpy()", CODE):  # what runs goes on; what starts compiles anew
        process = start(code)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
