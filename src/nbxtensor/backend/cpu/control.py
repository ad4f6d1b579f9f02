"""Loops and branches of a kernel: what they carry stays in registers, in scratch, or is a block plus a scalar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nbxtensor.backend.cpu.affine import Fact, Integer, Poly
from nbxtensor.backend.cpu.evaluation import Evaluation
from nbxtensor.backend.cpu.indices import axes
from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.keeping import MOVES
from nbxtensor.backend.cpu.materialize import Materializer
from nbxtensor.backend.cpu.state import BYTES, LLVM, Buffer, State
from nbxtensor.backend.cpu.ttir import Block, Op, Type, Value

__all__ = ["Control"]


@dataclass
class _Carried:
    """One value that a loop carries.

    Attributes:
        initial: What it begins as.
        argument: What the body calls it.
        result: What it is called after the loop.
        step: For a block that each turn moves by the same in all its elements: the blocks added.
        buffer: Where a block lives in scratch.
    """

    initial: Value
    argument: Value
    result: Value
    step: list[Value] | None = None
    buffer: Buffer | None = None


class Control:
    """Writes scf.for, scf.while and scf.if.

    Args:
        materializer: Where blocks come from.
        body: Writes the ops of a region.
    """

    def __init__(self, materializer: Materializer, body: Callable[[list[Op]], None]) -> None:
        self.materializer = materializer
        self.evaluation: Evaluation = materializer.evaluation
        self.state: State = materializer.state
        self.b: Builder = self.state.b
        self.body = body
        self.targets: dict[Value, Buffer] = {}
        """For a block that ends up as what a loop carries: where it may be made in place."""

    def region(self, block: Block) -> Op:
        """Write the ops of a region but its last; return that."""
        self.state.floor = self.b.depth
        self.body(block.ops[:-1])
        return block.ops[-1]

    # Loops.

    def for_(self, op: Op) -> None:
        """Write a ``scf.for``."""
        (block,) = op.regions
        low, high, step = (self.state.scalars[v] for v in op.operands[:3])
        kind = LLVM[self.state.element(op.operands[0].type)]
        if op.attributes.get("unsigned") == "true":
            raise self.state.error("a loop counts in signed integers", op.line, "scf.for without unsigned is accepted")
        counter, *arguments = block.arguments
        yielded = block.ops[-1].operands
        carried = [_Carried(*c) for c in zip(op.operands[3:], arguments, op.results, strict=True)]
        self.prepare(carried, yielded)

        def turn(i: str, values: list[str]) -> list[str]:
            self.state.scalars[counter] = i
            self.state.homes[counter] = self.b.depth
            self.state.facts[i] = self.counter_fact(low, high, step)
            self.enter(carried, values)
            end = self.region(block)
            return self.leave(carried, end.operands)

        with self.state.part():
            self.aim(carried, yielded, block)
            values = self.b.loop(low, high, step, turn, self.carried_scalars(carried), kind)
        self.after(carried, values)

    def counter_fact(self, low: str, high: str, step: str) -> Fact:
        """What is known of a loop's counter."""
        if low.startswith("%"):
            return Fact()
        first = int(low)
        if step.startswith("%"):
            return Fact(low=first)
        stride = int(step)
        last = None if high.startswith("%") else first + max(int(high) - 1 - first, 0) // stride * stride
        return Fact(first, last, stride if first % stride == 0 else 1)

    def while_(self, op: Op) -> None:
        """Write a ``scf.while``: its first region decides, its second is the body."""
        before, after = op.regions
        condition = before.ops[-1]
        handed = condition.operands[1:]
        carried = [_Carried(i, a, a) for i, a in zip(op.operands, before.arguments, strict=True)]
        self.prepare(carried, None)
        passed = [_Carried(h, a, r) for h, a, r in zip(handed, after.arguments, op.results, strict=True)]
        for c in passed:
            if c.initial.type.shape is not None:
                c.buffer = self.state.allocate(c.initial.type)
        start, head, inside, latch, done = (self.b.fresh(s) for s in ("pre", "while", "do", "again", "done"))
        scalars = self.carried_scalars(carried)
        with self.state.part(), self.b.nested(head) as scope:
            names = [self.b.name("c") for _ in scalars]
            self.enter(carried, names)
            end = self.region(before)
            test = self.state.scalars[end.operands[0]]
            results = self.leave(passed, handed)
            self.b.do(f"br i1 {test}, label %{inside}, label %{done}")
            self.b.start(inside)
            with self.state.part():
                self.enter(passed, results)
                end = self.region(after)
                values = self.leave(carried, end.operands)
            self.b.branch(latch)
            self.b.start(latch)
            self.b.branch(head)
        self.b.branch(start)
        self.b.start(start)
        self.b.branch(head)
        lines = scope.lines
        lines[1:1] = [
            f"  {name} = phi {kind} [{initial}, %{start}], [{value}, %{latch}]"
            for name, (kind, initial), value in zip(names, scalars, values, strict=True)
        ]
        self.b.lines.extend(lines)
        self.b.start(done)
        self.b.outlive(results)  # the block that tests the condition comes before all that follows
        self.after(passed, results)

    def if_(self, op: Op) -> None:
        """Write a ``scf.if``; blocks that it gives are written to scratch by either side."""
        results = [_Carried(v, v, v) for v in op.results]
        for c in results:
            if c.result.type.shape is not None:
                c.buffer = self.state.allocate(c.result.type)

        def side(block: Block) -> Callable[[], list[str]]:
            def write() -> list[str]:
                with self.state.part():
                    end = self.region(block)
                    return self.leave(results, end.operands)

            return write

        then, *otherwise = op.regions
        kinds = [LLVM[self.state.element(c.result.type)] for c in results if c.buffer is None]
        no = side(otherwise[0]) if otherwise else None
        values = self.b.choose(self.state.scalars[op.operands[0]], side(then), no, kinds)
        self.after(results, values)

    # What is carried.

    def prepare(self, carried: list[_Carried], yielded: Sequence[Value] | None) -> None:
        """Decide how each value is carried and write what it begins as."""
        for k, c in enumerate(carried):
            if c.initial.type.shape is None:
                continue
            c.step = _steps(yielded[k], c.argument) if yielded is not None and self.plain(c.initial) else None
            if c.step is None:
                c.buffer = self.materializer.block(c.initial, self.state.allocate(c.initial.type))

    def plain(self, block: Value) -> bool:
        """Return whether a block follows from its index and scalars alone: a loop may then move it by a scalar."""
        index = axes(self.state, block.type.shape or ())
        if block.type.pointer:
            return self.evaluation.strided(block, index) is not None
        return self.evaluation.integer(block, index) is not None

    def carried_scalars(self, carried: list[_Carried]) -> list[tuple[str, str]]:
        """(type, initial value) of what is carried in registers."""
        scalars: list[tuple[str, str]] = []
        for c in carried:
            if c.step is not None:
                scalars.append(("i64", "0"))
            elif c.buffer is None:
                scalars.append((LLVM[self.state.element(c.initial.type)], self.state.scalars[c.initial]))
        return scalars

    def enter(self, carried: list[_Carried], values: list[str]) -> None:
        """Make what is carried known inside."""
        names = iter(values)
        for c in carried:
            self.state.homes[c.argument] = self.b.depth
            if c.step is not None:
                offset = next(names)
                self.state.facts[offset] = self.moved_fact(c)
                self.state.affine[c.argument] = c.initial, Poly.symbol(offset)
            elif c.buffer is not None:
                self.state.buffers[c.argument] = c.buffer
            else:
                self.state.scalars[c.argument] = next(names)

    def moved_fact(self, c: _Carried) -> Fact:
        """What is known of how far a block has been moved: a multiple of its constant steps."""
        total = 0
        for value in c.step or ():
            step = self.evaluation.integer(value, _zeros(value.type)) if self.evaluation.written(value) else None
            if step is None or not step.base.is_constant():
                return Fact()
            total += step.base.value()
        total *= self.unit(c.argument.type)
        return Fact(low=0 if total >= 0 else None, high=0 if total <= 0 else None, multiple=abs(total) or 1)

    def unit(self, type_: Type) -> int:
        """Bytes of one step of a pointer; 1 for integers."""
        return BYTES[type_.element] if type_.pointer else 1

    def leave(self, carried: list[_Carried], yielded: Sequence[Value]) -> list[str]:
        """Write what is handed on at the end of a region; return the scalars of it."""
        self.hand_over([(c.buffer, c.argument, v) for c, v in zip(carried, yielded, strict=True) if c.buffer])
        values: list[str] = []
        for c, v in zip(carried, yielded, strict=True):
            if c.step is not None:
                offset = self.state.affine[c.argument][1]
                for value in c.step:
                    step = self.evaluation.integer(value, _zeros(value.type))
                    if step is None:
                        raise self.state.error("a pointer moves by an integer", v, "This is a defect of the lowering")
                    offset += step.base.scaled(self.unit(c.argument.type))
                values.append(self.state.scalar(offset))
            elif c.buffer is None:
                values.append(self.state.scalars[v])
        return values

    def hand_over(self, moves: list[tuple[Buffer, Value, Value]]) -> None:
        """Write blocks into the buffers that carry them: each after all others have read what it replaces."""
        waiting = [
            (buffer, argument, value)
            for buffer, argument, value in moves
            if value is not argument and self.state.buffers.get(value) is not buffer
        ]
        while waiting:
            free = [m for m in waiting if not any(self.materializer.reads(o[2], m[1]) for o in waiting if o is not m)]
            move = free[0] if free else waiting[0]  # none is free in a ring, as in an exchange
            waiting.remove(move)
            buffer, argument, value = move
            if not free or self.materializer.reads(value, argument, elsewhere=True):
                self.materializer.displace(argument)
            self.materializer.block(value, buffer)

    def after(self, carried: list[_Carried], values: list[str]) -> None:
        """Make what was carried known after the loop or branch."""
        names = iter(values)
        for c in carried:
            if c.step is not None:
                offset = next(names)
                self.state.facts[offset] = self.moved_fact(c)
                self.state.affine[c.result] = c.initial, Poly.symbol(offset)
            elif c.buffer is not None:
                self.state.buffers[c.result] = c.buffer
            else:
                self.state.scalars[c.result] = next(names)

    def aim(self, carried: list[_Carried], yielded: Sequence[Value], block: Block) -> None:
        """Let a product that becomes a carried block be summed where that block lives, if nothing reads it later."""
        number, last = self.materializer.keeping.number, self.materializer.keeping.last_read
        for c, value in zip(carried, yielded, strict=True):
            product = value.op if value.op and value.op.name == "tt.dot" and value.op in block.ops else None
            if c.buffer and product and last.get(c.argument, -1) <= number[product]:
                self.targets[value] = c.buffer


def _zeros(type_: Type) -> tuple[Integer, ...]:
    return tuple(Integer(Poly.constant(0)) for _ in type_.shape or ())


def _steps(value: Value, argument: Value) -> list[Value] | None:
    """The blocks, equal in all elements, that are added to ``argument`` to make ``value``; None if it is not so."""
    steps: list[Value] = []
    while value is not argument:
        op = value.op
        if op is None or op.name not in {"tt.addptr", "arith.addi"}:
            return None
        first, second = op.operands
        if op.name == "arith.addi" and _even(first):
            first, second = second, first
        if not _even(second):
            return None
        steps.append(second)
        value = first
    return steps


def _even(value: Value) -> bool:
    """Whether a block is equal in all elements, for its structure alone."""
    op = value.op
    if op is None or value.type.shape is None:
        return False
    if op.name == "arith.constant":
        return len(op.constant()) == 1
    if op.name == "tt.splat":
        return True
    if op.name in MOVES or op.name in {"arith.addi", "arith.muli", "arith.subi", "arith.extsi"}:
        return all(_even(v) for v in op.operands)
    return False
