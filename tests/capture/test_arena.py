"""Programs over one arena: in turns, each as if it were alone."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.errors import ArgumentError, PlanError

WEIGHTS = {"w": nbx.Spec((16, 16), "float32")}
W = {"w": np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)}


def layers(count):
    def made(weights, x):
        for _ in range(count):
            x = nbx.softmax(nbx.linear(x, weights["w"]), axis=-1)
        return x

    return made


def planned(rows, count=3):
    spec = nbx.Spec((rows, 16), "float32")
    return nbx.plan(nbx.trace(layers(count), spec, weights=WEIGHTS, name=f"rows{rows}"))


def value(rows, seed=1):
    return np.random.default_rng(seed).standard_normal((rows, 16)).astype(np.float32)


@pytest.mark.usefixtures("collection_waits")
def test_one_arena_many_programs():
    large, small = planned(32), planned(4)
    alone = {rows: plan.load(W)(value(rows)).numpy() for rows, plan in ((32, large), (4, small))}
    device = nbx.device("cpu")
    first = large.load(W)
    device.allocator.trim()
    live = device.allocator.live
    second = small.load(W, arena=first)
    assert device.allocator.live - live == -(-small.weights_nbytes // 64) * 64
    third = small.load(share=second, arena=first)
    assert second.areas["arena"] is first.areas["arena"] is third.areas["arena"]
    recordings = [(32, first.capture(value(32))), (4, second.capture(value(4))), (4, third)]
    for _ in range(3):
        for rows, each in recordings:
            np.testing.assert_array_equal(each(value(rows)).numpy(), alone[rows])


def test_a_borrowed_output_of_one_may_be_the_input_of_another():
    spec = nbx.Spec((8, 8), "float32")
    twice = nbx.plan(nbx.trace(lambda x: nbx.matmul(nbx.relu(x), x), spec, name="twice")).load()
    apart = nbx.plan(nbx.trace(lambda x, y: (x - y, nbx.matmul(x, y)), spec, spec, name="apart"))
    shared = nbx.plan(nbx.trace(lambda x, y: (x - y, nbx.matmul(x, y)), spec, spec, name="apart"))
    owner = apart.load()
    user = nbx.plan(nbx.trace(lambda x: nbx.matmul(nbx.relu(x), x), spec, name="twice")).load(arena=owner)
    x = np.random.default_rng(2).standard_normal((8, 8)).astype(np.float32)
    want = shared.load()(twice(x), twice(x))
    out = user(x, borrow=True)
    for got, wanted in zip(owner(out, out), want, strict=True):
        np.testing.assert_array_equal(got.numpy(), wanted.numpy())


def test_threads_take_turns():
    first = planned(32).load(W)
    second = planned(4).load(W, arena=first)
    want = {rows: program(value(rows)).numpy() for rows, program in ((32, first), (4, second))}
    wrong = []

    def work(program, rows):
        wrong.extend(1 for _ in range(50) if not np.array_equal(program(value(rows)).numpy(), want[rows]))

    threads = [threading.Thread(target=work, args=pair) for pair in ((first, 32), (second, 4), (second, 4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_refused():
    large, small = planned(32), planned(4)
    little, other = small.load(W), small.load(W)
    short = large.arena_nbytes - small.arena_nbytes
    with pytest.raises(PlanError, match=f"{short} too few. Load this plan first"):
        large.load(W, arena=little)
    with pytest.raises(PlanError, match="take turns"):
        small.load(share=little, arena=other)
    with pytest.raises(ArgumentError, match=r"arena is a program\. Got int"):
        small.load(W, arena=3)
