"""Recorded launches as plain data: which earlier ones each waits for, and one of them with other arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nbxtensor.backend.contract import Bound
from nbxtensor.errors import ArgumentError

__all__ = ["predecessors", "rebound"]


def predecessors(count: int, dependencies: Sequence[Sequence[int]] | None) -> tuple[tuple[int, ...], ...]:
    """Return, for each of ``count`` launches, the earlier launches that it waits for.

    Args:
        count: Number of launches.
        dependencies: Those launches, one list for each; None: each launch waits for the one before it.

    Raises:
        ArgumentError: Not one list for each launch, or one that names a launch that is not earlier.

    >>> predecessors(3, None), predecessors(3, [[], [], [0, 1]])
    (((), (0,), (1,)), ((), (), (0, 1)))
    """
    if dependencies is None:
        return tuple((number - 1,) if number else () for number in range(count))
    found = tuple(tuple(sorted(set(before))) for before in dependencies)
    if len(found) != count:
        raise ArgumentError(f"record: dependencies of every launch. Got {len(found)} lists for {count} launches.")
    for number, before in enumerate(found):
        if before and not 0 <= before[0] <= before[-1] < number:
            raise ArgumentError(
                f"record: a launch waits for earlier launches. Got {list(before)} for launch {number}. "
                f"Numbers from 0 up, below {number}, are accepted."
            )
    return found


def rebound(launches: tuple[Bound, ...], number: int, arguments: Sequence[int | float]) -> tuple[Bound, ...]:
    """Return ``launches`` with other arguments for launch ``number``.

    Raises:
        ArgumentError: There is no such launch.
    """
    if not 0 <= number < len(launches):
        raise ArgumentError(f"rebind: the number of a launch. Got {number} of {len(launches)} launches.")
    changed = replace(launches[number], arguments=tuple(arguments))
    return (*launches[:number], changed, *launches[number + 1 :])
