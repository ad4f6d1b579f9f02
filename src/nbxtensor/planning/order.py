"""In which order tasks run, so that the most that is in use at one moment is least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["BUDGET", "Ordered", "Task", "dependencies", "peak_of", "search"]

BUDGET = 100_000
"""Steps of a search unless another number is asked for: about a second."""
_WINDOWS = (16, 40, 96, 240)  # tasks that are ordered anew together, around the moment of the peak
_SHARE = 40  # of the budget that the search of one window may take, at most: one part of so many


@dataclass(frozen=True, slots=True)
class Task:
    """What runs at once: it uses buffers, and needs others to have run.

    Attributes:
        uses: Buffers that it reads or writes. A buffer is in use from its first use to its last.
        after: Tasks that run before it, by index.
        over: Pairs of (buffer it begins, buffer it ends): where both hold, the first takes the memory of the second.
            Their sizes are equal.
        extra: Bytes that it needs while it runs, beside its buffers.
    """

    uses: tuple[int, ...]
    after: tuple[int, ...] = ()
    over: tuple[tuple[int, int], ...] = ()
    extra: int = 0


@dataclass(frozen=True, slots=True)
class Ordered:
    """An order of tasks.

    Attributes:
        order: The tasks by index, in the order in which they run.
        peak: Most bytes in use at one moment.
        largest: Bytes of the task that needs most by itself.
        floor: Bytes that no order needs less than: those, or those of a task at the peak with all that is made before
            it and used after it in every order.
        steps: Steps the search took.
        complete: Whether no order needs less than ``peak``.
    """

    order: tuple[int, ...]
    peak: int
    largest: int
    floor: int
    steps: int
    complete: bool


def peak_of(tasks: Sequence[Task], sizes: Sequence[int], kept: Iterable[int], order: Sequence[int]) -> int:
    """Return the most bytes in use at one moment where ``tasks`` run in ``order``; see `search`."""
    return max(_Tasks(tasks, sizes, kept).profile(order), default=0)


def search(
    tasks: Sequence[Task],
    sizes: Sequence[int],
    kept: Iterable[int] = (),
    *,
    budget: int = BUDGET,
) -> Ordered:
    """Return an order that needs no more memory than the given one, less where it is found.

    The order given is kept where nothing is better than it. Others are made by rules: what frees most or takes least
    next, what is needed late run late, depth first. The best is improved around the moment of its peak: the tasks of a
    window of it are ordered anew by a search that goes back where it cannot stay below the peak, each set of tasks that
    have run looked at once, until no window of any size helps, the floor is reached or the budget is spent. The result
    depends on the arguments alone.

    Args:
        tasks: The tasks, each after those that it needs.
        sizes: Bytes of each buffer.
        kept: Buffers that stay in use to the end.
        budget: Steps that the search may take.

    >>> tasks = [Task((0,)), Task((1,)), Task((0, 2), (0,)), Task((1, 3), (1,)), Task((2, 3), (2, 3))]
    >>> found = search(tasks, [8, 8, 1, 1])
    >>> found.peak, found.order
    (10, (0, 2, 1, 3, 4))
    """
    kept = frozenset(kept)
    known = _Tasks(tasks, sizes, kept)
    order: Sequence[int] = range(len(tasks))
    peak = max(known.profile(order), default=0)
    if peak > known.floor:
        for other in (known.late(order), known.greedy(), known.deep()):
            found = max(known.profile(other), default=0)
            if found < peak:
                order, peak = other, found
    steps, complete = 0, peak <= known.floor
    while not complete and steps < budget:
        better, taken, complete = _improved(known, order, peak, budget - steps, max(budget // _SHARE, 1))
        steps += taken
        if better is None:
            break
        order, peak = better, max(known.profile(better))
        complete = peak <= known.floor
    floor = known.floor
    if not complete:
        profile = known.profile(order)
        floor = max([floor, *(known.least(index) for index, most in zip(order, profile, strict=True) if most == peak)])
    return Ordered(tuple(order), peak, known.floor, peak if complete else floor, steps, complete or peak == floor)


def _improved(
    known: _Tasks, order: Sequence[int], peak: int, budget: int, share: int
) -> tuple[Sequence[int] | None, int, bool]:
    """Return a better order or None, the steps taken, and whether it is sure that there is none.

    Better is one with a lower peak, or with the first moment of the peak removed.
    """
    profile = known.profile(order)
    moment = profile.index(peak)
    taken, size = 0, 0
    for window in _WINDOWS:
        if size >= len(order) or taken >= budget:
            break
        size = min(window, len(order))
        whole = size == len(order)
        start = min(max(moment - size * 2 // 3, 0), len(order) - size)
        part = order[start : start + size]
        search_ = _Window(known, order[:start], part, peak)
        found = search_.run(budget - taken if whole else min(share, budget - taken))
        taken += search_.steps
        if found is not None:
            return [*order[:start], *found, *order[start + size :]], taken, False
        if whole:
            return None, taken, search_.exhausted
    return None, taken, False


@dataclass(slots=True)
class _Tasks:
    """Tasks with what is asked of them again and again, as sets of tasks in the bits of a number."""

    tasks: Sequence[Task]
    sizes: Sequence[int]
    kept: Iterable[int]
    users: dict[int, int] = field(default_factory=dict[int, int])  # of each buffer
    needs: list[int] = field(default_factory=list[int])  # before each task
    then: list[list[int]] = field(default_factory=list[list[int]])  # tasks that wait for each task
    floor: int = 0

    def __post_init__(self) -> None:
        self.then = [[] for _ in self.tasks]
        for index, task in enumerate(self.tasks):
            for buffer in set(task.uses):
                self.users[buffer] = self.users.get(buffer, 0) | 1 << index
            self.needs.append(sum(1 << i for i in set(task.after)))
            for before in set(task.after):
                self.then[before].append(index)
        never = 1 << len(self.tasks)  # the user of what is kept that never runs
        for buffer in self.kept:
            self.users[buffer] = self.users.get(buffer, 0) | never
        self.floor = max((self._alone(index) for index in range(len(self.tasks))), default=0)

    def least(self, index: int) -> int:
        """Return the bytes in use while a task runs, in whatever order: those that wait for what comes after it too."""
        before = after = 1 << index
        for found in reversed(range(len(self.tasks))):  # tasks come after those that they need
            if before >> found & 1:
                before |= self.needs[found]
        for found, needs in enumerate(self.needs):
            if needs & after:
                after |= 1 << found
        after |= 1 << len(self.tasks)
        own = set(self.tasks[index].uses)
        waiting = (b for b, users in self.users.items() if b not in own and users & before and users & after)
        return self._alone(index) + sum(self.sizes[b] for b in waiting)

    def _alone(self, index: int) -> int:
        """Return the bytes that a task needs by itself, in whatever order."""
        task = self.tasks[index]
        whole = sum(self.sizes[b] for b in set(task.uses)) + task.extra
        taken: set[int] = set()
        for new, old in task.over:
            if old not in taken and new not in taken:
                taken |= {new, old}
                whole -= self.sizes[new]
        return whole

    def step(self, index: int, done: int, live: int) -> tuple[int, int]:
        """Return the bytes in use while a task runs, after those in ``done``, and when it has run."""
        task, bit, users, sizes = self.tasks[index], 1 << index, self.users, self.sizes
        begun, ended, later = 0, 0, ~(done | bit)
        uses = task.uses if len(task.uses) < 2 else dict.fromkeys(task.uses)
        for buffer in uses:
            mask = users[buffer]
            if not mask & done:
                begun += sizes[buffer]
            if not mask & later:
                ended += sizes[buffer]
        taken: list[int] = []
        for new, old in task.over:
            passes = users[old] & done and not users[old] & later and not users[new] & done and users[new] & later
            if passes and old not in taken and new not in taken:
                taken += (new, old)
                begun -= sizes[new]
                ended -= sizes[old]
        most = live + begun
        return most + task.extra, most - ended

    def profile(self, order: Sequence[int]) -> list[int]:
        """Return the bytes in use while each task of ``order`` runs."""
        done, live, found = 0, 0, list[int]()
        for index in order:
            most, live = self.step(index, done, live)
            found.append(most)
            done |= 1 << index
        return found

    # ---- orders by rules

    def greedy(self) -> list[int]:
        """Return the order that runs next what leaves least in use, and of those what needs least meanwhile."""
        waiting = [mask.bit_count() for mask in self.needs]
        ready = [i for i, count in enumerate(waiting) if not count]
        done, live, order = 0, 0, list[int]()
        while ready:
            costs = {i: self.step(i, done, live) for i in ready}
            index = min(ready, key=lambda i: (costs[i][1], costs[i][0], i))
            live = costs[index][1]
            done |= 1 << index
            order.append(index)
            ready.remove(index)
            for later in self.then[index]:
                waiting[later] -= 1
                if not waiting[later]:
                    ready.append(later)
        return order

    def late(self, order: Sequence[int]) -> list[int]:
        """Return ``order`` with each task right before the first that waits for it."""
        place = {index: float(at) for at, index in enumerate(order)}
        for index in reversed(order):
            if self.then[index]:
                first = min(place[later] for later in self.then[index])
                place[index] = max(place[index], first - 0.5 / len(order))
        # Tasks that wait for the same one keep their order; so do chains of them.
        at = {index: number for number, index in enumerate(order)}
        return self._sorted(sorted(order, key=lambda i: (place[i], at[i])))

    def deep(self) -> list[int]:
        """Return the order that makes what each task needs right before it, what needs most memory first."""
        heavy = [0] * len(self.tasks)
        for index, task in enumerate(self.tasks):
            own = sum(self.sizes[b] for b in set(task.uses)) + task.extra
            heavy[index] = max([own, *(heavy[i] for i in task.after)])
        order: dict[int, None] = {}
        for root in range(len(self.tasks)):
            if self.then[root]:
                continue
            stack = [(root, False)]
            while stack:
                index, entered = stack.pop()
                if entered:
                    order.setdefault(index)
                elif index not in order:
                    stack.append((index, True))
                    missing: set[int] = {i for i in self.tasks[index].after if i not in order}
                    stack += ((i, False) for i in sorted(missing, key=lambda i: (heavy[i], i)))
        return list(order)

    def _sorted(self, wanted: Sequence[int]) -> list[int]:
        """Return the tasks as near to ``wanted`` as their needs allow."""
        order: dict[int, None] = {}
        for root in wanted:
            stack = [(root, False)]
            while stack:
                index, entered = stack.pop()
                if entered:
                    order.setdefault(index)
                elif index not in order:
                    stack.append((index, True))
                    stack += ((i, False) for i in sorted(self.tasks[index].after, reverse=True) if i not in order)
        return list(order)


class _Window:
    """A search for an order of some tasks that stays below a number of bytes."""

    def __init__(self, known: _Tasks, before: Sequence[int], part: Sequence[int], below: int) -> None:
        self._known = known
        self._part = part
        self._below = below
        self._done = sum(1 << i for i in before)
        self._live = 0
        done = 0
        for index in before:
            _, self._live = known.step(index, done, self._live)
            done |= 1 << index
        self._inside = sum(1 << i for i in part)
        self._seen: set[int] = set()
        self.steps = 0
        self.exhausted = False  # whether all orders were looked at

    def run(self, budget: int) -> list[int] | None:
        """Return an order of the part below the number of bytes, or None where none was found."""
        whole = self._done | self._inside
        order: list[int] = []
        stack: list[tuple[int, Iterator[tuple[int, int]]]] = [(self._done, self._next(self._done, self._live))]
        while stack:
            if self.steps > budget:
                return None
            done, choices = stack[-1]
            found = next(choices, None)
            if found is None:
                stack.pop()
                if order:
                    order.pop()
                continue
            index, live = found
            now = done | 1 << index
            if now in self._seen:
                continue
            self._seen.add(now)
            order.append(index)
            if now == whole:
                return order
            stack.append((now, self._next(now, live)))
        self.exhausted = True
        return None

    def _next(self, done: int, live: int) -> Iterator[tuple[int, int]]:
        """Yield (task, bytes in use after it) of what may run next, the best first.

        A task that leaves no more in use than there was, and stays below the number, is run at once: whatever order
        there is with it later, there is one with it now.
        """
        known, found = self._known, list[tuple[int, int, int]]()
        for index in self._part:
            if done >> index & 1 or known.needs[index] & ~done:
                continue
            self.steps += 1
            most, after = known.step(index, done, live)
            if most >= self._below:
                continue
            if after <= live:
                return iter(((index, after),))
            found.append((after, most, index))
        return iter([(index, after) for after, _, index in sorted(found)])


def dependencies(accesses: Sequence[tuple[Iterable[int], Iterable[int]]]) -> list[tuple[int, ...]]:
    """Return, for each task, those that have to run before it.

    Args:
        accesses: What each task reads and what it writes, in an order that is right. What is read is written before,
            and is read before it is written again; writes stay in their order.
    """
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    found: list[tuple[int, ...]] = []
    for index, (reads, writes) in enumerate(accesses):
        before: Mapping[int, None] = {}
        for buffer in reads:
            if buffer in writer:
                before = {**before, writer[buffer]: None}
        written = set(writes)
        for buffer in written:
            before = {**before, **dict.fromkeys(readers.get(buffer, ()))}
            if buffer in writer:
                before = {**before, writer[buffer]: None}
        for buffer in reads:
            if buffer not in written:
                readers.setdefault(buffer, []).append(index)
        for buffer in written:
            writer[buffer], readers[buffer] = index, []
        found.append(tuple(sorted(before.keys() - {index})))
    return found
