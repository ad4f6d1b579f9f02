"""Whether a plan's declarations are true: runs in which every byte is watched, compared with one that shares none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from nbxtensor.capture.program import Program, example
from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import PlanError
from nbxtensor.op import Array
from nbxtensor.planning.graph import Ref
from nbxtensor.planning.lifetimes import Lifetime, buffer_id, workspace_id
from nbxtensor.planning.placement import place
from nbxtensor.planning.plan import Location, Plan
from nbxtensor.planning.steps import pointers
from nbxtensor.run import launch

__all__ = ["Audit", "audit"]

_NAN, _SMALL = 0xFF, 0x3C  # a NaN and -1; about 0.01 as a float32 and 1 as a float16, so that no operation hides both
_EMPTY: Mapping[str, Any] = MappingProxyType({})
_SHOWN = 8  # names in a message
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit looked at and found true.

    Attributes:
        launches: Launches after each of which every byte of the arena was compared.
        lifetimes: Buffers and workspaces that were poison before and after their lives.
        arena_nbytes: Bytes of the arena, red zones left out.
        results_nbytes: Bytes of outputs and state that all runs agree in.
    """

    launches: int
    lifetimes: int
    arena_nbytes: int
    results_nbytes: int


def audit(
    plan: Plan,
    *inputs: Any,
    weights: Mapping[str, Any] = _EMPTY,
    state: Mapping[str, Any] = _EMPTY,
    lifetimes: Sequence[Lifetime] | None = None,
) -> Audit:
    """Run a plan three times with every byte watched; return what was seen where all its declarations are true.

    First every buffer and every workspace has memory of its own. Then all are placed by their lifetimes, with a red
    zone of the plan's alignment before and after each; then as the plan has them. In the last two a buffer is
    overwritten when its life begins and when it ends, once with NaN and once with small numbers. After each launch of
    each run all other bytes of the arena than those of the results and the workspace that the launch names must be
    what they were, and after each run the weights. All three runs must leave the same outputs and state, byte for byte.

    Audits are for tests and for finding a wrong declaration: they take as long as all the arena copied at each launch.

    Args:
        plan: The plan, made for a device of this machine.
        inputs: A value per input; left out, small random numbers, and zeros for integers.
        weights: Value of every weight, by name.
        state: Values that states begin with, by name; zeros for the others.
        lifetimes: When each piece of memory is in use; left out, as the plan says. What is wrong here must be found.

    Raises:
        PlanError: A launch wrote what it does not declare, or memory that is not in use is relied on; names the node,
            or the outputs and states that differ.
        ArgumentError: As `Plan.load` and `Program.__call__` raise it for weights and inputs.
    """
    lives = plan.lifetimes if lifetimes is None else tuple(lifetimes)
    end = max((x.upper for x in plan.lifetimes), default=1)
    zone = plan.alignment
    wide = [replace(x, size=x.nbytes + 2 * zone) for x in lives]
    alone = place([replace(x, lower=0, upper=end) for x in wide])
    shared = place(wide)
    ways = (
        ("with memory of its own for each buffer", _laid(plan, alone.offsets, alone.peak, zone), (), 0),
        ("with red zones", _laid(plan, shared.offsets, shared.peak, zone), lives, _NAN),
        ("as planned", plan, lives, _SMALL),
    )
    wanted: Mapping[str, Array] = {}
    launches = 0
    for words, laid, watched, poison in ways:
        program: Program = laid.load(weights)
        for name, value in state.items():
            program.state[name] = value
        given = inputs or tuple(example(i, spec) for i, spec in enumerate(program.inputs))
        with program.turn:
            found = _Watch(program, words, watched, poison).run(given)
        wanted = wanted or found
        launches = len(program.launches)
        different = [name for name, value in found.items() if not np.array_equal(value, wanted[name])]
        if different:
            raise PlanError(
                f"{plan.graph.name}: a plan computes the same wherever its buffers lie, and whatever is in memory that "
                f"is not in use. Run {words}, {', '.join(different[:_SHOWN])} differs from a run in which each buffer "
                "has memory of its own."
            )
    total = sum(value.nbytes for value in wanted.values())
    return Audit(launches, len(lives), plan.arena_nbytes, total)


