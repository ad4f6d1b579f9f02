"""Placements: valid by two independent checks, bounded, the same whatever the order of the lifetimes."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nbxtensor.errors import PlanError
from nbxtensor.planning import fitting
from nbxtensor.planning.fitting import Block, fitter
from nbxtensor.planning.lifetimes import Lifetime
from nbxtensor.planning.placement import lower_bound, place
from nbxtensor.planning.verify import verify_placement


def lifetimes(max_size=40, alignments=(1,)):
    row = st.tuples(
        st.integers(0, 20), st.integers(1, 12), st.integers(0, 100), st.sampled_from(alignments)
    )  # fmt: skip
    return st.lists(row, max_size=max_size).map(
        lambda found: [Lifetime(f"b{i}", t, t + n, size, a) for i, (t, n, size, a) in enumerate(found)]
    )


def valid(kept, offsets, nbytes):
    """The definition, pair by pair."""
    for x in kept:
        if offsets[x.id] < 0 or offsets[x.id] % x.alignment or offsets[x.id] + x.size > nbytes:
            return False
    for x, y in itertools.combinations([x for x in kept if x.size], 2):
        together = x.lower < y.upper and y.lower < x.upper
        if together and offsets[x.id] < offsets[y.id] + y.size and offsets[y.id] < offsets[x.id] + x.size:
            return False
    return True


def bound_by_definition(kept):
    moments = {x.lower for x in kept}
    return max((sum(x.nbytes for x in kept if x.lower <= t < x.upper) for t in moments), default=0)


@given(lifetimes())
def test_placements_are_valid_and_bounded(kept):
    found = place(kept)
    assert valid(kept, found.offsets, found.peak)
    verify_placement(kept, found.offsets, found.peak)
    assert found.lower_bound == lower_bound(kept) == bound_by_definition(kept)
    assert found.lower_bound <= found.peak <= sum(x.nbytes for x in kept)
    assert found.ratio >= 1.0


@given(lifetimes(alignments=(1, 4, 6, 64)))
def test_mixed_alignments(kept):
    found = place(kept)
    assert valid(kept, found.offsets, found.peak)
    assert found.lower_bound == bound_by_definition(kept) <= found.peak


@given(lifetimes(), st.randoms(use_true_random=False))
def test_the_order_of_the_lifetimes_does_not_matter(kept, random):
    shuffled = random.sample(kept, len(kept))
    assert place(shuffled) == place(kept)


def _nested(draw, lower, upper, depth, out):
    """Lifetimes of which two are nested or apart, never staggered."""
    for _ in range(draw(st.integers(0, 3))):
        out.append((lower, upper, draw(st.integers(0, 50))))
    if depth and upper - lower > 1:
        middle = draw(st.integers(lower + 1, upper - 1))
        _nested(draw, lower, middle, depth - 1, out)
        _nested(draw, middle, upper, depth - 1, out)


@given(st.data())
def test_nested_lifetimes_reach_the_bound(data):
    rows = []
    _nested(data.draw, 0, 32, 4, rows)
    kept = [Lifetime(f"b{i}", *row, alignment=8) for i, row in enumerate(rows)]
    found = place(kept)
    verify_placement(kept, found.offsets, found.peak)
    assert found.peak == found.lower_bound
    assert found.algorithm == "stacking"
    mixed = [Lifetime(f"b{i}", *row, data.draw(st.sampled_from((1, 4, 6, 64)))) for i, row in enumerate(rows)]
    found = place(mixed)
    verify_placement(mixed, found.offsets, found.peak)


def test_a_chain_reaches_the_bound():
    kept = [Lifetime(f"b{i}", i, i + 2, 64 * (1 + i * 7 % 11), 64) for i in range(2000)]
    assert place(kept).ratio == 1.0


def test_one_order_is_not_enough_and_repair_helps():
    """Where every plain order leaves a gap: what ended too high is placed first, and the bound is reached."""
    rows = [(0, 2, 3), (1, 4, 4), (3, 6, 3), (5, 7, 4), (0, 1, 4), (2, 3, 3), (4, 5, 4), (6, 7, 3)]
    kept = [Lifetime(f"b{i}", *row) for i, row in enumerate(rows)]
    found = place(kept)
    verify_placement(kept, found.offsets, found.peak)
    assert found.peak == found.lower_bound == 7


@given(lifetimes(), st.randoms(use_true_random=False), st.booleans())
@example([Lifetime("b0", 0, 2, 5), Lifetime("b1", 0, 2, 5)], None, True)
def test_both_fitters_place_alike(kept, random, tight):
    kept = sorted((x for x in kept if x.size), key=lambda x: x.lower)
    rows = np.array([(x.lower, x.upper, x.nbytes, x.alignment) for x in kept], np.int64).reshape(-1, 4)
    block = Block(*rows.T.copy())
    order = list(range(len(kept)))
    if random is not None:
        random.shuffle(order)
    ends = np.searchsorted(block.lower, block.upper, side="left")
    lists, scan = fitting._ByNeighbours(block, ends), fitting._ByScan(block)
    whole = lists(order, 1 << 40, tight=tight)
    assert whole == scan(order, 1 << 40, tight=tight)
    offsets, peak = whole
    assert peak == max((o + x.size for o, x in zip(offsets, kept, strict=True)), default=0)
    assert valid(kept, {x.id: o for x, o in zip(kept, offsets, strict=True)}, peak)
    for one in (lists, scan):
        assert one(order, peak - 1, tight=tight) is None or not kept
        assert one(order, peak, tight=tight) == whole


def test_dense_blocks_are_scanned():
    rng = np.random.default_rng(0)
    lower = np.sort(rng.integers(0, 300, 400))
    size = rng.integers(1, 99, 400)
    kept = [Lifetime(f"b{i}", int(t), int(t) + 150, int(n)) for i, (t, n) in enumerate(zip(lower, size, strict=True))]
    found = place(kept)
    assert valid(kept, found.offsets, found.peak)
    block = Block(lower, lower + 150, size, np.ones(400, np.int64))
    assert isinstance(fitter(block), fitting._ByScan)


def test_nothing_to_place():
    found = place([])
    assert (found.peak, found.lower_bound, found.ratio, found.offsets) == (0, 0, 1.0, {})


def test_ids_are_distinct():
    with pytest.raises(PlanError, match="an id names one lifetime"):
        place([Lifetime("a", 0, 1, 1), Lifetime("a", 0, 1, 1)])


@given(lifetimes(12), st.lists(st.integers(-1, 120), min_size=12, max_size=12))
def test_the_verifier_agrees_with_the_definition(kept, offsets):
    given_offsets = {x.id: o for x, o in zip(kept, offsets, strict=False)}
    if valid(kept, given_offsets, 150):
        verify_placement(kept, given_offsets, 150)
    else:
        with pytest.raises(PlanError):
            verify_placement(kept, given_offsets, 150)


@given(lifetimes(30), st.data())
def test_the_verifier_sees_a_moved_buffer(kept, data):
    found = place(kept)
    if not kept:
        return
    moved = data.draw(st.sampled_from(kept)).id
    offsets = {**found.offsets, moved: data.draw(st.integers(0, found.peak))}
    if not valid(kept, offsets, found.peak):
        with pytest.raises(PlanError, match=r"share no byte|inside the block"):
            verify_placement(kept, offsets, found.peak)


def test_errors_name_the_buffers():
    a, b = Lifetime("left", 0, 3, 10), Lifetime("right", 2, 4, 10, 4)
    with pytest.raises(
        PlanError, match=r"left in use \[0, 3\) at bytes 0\.\.10 .*right in use \[2, 4\) at bytes 8\.\.18"
    ):
        verify_placement([a, b], {"left": 0, "right": 8}, 18)
    with pytest.raises(PlanError, match=r"aligned. Got right in use .* bytes 10\.\.20 \(alignment 4\)"):
        verify_placement([a, b], {"left": 0, "right": 10}, 20)
    with pytest.raises(PlanError, match=r"block of 21 bytes\. Got right"):
        verify_placement([a, b], {"left": 0, "right": 12}, 21)
    with pytest.raises(PlanError, match="limit of 20"):
        verify_placement([a, b], {"left": 0, "right": 12}, 22, limit=20)
    with pytest.raises(PlanError, match="In one of the two only: other, right"):
        verify_placement([a, b], {"left": 0, "other": 12}, 22)
