"""Placing very many buffers window by window of time, the fullest first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nbxtensor.planning.fitting import Block
from nbxtensor.planning.portfolio import Found, fit
from nbxtensor.planning.restarts import Budget, search

__all__ = ["fit_windows"]

Ints = npt.NDArray[np.int64]
_FEWEST = 24  # windows: fewer do not divide the work
_WIDTH = 64  # buffers that begin in a window, about: best fit looks at few others, and few windows are to be joined
_REPAIRS = 12  # passes of repair of a window
_SEARCHED = 600  # buffers that are searched together, at most
_STEPS = 1500  # of one search
_WIDENED = 4  # times that a window which fails is joined with as many windows again on each side


def fit_windows(block: Block, target: int, budget: Budget) -> Found | None:
    """Return the first placement found that ends by ``target``, or else the best one.

    Time is cut where few buffers are in use on both sides. The fullest window is placed first, by best fit; what is
    also in use in other windows is in their way. Most windows are far from full, so that this does not matter. Where
    one ends above the target, it is placed anew together with more and more of its neighbours, by best fit and by
    searching.

    Args:
        block: What is placed.
        target: Where a placement is good enough to stop, in bytes.
        budget: Steps that searches may take; those taken are subtracted.

    Returns:
        The placement; None where the buffers are in use for so long that windows would hardly differ.
    """
    windows = _windows(block)
    if windows is None:
        return None
    offsets, late = windows.place(np.full(len(block), -1, np.int64), target)
    if late:
        others, more = windows.place(windows.long_ones_first(), target)
        if (others + block.size).max() < (offsets + block.size).max():
            offsets, late = others, more
    reached = target
    for at in late:
        reached = max(reached, windows.mend(at, offsets, reached, budget))
    return Found(offsets, int((offsets + block.size).max()), "best fit by windows")


def _fit(block: Block, members: Ints, offsets: Ints, target: int, budget: Budget | None = None) -> int:
    """Place those of the members that are not placed; return the highest end among them."""
    placed = np.flatnonzero(offsets[members] >= 0)
    if len(placed) == len(members):
        return 0
    fixed = dict(zip(placed.tolist(), offsets[members[placed]].tolist(), strict=True))
    part = block.take(members)
    found = fit(part, target, fixed=fixed, repairs=_REPAIRS)
    offsets[members] = found.offsets
    if found.peak <= target or not budget or len(members) > _SEARCHED:
        return found.peak
    exact = search(part, target, budget.at_most(_STEPS), fixed)
    if exact.offsets is None:
        return found.peak
    offsets[members] = exact.offsets
    return target


class _Windows:
    """Where time is cut, and who is in use in each window.

    Attributes:
        heat: Most bytes in use at one moment of each window.
    """

    def __init__(self, block: Block, cuts: Ints, first: Ints, last: Ints) -> None:
        self._block = block
        moments = np.unique(np.concatenate([block.lower, block.upper]))
        starts = np.concatenate([[0], np.searchsorted(moments, cuts)])
        self.heat = np.maximum.reduceat(block.live(), starts)
        spans = last - first + 1
        ends = np.cumsum(spans)
        owner = np.repeat(np.arange(len(block)), spans)
        window = np.repeat(first - (ends - spans), spans) + np.arange(int(ends[-1]))
        order = np.argsort(window, kind="stable")
        self._owner = owner[order]
        self._begins = np.searchsorted(window[order], np.arange(len(cuts) + 2))
        self._first, self._last = first, last

    def members(self, begin: int, end: int) -> Ints:
        """Return who is in use in the windows begin..end, by the time they begin."""
        end = min(end, len(self.heat))
        found = self._owner[self._begins[begin] : self._begins[end]]
        return found if end == begin + 1 else np.unique(found)

    def place(self, offsets: Ints, target: int) -> tuple[Ints, list[int]]:
        """Place what has no offset yet, the fullest window first.

        Returns:
            The offsets, and the windows that end above the target, the highest first.
        """
        late: list[tuple[int, int]] = []
        for at in np.argsort(-self.heat, kind="stable").tolist():
            peak = _fit(self._block, self._around(at, offsets), offsets, target)
            if peak > target:
                late.append((-peak, at))
        return offsets, [at for _, at in sorted(late)]

    def _around(self, at: int, offsets: Ints) -> Ints:
        """Return who is in use in a window, and whatever is placed and meets those of them that are not."""
        members = self.members(at, at + 1)
        free = members[offsets[members] < 0]
        if not len(free):
            return members
        begin, end = int(self._first[free].min()), int(self._last[free].max()) + 1
        if end - begin == 1:
            return members
        near = self.members(begin, end)
        here = (self._first[near] <= at) & (self._last[near] >= at)
        return near[here | (offsets[near] >= 0)]

    def long_ones_first(self) -> Ints:
        """Return offsets for what is in use in three windows or more, as low as they go; -1 for all others."""
        offsets = np.full(len(self._block), -1, np.int64)
        long = np.flatnonzero(self._last - self._first > 1)
        if len(long):
            offsets[long] = fit(self._block.take(long), 0, repairs=0, work=0).offsets
        return offsets

    def mend(self, at: int, offsets: Ints, target: int, budget: Budget) -> int:
        """Place a window anew with more and more of its neighbours, until it ends by the target; return its end."""
        block, members = self._block, self.members(at, at + 1)
        for reach in (1 << i for i in range(_WIDENED)):
            members = self.members(max(at - reach, 0), at + reach + 1)
            late = members[offsets[members] + block.size[members] > target]
            if not len(late):
                return target
            begin = max(min(at - reach, int(self._first[late].min())), 0)
            end = min(max(at + reach, int(self._last[late].max())) + 1, len(self.heat))
            members = self.members(begin, end)
            best = int((offsets[members] + block.size[members]).max())
            free = members[(self._first[members] >= begin) & (self._last[members] < end)]
            before = offsets[free]
            offsets[free] = -1
            if _fit(block, members, offsets, target, budget) > best:
                offsets[free] = before
            if end - begin == len(self.heat):
                break
        return int((offsets[members] + block.size[members]).max())


def _windows(block: Block) -> _Windows | None:
    """Return windows in which most of what is in use begins there; None where there are none, or one."""
    ends = np.sort(block.upper)
    begin = block.lower
    crossing = np.searchsorted(begin, begin, side="left") - np.searchsorted(ends, begin, side="right")
    width = _WIDTH
    while _FEWEST * width <= len(block):
        cuts = np.unique(begin[[int(i) for i in _least(crossing, width)]])
        first = np.searchsorted(cuts, begin, side="right")
        last = np.searchsorted(cuts, block.upper, side="left")
        if int((last - first).sum()) <= len(block):
            return _Windows(block, cuts, first, last)
        width *= 2
    return None


def _least(values: Ints, width: int) -> Iterator[int]:
    """Yield where the least value of each run of ``width`` lies, but for the first and last half run."""
    half = width // 2
    count = (len(values) - width) // width
    rows = values[half : half + count * width].reshape(count, width)
    yield from (rows.argmin(1) + np.arange(count) * width + half).tolist()