def _laid(plan: Plan, offsets: Mapping[str, int], nbytes: int, zone: int) -> Plan:
    """Return the plan with its arena laid out otherwise: ``zone`` bytes before and after everything."""
    ends = {"arena": nbytes, "weights": zone, "state": zone}
    locations: list[Location | None] = []
    for index, location in enumerate(plan.locations):
        if location is None or location.area == "arena":
            locations.append(location and replace(location, offset=offsets.get(buffer_id(index), 0) + zone))
            continue
        locations.append(replace(location, offset=ends[location.area]))
        ends[location.area] += -(-location.nbytes // zone) * zone + zone
    workspaces = tuple(
        {name: offsets[workspace_id(node, name)] + zone for name in names} for node, names in enumerate(plan.workspaces)
    )
    return replace(
        plan,
        locations=tuple(locations),
        workspaces=workspaces,
        arena_nbytes=ends["arena"] + 2 * zone,
        weights_nbytes=ends["weights"],
        state_nbytes=ends["state"],
    )


class _Watch:
    """One run of a program, its memory compared after each launch."""

    def __init__(self, program: Program, words: str, lives: Sequence[Lifetime], poison: int) -> None:
        self._program = program
        self._plan = program.plan
        self._words = words
        self._poison = poison
        self._begins = _by_moment(lives, (x.lower for x in lives))
        self._ends = _by_moment(lives, (x.upper for x in lives))
        self._memory = program.device.backend.memory(program.device.index)

    def run(self, inputs: tuple[Any, ...]) -> Mapping[str, Array]:
        """Return the bytes of the outputs and of the state that a run leaves."""
        program, plan = self._program, self._plan
        program.scrub()
        self._overwrite(self._begins.get(0, ()))
        program.fill(inputs)
        fixed = self._read("weights")
        bounds = iter(program.launches)
        now, end = 0, sum(step.moments for step in plan.steps)
        for number, step in enumerate(plan.steps):
            for moment in range(step.moments):
                if now:
                    self._overwrite(self._begins.get(now, ()))
                if step.launches:
                    before = {area: self._read(area) for area in ("arena", "state")}
                    launch(program.device, next(bounds))
                    program.device.backend.synchronize(program.device.index)
                    self._compare(number, moment, before)
                now += 1
                if now < end:
                    self._overwrite(self._ends.get(now, ()))
        if not np.array_equal(fixed, self._read("weights")):
            raise PlanError(f"{plan.graph.name}: weights are only read. Run {self._words}, some have changed.")
        results = program.results(borrow=False)
        tensors = results if isinstance(results, tuple) else (results,)
        outputs = {f"output {i}": np.frombuffer(t.numpy().tobytes(), np.uint8) for i, t in enumerate(tensors)}
        return outputs | {f"state {name}": value for name, value in program.state.save().items()}

    def _overwrite(self, lives: Iterable[Lifetime]) -> None:
        for life in lives:
            start = self._program.areas["arena"].address + self._plan.offsets[life.id]
            self._memory.fill(start, self._poison, life.size)

    def _read(self, area: str) -> Bytes:
        storage = self._program.areas[area]
        found = np.empty(storage.nbytes, np.uint8)
        if storage.nbytes:
            self._memory.copy_out(found.data, storage.address)
        return found

    def _compare(self, number: int, moment: int, before: Mapping[str, Bytes]) -> None:
        """Fail where the launch just made changed what it does not name."""
        node = self._plan.graph.nodes[number]
        for area, old in before.items():
            changed = np.flatnonzero(old != self._read(area))
            if not changed.size:
                continue
            allowed = np.zeros(old.size, np.bool_)
            for named in self._named(number, moment, area):
                _mark(allowed, named)
            wrong = changed[~allowed[changed]]
            if wrong.size:
                raise PlanError(
                    f"{self._plan.graph.name}, node {number} ({node.op.name}), launch {moment}: a launch writes the "
                    f"results and the workspace that it names. Run {self._words}, it wrote {wrong.size} other bytes of "
                    f"the {area}, first at {wrong[0]}: {self._owner(area, int(wrong[0]))}."
                )

    def _named(self, number: int, moment: int, area: str) -> Iterator[tuple[int, Ref | int]]:
        """Yield (offset in the area, what lies there) for all that a launch may write: a view, or bytes."""
        plan, step = self._plan, self._plan.steps[number]
        sizes = {buffer.name: buffer.nbytes for buffer in step.cost.buffers}
        for pointer in pointers(step.launches[moment]):
            if pointer.role == "workspace" and area == "arena":
                yield plan.workspaces[number][str(pointer.key)], sizes[str(pointer.key)]
            elif pointer.role == "output":
                ref = plan.graph.nodes[number].outputs[int(pointer.key)]
                location = plan.locations[ref.buffer]
                if location is not None and location.area == area:
                    yield location.offset, ref

    def _owner(self, area: str, at: int) -> str:
        """Return what lies at a byte, in words."""
        found = [
            f"{b.kind} {b.name or i}"
            for i, (b, x) in enumerate(zip(self._plan.graph.buffers, self._plan.locations, strict=True))
            if x is not None and x.area == area and x.offset <= at < x.offset + x.nbytes
        ]
        return ", ".join(found[:_SHOWN]) or "no buffer"


def _by_moment(lives: Sequence[Lifetime], moments: Iterable[int]) -> Mapping[int, list[Lifetime]]:
    found: dict[int, list[Lifetime]] = {}
    for life, moment in zip(lives, moments, strict=True):
        found.setdefault(moment, []).append(life)
    return found


def _mark(allowed: npt.NDArray[np.bool_], named: tuple[int, Ref | int]) -> None:
    """Mark the bytes of a workspace, or of the elements of a view."""
    offset, what = named
    if isinstance(what, int):
        allowed[offset : offset + what] = True
        return
    spec, width = what.spec, bits(what.spec.dtype) // 8
    start, end = what.span
    if spec.is_contiguous or not width:
        allowed[offset + start : offset + end] = True
    elif spec.numel:
        first = allowed[offset + what.offset * width :]
        strides = (*(stride * width for stride in spec.strides), 1)
        np.lib.stride_tricks.as_strided(first, (*spec.shape, width), strides)[...] = True
