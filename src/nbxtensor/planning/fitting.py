"""Best fit of one order of buffers: how a single pass finds each buffer a gap among those already placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Block", "Fitter", "fitter", "largest"]

Ints = npt.NDArray[np.int64]
Offsets = Mapping[int, int]
_SPARSE = 48  # overlaps per buffer up to which lists of neighbours beat a vectorised scan of everything placed


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """Buffers to place together, sorted by the time they begin.

    Attributes:
        lower: First moment of each.
        upper: Moment after the last of each.
        size: Bytes of each, a multiple of its alignment.
        alignment: Alignment of each, in bytes.
    """

    lower: Ints
    upper: Ints
    size: Ints
    alignment: Ints

    def __len__(self) -> int:
        """Return the number of buffers."""
        return len(self.size)

    def take(self, index: npt.NDArray[Any]) -> Block:
        """Return the buffers at ``index``."""
        return Block(self.lower[index], self.upper[index], self.size[index], self.alignment[index])

    def live(self) -> Ints:
        """Return the bytes in use at each distinct moment at which some buffer begins (or ends), in order."""
        times = np.concatenate([self.lower, self.upper])
        moments, slot = np.unique(times, return_inverse=True)
        change = np.zeros(len(moments), np.int64)
        np.add.at(change, slot, np.concatenate([self.size, -self.size]))
        return np.cumsum(change)

    def slots(self) -> tuple[Ints, Ints]:
        """Return where each buffer begins and ends among the moments of `live`."""
        moments = np.unique(np.concatenate([self.lower, self.upper]))
        return np.searchsorted(moments, self.lower), np.searchsorted(moments, self.upper)


def largest(values: Ints, begin: Ints, end: Ints) -> Ints:
    """Return the largest of ``values[begin:end]`` for each pair, by a table of powers of two."""
    level = np.frexp((end - begin).astype(np.float64))[1] - 1
    table = [values]
    for power in range(int(level.max(initial=0))):
        half = 1 << power
        table.append(np.maximum(table[-1][:-half], table[-1][half:]))
    out = np.zeros(len(begin), np.int64)
    for power, row in enumerate(table):
        at = level == power
        out[at] = np.maximum(row[begin[at]], row[end[at] - (1 << power)])
    return out


class Fitter(Protocol):
    """Places buffers one after the other.

    Attributes:
        work: Buffers one pass looks at, and some for each buffer it places: about 0.3 us each.
    """

    work: int

    def __call__(
        self, order: Iterable[int], ceiling: int, *, tight: bool, fixed: Offsets = MappingProxyType({})
    ) -> tuple[list[int], int] | None:
        """Return the offset of every buffer and the highest end of those it placed.

        Args:
            order: Every buffer that is not fixed, in the order in which they are placed.
            ceiling: Stop, and return None, as soon as a buffer ends above it.
            tight: Whether a buffer goes into the smallest gap that holds it, or else into the lowest one.
            fixed: Where buffers lie that are placed already.
        """
        ...


def fitter(block: Block) -> Fitter:
    """Return the fitter for ``block``: through lists of who overlaps whom, or a scan where nearly all overlap."""
    last = np.searchsorted(block.lower, block.upper, side="left")
    pairs = int(last.sum()) - len(block) * (len(block) + 1) // 2
    return _ByNeighbours(block, last) if pairs <= _SPARSE * len(block) else _ByScan(block)


class _ByNeighbours:
    """Each buffer looks at the placed ones among those that overlap it in time."""

    def __init__(self, block: Block, last: npt.NDArray[Any]) -> None:
        self.work = 2 * int(last.sum()) - len(block) ** 2 + 3 * len(block)
        self._size: list[int] = block.size.tolist()
        self._alignment: list[int] = block.alignment.tolist()
        self._uniform = len(set(self._alignment)) == 1
        self._neighbours: list[list[int]] = [[] for _ in self._size]
        for one, end in enumerate(last.tolist()):
            self._neighbours[one] += range(one + 1, end)
            for other in range(one + 1, end):
                self._neighbours[other].append(one)

    def __call__(
        self, order: Iterable[int], ceiling: int, *, tight: bool, fixed: Offsets = MappingProxyType({})
    ) -> tuple[list[int], int] | None:
        size, neighbours, alignment, uniform = self._size, self._neighbours, self._alignment, self._uniform
        spans: list[tuple[int, int] | None] = [None] * len(size)
        for one, offset in fixed.items():
            spans[one] = (offset, offset + size[one])
        peak = 0
        for one in order:
            wanted = size[one]
            step = 1 if uniform else alignment[one]
            best = smallest = -1
            top = 0
            for start, end in sorted([span for other in neighbours[one] if (span := spans[other])]):
                gap = start - top
                if gap >= wanted and (best < 0 or gap < smallest):
                    best, smallest = top, gap
                    if not tight:
                        break
                if end > top:
                    top = end if step == 1 else -(-end // step) * step
            if best < 0:
                best = top
            end = best + wanted
            if end > peak:
                if end > ceiling:
                    return None
                peak = end
            spans[one] = (best, end)
        return [span[0] if span else 0 for span in spans], peak


class _ByScan:
    """Each buffer looks at everything placed, kept in order of offset."""

    def __init__(self, block: Block) -> None:
        self.work = len(block) * (len(block) // 250 + 50)  # a vector of 250 costs as much as one in a list
        self._block = block

    def __call__(
        self, order: Iterable[int], ceiling: int, *, tight: bool, fixed: Offsets = MappingProxyType({})
    ) -> tuple[list[int], int] | None:
        lower, upper = self._block.lower.tolist(), self._block.upper.tolist()
        size, alignment = self._block.size.tolist(), self._block.alignment.tolist()
        offsets = [0] * len(size)
        placed: Ints = np.zeros((4, len(size)), np.int64)  # start, end, lower, upper of each, by start
        for count, (one, offset) in enumerate(sorted(fixed.items(), key=lambda item: item[1])):
            offsets[one] = offset
            placed[:, count] = offset, offset + size[one], lower[one], upper[one]
        peak = 0
        for count, one in enumerate(order, start=len(fixed)):
            wanted, step = size[one], alignment[one]
            start, end, first, last = placed[:, :count]
            seen = (first < upper[one]) & (last > lower[one])
            tops = np.maximum.accumulate(np.concatenate([[0], end[seen]]))
            if step > 1:
                tops = -(-tops // step) * step
            gaps = start[seen] - tops[:-1]
            fits = np.flatnonzero(gaps >= wanted)
            at = -1 if not fits.size else int(fits[np.argmin(gaps[fits])]) if tight else int(fits[0])
            best = int(tops[at])
            if best + wanted > ceiling:
                return None
            peak = max(peak, best + wanted)
            offsets[one] = best
            where = int(np.searchsorted(start, best))
            placed[:, where + 1 : count + 1] = placed[:, where:count].copy()
            placed[:, where] = best, best + wanted, lower[one], upper[one]
        return offsets, peak
