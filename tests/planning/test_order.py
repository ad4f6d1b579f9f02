"""Orders of tasks against every order there is."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbxtensor.planning.order import Task, dependencies, peak_of, search


def peak_by_definition(tasks, sizes, kept, order):
    """Bytes in use, counted anew at each moment from sets of buffers alone."""
    place = {index: at for at, index in enumerate(order)}
    spans = {}
    for index, task in enumerate(tasks):
        for buffer in task.uses:
            low, high = spans.get(buffer, (len(order), -1))
            spans[buffer] = (min(low, place[index]), max(high, place[index]))
    for buffer in kept:
        spans[buffer] = (spans[buffer][0], len(order) + 1) if buffer in spans else (0, -1)
    most = 0
    for at, index in enumerate(order):
        task = tasks[index]
        total = task.extra + sum(sizes[b] for b, (low, high) in spans.items() if low <= at <= high)
        gone = set()
        for new, old in task.over:
            if spans[old][1] == at > spans[old][0] and spans[new][0] == at < spans[new][1] and not {new, old} & gone:
                gone |= {new, old}
                total -= sizes[new]
        most = max(most, total)
    return most


@st.composite
def problems(draw, most=7):
    """Tasks that each make one buffer from earlier ones, some in place, some that write a buffer again."""
    count = draw(st.integers(1, most))
    sizes, accesses, overs, extras = [], [], [], []
    for index in range(count):
        reads = draw(st.lists(st.sampled_from(range(index)), unique=True, max_size=3)) if index else []
        same = reads and draw(st.booleans())
        sizes.append(sizes[reads[0]] if same else draw(st.sampled_from((1, 2, 3, 8))))
        writes = [index]
        again = index and not draw(st.integers(0, 9))
        if again:
            writes.append(draw(st.sampled_from(range(index))))
        accesses.append((reads, writes))
        over = [(index, r) for r in reads if sizes[r] == sizes[index] and r not in writes] if same else []
        overs.append(tuple(over))
        extras.append(draw(st.sampled_from((0, 0, 0, 4))))
    tasks = [
        Task(tuple(dict.fromkeys((*reads, *writes))), after, over, extra)
        for (reads, writes), after, over, extra in zip(accesses, dependencies(accesses), overs, extras, strict=True)
    ]
    kept = draw(st.sets(st.sampled_from(range(count)), max_size=2))
    return tasks, sizes, kept


def allowed(tasks, order):
    place = {index: at for at, index in enumerate(order)}
    return all(place[before] < place[index] for index in place for before in tasks[index].after)


@given(problems())
@settings(max_examples=120)
def test_no_order_is_better(problem):
    tasks, sizes, kept = problem
    found = search(tasks, sizes, kept)
    every = [order for order in permutations(range(len(tasks))) if allowed(tasks, order)]
    assert allowed(tasks, found.order)
    assert sorted(found.order) == list(range(len(tasks)))
    assert found.peak == peak_by_definition(tasks, sizes, kept, found.order)
    assert found.peak == min(peak_by_definition(tasks, sizes, kept, order) for order in every)
    assert found.complete
    assert found.floor <= found.peak


@given(problems(most=40), st.sampled_from((0, 30, 3000)))
@settings(max_examples=80)
def test_never_worse_and_the_same_every_time(problem, budget):
    tasks, sizes, kept = problem
    found = search(tasks, sizes, kept, budget=budget)
    assert allowed(tasks, found.order)
    assert found.peak == peak_of(tasks, sizes, kept, found.order) == peak_by_definition(tasks, sizes, kept, found.order)
    assert found.floor <= found.peak <= peak_of(tasks, sizes, kept, range(len(tasks)))
    assert search(tasks, sizes, kept).peak >= found.floor
    assert search(tasks, sizes, kept, budget=budget) == found
    if found.peak == peak_of(tasks, sizes, kept, range(len(tasks))):
        assert found.order == tuple(range(len(tasks)))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_a_chain_stays_as_it_is(sizes):
    accesses = [((i - 1,) if i else (), (i,)) for i in range(len(sizes))]
    after = dependencies(accesses)
    tasks = [Task((*r, *w), a) for (r, w), a in zip(accesses, after, strict=True)]
    found = search(tasks, sizes)
    assert found.order == tuple(range(len(sizes)))
    assert found.complete


def test_what_writes_and_reads_what():
    accesses = [((), (0,)), ((0,), (1,)), ((), (0,)), ((0, 1), (2,)), ((1,), (1,))]
    assert dependencies(accesses) == [(), (0,), (0, 1), (1, 2), (1, 3)]


def test_nothing():
    assert search([], []).order == ()


@pytest.mark.parametrize("layers", [1, 30])
def test_long_graphs_are_improved_part_by_part(layers):
    """Each layer makes two large values before it uses the first: one after the other needs half."""
    accesses, sizes = [((), (0,))], [1]
    for _ in range(layers):
        last = len(sizes) - 1
        a, b, x, y, out = range(last + 1, last + 6)
        accesses += [((last,), (a,)), ((last,), (b,)), ((a,), (x,)), ((b,), (y,)), ((x, y), (out,))]
        sizes += [100, 100, 1, 1, 1]
    tasks = [Task((*r, *w), a) for (r, w), a in zip(accesses, dependencies(accesses), strict=True)]
    assert peak_of(tasks, sizes, (), range(len(tasks))) > 200
    assert search(tasks, sizes).peak <= 103
