"""Ops that place or count elements by their values: gather, histogram, cat."""

from __future__ import annotations

from nbxtensor.backend.cpu.domains import Domain, vector_axis
from nbxtensor.backend.cpu.evaluation import Place
from nbxtensor.backend.cpu.materialize import Materializer
from nbxtensor.backend.cpu.state import BYTES, LLVM, Buffer, Index, Register
from nbxtensor.backend.cpu.ttir import Op, Type

__all__ = ["cat", "gather", "histogram"]


def gather(materializer: Materializer, op: Op) -> None:
    """Write a ``tt.gather``: along one axis, each element is picked by a block of indices.

    An index out of range picks some element of the block (its bits beyond the extent are ignored).
    """
    evaluation, state = materializer.evaluation, materializer.state
    source, indices = op.operands
    axis = op.integer("axis")
    extent = (source.type.shape or ())[axis]
    block = materializer.block(source)
    target = state.allocate(op.result.type)
    shape = op.result.type.shape or ()
    lanes = state.width // 4
    domain = Domain(evaluation, shape, vector_axis(shape, lanes), lanes)
    with materializer.reading(domain, [indices]):

        def body(places: list[Place], _: Register | None) -> None:
            for place in places:
                number = evaluation.register(indices, place)
                limit = state.b.splat(str(extent - 1), LLVM[number.element], number.lanes)
                inside = state.b.pure(f"and {number.type} {number.value}, {limit}")
                index: list[Index] = list(place.index)
                index[axis] = Register(inside, number.element, number.lanes)
                picked = evaluation.load_buffer(block, Place(tuple(index), place.lanes))
                evaluation.store_buffer(target, place, picked)

        domain.visit(body)
    state.buffers[op.result] = target


def histogram(materializer: Materializer, op: Op) -> None:
    """Write a ``tt.histogram``: how often each number below the count of bins occurs; others are not counted."""
    evaluation, state = materializer.evaluation, materializer.state
    b = state.b
    values, *masks = op.operands
    bins = op.result.type.extents[0]
    count = LLVM[state.element(op.result.type)]
    target = state.allocate(op.result.type)
    nbytes = BYTES[op.result.type.element]
    arguments = [("ptr", target.address), ("i8", "0"), ("i64", str(bins * nbytes)), ("i1", "false")]
    b.call("void", "llvm.memset.p0.i64", arguments)
    shape = values.type.shape or ()
    domain = Domain(evaluation, shape, len(shape) - 1, 1, 1)
    with materializer.reading(domain, op.operands):

        def body(places: list[Place], _: Register | None) -> None:
            number = evaluation.register(values, places[0])
            test = b.op(f"icmp ult {number.type} {number.value}, {bins}")
            for mask in masks:
                test = b.op(f"and i1 {test}, {evaluation.register(mask, places[0]).value}")

            def add() -> list[str]:
                place = b.op(f"getelementptr {count}, ptr {target.address}, {number.type} {number.value}")
                more = b.op(f"add {count} {b.op(f'load {count}, ptr {place}, align {nbytes}')}, 1")
                b.do(f"store {count} {more}, ptr {place}, align {nbytes}")
                return []

            b.choose(test, add)

        domain.visit(body)
    state.buffers[op.result] = target


def cat(materializer: Materializer, op: Op) -> None:
    """Write a ``tt.cat``: the second block after the first along the first axis."""
    state = materializer.state
    target = state.allocate(op.result.type)
    nbytes = BYTES[state.element(op.result.type)]
    start = 0
    for value in op.operands:
        address = state.b.pure(f"getelementptr i8, ptr {target.address}, i64 {start}")
        materializer.block(value, Buffer(address, Type(value.type.element, value.type.shape, value.type.pointer)))
        start += value.type.size * nbytes
    state.buffers[op.result] = target
