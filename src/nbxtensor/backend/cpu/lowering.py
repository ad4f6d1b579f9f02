"""TTIR to LLVM IR: one pass over the ops of a kernel, in order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from nbxtensor.backend.cpu import elementwise, memory_access, ttir
from nbxtensor.backend.cpu.affine import Fact
from nbxtensor.backend.cpu.control import Control
from nbxtensor.backend.cpu.domains import Domain, conditions
from nbxtensor.backend.cpu.evaluation import FORMULAS, Evaluation, Place
from nbxtensor.backend.cpu.indices import axes, operand_index
from nbxtensor.backend.cpu.ir import Builder
from nbxtensor.backend.cpu.keeping import Keeping, lazy
from nbxtensor.backend.cpu.materialize import Materializer
from nbxtensor.backend.cpu.movement import cat, gather, histogram
from nbxtensor.backend.cpu.products import Products
from nbxtensor.backend.cpu.reduction import reduce
from nbxtensor.backend.cpu.scan import scan
from nbxtensor.backend.cpu.state import BYTES, LLVM, Index, Register, State, bits

__all__ = ["Lowered", "lower"]

_FORMULAS = elementwise.NAMES | FORMULAS
_REFUSED = {
    name: f"{what}; a kernel without it is accepted"
    for name, what in {
        "tt.print": "Nothing is printed from a kernel",
        "tt.assert": "Nothing is asserted in a kernel",
        "tt.extern_elementwise": "Functions of a device's library are not known here; tl.math has its own",
        "tt.elementwise_inline_asm": "Assembly belongs to one device",
        "tt.atomic_rmw": "Programs do not write one element together",
        "tt.atomic_cas": "Programs do not write one element together",
        "tt.call": "Every call is inlined before this",
        "tt.dot_scaled": "Scaled products are not lowered",
    }.items()
}
_IGNORED = frozenset({"tt.return", "llvm.intr.assume", "gpu.barrier", "ttg.barrier", "ttg.local_barrier"})


@dataclass(frozen=True)
class Lowered:
    """A kernel as LLVM IR text.

    Attributes:
        name: Its symbol.
        llvm: The module.
        parameters: TTIR type of each argument slot, in order.
        scratch_nbytes: Scratch that each worker hands in.
    """

    name: str
    llvm: str
    parameters: tuple[str, ...]
    scratch_nbytes: int


def lower(text: str, level: str, features: frozenset[str] = frozenset(), grid: tuple[int, ...] = ()) -> Lowered:
    """Return the LLVM IR of a kernel given as TTIR text; ``grid`` says that no more programs run along each axis.

    Raises:
        CompileError: For what is not lowered, by name.
    """
    return _Lowering(ttir.parse(text), level, features, grid).run()


class _Lowering:
    def __init__(self, function: ttir.Function, level: str, features: frozenset[str], grid: tuple[int, ...]) -> None:
        self.function = function
        self.grid = dict(zip("xyz", grid, strict=False))
        self.state = State(function.name, Builder(level), features)
        self.b = self.state.b
        self.evaluation = Evaluation(self.state)
        self.keeping = Keeping(function)
        self.materializer = Materializer(self.evaluation, self.keeping)
        self.control = Control(self.materializer, self.ops)
        self.products = Products(self.materializer, self.control.targets)
        self.path: list[str] = []
        self.ids: dict[str, str] = {}  # of the program, along each axis of the grid
        self.handlers: dict[str, Callable[[ttir.Op], None]] = {
            "tt.store": self.store,
            "tt.dot": self.products.dot,
            "tt.reduce": functools.partial(reduce, self.materializer),
            "tt.scan": functools.partial(scan, self.materializer),
            "tt.gather": functools.partial(gather, self.materializer),
            "tt.histogram": functools.partial(histogram, self.materializer),
            "tt.cat": functools.partial(cat, self.materializer),
            "tt.get_program_id": self.program_id,
            "tt.get_num_programs": self.num_programs,
            "scf.for": self.control.for_,
            "scf.while": self.control.while_,
            "scf.if": self.control.if_,
        }

    def run(self) -> Lowered:
        state, b = self.state, self.b
        for k, (argument, multiple) in enumerate(zip(self.function.arguments, self.function.aligned, strict=True)):
            kind = LLVM[state.element(argument.type)]
            slot = b.op(f"getelementptr i64, ptr %args, i64 {k}")
            value = b.op(f"load {kind}, ptr {slot}, align 8")
            state.scalars[argument] = value
            state.facts[value] = Fact(multiple=multiple)
        zero = [("i64", b.op("urem i64 %lo, %gx"))]
        row = b.op("udiv i64 %lo, %gx")
        zero += [("i64", b.op(f"urem i64 {row}, %gy")), ("i64", b.op(f"udiv i64 {row}, %gy"))]

        def program(_: str, ids: list[str]) -> list[str]:
            self.ids = dict(zip("xyz", ids, strict=True))
            state.floor = b.depth
            self.block(self.function.blocks[0])
            x = b.op(f"add i64 {ids[0]}, 1")
            over_x = b.op(f"icmp eq i64 {x}, %gx")
            y = b.op(f"add i64 {ids[1]}, {b.op(f'zext i1 {over_x} to i64')}")
            over_y = b.op(f"icmp eq i64 {y}, %gy")
            z = b.op(f"add i64 {ids[2]}, {b.op(f'zext i1 {over_y} to i64')}")
            return [
                b.op(f"select i1 {over_x}, i64 0, i64 {x}"),
                b.op(f"select i1 {over_y}, i64 0, i64 {y}"),
                z,
            ]

        b.loop("%lo", "%hi", "1", program, zero)
        return self.module()

    def module(self) -> Lowered:
        width = 8 * self.state.width
        how = {
            "no-builtins": "true",
            "prefer-vector-width": width,
            "min-legal-vector-width": width,
            "target-cpu": self.b.level,
        }
        head = "ptr noalias %args, ptr noalias align 64 %scratch, i64 %lo, i64 %hi, i64 %gx, i64 %gy"
        lines = [
            'target triple = "x86_64-unknown-linux-gnu"',
            *self.state.tables,
            *sorted(self.b.declarations),
            f"define void @{self.function.name}({head}) #0 {{",
            "entry:",
            f"  %workspace = getelementptr i8, ptr %scratch, i64 {self.state.scratch_nbytes}",
            *self.b.lines,
            "  ret void",
            "}",
            "attributes #0 = { nounwind " + " ".join(f'"{name}"="{value}"' for name, value in how.items()) + " }",
        ]
        nbytes = self.state.scratch_nbytes + self.state.workspace_nbytes
        parameters = tuple(_spelled(a.type) for a in self.function.arguments)
        return Lowered(self.function.name, "\n".join(lines) + "\n", parameters, nbytes)

    def block(self, block: ttir.Block) -> None:
        """Write a block of the function and those it goes on to; where two paths meet, each writes what follows."""
        if block.label in self.path:
            raise self.state.error(
                "a kernel branches forward", f"a jump back to ^{block.label}", "scf loops are accepted"
            )
        *ops, end = block.ops
        self.ops(ops)
        if end.name not in {"cf.br", "cf.cond_br"}:
            self.ops([end])
            return
        self.path.append(block.label)
        handed = list(end.operands[end.name == "cf.cond_br" :])
        ways: list[Callable[[], list[str]]] = []
        for label, count in zip(end.attributes["targets"].split(), end.attributes["counts"].split(), strict=True):
            target = next(b for b in self.function.blocks if b.label == label)
            ways.append(functools.partial(self.follow, target, [handed.pop(0) for _ in range(int(count))]))
        if len(ways) == 1:
            ways[0]()
        else:
            then, otherwise = ways
            self.b.choose(self.state.scalars[end.operands[0]], then, otherwise)
        self.path.pop()

    def follow(self, block: ttir.Block, handed: list[ttir.Value]) -> list[str]:
        """Go on to a block with what is handed to its arguments."""
        for argument, value in zip(block.arguments, handed, strict=True):
            self.state.homes[argument] = self.b.depth
            if argument.type.shape is None:
                self.state.scalars[argument] = self.state.scalars[value]
            else:
                self.state.buffers[argument] = self.materializer.block(value)
        with self.state.part():
            self.state.floor = self.b.depth
            self.block(block)
        return []

    def ops(self, ops: list[ttir.Op]) -> None:
        for op in ops:
            for value in op.results:
                self.state.homes[value] = self.b.depth
            if op.name != "tt.store":
                for value in self.keeping.before.get(op, ()):
                    self.materializer.block(value)
            self.op(op)
            for value in op.results:
                if value in self.keeping.made:
                    self.materializer.block(value)

    def op(self, op: ttir.Op) -> None:
        if op.name in _IGNORED:
            return
        handler = self.handlers.get(op.name)
        if handler is not None:
            handler(op)
        elif op.name in _REFUSED:
            raise self.state.error("an op is lowered", op.name, _REFUSED[op.name])
        elif op.result.type.shape is None:
            self.scalar(op)
        elif op.name not in _FORMULAS:
            raise self.state.error(
                "an op is lowered", f"{op.name} in {op.line!r}", "Ordinary kernels' ops are accepted"
            )

    def program_id(self, op: ttir.Op) -> None:
        axis = op.attributes["axis"]
        count = self.grid.get(axis)
        if count == 1:
            self.define(op, "0")
            return
        value = self.b.pure(f"trunc i64 {self.ids[axis]} to i32")
        self.define(op, value, Fact(0, count and count - 1))

    def num_programs(self, op: ttir.Op) -> None:
        axis = op.attributes["axis"]
        if axis == "z":
            raise self.state.error("num_programs is known", "axis 2", "Axes 0 and 1 are accepted")
        self.define(op, self.b.pure(f"trunc i64 %g{axis} to i32"), Fact(low=1))

    def define(self, op: ttir.Op, value: str, fact: Fact | None = None) -> None:
        self.state.scalars[op.result] = value
        if fact:
            self.state.facts[value] = fact

    def scalar(self, op: ttir.Op) -> None:
        state = self.state
        registers = [Register(state.scalars[v], state.element(v.type)) for v in op.operands]
        element = state.element(op.result.type)
        if op.name == "arith.constant":
            self.define(op, elementwise.literal(op.constant()[0], element))
        elif op.name == "tt.addptr":
            unit = BYTES[op.result.type.element]
            index = registers[1]
            kind = f"i{8 * unit}"
            self.define(op, self.b.pure(f"getelementptr {kind}, ptr {registers[0].value}, {index.type} {index.value}"))
        elif op.name == "tt.load":
            mask = registers[1] if len(registers) > 1 else None
            other = registers[2] if len(registers) > 2 else None
            self.define(op, memory_access.load(state, registers[0], element, 0, mask, other).value)
        elif op.name == "tt.bitcast" and op.result.type.pointer:
            self.define(op, registers[0].value)
        else:
            self.define(op, elementwise.apply(state, op, registers).value, self.fact(op))

    def fact(self, op: ttir.Op) -> Fact | None:
        """What is known of an integer scalar from its operands."""
        type_ = op.result.type
        if op.name not in {"arith.addi", "arith.subi", "arith.muli"} or bits(type_.element) < 16:
            return None
        polys = [self.state.symbol(self.state.scalars[v], v.type.element) for v in op.operands]
        if op.name == "arith.muli":
            result = polys[0] * polys[1]
        else:
            result = polys[0] + polys[1] if op.name == "arith.addi" else polys[0] - polys[1]
        low, high = self.state.facts.bounds(result)
        return Fact(low, high, self.state.facts.multiple(result) & -self.state.facts.multiple(result) or 1)

    def store(self, op: ttir.Op) -> None:
        state, ev = self.state, self.evaluation
        pointer, value = op.operands[:2]
        mask = op.operands[2] if len(op.operands) > 2 else None
        shape = value.type.shape
        if shape is None:
            register = Register(state.scalars[value], state.element(value.type))
            active = Register(state.scalars[mask], "i1") if mask else None
            memory_access.store(state, Register(state.scalars[pointer], "ptr"), register, 0, active)
            return
        lanes = self.materializer.lanes(op.operands[1:])
        # Long formulas one vector at a time: the processor overlaps turns by itself, and loads stay spread out.
        unroll = 1 if self.keeping.heavy(value) else 2
        domain = Domain(ev, shape, self.materializer.along(shape, [pointer, pointer, value]), lanes, unroll)
        if mask:
            domain.limits = conditions(ev, mask, axes(self.state, shape))

        if self.overlaps(pointer, value, axes(self.state, shape), set()):
            self.materializer.block(value)
        read = self.materializer.reading(domain, op.operands)
        for early in self.keeping.before.get(op, ()):
            # What this loop computes all of, it saves by the way; the rest is saved before it is overwritten.
            if domain.limits or early.type.shape != shape or early not in self.reached(value):
                self.materializer.block(early)

        def body(places: list[Place], active: Register | None) -> None:
            values = [ev.register(value, place) for place in places]
            for place, register in zip(places, values, strict=True):
                where = ev.register(mask, place) if mask else active
                target = ev.pointer(pointer, place)
                memory_access.store(state, target, register, place.lanes, where)

        with read:
            domain.visit(body)

    def overlaps(self, pointer: ttir.Value, value: ttir.Value, index: tuple[Index, ...], seen: set[ttir.Value]) -> bool:
        """Whether a store might write what its own value is still to be read from, at another index.

        Two pointers that a kernel was given hold the same buffer or have no element in common.
        """
        if not lazy(value) or value.op is None or value in self.state.buffers or value in seen:
            return False
        seen.add(value)
        op = value.op
        if op.name != "tt.load":
            return any(self.overlaps(pointer, v, operand_index(op, v, index), seen) for v in op.operands)
        written = self.evaluation.strided(pointer, axes(self.state, pointer.type.shape or ()))
        read = self.evaluation.strided(op.operands[0], index)
        if written and read:
            return written[0] is read[0] and written[1] != read[1]
        return bool(self.sources(pointer, set()) & self.sources(op.operands[0], set()))

    def sources(self, pointer: ttir.Value, seen: set[ttir.Value]) -> set[ttir.Value]:
        """The scalar pointers that a pointer block is made from."""
        if pointer in seen:
            return set()
        seen.add(pointer)
        if pointer in self.state.affine:
            return self.sources(self.state.affine[pointer][0], seen)
        if pointer.type.shape is None:
            return {self.evaluation.origin(pointer)[0]}
        if pointer.op is None or not lazy(pointer):
            return {pointer}
        return set().union(*(self.sources(v, seen) for v in pointer.op.operands if v.type.pointer))

    def reached(self, value: ttir.Value) -> set[ttir.Value]:
        """Every block that the formula of ``value`` holds at the same index."""
        found: set[ttir.Value] = set()
        stack = [value]
        while stack:
            value = stack.pop()
            if value not in found:
                found.add(value)
                if lazy(value) and value.op is not None and value.op.name in elementwise.NAMES:
                    stack += [v for v in value.op.operands if v.type.shape is not None]
        return found


def _spelled(type_: ttir.Type) -> str:
    return f"!tt.ptr<{type_.element}>" if type_.pointer else type_.element
