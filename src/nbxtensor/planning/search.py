"""Exact search for offsets under a ceiling: finds what best fit misses, or proves that there is nothing to find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy import count_nonzero  # a fraction of what `any` takes, of which a step has several

from nbxtensor.planning.fitting import Block, Offsets, largest

__all__ = ["Rule", "Search"]

Ints = npt.NDArray[Any]
_CHEAP = 1 << 16  # entries of a table that are looked at within what else a step takes
_REMEMBERED = 1 << 18  # failed states kept at once: some tens of MiB


class Rule(NamedTuple):
    """How a search ranks buffers.

    Attributes:
        keys: What is compared, one key after the other, the larger first: length in time W, size Z, area A = W x Z,
            the most bytes T that share a moment of its life.
        fresh: Whether buffers that are on their own after a cut are ranked anew, by what is left to place among them.
        seed: Left at 0, the keys count; else a product of powers of them, drawn at random, and noise.
    """

    keys: str = ""
    fresh: bool = False
    seed: int = 0

    def __str__(self) -> str:
        """Return a short name."""
        return (self.keys or f"chance {self.seed}") + ("'" if self.fresh else "")


class Search:
    """Depth-first search through the canonical placements of a block under a ceiling, in steps.

    If there is any placement, there is one in which no buffer can be put lower. In it each buffer lies at 0 or right
    above another one that it meets (is in use together with), and taken by offset, and by rank where offsets are
    equal, each buffer lies on those taken before. So buffers are placed in that order only, each at its floor: the
    highest end of what is placed and meets it. What cannot lead to such a placement is left out:

    - At or above the lowest end that an unplaced buffer could have, nothing is placed: that buffer would fit below.
    - A buffer whose floor lies below the last placed one has to rest on one that is yet to come; that raises its floor.
    - At each moment, the lowest floor and the sizes of all that is left to place there stay below the ceiling.
    - What no unplaced buffer connects in time is placed apart; when one piece fails, no placement of the others helps.
    - If nothing left meets the buffer placed last, and that fails, no later place of it helps.
    - A state (what is left, and its floors) that has failed fails again under any stronger condition.

    Args:
        block: What is placed.
        ceiling: Most bytes from 0 that it may take.
        rule: Which buffer has which rank.
        fixed: Where buffers lie that are placed already, by place in the block; a buffer may rest on them, too.

    Attributes:
        steps: States looked at so far; one of a very large block counts as several.
    """

    def __init__(self, block: Block, ceiling: int, rule: Rule, fixed: Offsets | None = None) -> None:
        self.steps: int = 0
        fixed = fixed or {}
        held = np.array([*fixed.values(), 0], np.int64)
        self._rule = rule
        self._unit = int(np.gcd.reduce(np.concatenate([block.size, block.alignment, held])))
        self._ceiling = ceiling // self._unit
        self._placed = 4 * self._ceiling  # stands for the floor of what is placed: above every floor and end
        dtype = next(t for t in (np.int16, np.int32, np.int64) if 12 * self._ceiling < np.iinfo(t).max)
        self._offsets = np.zeros(len(block), np.int64)
        for one, offset in fixed.items():
            self._offsets[one] = offset // self._unit
        self._stack: list[_State] = []
        self._failed: dict[bytes, tuple[int, int]] = {}
        self._draw = _Draw(rule.seed, len(block)) if rule.seed else None
        self._obstacles = self._held(block, fixed)
        free = np.array([i for i in range(len(block)) if i not in fixed], np.intp)
        if not len(free) or int(block.take(free).live().max()) > ceiling:
            return
        begin, end = block.slots()
        part = _Part(
            free,
            begin[free],
            end[free],
            (block.upper - block.lower)[free],
            (block.size[free] // self._unit).astype(dtype),
            (block.alignment[free] // self._unit).astype(dtype),
            self._placed,
        )
        self._uniform = bool((part.step == 1).all())
        part = part.take(part.order(rule, self._draw), self._placed)
        floor = self._cleared(part, np.zeros(len(free), dtype))
        pending = None
        for at in sorted(part.pieces(np.arange(len(free))), key=len, reverse=True):
            pending = _Pending(part.take(at, self._placed), floor[at], (0, -1), 0, pending)
        self._enter(pending)

    def _held(self, block: Block, fixed: Offsets) -> list[tuple[int, int, npt.NDArray[np.bool_]]]:
        """Return (first, end, who meets it) of each buffer that is fixed, from the lowest to the highest."""
        found: list[tuple[int, int, npt.NDArray[np.bool_]]] = []
        for one, offset in sorted(fixed.items(), key=lambda item: item[1]):
            first, size = offset // self._unit, int(block.size[one]) // self._unit
            if first < self._ceiling:
                meets = (block.lower < block.upper[one]) & (block.lower[one] < block.upper)
                found.append((first, min(first + size, self._ceiling + 1), meets))
        return found

    def _cleared(self, part: _Part, floor: Ints) -> Ints:
        """Return floors that are aligned and keep clear of what is fixed."""
        if not self._uniform:
            floor = -(-floor // part.step) * part.step
        for first, end, meets in self._obstacles:
            hit = meets[part.index] & (floor < end) & (floor + part.size > first)
            floor[hit] = -(-end // part.step[hit]) * part.step[hit]
        return floor

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Where each buffer lies, once `run` has returned True."""
        return self._offsets * self._unit

    def run(self, steps: int) -> bool | None:
        """Search on for so many steps.

        Returns:
            True where a placement is found, False where there is none, None where neither is known yet.
        """
        stack, stop = self._stack, self.steps + steps
        while stack:
            if self.steps >= stop:
                return None
            state = stack[-1]
            choice = None if state.last else next(state.choices, None)
            if choice is None:
                self._remember(state)
                del stack[state.back :]
            elif self._take(state, choice):
                return True
        return False

    def _remember(self, state: _State) -> None:
        if len(self._failed) >= _REMEMBERED:
            self._failed.clear()
        seen = self._failed.get(state.key)
        if seen is None or state.after < seen:
            self._failed[state.key] = state.after

    def _take(self, state: _State, one: int) -> bool:
        """Place a buffer at its floor and go on with what is left; return whether that was everything."""
        part, offset = state.part, int(state.floor[one])
        begin, end, size = part.spans[one]
        self._offsets[part.index[one]] = offset
        floor, met = state.floor.copy(), part.met(one)
        floor[met] = np.maximum(floor[met], offset + size)
        if self._obstacles or not self._uniform:
            floor = self._cleared(part, floor)
        floor[one] = self._placed
        left = floor < self._placed
        state.last = not count_nonzero(left[met])
        if state.left == 1:
            return self._enter(state.pending)
        load, crossing, cut = state.load.copy(), state.crossing, False
        load[begin:end] -= size
        if end - begin > 1:
            crossing = crossing.copy()
            inner = crossing[begin + 1 : end]
            inner -= 1
            cut = count_nonzero(inner) < len(inner)
        if not cut and 2 * state.left > len(floor):
            after = (offset, one)
            self._open(part, floor, load, crossing, state.left - 1, after, state.pending, len(self._stack))
            return False
        base, pending = len(self._stack), state.pending
        for at in sorted(part.pieces(np.flatnonzero(left)), key=len, reverse=True):
            piece, floors, last = part.take(at, self._placed), floor[at], int(np.searchsorted(at, one)) - 1
            if self._rule.fresh and cut:
                order = piece.order(self._rule, self._draw)
                piece, floors, last = piece.take(order, self._placed), floors[order], -1
            pending = _Pending(piece, floors, (offset, last), base, pending)
        return self._enter(pending)

    def _enter(self, pending: _Pending | None) -> bool:
        """Open the next piece; return whether there is none, and all is placed."""
        if pending is None:
            return True
        part, floor, after, base, rest = pending
        if not self._open(part, floor, part.load, part.crossing, len(floor), after, rest, base):
            del self._stack[base:]
        return False

    def _open(
        self,
        part: _Part,
        floor: Ints,
        load: Ints,
        crossing: Ints,
        left: int,
        after: tuple[int, int],
        pending: _Pending | None,
        back: int,
    ) -> bool:
        """Put a state on the stack; return whether it may lead to a placement."""
        self.steps += part.cost
        least, last = after
        tops = floor + part.size
        lowest = int(tops.min())
        if lowest <= least or lowest > self._ceiling:
            return False
        early = floor < least
        if last >= 0:
            early[: last + 1] |= floor[: last + 1] == least
        raised = floor
        if count_nonzero(early):
            under = part.lowest_met(np.maximum(tops, least + part.size))
            if count_nonzero(early & (under > self._ceiling)):
                return False
            raised = np.where(early, np.maximum(floor, under), floor)
        if count_nonzero((part.lowest(raised) + load > self._ceiling) & (load > 0)):
            return False
        key = blake2b(floor.tobytes(), digest_size=12).digest() + part.name
        seen = self._failed.get(key)
        if seen is not None and seen <= after:
            return False
        choices = np.flatnonzero(~early & (floor < lowest))
        if not choices.size:
            return False
        choices = iter(choices[np.argsort(floor[choices], kind="stable")].tolist())
        self._stack.append(_State(part, floor, load, crossing, left, after, choices, pending, back, key))
        return True


