"""Each rule of the exact search, taken away or made wrong: the first changes no answer, the second some."""

import inspect
import sys
import types

import numpy as np
import pytest
from tests.planning.test_search import TIGHT, block_of, check, fits, packed

from nbxtensor.planning import search as searching

SOURCE = inspect.getsource(searching)
TAKEN_AWAY = {
    "nothing above the lowest end": ("(floor < lowest)", "(floor < self._placed)"),
    "raised floors": ("raised = np.where(early, np.maximum(floor, under), floor)", "pass"),
    "who has to rest on what is to come": ("if count_nonzero(early):", "if False:"),
    "pieces": ("if not cut and 2 * state.left > len(floor):", "if True:"),
    "no buffer on top": ("state.last = not count_nonzero(left[met])", "state.last = False"),
    "failed states": ("if seen is not None and seen <= after:", "if False:"),
}
MADE_WRONG = {
    "nothing near the lowest end": ("(floor < lowest)", "(floor + 1 < lowest)"),
    "floors raised too far": ("np.minimum.reduceat(ends", "np.maximum.reduceat(ends"),
    "equal offsets forbidden": ("early = floor < least", "early = floor <= least"),
    "one byte kept free": ("+ load > self._ceiling) &", "+ load >= self._ceiling) &"),
    "no choice but the first": ("state.last = not count_nonzero(left[met])", "state.last = True"),
    "all states of a part are one": ("blake2b(floor.tobytes()", "blake2b(bytes(1)"),
    "ranks off by one": ("int(np.searchsorted(at, one)) - 1", "int(np.searchsorted(at, one))"),
    "pieces that meet": (">= ends[:-1]) + 1", "> ends[:-1] - 2) + 1"),
    "pieces that never end": ("del self._stack[base:]", "pass"),
    "what is fixed is not there": ("for first, end, meets in self._obstacles:", "for first, end, meets in ():"),
    "what is fixed is everywhere": ("hit = meets[part.index] & (floor < end)", "hit = (floor < end)"),
}  # fmt: skip


def drawn(count=1200):
    """Blocks without room, some with a buffer that is fixed, and whether they fit."""
    rng = np.random.default_rng(7)
    made = [(block_of(rows), least - 1, {}) for least, rows in TIGHT]
    while len(made) < count:
        ceiling, moments = int(rng.integers(4, 8)), int(rng.integers(5, 9))
        rows = []
        for now in range(moments):
            room = ceiling - sum(size for _, end, size in rows if end > now)
            while room:
                size = int(rng.integers(1, min(3, room) + 1))
                rows.append((now, min(now + int(rng.integers(1, 5)), moments), size))
                room -= size
        if len(rows) <= 12:
            block = block_of(rows)
            held = {int(rng.integers(len(rows))): int(rng.integers(ceiling))} if rng.random() < 0.4 else {}
            made.append((block, ceiling + int(rng.random() < 0.2), held))
    told = [(*given, fits(*given)) for given in made]
    cut = [packed(9 + seed % 8, seed, height=9) for seed in range(80)]
    some = [block.take(np.flatnonzero(rng.random(len(block)) > seed % 3 / 8)) for seed, block in enumerate(cut)]
    made_to_fit = [(block, 9, {}, True) for block in some]
    full = [(packed(20 + seed % 8, seed, height=20), 20, {}, True) for seed in range(60)]
    return [x for x in told if not x[-1]] + [x for x in told if x[-1]][:80] + made_to_fit + full


@pytest.fixture(scope="module")
def instances():
    found = drawn()
    assert sum(not answer for *_, answer in found) > 40
    return found


def answers(old, new, instances):
    """Whether a search with the text changed says of every block what is true, and places right."""
    assert SOURCE.count(old) == 1, old
    changed = types.ModuleType("nbxtensor.planning.changed")
    sys.modules[changed.__name__] = changed
    try:
        exec(compile(SOURCE.replace(old, new), "changed", "exec"), changed.__dict__)
        for rule in (changed.Rule("TWA"), changed.Rule("ZW", fresh=True)):
            for block, ceiling, held, answer in instances:
                found = changed.Search(block, ceiling, rule, held)
                if found.run(50_000) is not answer:
                    return False
                if answer:
                    check(block, found.offsets, ceiling, held)
    except (AssertionError, IndexError, ValueError):
        return False
    finally:
        del sys.modules[changed.__name__]
    return True


def test_as_it_is(instances):
    assert answers("class Search:", "class Search:", instances)


@pytest.mark.parametrize("rule", TAKEN_AWAY)
def test_a_rule_taken_away_changes_no_answer(rule, instances):
    assert answers(*TAKEN_AWAY[rule], instances)


@pytest.mark.parametrize("rule", MADE_WRONG)
def test_a_wrong_rule_is_seen(rule, instances):
    assert not answers(*MADE_WRONG[rule], instances)
