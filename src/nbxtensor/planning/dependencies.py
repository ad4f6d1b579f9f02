"""Which launches of a plan have to wait for which: what they read and write, as byte ranges, decides."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import PlanError
from nbxtensor.op import Pointer
from nbxtensor.planning.graph import Node, Ref
from nbxtensor.planning.plan import Plan
from nbxtensor.planning.steps import PlanStep, pointers
from nbxtensor.shape import extent_span

__all__ = ["Access", "launch_accesses", "launch_dependencies", "order"]


@dataclass(frozen=True, slots=True)
class Access:
    """Bytes that a launch touches: [start, end) of an area.

    Attributes:
        area: Name of the block of memory; ranges of two areas never overlap.
        start: First byte.
        end: First byte past the range.
        writes: Whether the launch may change them; what it writes it may read as well.
    """

    area: str
    start: int
    end: int
    writes: bool


def order(launches: Sequence[Sequence[Access]]) -> tuple[tuple[int, ...], ...]:
    """Return, for each launch, the earlier launches that it has to wait for, ascending.

    A launch waits for the earlier ones that wrote what it touches, and that read what it writes. Launches that others
    in the list wait for already are left out: no shorter lists keep the same order.

    >>> produce, left, right = [Access("a", 0, 8, True)], [Access("a", 0, 8, False)], [Access("a", 4, 8, False)]
    >>> order([produce, left, right, [Access("a", 0, 4, True)]])
    ((), (0,), (0,), (1,))
    """
    areas: dict[str, _Area] = {}
    before: list[int] = []  # for each launch, the set of all that it waits for, at last, as bits of one integer
    found: list[tuple[int, ...]] = []
    for number, accesses in enumerate(launches):
        direct: set[int] = set()
        for access in accesses:
            if access.start < access.end:
                direct |= areas.setdefault(access.area, _Area()).touch(number, access)
        direct.discard(number)
        kept: list[int] = []
        reached = 0
        for earlier in sorted(direct, reverse=True):
            if not reached >> earlier & 1:
                kept.append(earlier)
                reached |= before[earlier] | 1 << earlier
        before.append(reached)
        found.append(tuple(reversed(kept)))
    return tuple(found)


def launch_dependencies(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Return, for each launch of a run of ``plan``, the earlier launches that it has to wait for; see `order`.

    Raises:
        PlanError: A launch touches a buffer that has no place.
    """
    return order(launch_accesses(plan))


def launch_accesses(plan: Plan) -> tuple[tuple[Access, ...], ...]:
    """Return the bytes that each launch of a run of ``plan`` touches, in the order of the launches.

    Operands are read, results and workspace are written (and may be read).

    Raises:
        PlanError: A launch touches a buffer that has no place.
    """
    return tuple(
        tuple(_access(plan, node, step, plan.workspaces[place], pointer) for pointer in pointers(launch))
        for place, (node, step) in enumerate(zip(plan.graph.nodes, plan.steps, strict=True))
        for launch in step.launches
    )


def _access(plan: Plan, node: Node, step: PlanStep, workspace: Mapping[str, int], pointer: Pointer) -> Access:
    if pointer.role == "workspace":
        nbytes = next(b.nbytes for b in step.cost.buffers if b.name == pointer.key)
        start = workspace.get(str(pointer.key), 0)
        return Access("arena", start, start + nbytes, writes=True)
    written = pointer.role == "output"
    ref = node.outputs[int(pointer.key)] if written else node.operands[str(pointer.key)]
    location = plan.locations[ref.buffer]
    if location is None:
        raise PlanError(f"{plan.graph.name}: what a launch touches has a place. Buffer {ref.buffer} has none.")
    start, end = _span(ref)
    return Access(location.area, location.offset + start, location.offset + end, written)


def _span(ref: Ref) -> tuple[int, int]:
    """Return the bytes of its buffer, [start, end), between the lowest and the highest element of a view."""
    spec, width = ref.spec, bits(ref.spec.dtype)
    low = ref.offset + sum((n - 1) * s for n, s in zip(spec.shape, spec.strides, strict=True) if s < 0 < n)
    high = low + extent_span(spec.shape, spec.strides)
    return low * width // 8, -(-high * width // 8)


@dataclass(slots=True)
class _Piece:
    """Neighbouring bytes with one history: who wrote them last (-1: nobody), and who has read them since."""

    writer: int
    readers: set[int]


@dataclass(slots=True)
class _Area:
    """What has been done to the bytes of an area: its pieces by their starts, ascending and without gaps."""

    starts: list[int] = field(default_factory=lambda: [0])
    pieces: dict[int, _Piece] = field(default_factory=lambda: {0: _Piece(-1, set())})

    def touch(self, number: int, access: Access) -> set[int]:
        """Note what launch ``number`` does; return the earlier launches that it conflicts with."""
        self._cut(access.start)
        self._cut(access.end)
        direct: set[int] = set()
        inside = list(self._between(access.start, access.end))
        for start in inside:
            piece = self.pieces[start]
            direct.add(piece.writer)
            if access.writes:
                direct |= piece.readers
            else:
                piece.readers.add(number)
        if access.writes:
            first = bisect_right(self.starts, access.start) - 1
            self.starts[first : first + len(inside)] = [access.start]
            for start in inside:
                del self.pieces[start]
            self.pieces[access.start] = _Piece(number, set())
        direct.discard(-1)
        return direct

    def _between(self, start: int, end: int) -> Iterator[int]:
        place = bisect_right(self.starts, start) - 1
        while place < len(self.starts) and self.starts[place] < end:
            yield self.starts[place]
            place += 1

    def _cut(self, at: int) -> None:
        """Let a piece begin at ``at``."""
        place = bisect_right(self.starts, at) - 1
        start = self.starts[place]
        if start != at:
            piece = self.pieces[start]
            self.starts.insert(place + 1, at)
            self.pieces[at] = _Piece(piece.writer, set(piece.readers))
