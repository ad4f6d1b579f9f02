"""What is computed from an operand, and from more operands, before an op on rows reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.errors import DtypeError
from nbxtensor.op.declaration import Array
from nbxtensor.op.expression import Expression
from nbxtensor.op.launch import Call, Number, Pointer
from nbxtensor.op.spec import Spec

__all__ = ["Prologue", "evaluate_prologue"]


class Prologue:
    """The value that an op on rows works on: its operand ``x``, or the call's ``prologue`` of ``x`` and ``extras``.

    The call has the parameters ``prologue`` (an `Expression` with one output, or None) and ``scalars``, and the operand
    sequence ``extras``: the other inputs of the expression, in order.

    Attributes:
        expression: What is computed; for a call without one, the operand itself.
        names: The operands it is computed of.
        spec: Shape and dtype of the value, packed.
    """

    def __init__(self, call: Call) -> None:
        """Read a call.

        Raises:
            ShapeError: The operands do not broadcast.
            DtypeError: The operands are not of the expression's dtypes.
        """
        names = ("x", *(name for name in call.inputs if name.startswith("extras.")))
        dtypes = tuple(call[name].dtype for name in names)
        given = cast("Expression | None", call.params["prologue"])
        self.expression: Expression = given or Expression((call["x"].dtype,), (), (0,))
        self.names = names
        self._scalars = cast("tuple[float, ...]", call.params["scalars"])
        if dtypes != self.expression.inputs or len(self._scalars) != self.expression.scalars:
            raise DtypeError(
                f"{call.op.name}: x, extras and scalars fit the prologue. Got {list(dtypes)} and "
                f"{len(self._scalars)} scalars. {list(self.expression.inputs)} and {self.expression.scalars} fit."
            )
        shape = shapes.broadcast_shapes(*(call[name].shape for name in names))
        self.spec: Spec = Spec(shape, self.expression.dtype(self.expression.outputs[0]))

    def layouts(self, call: Call) -> dict[str, tuple[int, ...]]:
        """Return the strides of each operand, stretched to the value's shape, by the name of its pointer."""
        found: dict[str, tuple[int, ...]] = {}
        for pointer, name in self.pointers().items():
            spec = call[name]
            found[pointer] = shapes.broadcast_strides(spec.shape, spec.strides, self.spec.shape)[1]
        return found

    def pointers(self) -> dict[str, str]:
        """Return the operand behind each pointer: ``x`` and ``e0``, ``e1`` ..."""
        return {"x": "x"} | {f"e{i}": name for i, name in enumerate(self.names[1:])}

    def arguments(self, call: Call) -> dict[str, Pointer | Number]:
        """Return the launch arguments: pointers, then scalars ``s0``, ``s1`` ..."""
        numbers = self.expression.numbers(self._scalars)
        pointers = {pointer: call.input(name) for pointer, name in self.pointers().items()}
        return {**pointers, **{f"s{i}": number for i, number in enumerate(numbers)}}

    @property
    def flops(self) -> int:
        """Operations per element."""
        return sum(step.flops for step in self.expression.steps)


def evaluate_prologue(x: Array, prologue: Expression | None, extras: Sequence[Any], scalars: Sequence[float]) -> Array:
    """Return the value that an op on rows works on, on numpy arrays."""
    return x if prologue is None else np.asarray(prologue.evaluate((x, *extras), scalars)[0])
