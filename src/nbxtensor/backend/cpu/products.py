"""Matrix products of blocks: operands read where they lie in memory if they can be, the sums kept in scratch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nbxtensor.backend.cpu import microkernel
from nbxtensor.backend.cpu.affine import Poly
from nbxtensor.backend.cpu.domains import Condition, explained
from nbxtensor.backend.cpu.evaluation import Evaluation
from nbxtensor.backend.cpu.indices import axes, strides
from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.keeping import lazy
from nbxtensor.backend.cpu.materialize import Materializer
from nbxtensor.backend.cpu.microkernel import Matrix
from nbxtensor.backend.cpu.state import ARITHMETIC, BYTES, Buffer, State
from nbxtensor.backend.cpu.ttir import Op, Type, Value

__all__ = ["Products"]

_SUMS = {"f16": "f32", "bf16": "f32", "f32": "f32", "f64": "f64", "i8": "i32"}


@dataclass
class _Source:
    """An operand: its rows and columns where they lie, for each index of the batch.

    Attributes:
        element: TTIR element.
        address: Address of the first element.
        batch: Elements from one matrix of the batch to the next.
        row: Elements from row to row.
        limits: Where memory may be read; elsewhere the operand is zero.
    """

    element: str
    address: str
    batch: Poly
    row: Poly
    limits: list[Condition] = field(default_factory=list[Condition])


class Products:
    """Writes tt.dot.

    Args:
        materializer: Where blocks come from.
        targets: For a product that a loop carries on, the block in scratch that it is added to.
    """

    def __init__(self, materializer: Materializer, targets: Mapping[Value, Buffer]) -> None:
        self.materializer = materializer
        self.evaluation: Evaluation = materializer.evaluation
        self.state: State = materializer.state
        self.b: Builder = self.state.b
        self.targets = targets

    def dot(self, op: Op) -> None:
        """Write a ``tt.dot``; its result is a block in scratch."""
        a, w, c = op.operands
        total = _SUMS.get(a.type.element)
        if total is None or w.type.element not in _SUMS:
            raise self.state.error("a product is of known elements", op.line, f"{', '.join(_SUMS)} are accepted")
        target = self.targets.get(op.result)
        if target is None or target.type.element != total:
            target = self.state.allocate(Type(total, op.result.type.shape))
        self.begin(c, target)
        left, right = self.operand(a), self.operand(w)
        self.multiply(op, left, right, target)
        self.state.buffers[op.result] = self.materializer.converted(target, op.result.type)

    def begin(self, c: Value, target: Buffer) -> None:
        """Write what the product is added to into ``target``."""
        held = self.state.buffers.get(c)
        if held is not None and held.address == target.address:
            return
        for value, buffer in list(self.state.buffers.items()):
            if buffer.address == target.address and self.materializer.reads(c, value, elsewhere=True):
                self.materializer.displace(value)
        self.materializer.block(c, target)

    def operand(self, value: Value) -> _Source:
        """Return an operand where it lies in memory, or copied to scratch."""
        return self.direct(value) or self.copied(value)

    def copied(self, value: Value) -> _Source:
        """Return an operand copied to scratch, zero outside its mask."""
        buffer = self.materializer.block(value)
        shape = value.type.extents
        return _Source(
            self.state.element(value.type),
            buffer.address,
            Poly.constant(shape[-2] * shape[-1]),
            Poly.constant(shape[-1]),
        )

    def direct(self, value: Value) -> _Source | None:
        """Return an operand that is a load of rows of adjacent elements, where it lies."""
        if value in self.state.buffers or not lazy(value) or value.op is None or value.op.name != "tt.load":
            return None
        shape = value.type.extents
        pointer, *rest = value.op.operands
        index = axes(self.state, shape)
        found = self.evaluation.strided(pointer, index)
        steps = strides(found[1], len(shape)) if found else None
        if found is None or steps is None:
            return None
        limits: list[Condition] | None = []
        if rest:
            limits = explained(self.evaluation, rest[0], index)
            other = rest[1].op if len(rest) > 1 else None
            if other is not None and (other.name != "arith.constant" or set(other.constant()) != {0}):
                return None
        nbytes = BYTES[value.type.element]
        elements = [_divided(step, nbytes) for step in steps]
        if limits is None or any(e is None for e in elements):
            return None
        *batch, row, column = (e or Poly({}) for e in elements)
        if column != Poly.constant(1) and shape[-1] > 1:
            return None
        start = Poly({m: c for m, c in found[1].terms.items() if not any(n.startswith("@") for n in m)})
        address = self.b.pure(f"getelementptr i8, ptr {self.state.scalars[found[0]]}, i64 {self.state.scalar(start)}")
        return _Source(self.state.element(value.type), address, batch[0] if batch else Poly({}), row, limits)

    def multiply(self, op: Op, a: _Source, w: _Source, target: Buffer) -> None:
        """Write the product; where limits are known only at run time, a way for whole blocks and one for others."""
        shape = op.operands[0].type.extents
        m, k, n = *shape[-2:], op.result.type.extents[-1]
        rank = len(shape)
        axis_m, axis_n = rank - 2, rank - 1
        fixed: dict[tuple[str, int], int] = {}
        open_: list[tuple[Poly, int]] = []
        for name, source, extents in (("a", a, shape), ("w", w, op.operands[1].type.shape or ())):
            for c in source.limits:
                extent = 1 if c.axis is None else extents[c.axis]
                low, high = self.state.facts.bounds(c.limit)
                if low is not None and low >= extent:
                    continue
                if low is not None and low == high and c.axis is not None:
                    key = name, c.axis
                    fixed[key] = min(fixed.get(key, extent), max(low, 0))
                else:
                    open_.append((c.limit, extent))
        depth = fixed.get(("a", axis_n), k)
        if depth != fixed.get(("w", axis_m), k) or any(axis < rank - 2 for _, axis in fixed):
            if fixed.get(("a", axis_n)) or any(axis < rank - 2 for _, axis in fixed):
                a = self.copied(op.operands[0])
            if fixed.get(("w", axis_m)) or any(axis < rank - 2 for _, axis in fixed):
                w = self.copied(op.operands[1])
            depth = k
        extents = fixed.get(("a", axis_m), m), fixed.get(("w", axis_n), n), depth
        if 0 in extents:
            return
        if not open_:
            self.batches(a, w, target, extents)
            return
        condition = ""
        for limit, extent in open_:
            test = self.b.pure(f"icmp sge i64 {self.state.scalar(limit)}, {extent}")
            condition = self.b.pure(f"and i1 {condition}, {test}") if condition else test

        def whole() -> list[str]:
            self.batches(a, w, target, extents)
            return []

        def partial() -> list[str]:
            with self.state.part():
                left = self.copied(op.operands[0]) if a.limits else a
                right = self.copied(op.operands[1]) if w.limits else w
                self.batches(left, right, target, (m, n, k))
            return []

        self.b.choose(condition, whole, partial)

    def batches(self, a: _Source, w: _Source, target: Buffer, extents: tuple[int, int, int]) -> None:
        """Write one product for each matrix of the batch."""
        shape = target.type.extents
        m, n, k = extents
        kinds = ARITHMETIC[a.element], ARITHMETIC[w.element]
        level, features = self.b.level, self.state.features
        nbytes = microkernel.scratch_nbytes(m, n, k, kinds, level, features)
        self.state.workspace_nbytes = max(self.state.workspace_nbytes, -(-nbytes // 64) * 64)
        sums = _Source(
            target.type.element, target.address, Poly.constant(shape[-2] * shape[-1]), Poly.constant(shape[-1])
        )

        def one(number: str) -> list[str]:
            left, right, total = (self.matrix(x, number) for x in (a, w, sums))
            microkernel.gemm(self.b, m, n, k, left, right, total, level=level, features=features, scratch="%workspace")
            return []

        if len(shape) == 2:
            one("")
        else:
            self.b.loop("0", str(shape[0]), "1", lambda i, _: one(i))

    def matrix(self, source: _Source, number: str) -> Matrix:
        """One matrix of a batch."""
        address = source.address
        if number:
            step = self.state.scalar(source.batch.scaled(BYTES[source.element]))
            moved = self.b.pure(f"mul i64 {number}, {step}")
            address = self.b.pure(f"getelementptr i8, ptr {address}, i64 {moved}")
        return Matrix(address, self.state.scalar(source.row), ARITHMETIC[source.element])


def _divided(poly: Poly, divisor: int) -> Poly | None:
    if any(c % divisor for c in poly.terms.values()):
        return None
    return Poly({m: c // divisor for m, c in poly.terms.items()})
