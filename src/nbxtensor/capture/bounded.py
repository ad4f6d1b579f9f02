"""A program of a plan with dims: one arena at one place, and what is prepared for each value that was met."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from nbxtensor.capture.program import Program, State
from nbxtensor.capture.recording import Recording
from nbxtensor.errors import ArgumentError, PlanError
from nbxtensor.planning.bounds import Bounds
from nbxtensor.planning.plan import Plan
from nbxtensor.tensor import Tensor

__all__ = ["PREPARED", "BoundedProgram", "refuse_bundle"]

PREPARED = 64
"""Values of the dims whose launches are kept prepared beside those of the bound; the least recently used goes."""


def refuse_bundle(_: str | os.PathLike[str], programs: Mapping[str, Program], **__: Any) -> NoReturn:
    """Refuse to save programs of a plan with dims, as their `Program.saver`.

    Raises:
        PlanError: Always; says what is accepted.
    """
    raise PlanError(
        f"{', '.join(programs)}: a bundle holds programs of one value, and this plan has dims. Programs of plans that "
        "were traced without dims are accepted, one for each value."
    )


class BoundedProgram:
    """What `Plan.load` returns for a plan with dims: call it with inputs of any extents within the bounds.

    Memory is that of the bound, at the same addresses for every value. The first call at a value prepares its
    launches (kernels are compiled for its shapes); they are kept for `PREPARED` values.

    Attributes:
        plan: The plan, made at the bound.
        bound: The program of the largest extents, whose memory all use.
        bounds: The dims.
    """

    def __init__(self, plan: Plan, bounds: Bounds, bound: Program, make: Callable[[Plan, Program], Program]) -> None:
        self.plan: Plan = plan
        self.bound: Program = bound
        self.bounds: Bounds = bounds
        self._make = make
        self._known: OrderedDict[tuple[int, ...], Program] = OrderedDict()

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.bound.name

    @property
    def state(self) -> State:
        """What outlives a run, at whatever value, by name."""
        return self.bound.state

    def __len__(self) -> int:
        """Return the number of values that are prepared beside the bound."""
        return len(self._known)

    def at(self, **values: int) -> Program:
        """Return the program of one value; dims that are left out have their largest extent.

        Raises:
            ArgumentError: A name is no dim.
            ShapeError: A value is out of its dim's bounds.
            PlanError: The function does another thing at this value than at the bound.
        """
        found = self.bounds.checked(self.name, values)
        key = tuple(found.values())
        if key == self.bounds.most:
            return self.bound
        with self.bound.turn:
            program = self._known.get(key)
            if program is None:
                program = self._make(self.plan.at(**found), self.bound)
                self._known[key] = program
                if len(self._known) > PREPARED:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
        return program

    def __call__(self, *inputs: Any, borrow: bool = False) -> Any:
        """Run once at the value that the inputs have; see `Program.__call__`.

        Raises:
            ArgumentError: Not one value per input.
            ShapeError: An extent out of its dim's bounds, extents of one dim that disagree, or another shape.
            DtypeError: A value of another dtype.
        """
        return self._of(inputs)(*inputs, borrow=borrow)

    def capture(self, *inputs: Any, **values: int) -> Recording:
        """Return a recording of the run at the value of the inputs, or at ``values``; see `Program.capture`.

        It takes inputs of that value alone.

        Raises:
            ArgumentError: Both inputs and values.
            CaptureError: What the replay returns, or leaves in the state, differs from the run's.
        """
        if inputs and values:
            raise ArgumentError(f"{self.name}: capture takes inputs or values of dims. Got both.")
        return (self._of(inputs) if inputs else self.at(**values)).capture(*inputs)

    def _of(self, inputs: tuple[Any, ...]) -> Program:
        planned = [spec.shape for spec in self.bound.inputs]
        if len(inputs) != len(planned):
            raise ArgumentError(f"{self.name}: one value per input. Got {len(inputs)} for {len(planned)}.")
        shapes = [value.shape if isinstance(value, Tensor) else np.shape(value) for value in inputs]
        return self.at(**self.bounds.read(self.name, shapes, planned))

    def save(self, folder: str | os.PathLike[str], **_: Any) -> NoReturn:
        """Refuse: a bundle has the launches of one value.

        Raises:
            PlanError: Always; says what is accepted.
        """
        refuse_bundle(folder, {self.name: self.bound})

    def __reduce__(self) -> NoReturn:
        """Refuse, as `Program` does."""
        return self.bound.__reduce__()
