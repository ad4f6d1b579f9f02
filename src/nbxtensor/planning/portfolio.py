"""Best fit in several orders, and repairs of what ends too high: what solves most blocks, and fast."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nbxtensor.planning.fitting import Block, Offsets, fitter, largest

__all__ = ["NO_CEILING", "Found", "fit"]

Ints = npt.NDArray[np.int64]
_REPAIRED = 3_000_000  # buffers that all repairs together may look at: a second or so
NO_CEILING = int(np.iinfo(np.int64).max)


class Found(NamedTuple):
    """A placement of a block.

    Attributes:
        offsets: Where each buffer lies.
        peak: The highest end, of those that were not fixed.
        algorithm: What found it.
    """

    offsets: Ints
    peak: int
    algorithm: str


def fit(block: Block, target: int, *, fixed: Offsets | None = None, repairs: int, work: int = NO_CEILING) -> Found:
    """Return the first placement that ends by ``target``, or else the best one.

    First comes each order of the portfolio. Then they are repaired in turn, again and again: what ended above the
    target goes first in the next pass, so that what is hard to place finds room early.

    Args:
        block: What is placed.
        target: Where a placement is good enough to stop, in bytes.
        fixed: Where buffers lie that are placed already, by place in the block.
        repairs: Most passes of repair.
        work: Buffers that all passes may look at, one pass at least.
    """
    one_pass = fitter(block)
    fixed = fixed or {}
    orders: dict[str, list[int]] = {}
    best: list[int] = []
    peak, algorithm = NO_CEILING, ""
    for tight, kind in ((True, "best fit"), (False, "first fit")):
        for name, order in orders.items() if orders else _orders(block):
            orders[name] = [i for i in order if i not in fixed] if fixed else order
            found = one_pass(orders[name], peak - 1, tight=tight, fixed=fixed)
            work -= one_pass.work
            if found is not None:
                (best, peak), algorithm = found, f"{kind} by {name}"
            if peak <= target or work < 0:
                return Found(np.array(best, np.int64), peak, algorithm)
    for name in islice(cycle(orders), min(repairs, min(work, _REPAIRED) // one_pass.work)):
        offsets, end = one_pass(orders[name], NO_CEILING, tight=True, fixed=fixed) or (best, peak)
        if end < peak:
            best, peak, algorithm = offsets, end, f"best fit by {name}, repaired"
        if peak <= target:
            break
        late = np.array(offsets, np.int64) + block.size > target
        orders[name] = sorted(orders[name], key=(~late).tolist().__getitem__)
    return Found(np.array(best, np.int64), peak, algorithm)


def _orders(block: Block) -> Iterator[tuple[str, list[int]]]:
    """Yield the orders of the portfolio, each by one rule; ties go to the larger, then to the earlier buffer."""
    size, length = block.size, block.upper - block.lower
    yield "size", np.lexsort((-length, -size)).tolist()
    breadth = largest(block.live(), *block.slots())  # most bytes in use at one moment of its life
    yield "breadth and length", np.lexsort((-size, -length, -breadth)).tolist()
    yield "breadth and end", np.lexsort((-block.lower, block.upper, -breadth)).tolist()
    yield "breadth", np.lexsort((-length, -size, -breadth)).tolist()
    yield "length", np.lexsort((-size, -length)).tolist()
    yield "area", np.lexsort((-size, -(size * length))).tolist()
    yield "start", np.lexsort((-length, -size, block.lower)).tolist()
    yield "end", np.lexsort((-length, -size, -block.upper)).tolist()
