"""Exact search: held against trying every offset, with and without room, fixed buffers and alignments."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nbxtensor.planning import search as searching
from nbxtensor.planning.fitting import Block
from nbxtensor.planning.restarts import Budget, _luby, search
from nbxtensor.planning.search import Rule, Search

RULES = (Rule("TWA"), Rule("WAT", fresh=True), Rule("AZ"), Rule(seed=3), Rule(fresh=True, seed=4))
TIGHT = [  # (least bytes, rows): at the most bytes in use at one moment, none of them fits
    (6, [(0, 1, 3), (0, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 1), (2, 5, 1), (3, 7, 2), (5, 7, 3)]),
    (5, [(0, 2, 2), (0, 3, 2), (2, 4, 1), (2, 5, 1), (3, 4, 1), (3, 5, 1), (4, 7, 2), (5, 6, 2), (6, 7, 2)]),
    (7, [(0, 2, 3), (0, 3, 3), (2, 4, 1), (2, 6, 2), (3, 4, 1), (3, 6, 1), (3, 7, 1), (4, 7, 2), (6, 7, 3)]),
]


def block_of(rows):
    rows = sorted((*row, 1)[:4] if len(row) == 3 else row for row in rows)
    return Block(*np.array(rows, np.int64).reshape(-1, 4).T.copy())


def clash(block, one, at, other, there):
    together = block.lower[one] < block.upper[other] and block.lower[other] < block.upper[one]
    return together and at < there + block.size[other] and there < at + block.size[one]


def fits(block, ceiling, fixed):
    """Whether there is a placement, by trying every offset of every buffer in turn."""
    free = [i for i in range(len(block)) if i not in fixed]

    def rest(at, offsets):
        if at == len(free):
            return True
        one = free[at]
        for offset in range(0, ceiling - int(block.size[one]) + 1, int(block.alignment[one])):
            apart = not any(clash(block, one, offset, other, there) for other, there in offsets.items())
            if apart and rest(at + 1, {**offsets, one: offset}):
                return True
        return False

    return rest(0, dict(fixed))


def check(block, offsets, ceiling, fixed):
    for i, offset in enumerate(offsets.tolist()):
        assert offset == fixed[i] if i in fixed else 0 <= offset <= ceiling - block.size[i]
        assert i in fixed or offset % block.alignment[i] == 0
    for i, j in itertools.combinations(range(len(block)), 2):
        assert {i, j} <= fixed.keys() or not clash(block, i, offsets[i], j, offsets[j])


@st.composite
def full(draw, moments=6, most=6):
    """Blocks in which something begins as soon as there is room for it: hard to place at the most in use."""
    ceiling = draw(st.integers(3, most))
    live, rows = [], []
    for now in range(moments):
        live = [row for row in live if row[1] > now]
        room = ceiling - sum(row[2] for row in live)
        while room and len(rows) < 10:
            size = draw(st.integers(1, min(3, room)))
            live.append((now, min(now + draw(st.integers(1, 4)), moments), size))
            rows.append(live[-1])
            room -= size
    return rows, ceiling


@given(full(), st.sampled_from(RULES), st.integers(-1, 2))
@example((TIGHT[0][1], 5), RULES[0], 0)
@example((TIGHT[1][1], 4), RULES[1], 0)
@example((TIGHT[2][1], 6), RULES[3], 0)
@settings(max_examples=200)
def test_the_answer_is_that_of_trying_everything(given_, rule, more):
    rows, ceiling = given_
    block, ceiling = block_of(rows), ceiling + more
    found = Search(block, ceiling, rule)
    answer = found.run(100_000)
    assert answer is fits(block, ceiling, {})
    if answer:
        check(block, found.offsets, ceiling, {})


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(1, 3), st.sampled_from((1, 1, 2, 3))),
        min_size=1, max_size=6,
    ),
    st.dictionaries(st.integers(0, 5), st.integers(0, 5), max_size=2),
    st.sampled_from(RULES),
    st.integers(1, 12),
)  # fmt: skip
@settings(max_examples=200)
def test_alignments_and_what_is_fixed(drawn, held, rule, ceiling):
    block = block_of([(t, t + n, size * a, a) for t, n, size, a in drawn])
    fixed = {i: offset for i, offset in held.items() if i < len(block)}
    if len(fixed) == len(block):
        return
    found = Search(block, ceiling, rule, fixed)
    answer = found.run(100_000)
    assert answer is fits(block, ceiling, fixed)
    if answer:
        check(block, found.offsets, ceiling, fixed)


@pytest.mark.parametrize(("least", "rows"), TIGHT)
@pytest.mark.parametrize("scale", [1, 1000, 1 << 33])
def test_what_does_not_fit_at_the_bound(least, rows, scale):
    block = block_of([(a, b, n * scale) for a, b, n in rows])
    assert int(block.live().max()) == (least - 1) * scale
    for rule in RULES:
        assert Search(block, least * scale - 1, rule).run(10_000) is False
        found = Search(block, least * scale, rule)
        assert found.run(10_000) is True
        check(block, found.offsets, least * scale, {})


def test_a_search_goes_on_where_it_stopped():
    block = packed(60, 5)
    whole, parts = Search(block, 1024, RULES[0]), Search(block, 1024, RULES[0])
    answer = whole.run(3000)
    found = None
    for _ in range(300):
        found = parts.run(10)
        if found is not None:
            break
    assert (found, parts.steps) == (answer, whole.steps)
    assert parts.offsets.tolist() == whole.offsets.tolist()


def packed(count, seed, height=1024, unit=1):
    """A rectangle cut into pieces: everything is in use all the time, and it fits."""
    rng = np.random.default_rng(seed)
    pieces = [(0, 64, 0, height)]
    while len(pieces) < count:
        at = int(np.argmax([(b - a) * (d - c) * rng.random() for a, b, c, d in pieces]))
        a, b, c, d = pieces.pop(at)
        if b - a > 1 and (rng.random() < 0.5 or d - c < 2):
            cut = int(rng.integers(a + 1, b))
            pieces += [(a, cut, c, d), (cut, b, c, d)]
        else:
            cut = int(rng.integers(c + 1, d))
            pieces += [(a, b, c, cut), (a, b, cut, d)]
    return block_of([(a, b, (d - c) * unit) for a, b, c, d in pieces])


@pytest.mark.parametrize("seed", range(6))
def test_cut_rectangles_are_put_together(seed):
    block = packed(40, seed)
    budget = Budget(60_000)
    outcome = search(block, 1024, budget)
    assert outcome.offsets is not None
    assert outcome.rule
    assert not outcome.proven
    check(block, outcome.offsets, 1024, {})
    assert Budget(60_000).steps > budget.steps
    again = search(block, 1024, Budget(60_000))
    assert again.offsets is not None
    assert (again.rule, again.offsets.tolist()) == (outcome.rule, outcome.offsets.tolist())


def test_searches_in_turn_prove_that_nothing_fits():
    for least, rows in TIGHT:
        outcome = search(block_of(rows), least - 1, Budget(10_000))
        assert outcome.proven
        assert outcome.offsets is None


def test_a_budget_ends():
    block = packed(200, 1)
    budget = Budget(5000)
    outcome = search(block, 1024, budget)
    assert (outcome.offsets, outcome.proven) == (None, False)
    assert budget.steps <= 0
    assert not budget
    part = Budget(1000).part(0.5)
    assert part.steps == 500
    whole = Budget(1000)
    search(block, 1024, whole.at_most(300))
    assert 690 <= whole.steps <= 700
    assert search(block, 1024, Budget(1 << 40, deadline=0.0)).offsets is None


def test_memory_of_failed_states_is_bounded(monkeypatch):
    monkeypatch.setattr(searching, "_REMEMBERED", 8)
    for least, rows in TIGHT:
        assert Search(block_of(rows), least - 1, RULES[0]).run(100_000) is False


def test_lengths_by_chance():
    assert list(itertools.islice(_luby(), 15)) == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]