class _Part:
    """Buffers placed together, by rank: who meets whom, and what is in use in each section of time.

    A section lies between two moments at which some buffer begins or ends; in each, some buffer is in use.
    """

    def __init__(self, index: Ints, begin: Ints, end: Ints, length: Ints, size: Ints, step: Ints, placed: int) -> None:
        self.index, self.length, self.size, self.step = index, length, size, step
        moments, places = np.unique(np.concatenate([begin, end]), return_inverse=True)
        self.begin, self.end = np.split(places, 2)
        self._members, self._starts = _members(self.begin, self.end, len(moments) - 1)
        meets = (self.begin[:, None] < self.end) & (self.begin < self.end[:, None])
        np.fill_diagonal(meets, val=False)
        one, self._met = np.divmod(np.flatnonzero(meets), len(index))
        self._of = np.searchsorted(one, np.arange(len(index) + 1))  # where those that each buffer meets begin
        self._alone = np.full(len(index), placed, size.dtype)
        self.load = np.add.reduceat(size[self._members], self._starts, dtype=size.dtype)
        change = np.bincount(self.begin + 1, minlength=len(moments)) - np.bincount(self.end, minlength=len(moments))
        self.crossing = np.cumsum(change)[:-1]  # buffers in use right before a section, and in it
        self.spans = list(zip(self.begin.tolist(), self.end.tolist(), size.tolist(), strict=True))
        self.cost = 1 + len(self._members) // _CHEAP
        self.name = blake2b(index.tobytes(), digest_size=12).digest()

    def lowest_met(self, ends: Ints) -> Ints:
        """Return the lowest end of what each buffer meets."""
        return np.minimum.reduceat(ends[self._met], self._of[:-1]) if self._met.size else self._alone

    def met(self, one: int) -> Ints:
        """Return the buffers that one meets."""
        return self._met[self._of[one] : self._of[one + 1]]

    def lowest(self, floor: Ints) -> Ints:
        """Return the lowest floor of the buffers that are in use in each section."""
        return np.minimum.reduceat(floor[self._members], self._starts)

    def take(self, at: Ints, placed: int) -> _Part:
        """Return the part of the buffers at ``at``, ranked as they stand there."""
        return _Part(
            self.index[at],
            self.begin[at],
            self.end[at],
            self.length[at],
            self.size[at],
            self.step[at],
            placed,
        )

    def order(self, rule: Rule, draw: _Draw | None) -> Ints:
        """Return the buffers in the order of their ranks."""
        length, size = self.length.astype(np.float64), self.size.astype(np.float64)
        total = largest(self.load, self.begin, self.end).astype(np.float64)
        if draw is not None:
            return np.argsort(-draw.score(self.index, length, size, total), kind="stable")
        keys = {"W": length, "Z": size, "A": length * size, "T": total}
        return np.lexsort((self.index, *(-keys[key] for key in reversed(rule.keys))))

    def pieces(self, left: Ints) -> list[Ints]:
        """Return the buffers left, apart where none of them connects them in time; by rank in each piece."""
        by_begin = left[np.argsort(self.begin[left], kind="stable")]
        ends = np.maximum.accumulate(self.end[by_begin])
        cuts = np.flatnonzero(self.begin[by_begin][1:] >= ends[:-1]) + 1
        return [np.sort(piece) for piece in np.split(by_begin, cuts)]


