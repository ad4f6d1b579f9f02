"""Offsets for buffers with known lifetimes: exact reductions, then a portfolio of best fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import numpy.typing as npt

from nbxtensor.errors import PlanError
from nbxtensor.planning.fitting import Block, fitter
from nbxtensor.planning.lifetimes import Lifetime

__all__ = ["Placement", "lower_bound", "place"]

Ints = npt.NDArray[np.int64]
_REPAIRS = 96  # passes of repair, for parts that no plain order solves
_NO_CEILING = int(np.iinfo(np.int64).max)
_WORK = 5_000_000  # overlaps that all repairs of a part may look at: a second or so


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each buffer lies in one block of memory.

    Attributes:
        offsets: Offset of each by id, in bytes.
        peak: Bytes the block needs; every size counts rounded up to its alignment.
        lower_bound: Most bytes in use at one moment, rounded likewise: no placement needs less.
        algorithm: What found the placement of the part that needs most.
    """

    offsets: Mapping[str, int]
    peak: int
    lower_bound: int
    algorithm: str

    @property
    def ratio(self) -> float:
        """Peak over lower bound; 1.0 is perfect."""
        return self.peak / self.lower_bound if self.lower_bound else 1.0


def lower_bound(lifetimes: Iterable[Lifetime]) -> int:
    """Return the most bytes in use at one moment, every size rounded up to its alignment.

    >>> lower_bound([Lifetime("a", 0, 2, 100), Lifetime("b", 1, 3, 60), Lifetime("c", 2, 4, 90)])
    160
    """
    changes: dict[int, int] = {}
    for x in lifetimes:
        changes[x.lower] = changes.get(x.lower, 0) + x.nbytes
        changes[x.upper] = changes.get(x.upper, 0) - x.nbytes
    peak = live = 0
    for moment in sorted(changes):
        live += changes[moment]
        peak = max(peak, live)
    return peak


def place(lifetimes: Iterable[Lifetime]) -> Placement:
    """Return offsets such that no two buffers in use at the same time share a byte.

    Two reductions lose nothing: buffers that live as long as everything around them go to the bottom, and what no
    buffer's life connects is placed apart. What remains is placed by best fit in several orders, the first that
    reaches the lower bound is taken, and else the best. The result does not depend on the order of ``lifetimes``.

    Raises:
        PlanError: Two lifetimes have one id, or all together take more bytes than an address counts.

    >>> found = place([Lifetime("a", 0, 2, 100), Lifetime("b", 1, 3, 60), Lifetime("c", 2, 4, 90)])
    >>> found.peak, found.ratio
    (160, 1.0)
    """
    kept = sorted(lifetimes, key=lambda x: (x.lower, x.upper, x.size, x.alignment, x.id))
    if len({x.id for x in kept}) != len(kept):
        raise PlanError(f"place: an id names one lifetime. Got {len(kept)} lifetimes, not all of distinct ids.")
    if (total := sum(x.nbytes for x in kept)) > _NO_CEILING // 2:
        raise PlanError(
            f"place: offsets are 63 bits wide. Got {total} bytes of buffers. {_NO_CEILING // 2} are accepted."
        )
    bound = lower_bound(kept)
    rows = [(x.lower, x.upper, x.nbytes, x.alignment) for x in kept]
    block = Block(*np.array(rows, np.int64).reshape(-1, 4).T.copy())
    offsets = np.zeros(len(kept), np.int64)
    peak, algorithm = 0, "stacking"
    parts = [(int(block.take(i).live().max()) + base, i, base) for i, base in _parts(block, offsets)]
    for _, index, base in sorted(parts, key=lambda part: -part[0]):
        found, end, name = _solve(block.take(index), max(bound, peak) - base)
        offsets[index] = found + base
        if end + base > peak:
            peak, algorithm = end + base, name
    peak = max(peak, int((offsets + block.size).max(initial=0)))
    return Placement({x.id: int(o) for x, o in zip(kept, offsets, strict=True)}, peak, bound, algorithm)


def _parts(block: Block, offsets: Ints) -> Iterator[tuple[npt.NDArray[np.intp], int]]:
    """Place what can be placed without loss in ``offsets``; yield the parts that remain and where each begins."""
    waiting: list[tuple[npt.NDArray[np.intp], int]] = [(np.flatnonzero(block.size), 0)]
    while waiting:
        index, base = waiting.pop()
        if not len(index):
            continue
        lower, upper = block.lower[index], block.upper[index]
        ends = np.maximum.accumulate(upper)
        cuts = np.flatnonzero(lower[1:] >= ends[:-1]) + 1
        if len(cuts):
            waiting += ((part, base) for part in np.split(index, cuts))
            continue
        whole = (lower == lower[0]) & (upper == ends[-1])
        if not whole.any():
            yield index, base
            continue
        for one in sorted(index[whole].tolist(), key=lambda i: -int(block.alignment[i])):
            offsets[one] = _aligned(base, int(block.alignment[one]))
            base = int(offsets[one] + block.size[one])
        rest = index[~whole]
        waiting.append((rest, _aligned(base, int(np.lcm.reduce(block.alignment[rest], initial=1)))))


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _solve(block: Block, target: int) -> tuple[Ints, int, str]:
    """Return (offsets, peak, algorithm) of the first pass that ends by ``target``, or else of the best one.

    First comes each order of the portfolio. Then they are repaired in turn, again and again: what ended above the
    target goes first in the next pass, so that what is hard to place finds room early.
    """
    fit = fitter(block)
    orders = dict(_orders(block))
    best: list[int] = []
    peak, algorithm = _NO_CEILING, ""
    for name, order in orders.items():
        for tight, kind in ((True, "best fit"), (False, "first fit")):
            found = fit(order, peak - 1, tight=tight)
            if found is not None:
                (best, peak), algorithm = found, f"{kind} by {name}"
            if peak <= target:
                return np.array(best, np.int64), peak, algorithm
    for name in islice(cycle(orders), min(_REPAIRS, _WORK // fit.work)):
        offsets, end = fit(orders[name], _NO_CEILING, tight=True) or (best, peak)
        if end < peak:
            best, peak, algorithm = offsets, end, f"best fit by {name}, repaired"
        if peak <= target:
            break
        late = np.array(offsets, np.int64) + block.size > target
        orders[name] = sorted(orders[name], key=(~late).tolist().__getitem__)
    return np.array(best, np.int64), peak, algorithm


def _orders(block: Block) -> Iterator[tuple[str, list[int]]]:
    """Yield the orders of the portfolio, each by one rule; ties go to the larger, then to the earlier buffer."""
    size, length = block.size, block.upper - block.lower
    begin, end = block.slots()
    breadth = _largest(block.live(), begin, end)
    rules: dict[str, tuple[Ints, ...]] = {
        "size": (-size, -length),
        "breadth": (-breadth, -size, -length),
        "length": (-length, -size),
        "area": (-(size * length), -size),
        "start": (block.lower, -size, -length),
        "end": (-block.upper, -size, -length),
    }
    for name, keys in rules.items():
        yield name, np.lexsort(keys[::-1]).tolist()


def _largest(values: Ints, begin: Ints, end: Ints) -> Ints:
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
