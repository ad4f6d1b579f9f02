"""The figures of a plan in rows: each node, each op, each op family and all together, priced and measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from nbxtensor.errors import MissingFactError
from nbxtensor.planning.plan import Plan
from nbxtensor.planning.price import Price
from nbxtensor.planning.steps import family

__all__ = ["Figures", "Level", "Row", "figures"]

Level = Literal["family", "op", "node"]
"""What a table has a row for."""


@dataclass(frozen=True, slots=True)
class Row:
    """A node, or several together.

    Attributes:
        name: Op family, op, or node and op.
        family: Op family; "" in a total.
        node: Index of the node; None where there are several.
        kernel: Kernel of the node; "" where there are several.
        calls: Nodes.
        launches: Kernel launches.
        flops: Arithmetic operations.
        read: Bytes read.
        written: Bytes written.
        seconds: Predicted time; None where the device states too little.
        limit: What most of that time is limited by; "" without one.
        measured: Measured time in seconds; None where nothing ran.
    """

    name: str
    family: str
    node: int | None
    kernel: str
    calls: int
    launches: int
    flops: int
    read: int
    written: int
    seconds: float | None
    limit: str
    measured: float | None = None

    @property
    def nbytes(self) -> int:
        """Bytes moved."""
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Figures:
    """Every row of a plan.

    Attributes:
        nodes: Each node, in order.
        ops: Each op, the longest first.
        families: Each op family, the longest first.
        total: All together.
        facts: The numbers of the device that the prediction rests on.
        lacking: Why there is no prediction; "" where there is one.
    """

    nodes: tuple[Row, ...]
    ops: tuple[Row, ...]
    families: tuple[Row, ...]
    total: Row
    facts: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    lacking: str = ""

    def of(self, level: Level) -> tuple[Row, ...]:
        """Return the rows of a level."""
        return {"family": self.families, "op": self.ops, "node": self.nodes}[level]


def figures(plan: Plan, measured: Sequence[float] | None = None, *, priced: bool = False) -> Figures:
    """Return the figures of a plan.

    Args:
        plan: The plan.
        measured: Seconds of each node, where it ran.
        priced: Whether a price is asked for: without one, a device that states too little is no error.

    Raises:
        MissingFactError: A price is asked for, and the device states too little.
    """
    price: Price | None = None
    lacking = ""
    try:
        price = plan.price()
    except MissingFactError as error:
        if priced:
            raise
        lacking = str(error)
    took = measured or [None] * len(plan.graph.nodes)
    nodes: list[Row] = []
    for place, (node, step) in enumerate(zip(plan.graph.nodes, plan.steps, strict=True)):
        cost, one = step.cost, price.nodes[place] if price else None
        nodes.append(
            Row(
                node.op.name, family(node), place, step.kernel, 1, len(step.launches), cost.flops, cost.read,
                cost.written, one and one.seconds, one.limit if one else "", took[place],
            )
        )  # fmt: skip
    ops: dict[str, list[Row]] = {}
    families: dict[str, list[Row]] = {}
    for row in nodes:
        ops.setdefault(row.name, []).append(row)
        families.setdefault(row.family, []).append(row)
    return Figures(
        tuple(nodes),
        _sorted(_sum(name, rows[0].family, rows) for name, rows in ops.items()),
        _sorted(_sum(name, name, rows) for name, rows in families.items()),
        _sum("total", "", nodes),
        price.facts if price else MappingProxyType({}),
        lacking,
    )


def _sorted(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: (-(row.seconds or 0.0), -row.nbytes, row.name)))


def _sum(name: str, of: str, rows: Sequence[Row]) -> Row:
    by_limit: dict[str, float] = {}
    for row in rows:
        by_limit[row.limit] = by_limit.get(row.limit, 0.0) + (row.seconds or 0.0)
    seconds = [row.seconds for row in rows if row.seconds is not None]
    measured = [row.measured for row in rows if row.measured is not None]
    return Row(
        name,
        of,
        None,
        "",
        sum(row.calls for row in rows),
        sum(row.launches for row in rows),
        sum(row.flops for row in rows),
        sum(row.read for row in rows),
        sum(row.written for row in rows),
        sum(seconds) if seconds else None,
        max(by_limit, key=by_limit.__getitem__, default=""),
        sum(measured) if measured else None,
    )