def _members(begin: Ints, end: Ints, sections: int) -> tuple[Ints, Ints]:
    """Return the buffers in use in each section, section by section, and where each section's begin among them."""
    lengths = end - begin
    buffers = np.repeat(np.arange(len(begin)), lengths)
    section = np.arange(len(buffers)) + np.repeat(begin - (np.cumsum(lengths) - lengths), lengths)
    counts = np.bincount(section, minlength=sections)
    return buffers[np.argsort(section, kind="stable")], np.cumsum(counts) - counts


class _Draw:
    """A product of powers of what is known of a buffer, and noise, drawn at random."""

    def __init__(self, seed: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        self._power = rng.uniform(0, 1.2)
        self._weight = rng.choice([0.0, 4.0, 16.0, 1000.0])
        self._noise = rng.normal(0, rng.choice([0.02, 0.1, 0.3]), count)

    def score(self, index: Ints, length: Ints, size: Ints, total: Ints) -> Ints:
        """Return the score of each buffer: the larger goes first."""
        return np.log(length) + self._power * np.log(size) + self._weight * np.log(total) + self._noise[index]


class _Pending(NamedTuple):
    """A piece still to place: its floors, the last (offset, rank) taken, and where to go back to if it fails."""

    part: _Part
    floor: Ints
    after: tuple[int, int]
    back: int
    rest: _Pending | None


@dataclass(slots=True)
class _State:
    """What is placed of a part, and what may be placed next.

    Attributes:
        part: The part.
        floor: Lowest offset of each buffer, given what is placed; for what is placed, a number above all.
        load: Bytes left to place in each section.
        crossing: Buffers left that are in use both right before a section and in it.
        left: Buffers left.
        after: Offset and rank of the last one placed: the next one has more.
        choices: Which may be placed next.
        pending: The pieces to place after this part.
        back: Length of the stack to go back to when nothing of this leads anywhere.
        key: What tells this state from all others.
        last: Whether no later choice can help where the one under way fails.
    """

    part: _Part
    floor: Ints
    load: Ints
    crossing: Ints
    left: int
    after: tuple[int, int]
    choices: Iterator[int]
    pending: _Pending | None
    back: int
    key: bytes
    last: bool = False
