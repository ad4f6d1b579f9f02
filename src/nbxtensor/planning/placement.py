"""Offsets for buffers with known lifetimes: exact reductions, best fits in several orders, then exact search."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nbxtensor.errors import PlanError
from nbxtensor.planning.fitting import Block
from nbxtensor.planning.lifetimes import Lifetime
from nbxtensor.planning.portfolio import NO_CEILING, Found, fit
from nbxtensor.planning.restarts import Budget, search
from nbxtensor.planning.windows import fit_windows

__all__ = ["STEPS", "Placement", "lower_bound", "place"]

Ints = npt.NDArray[np.int64]
STEPS = 4000
"""Steps of exact search that `place` takes at most if nothing else is said, and one more for every ten buffers."""
_REPAIRS = 96  # passes of repair, for parts that no plain order solves
_WORK = 16_000_000  # buffers that all passes over a part may look at: some seconds
_AFTER_WINDOWS = 1_500_000  # the same, where windows have been placed already
_SOME, _MANY, _VERY_MANY = 2000, 10_000, 150_000  # buffers: windows after other orders, before them, instead of them
_AT_TARGET, _AT_OTHERS = 0.75, 0.25  # of the steps left, for a search at the target, and at each ceiling above it
_AT_GOAL = 0.95  # at a target that was asked for: what lies above it is of little use
_SEARCHED = 1500  # buffers that are searched together, at most: a search has tables of who meets whom


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each buffer lies in one block of memory.

    Attributes:
        offsets: Offset of each by id, in bytes.
        peak: Bytes the block needs; every size counts rounded up to its alignment.
        lower_bound: Most bytes in use at one moment, rounded likewise: no placement needs less.
        algorithm: What found the placement of the part that needs most.
        proven: Bytes that no placement needs less than: the lower bound, or more where searching has ruled that out.
    """

    offsets: Mapping[str, int]
    peak: int
    lower_bound: int
    algorithm: str
    proven: int = 0

    @property
    def ratio(self) -> float:
        """Peak over lower bound; 1.0 is perfect."""
        return self.peak / self.lower_bound if self.lower_bound else 1.0

    @property
    def gap(self) -> int:
        """Bytes by which the peak may be above that of the best placement; 0: there is no better one."""
        return self.peak - max(self.proven, self.lower_bound)


def lower_bound(lifetimes: Iterable[Lifetime]) -> int:
    """Return the most bytes in use at one moment, every size rounded up to its alignment.

    >>> lower_bound([Lifetime("a", 0, 2, 100), Lifetime("b", 1, 3, 60), Lifetime("c", 2, 4, 90)])
    160
    """
    kept = list(lifetimes)
    return int(_block(kept).live().max()) if kept else 0


