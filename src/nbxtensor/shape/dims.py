"""Extents that are known when a program is called: a name, and the bounds that a plan is made for."""

from __future__ import annotations

import operator
from typing import Any

from nbxtensor.errors import ArgumentError, ShapeError

__all__ = ["Dim"]


class Dim(int):
    """An extent of an input of `nbxtensor.trace` that each call may choose, from ``min`` to ``max``.

    Everywhere else it is the integer ``max``: a plan is made for the largest extent. Axes with one name have one
    extent in a call.

    Args:
        name: What it is called in messages and in ``Plan.price(name=40)``: an identifier.
        max: Largest extent; what the plan is made for.
        min: Smallest extent, 1 or more.

    Attributes:
        name: Its name.
        max: Largest extent.
        min: Smallest extent.

    Raises:
        ArgumentError: ``name`` is no identifier.
        ShapeError: ``max`` and ``min`` are no integers with 1 <= min <= max.

    >>> import nbxtensor as nbx
    >>> tokens = nbx.Dim("tokens", max=128)
    >>> program = nbx.plan(nbx.trace(nbx.exp, nbx.Spec((tokens,), "float32"))).load()
    >>> program(nbx.zeros(2)).tolist()
    [1.0, 1.0]
    """

    name: str
    min: int

    def __new__(cls, name: str, *, max: int, min: int = 1) -> Dim:
        """Check the bounds."""
        if not isinstance(name, str) or not name.isidentifier():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"Dim: a name is an identifier. Got {name!r}.")
        try:
            most, least = operator.index(max), operator.index(min)
        except TypeError:
            raise ShapeError(f"Dim: {name} has integers as bounds. Got min {min!r}, max {max!r}.") from None
        if not 1 <= least <= most < 2**63:
            raise ShapeError(f"Dim: {name} has bounds with 1 <= min <= max < 2**63. Got min {least}, max {most}.")
        self = super().__new__(cls, most)
        self.name = name
        self.min = least
        return self

    @property
    def max(self) -> int:
        """Largest extent."""
        return int(self)

    def __repr__(self) -> str:
        """Return the call that makes it."""
        return f"Dim({self.name!r}, max={int(self)}, min={self.min})"

    def __reduce__(self) -> Any:
        """Return what pickle makes it from."""
        return _made, (self.name, int(self), self.min)


def _made(name: str, most: int, least: int) -> Dim:
    return Dim(name, max=most, min=least)
