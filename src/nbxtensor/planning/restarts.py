"""Many exact searches in turn: each order has its luck, and one that has none must not hold up the others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nbxtensor.planning.fitting import Block, Offsets
from nbxtensor.planning.search import Rule, Search

__all__ = ["Budget", "Outcome", "search"]

# Rules, and how much of a turn each is given. Of eleven hard instances the second finds eight and the third the other
# three; two of those much sooner by one of the rest.
_RULES = {Rule("TWA"): 0.3, Rule("TWA", fresh=True): 1.0, Rule("TAW", fresh=True): 1.0, Rule("WAT", fresh=True): 0.3}
_FIRST = 800  # steps of a whole turn in the first round
_GROWTH = 1.5  # of a turn, from round to round
_SHARE = 0.3  # of those steps, for searches by chance
_CHANCE = 1000  # steps of the shortest search by chance


class Budget:
    """Steps that searches may take, and the moment at which they stop.

    Args:
        steps: Steps in all; the result depends on nothing else.
        deadline: Moment on `time.monotonic` at which no further step is taken; None: none.

    Attributes:
        steps: Steps left.
    """

    def __init__(self, steps: int, deadline: float | None = None) -> None:
        self.steps: int = steps
        self._deadline = deadline
        self._whole: Budget | None = None

    def __bool__(self) -> bool:
        """Return whether anything is left."""
        return self.steps > 0 and not self.late

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def part(self, share: float) -> Budget:
        """Return a share of what is left; what is taken of it is taken of the whole."""
        now = time.monotonic()
        deadline = None if self._deadline is None else now + share * (self._deadline - now)
        return self._within(math.ceil(share * self.steps), deadline)

    def at_most(self, steps: int) -> Budget:
        """Return so many steps of it, or what is left; what is taken of them is taken of the whole."""
        return self._within(min(steps, self.steps), self._deadline)

    def _within(self, steps: int, deadline: float | None) -> Budget:
        part = Budget(steps, deadline)
        part._whole = self
        return part

    def run(self, search: Search, steps: int) -> bool | None:
        """Run a search for at most so many steps, as far as the budget goes."""
        stop, found = search.steps + min(steps, self.steps), None
        while found is None and search.steps < stop and self:
            before = search.steps
            found = search.run(min(_CHANCE, stop - before))
            self.take(max(search.steps - before, 1))  # so that whatever runs on it ends
        return found

    def take(self, steps: int) -> None:
        """Subtract steps, here and from the whole."""
        self.steps -= steps
        if self._whole is not None:
            self._whole.take(steps)


class Outcome(NamedTuple):
    """What searches found out.

    Attributes:
        offsets: Where each buffer lies; None where no placement was found.
        proven: Whether there is none, and not only none was found.
        rule: The rule of the search that found it out.
    """

    offsets: npt.NDArray[np.int64] | None
    proven: bool
    rule: str


def search(block: Block, ceiling: int, budget: Budget, fixed: Offsets | None = None) -> Outcome:
    """Search for a placement under a ceiling, by every rule in turn and by chance.

    A rule that suits a block finds a placement within thousands of steps, any other one hardly ever. So all of them
    advance together, each with more steps in each round than before, and none begins anew; half as many steps go to
    short searches by rules that are drawn at random (the same ones each time).

    Args:
        block: What is placed.
        ceiling: Most bytes from 0 that it may take.
        budget: Steps that may be taken; those taken are subtracted.
        fixed: Where buffers lie that are placed already, by place in the block.
    """
    started = [Search(block, ceiling, rule, fixed) for rule in _RULES]
    chances = _chances()
    turn: float = _FIRST
    while budget:
        before = budget.steps
        for one, (rule, part) in zip(started, _RULES.items(), strict=True):
            found = budget.run(one, int(part * turn))
            if found is not None:
                return Outcome(one.offsets if found else None, not found, str(rule))
        share = _SHARE * (before - budget.steps)
        while share > 0 and budget:
            rule, steps = next(chances)
            one, before = Search(block, ceiling, rule, fixed), budget.steps
            found = budget.run(one, steps)
            if found is not None:
                return Outcome(one.offsets if found else None, not found, str(rule))
            share -= before - budget.steps
        turn *= _GROWTH
    return Outcome(None, proven=False, rule="")


def _chances() -> Iterator[tuple[Rule, int]]:
    """Yield rules by chance and how many steps each is given: 1, 1, 2, 1, 1, 2, 4, ... times the shortest."""
    for seed, length in zip(count(1), _luby(), strict=False):
        yield Rule(fresh=seed % 2 == 0, seed=seed), _CHANCE * length


def _luby() -> Iterator[int]:
    """Yield 1, 1, 2, 1, 1, 2, 4, ...: no other sequence is much better where nothing is known of the right length."""
    u = v = 1
    while True:
        yield v
        u, v = (u + 1, 1) if u & -u == v else (u, 2 * v)
