"""The dims of a graph and their bounds, and how it is traced at a value under them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbxtensor.errors import ArgumentError, ShapeError

if TYPE_CHECKING:
    from nbxtensor.planning.graph import Graph

__all__ = ["Bounds", "Symbolic"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The dims of a graph.

    Attributes:
        names: Their names.
        least: Smallest extent of each.
        most: Largest extent of each: what is planned.
        axes: Where each stands: (input, axis, index of the dim).
    """

    names: tuple[str, ...]
    least: tuple[int, ...]
    most: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]

    @property
    def largest(self) -> Mapping[str, int]:
        """The value that is planned."""
        return dict(zip(self.names, self.most, strict=True))

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The smallest and the largest extent of each dim, by name."""
        return dict(zip(self.names, zip(self.least, self.most, strict=True), strict=True))

    def checked(self, graph: str, values: Mapping[str, int]) -> dict[str, int]:
        """Return an extent for every dim; those left out are the largest.

        Raises:
            ArgumentError: A name is no dim of the graph.
            ShapeError: A value is no integer within the dim's bounds.
        """
        odd = [name for name in values if name not in self.names]
        if odd:
            raise ArgumentError(f"{graph}: dims are {', '.join(self.names)}. Got {', '.join(odd)}.")
        found = dict(self.largest)
        for name, value in values.items():
            at = self.names.index(name)
            try:
                found[name] = operator.index(value)
            except TypeError:
                raise ShapeError(f"{graph}: dim {name} is an integer. Got {value!r}. {self._accepted(at)}.") from None
            if not self.least[at] <= found[name] <= self.most[at]:
                raise ShapeError(f"{graph}: dim {name} stays within its bounds. Got {value}. {self._accepted(at)}.")
        return found

    def read(self, graph: str, shapes: Sequence[Sequence[int]], planned: Sequence[Sequence[int]]) -> dict[str, int]:
        """Return the extents that inputs of ``shapes`` have, where ``planned`` are their shapes at the bound.

        Raises:
            ShapeError: An extent is out of bounds, or two axes of one dim disagree; names dim, input and axis.
        """
        found: dict[str, tuple[int, str]] = {}
        for number, axis, dim in self.axes:
            name, shape = self.names[dim], tuple(shapes[number])
            where = f"input {number}, axis {axis}"
            if len(shape) != len(planned[number]):
                raise ShapeError(
                    f"{graph}: input {number} has {len(planned[number])} axes, dim {name} along axis {axis}. "
                    f"Got shape {shape}."
                )
            if not self.least[dim] <= shape[axis] <= self.most[dim]:
                raise ShapeError(f"{graph}: {where} is dim {name}. Got {shape[axis]}. {self._accepted(dim)}.")
            value, before = found.setdefault(name, (shape[axis], where))
            if value != shape[axis]:
                raise ShapeError(
                    f"{graph}: axes of dim {name} have one extent. Got {value} in {before} and {shape[axis]} in "
                    f"{where}. {self._accepted(dim)}, the same everywhere."
                )
        return {name: found[name][0] for name in self.names}

    def _accepted(self, dim: int) -> str:
        return f"{self.least[dim]} to {self.most[dim]} are accepted"

    def __str__(self) -> str:
        """Return the dims as text: "tokens 1..128"."""
        return ", ".join(f"{n} {a}..{b}" for n, a, b in zip(self.names, self.least, self.most, strict=True))


@dataclass(frozen=True, slots=True)
class Symbolic:
    """What a traced graph knows of its dims.

    Attributes:
        bounds: The dims.
        at: Returns the graph of a value of every dim, traced again.
    """

    bounds: Bounds
    at: Callable[[Mapping[str, int]], Graph]
