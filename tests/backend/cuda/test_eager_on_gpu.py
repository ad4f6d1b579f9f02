"""Eager ops on a GPU: their order though launches start early, addresses of any alignment, other contexts."""

import ctypes
import threading

import numpy as np
import pytest

import nbxtensor as nbx

pytestmark = [
    pytest.mark.gpu,
]


@pytest.mark.parametrize("length", [5, 1000, 300_000])
def test_ops_run_in_order_though_each_may_start_before_the_one_before_it_is_done(length):
    """Chains over few tensors whose memory is used again at once, launches of one program among those of many."""
    rng = np.random.default_rng(length)
    here = [rng.integers(-50, 50, length).astype(np.int64) for _ in range(4)]
    there = [nbx.asarray(x).to("cuda") for x in here]
    for _ in range(400):
        target, a, b = (int(n) for n in rng.integers(0, 4, 3))
        kind = rng.integers(0, 3)
        if kind == 0:
            here[target], there[target] = here[a] + here[b], there[a] + there[b]
        elif kind == 1:
            here[target], there[target] = here[a] * 3 - here[b], there[a] * 3 - there[b]
        else:
            here[target] = here[a] - here[b].max()
            there[target] = there[a] - nbx.max(there[b])
        here[target], there[target] = here[target] % 101, there[target] % 101
    for wanted, found in zip(here, there, strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_operands_that_begin_at_any_element(dtype):
    array = np.arange(100).astype(dtype)
    x = nbx.asarray(array).to("cuda")
    for first in range(18):
        for second in (0, 1, 8, 16):
            got = nbx.add(x[first : first + 64], x[second : second + 64])
            np.testing.assert_array_equal(got.numpy(), array[first : first + 64] + array[second : second + 64])


def test_a_thread_without_a_context_or_with_another_launches_all_the_same():
    library = ctypes.CDLL("libcuda.so.1")
    x = nbx.asarray(np.arange(16, dtype=np.float32)).to("cuda")
    spec = nbx.Spec((16,), "float32")
    program = nbx.plan(nbx.trace(lambda a: nbx.add(a, a), spec), device="cuda").load({})
    program(x)
    found = []

    def launches():
        program.run()
        found.append(nbx.add(nbx.add(x, x), x).numpy().tolist())

    def within_another():
        context = ctypes.c_void_p()
        assert library.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
        launches()
        assert library.cuCtxDestroy_v2(context) == 0

    for work in (launches, within_another, launches):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [(3 * np.arange(16.0)).tolist()] * 3
    np.testing.assert_array_equal(program(x).numpy(), 2 * np.arange(16))


def test_grids_longer_than_the_card_allows():
    """65,536 programs or more along the second axis or the third, eagerly, in a program and in a recording."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((35_000, 2, 16, 16)).astype(np.float32) for _ in range(3))
    here = [nbx.asarray(x[-3:]) for x in (q, k, v)]
    there = [nbx.asarray(x).to("cuda") for x in (q, k, v)]
    want = nbx.attention(*here).numpy()
    np.testing.assert_allclose(nbx.attention(*there)[-3:].numpy(), want, atol=2e-6)
    specs = [nbx.Spec(x.shape, "float32") for x in (q, k, v)]
    program = nbx.plan(nbx.trace(lambda q, k, v: nbx.attention(q, k, v) + 0, *specs), device="cuda").load({})
    for run in (program, program.capture()):
        np.testing.assert_allclose(run(*there)[-3:].numpy(), want, atol=2e-6)
    wide = np.arange(2 * 100_000_000, dtype=np.int8).reshape(2, -1)
    moved = nbx.asarray(wide).to("cuda")[::1, 1:].copy()
    np.testing.assert_array_equal(moved[:, -1000:].numpy(), wide[:, -1000:])


def test_threads_launch_one_prepared_op_at_once():
    wrong = []

    def work(number):
        x = nbx.asarray(np.full(5000, number, np.float32)).to("cuda")
        for _ in range(50):
            y = x
            for _ in range(10):
                y = nbx.add(y, x)
            if not (y.numpy() == 11 * number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