def place(
    lifetimes: Iterable[Lifetime], *, goal: int = 0, steps: int | None = None, seconds: float | None = None
) -> Placement:
    """Return offsets such that no two buffers in use at the same time share a byte.

    Two reductions lose nothing: buffers that live as long as everything around them go to the bottom, and what no
    buffer's life connects is placed apart. What remains is placed by best fit in several orders, the first that
    reaches the lower bound is taken. Where none does, an exact search looks for a placement at the lower bound, and
    then, by halving the gap, for the lowest one it finds within its steps. The result depends on neither the order
    of ``lifetimes`` nor, unless ``seconds`` end first, the machine.

    Args:
        lifetimes: What is in use, and when.
        goal: Bytes that are good enough: nothing better is looked for once a placement needs no more.
        steps: Most steps of exact search, tens of microseconds each; None: `STEPS`, and some for many buffers.
        seconds: Most seconds for searching, counted from the call; None: the steps alone count.

    Raises:
        PlanError: Two lifetimes have one id, or all together take more bytes than an address counts.

    >>> found = place([Lifetime("a", 0, 2, 100), Lifetime("b", 1, 3, 60), Lifetime("c", 2, 4, 90)])
    >>> found.peak, found.ratio
    (160, 1.0)
    """
    given = list(lifetimes)
    deadline = None if seconds is None else time.monotonic() + seconds
    budget = Budget(STEPS + len(given) // 10 if steps is None else steps, deadline)
    if len({x.id for x in given}) != len(given):
        raise PlanError(f"place: an id names one lifetime. Got {len(given)} lifetimes, not all of distinct ids.")
    if (total := sum(x.nbytes for x in given)) > NO_CEILING // 2:
        raise PlanError(
            f"place: offsets are 63 bits wide. Got {total} bytes of buffers. {NO_CEILING // 2} are accepted."
        )
    if not given:
        return Placement({}, 0, 0, "stacking")
    block = _block(given)
    order = _in_order(block, given)
    ids = [given[i].id for i in order.tolist()]
    block = block.take(order)
    bound = proven = int(block.live().max())
    uniform = bool((block.alignment == block.alignment[0]).all())
    offsets = np.zeros(len(block), np.int64)
    peak, algorithm = 0, "stacking"
    reduced = [(index, base, int(block.take(index).live().max())) for index, base in _parts(block, offsets)]
    for index, base, load in sorted(reduced, key=lambda part: -part[2] - part[1]):
        part = block.take(index)
        target = max(bound, peak, goal) - base
        share = _AT_GOAL if goal >= bound else _AT_TARGET
        found, at_least = _search(part, _fit(part, target, budget), target, load, budget, share)
        offsets[index] = found.offsets + base
        if uniform:  # else what lies below may be padded, and lie better above
            proven = max(proven, at_least + base)
        if found.peak + base > peak:
            peak, algorithm = found.peak + base, found.algorithm
    peak = max(peak, int((offsets + block.size).max()))
    return Placement(dict(zip(ids, offsets.tolist(), strict=True)), peak, bound, algorithm, proven)


def _block(lifetimes: Sequence[Lifetime]) -> Block:
    """Return the lifetimes as arrays, in the order given."""
    rows = [(x.lower, x.upper, x.size, x.alignment) for x in lifetimes]
    try:
        lower, upper, size, alignment = np.array(rows, np.int64).reshape(-1, 4).T.copy()
    except OverflowError:
        widest = max(lifetimes, key=lambda x: max(abs(x.lower), abs(x.upper), x.size, x.alignment))
        raise PlanError(f"place: moments, sizes and alignments are 63 bits wide. Got {widest}.") from None
    return Block(lower, upper, -(-size // alignment) * alignment, alignment)


def _in_order(block: Block, lifetimes: Sequence[Lifetime]) -> npt.NDArray[np.intp]:
    """Return an order of the buffers that does not depend on the one they were given in."""
    keys = (block.alignment, block.size, block.upper, block.lower)
    order = np.lexsort(keys)
    rows = np.stack(keys)[:, order]
    same = (rows[:, 1:] == rows[:, :-1]).all(0)
    for begin, end in _runs(same):
        order[begin:end] = sorted(order[begin:end].tolist(), key=lambda i: lifetimes[i].id)
    return order


def _runs(same: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield where runs of equal neighbours begin and end; ``same`` says which are equal to the next one."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    for begin, end in edges.reshape(-1, 2).tolist():
        yield begin, end + 1


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


def _fit(block: Block, target: int, budget: Budget) -> Found:
    """Return a placement by best fit: in every order, and window by window where there are many buffers."""
    if len(block) < _MANY:
        found = fit(block, target, repairs=_REPAIRS, work=_WORK)
        other = fit_windows(block, target, budget) if found.peak > target and len(block) >= _SOME else None
    else:
        found, other = fit_windows(block, target, budget), None
        if found is None or (found.peak > target and len(block) < _VERY_MANY):
            other = fit(block, target, repairs=_REPAIRS, work=_WORK if found is None else _AFTER_WINDOWS)
    return min((x for x in (found, other) if x is not None), key=lambda x: x.peak)


def _search(block: Block, found: Found, target: int, load: int, budget: Budget, share: float) -> tuple[Found, int]:
    """Search for a placement that ends by the target, on a share of the budget, or else below the one found.

    Returns:
        The best placement, and the bytes that none needs less than.
    """
    least = load
    if found.peak <= target or len(block) > _SEARCHED:
        return found, least
    unit = int(np.gcd.reduce(np.concatenate([block.size, block.alignment])))
    failing, ceiling = target - unit, target
    while failing < ceiling < found.peak and budget:
        outcome = search(block, ceiling, budget.part(share))
        if outcome.offsets is not None:
            peak = int((outcome.offsets + block.size).max())
            found = Found(outcome.offsets, peak, f"search by {outcome.rule}")
        else:
            failing = ceiling
            least = max(least, (ceiling // unit + 1) * unit if outcome.proven else 0)
        ceiling, share = max(target, (failing + found.peak) // 2 // unit * unit), _AT_OTHERS
    return found, least
