import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbxtensor as nbx
from nbxtensor.planning.dependencies import Access, launch_accesses, launch_dependencies, order

ranges = st.builds(
    lambda area, start, size, writes: Access(area, start, start + size, writes),
    st.sampled_from(["arena", "state"]),
    st.integers(0, 24),
    st.integers(0, 9),
    st.booleans(),
)
programs = st.lists(st.lists(ranges, max_size=4), max_size=14)


def conflict(first, second):
    return any(
        a.area == b.area and max(a.start, b.start) < min(a.end, b.end) and (a.writes or b.writes)
        for a, b in itertools.product(first, second)
    )


def closure(edges, count):
    """reaches[i, j]: launch i waits for launch j, at last."""
    reaches = np.zeros((count, count), bool)
    for i, before in enumerate(edges):
        for j in before:
            reaches[i] |= reaches[j]
            reaches[i, j] = True
    return reaches


@settings(max_examples=300)
@given(programs)
def test_the_order_is_that_of_all_conflicts_and_no_edge_of_it_can_be_left_out(launches):
    count = len(launches)
    found = order(launches)
    every = [[j for j in range(i) if conflict(launches[j], launches[i])] for i in range(count)]
    wanted = closure(every, count)
    assert (closure(found, count) == wanted).all()
    assert [list(b) for b in found] == [sorted(set(b)) for b in found]
    for i, before in enumerate(found):
        for j in before:  # through no other launch
            assert not any(wanted[i, k] and wanted[k, j] for k in range(j + 1, i))


def plan_of(fn, *shapes, **options):
    return nbx.plan(nbx.trace(fn, *(nbx.Spec(shape, "float32") for shape in shapes)), **options)


def test_branches_of_a_graph_wait_for_what_they_read_alone():
    def fn(x):
        return nbx.softmax(x, axis=-1), nbx.layer_norm(x, (64,)), nbx.rms_norm(x, (64,))

    plan = plan_of(fn, (96, 64))
    assert launch_dependencies(plan) == ((), (), ())


def test_a_chain_waits_link_by_link():
    def fn(x):
        for _ in range(5):
            x = nbx.softmax(x, axis=-1)
        return x

    found = launch_dependencies(plan_of(fn, (8, 16)))
    assert found == ((), (0,), (1,), (2,), (3,))


@pytest.mark.parametrize("seed", range(6))
def test_every_order_that_the_dependencies_allow_gives_the_bytes_of_the_planned_one(seed):
    """The launches of a program, in a random order that keeps its dependencies, on the CPU."""

    def fn(x, w):
        q, k, v = (nbx.layer_norm(nbx.matmul(x, w[i]), (32,)) for i in range(3))
        scores = nbx.softmax(nbx.matmul(q, k.T), axis=-1)
        return nbx.matmul(scores, v) + x, nbx.sum(v, axis=0), nbx.var(q)

    program = plan_of(fn, (24, 32), (3, 32, 32)).load({})
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((24, 32), np.float32), rng.standard_normal((3, 32, 32), np.float32)
    wanted = [t.numpy().tobytes() for t in program(*inputs)]
    program.scrub()
    program.fill(inputs)
    waiting = {i: set(before) for i, before in enumerate(launch_dependencies(program.plan))}
    assert len(waiting) == len(program.launches)
    taken = []
    while waiting:
        ready = [i for i, before in waiting.items() if not before & set(waiting)]
        taken.append(ready[rng.integers(len(ready))])
        del waiting[taken[-1]]
        program.device.backend.launch(program.launches[taken[-1]], 0)
    assert [t.numpy().tobytes() for t in program.results(borrow=False)] == wanted


def test_accesses_name_the_area_and_stay_in_it():
    plan = plan_of(lambda x: nbx.sum(x + 1, axis=0), (64, 48))
    sizes = {"arena": plan.arena_nbytes, "weights": plan.weights_nbytes, "state": plan.state_nbytes}
    for accesses in launch_accesses(plan):
        assert any(a.writes for a in accesses)
        assert all(0 <= a.start <= a.end <= sizes[a.area] for a in accesses)
