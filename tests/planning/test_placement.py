"""Placements: valid by two independent checks, bounded, the same whatever the order of the lifetimes."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.planning.test_search import TIGHT, packed

from nbxtensor.errors import PlanError
from nbxtensor.planning import fitting, placement
from nbxtensor.planning.fitting import Block, fitter
from nbxtensor.planning.lifetimes import Lifetime
from nbxtensor.planning.placement import lower_bound, place
from nbxtensor.planning.restarts import Budget
from nbxtensor.planning.verify import verify_placement
from nbxtensor.planning.windows import fit_windows


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


@settings(max_examples=25)
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


@given(lifetimes(12), st.data())
def test_few_buffers_are_placed_best_and_a_larger_bound_never_needs_less(kept, data):
    found = place(kept)
    assert found.gap == 0
    larger = [
        Lifetime(x.id, x.lower, x.upper + data.draw(st.integers(0, 2)), x.size + data.draw(st.integers(0, 30)))
        for x in kept
    ]
    bound = place(larger)
    assert bound.peak >= found.peak
    verify_placement(kept, bound.offsets, bound.peak)


@settings(max_examples=25)
@given(lifetimes(alignments=(1, 4, 64)))
def test_a_placement_placed_again_stays(kept):
    found = place(kept)
    again = place(sorted(kept, key=lambda x: found.offsets[x.id]))
    assert again == found


@pytest.mark.parametrize(("least", "rows"), TIGHT)
def test_what_no_placement_reaches_is_proven(least, rows):
    kept = [Lifetime(f"b{i}", *row) for i, row in enumerate(rows)]
    found = place(kept)
    assert (found.peak, found.lower_bound, found.proven, found.gap) == (least, least - 1, least, 0)
    below = [*kept, Lifetime("whole", 0, 9, 4)]
    assert (place(below).peak, place(below).proven) == (least + 4, least + 4)
    open_ = place(kept, steps=0)
    assert (open_.proven, open_.gap) == (least - 1, open_.peak - least + 1)
    mixed = place([*kept, Lifetime("pair", 0, 9, 4, 2)])
    assert mixed.proven == mixed.lower_bound


def hard(count=150, seed=1):
    """Pieces of a rectangle: the bound can be reached, and best fit does not."""
    block = packed(count, seed)
    return [
        Lifetime(f"b{i}", int(a), int(b), int(n))
        for i, (a, b, n) in enumerate(zip(block.lower, block.upper, block.size, strict=True))
    ]


def test_more_steps_place_better_and_a_goal_ends_sooner():
    kept = hard()
    few, some, many = place(kept, steps=0), place(kept, steps=5000), place(kept, steps=20_000)
    for found in (few, some, many):
        verify_placement(kept, found.offsets, found.peak)
    assert few.peak > some.peak
    assert few.peak > many.peak
    assert some.algorithm.startswith("search by")
    assert place(kept, steps=5000) == some
    enough = place(kept, goal=few.peak, steps=5000)
    assert (enough.peak <= few.peak, enough.algorithm.startswith("search")) == (True, False)
    assert place(kept, steps=1 << 40, seconds=0.0).peak == few.peak


@pytest.mark.parametrize("skips", [0.0, 0.3])
def test_many_buffers_are_placed_by_windows(skips):
    rng = np.random.default_rng(5)
    rows = []
    for now in range(0, 3600, 10):
        width = int(rng.integers(1, 9)) * 64
        rows.append((now, now + 11, width))
        rows += [(now + i + 1, now + i + 3 + (i % 3 == 0), width * k + 64) for i, k in enumerate((1, 3, 1, 2, 1, 4, 4))]
        if rng.random() < skips:
            rows.append((now, now + int(rng.integers(20, 400)), width))
    kept = [Lifetime(f"b{i}", *row, 64) for i, row in enumerate(rows)]
    found = place(kept)
    verify_placement(kept, found.offsets, found.peak)
    assert found.ratio <= (1.1 if skips else 1.0)
    assert place(rng.permutation(np.array(kept, object)).tolist()) == found
    block = placement._block(kept)
    order = placement._in_order(block, kept)
    target = int(block.live().max())
    windows = fit_windows(block.take(order), target, Budget(4000))
    assert windows is not None
    assert valid_arrays(block.take(order), windows.offsets)
    assert windows.peak == int((windows.offsets + block.take(order).size).max())
    assert windows.algorithm == "best fit by windows"


def valid_arrays(block, offsets):
    for i in range(len(block)):
        end = int(np.searchsorted(block.lower, block.upper[i]))
        others = np.arange(i + 1, end)
        apart = (offsets[others] >= offsets[i] + block.size[i]) | (offsets[others] + block.size[others] <= offsets[i])
        if not apart.all():
            return False
    return bool((offsets % block.alignment == 0).all() and (offsets >= 0).all())


def test_buffers_in_use_for_long_make_no_windows():
    block = Block(*np.array([(i, i + 5000, 8, 1) for i in range(5000)], np.int64).T.copy())
    assert fit_windows(block, 0, Budget(100)) is None


def test_numbers_that_no_address_holds():
    with pytest.raises(PlanError, match="63 bits"):
        place([Lifetime("a", 0, 1 << 70, 1)])
    with pytest.raises(PlanError, match="63 bits"):
        place([Lifetime("a", 0, 1, 1 << 62)])


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
