"""What a plan costs on its target: declared flops and bytes against the rates the device states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nbxtensor.dtype.itemsize import bits, facts, kind
from nbxtensor.op import Target
from nbxtensor.planning.caching import CachedShare, cached_shares
from nbxtensor.planning.graph import Graph, Node
from nbxtensor.planning.steps import PlanStep, family
from nbxtensor.planning.waves import Bound, Moved, Work, has_waves, waves

__all__ = ["Cause", "Price", "Priced", "price_graph"]

Cause = Bound
"""What bounds a time: bytes moved, arithmetic of the vector or the matrix units, or the cost of launching."""


@dataclass(frozen=True, slots=True)
class Priced:
    """What one node costs, or several together.

    Attributes:
        name: Name of the op, or of the op family, or "total".
        calls: Number of nodes.
        launches: Kernel launches.
        flops: Arithmetic operations.
        read: Bytes read.
        written: Bytes written.
        cached: Those of these bytes that move at the cache's bandwidth.
        seconds: Predicted time.
        limit: What most of the time is limited by.
    """

    name: str
    calls: int
    launches: int
    flops: int
    read: int
    written: int
    cached: int
    seconds: float
    limit: Cause

    @property
    def nbytes(self) -> int:
        """Bytes moved."""
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Price:
    """What a run of a graph costs on a target.

    Attributes:
        target: The target.
        nodes: Each node, in order.
        families: Each op family, the longest first.
        total: All together.
        facts: Every number of the target that the price rests on, by the name under which the target states it.
    """

    target: Target
    nodes: tuple[Priced, ...]
    families: tuple[Priced, ...]
    total: Priced
    facts: Mapping[str, float]

    def table(self) -> str:
        """Return one line per op family and one for all: time, work, rates and what limits."""
        head = ("op family", "calls", "launches", "time", "share", "GFLOP", "MB", "GFLOP/s", "GB/s", "limited by")
        lines: list[tuple[str, ...]] = [head]
        for row in (*self.families, self.total):
            rate = 1e-9 / row.seconds if row.seconds else 0.0
            lines.append(
                (
                    row.name,
                    f"{row.calls}",
                    f"{row.launches}",
                    duration(row.seconds),
                    f"{row.seconds / self.total.seconds if self.total.seconds else 0.0:.1%}",
                    f"{row.flops / 1e9:.4g}",
                    f"{row.nbytes / 1e6:.4g}",
                    f"{row.flops * rate:.4g}",
                    f"{row.nbytes * rate:.4g}",
                    row.limit,
                )
            )
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(
                field.ljust(width) if column in (0, len(head) - 1) else field.rjust(width)
                for column, (field, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        rule = "-" * max(map(len, text))
        return "\n".join([text[0], rule, *text[1:-1], rule, text[-1]])


def price_graph(graph: Graph, steps: Sequence[PlanStep], target: Target) -> Price:
    """Return the price of a run.

    A node takes the longer of its arithmetic and its memory traffic, and beside that the cost of its launches:

    - Traffic at ``memory.copy_bandwidth`` (bytes read plus bytes written, per second). What provably stays in cache
      (`cached_shares`) is at ``memory.l2_bandwidth``, where the target states that and ``memory.l2_usable_nbytes`` or
      ``memory.l2_nbytes``.
    - Arithmetic at ``rates.matrix.<dtype>`` of the dtype the kernel declares for the matrix unit, where the device's
      takes it; else at ``rates.vector.<dtype>`` of the widest float the node computes in, floats of 16 bits or fewer
      computing as float32 (flop/s of the whole device). Integers at the rate of their dtype where the target states
      one, and else at that of float32, whose lanes do them. What vector units do beside a matrix unit is added.
    - Each launch at ``launch.seconds``.

    Where a target states how it starts programs, reads from its units and waits for memory (`waves.has_waves`), a node
    takes what `waves.waves` says instead: on a device of many units most nodes are bound by neither rate.

    Those are measured. Where a target has none, what its device file states stands in: ``memory.bandwidth``,
    ``compute.matrix_flops.<dtype>``, ``compute.vector_flops.<dtype>`` and ``launch.recorded_ns``; a price from a
    vendor's peak is a floor. `Price.facts` says which were used.

    Raises:
        MissingFactError: The target does not state a number that is needed; names it.
    """
    shares: Sequence[CachedShare] = (CachedShare(0.0, 0.0),) * len(graph.nodes)
    known = _Facts(target)
    cache = "memory.l2_usable_nbytes" if known.has("memory.l2_usable_nbytes") else "memory.l2_nbytes"
    if known.has(cache) and known.has("memory.l2_bandwidth"):
        shares = cached_shares(graph, steps, int(known(cache)))
    parts = zip(graph.nodes, steps, shares, strict=True)
    nodes = tuple(_node(node, step, share, known) for node, step, share in parts)
    families: dict[str, list[Priced]] = {}
    for node, priced in zip(graph.nodes, nodes, strict=True):
        families.setdefault(family(node), []).append(priced)
    sums = sorted((_sum(n, rows) for n, rows in families.items()), key=lambda row: (-row.seconds, row.name))
    return Price(target, nodes, tuple(sums), _sum("total", nodes), known.used)


class _Facts:
    """The numbers of a target, measured or else stated, and which were asked for."""

    _STATED = MappingProxyType(
        {"memory.copy_bandwidth": ("memory.bandwidth", 1.0), "launch.seconds": ("launch.recorded_ns", 1e-9)}
    )

    def __init__(self, target: Target) -> None:
        self._target = target
        self.used: dict[str, float] = {}

    def has(self, name: str) -> bool:
        """Say whether the target states ``name``, as measured or in its device file."""
        return name in self._target.facts or self._stated(name)[0] in self._target.facts

    def __call__(self, name: str) -> float:
        """Return the number called ``name``."""
        key, scale = (name, 1.0) if name in self._target.facts or not self.has(name) else self._stated(name)
        self.used[key] = self._target.fact(key)
        return self.used[key] * scale

    def _stated(self, name: str) -> tuple[str, float]:
        """Return the name and the factor of the number in a device file that stands in for ``name``."""
        if name.startswith("rates."):
            _, unit, dtype = name.split(".")
            return f"compute.{unit}_flops.{dtype}", 1.0
        return self._STATED.get(name, (name, 1.0))


def _node(node: Node, step: PlanStep, share: CachedShare, known: _Facts) -> Priced:
    cost = step.cost
    matrix = cost.matrix
    if matrix and not known.has(f"rates.matrix.{matrix}") and known.has(f"rates.vector.{matrix}"):
        matrix = None  # the device's matrix unit does not take the dtype: its vector units do the work
    unit: Cause = "vector" if matrix is None else "matrix"

    def vector_rate() -> float:
        return known(f"rates.vector.{_vector_dtype(node, known)}")

    def rate() -> float:
        return known(f"rates.matrix.{matrix}") if matrix else vector_rate()

    read, written = int(cost.read * share.read), int(cost.written * share.written)
    cached = read + written
    if step.launches and has_waves(known):
        moved = Moved(cost.read - read, cost.written - written, read, written)
        work = Work(cost.flops, unit, rate, cost.beside, vector_rate)
        seconds, limit = waves(step.launches, moved, work, known)
    else:
        memory = _time(cost.read + cost.written - cached, known, "memory.copy_bandwidth")
        memory += _time(cached, known, "memory.l2_bandwidth")
        arithmetic = cost.flops / rate() if cost.flops else 0.0
        arithmetic += cost.beside / vector_rate() if cost.beside else 0.0
        launch = len(step.launches) * known("launch.seconds") if step.launches else 0.0
        busy = max(memory, arithmetic)
        limit = "launch" if launch > busy else unit if arithmetic > memory else "memory"
        seconds = busy + launch
    return Priced(node.op.name, 1, len(step.launches), cost.flops, cost.read, cost.written, cached, seconds, limit)


def _time(amount: int, known: _Facts, rate: str) -> float:
    return amount / known(rate) if amount else 0.0


def _vector_dtype(node: Node, known: _Facts) -> str:
    """Return the dtype whose vector rate the node's arithmetic runs at."""
    if node.op.pointwise is not None:
        dtypes = node.op.pointwise(node.call()).compute
    else:
        dtypes = tuple(ref.spec.dtype for ref in (*node.operands.values(), *node.outputs))
    floats = [facts(name).part or name for name in dtypes if kind(name) in ("float", "complex")]
    if floats:
        widest = max(floats, key=bits)
        return widest if bits(widest) > 16 else "float32"
    widest = max(dtypes, key=bits, default="float32")
    return widest if known.has(f"rates.vector.{widest}") else "float32"


def _sum(name: str, rows: Iterable[Priced]) -> Priced:
    kept = tuple(rows)
    by_limit: dict[Cause, float] = {"memory": 0.0}
    for row in kept:
        by_limit[row.limit] = by_limit.get(row.limit, 0.0) + row.seconds
    return Priced(
        name,
        sum(row.calls for row in kept),
        sum(row.launches for row in kept),
        sum(row.flops for row in kept),
        sum(row.read for row in kept),
        sum(row.written for row in kept),
        sum(row.cached for row in kept),
        sum(row.seconds for row in kept),
        max(by_limit, key=by_limit.__getitem__),
    )


def duration(seconds: float) -> str:
    """Return a time in the unit that reads best.

    >>> duration(0.00123), duration(4.2e-5)
    ('1.23 ms', '42 us')
    """
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
