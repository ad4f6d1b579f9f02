"""From a call of a reduction to its launches: which axes it walks, in how many kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import itemsize
from nbxtensor.op import Buffer, Call, Cost, Kernel, Launch, Pointer, Spec
from nbxtensor.op.kernel_text import tiles
from nbxtensor.ops.reduce.generate import Walk, launch
from nbxtensor.ops.reduce.passes import Reduction
from nbxtensor.ops.tiling_policy import split_size
from nbxtensor.shape.collapse import collapse

__all__ = ["kernels", "reduced_axes", "result_shape"]

_PROGRAMS = 16  # fewer programs than this leave a device idle
_PIECES: Mapping[str, int] = {"cpu": 2**14}  # elements that are worth a program, by kind of device
_PIECE = 2**11  # of all others: two rounds of a program, since many run at once
_MOST_PIECES = 256  # so that one tile finishes their totals

Rule = Callable[[Call], Reduction]


def reduced_axes(call: Call) -> tuple[int, ...]:
    """Return the axes of ``x`` that are reduced, in order.

    Raises:
        BoundsError: An axis is out of range.
        ArgumentError: An axis is named twice.
    """
    return tuple(sorted(shapes.normalize_axes(call.params["axis"], call["x"].ndim, op=call.op.name)))


def result_shape(call: Call) -> tuple[int, ...]:
    """Return the shape that is left, reduced axes with extent 1 where they are kept."""
    axes = reduced_axes(call)
    if call.params["keepdims"]:
        return tuple(1 if axis in axes else n for axis, n in enumerate(call["x"].shape))
    return tuple(n for axis, n in enumerate(call["x"].shape) if axis not in axes)


@dataclass(frozen=True, slots=True)
class _Step:
    """A walk and the workspace it writes, by name ("" for the results)."""

    walk: Walk
    writes: str


def kernels(rule: Rule) -> tuple[Kernel, ...]:
    """Return the kernel that computes ``rule``: one launch, or two a pass where few results need many elements."""

    def launches(call: Call) -> tuple[Launch, ...]:
        if not call.outputs[0].numel:
            return ()
        return tuple(launch(step.walk) for step in _steps(call, rule(call)))

    def cost(call: Call) -> Cost:
        if not call.outputs[0].numel:
            return Cost(0, 0, 0)
        reduction = rule(call)
        steps = _steps(call, reduction)
        buffers = _buffers(steps)
        walks = 1 if steps[0].walk.whole else len(reduction.passes)
        workspace = sum(buffer.nbytes for buffer in buffers)
        read = walks * call.operand_nbytes + workspace
        again, flops = (walks - 1) * call.operand_nbytes, reduction.flops * call["x"].numel
        return Cost(flops, read, call.result_nbytes + workspace, buffers=buffers, again=again)

    return (Kernel("reduce", cost, launches),)


def _steps(call: Call, reduction: Reduction) -> list[_Step]:
    """Return the walks of a call."""
    walk = _walk(call, reduction)
    widest = max(itemsize(step.total) for step in reduction.passes)
    room = split_size("reduce", "workspace_nbytes") // (shapes.numel(walk.kept) * widest * len(reduction.passes)) - 1
    pieces = _pieces(walk, _PIECES.get(call.device.backend, _PIECE), room)
    if pieces == 1:
        return [_Step(walk, "")]
    steps: list[_Step] = []
    dense = shapes.contiguous_strides(walk.kept)
    spread = tuple(stride * pieces for stride in dense)
    for number, step in enumerate(reduction.passes):
        last = number == len(reduction.passes) - 1
        name = f"partial{number}"
        partial = replace(step, finish="total_itself")
        totals = call.workspace(name, step.total)
        cut = replace(
            walk, target=totals, results=spread, passes=(partial,), pieces=pieces, indexed=walk.indexed and last
        )
        rest = Walk(
            f"{call.op.name}_finish",
            totals,
            walk.target if last else call.workspace("centre", step.total),
            walk.kept,
            (pieces,),
            (*spread, 1),
            walk.results if last else dense,
            (replace(step, lift="itself", compute=step.total),),
        )
        if number:
            centre = call.workspace("centre", reduction.passes[0].total)
            cut = replace(cut, centre=centre, centres=dense)
            if step.centred:
                rest = replace(rest, centre=centre, centres=dense)
        steps += [_Step(cut, name), _Step(rest, "" if last else "centre")]
    return steps


def _buffers(steps: list[_Step]) -> tuple[Buffer, ...]:
    """Return the workspace that the walks write, each alive until the last walk that reads it."""
    buffers: list[Buffer] = []
    for index, step in enumerate(steps):
        if step.writes:
            walk = step.walk
            nbytes = shapes.numel(walk.kept) * walk.pieces * itemsize(walk.target.dtype)
            readers = [i for i, s in enumerate(steps) if step.writes in _reads(s.walk)]
            buffers.append(Buffer(step.writes, nbytes, index, max(readers)))
    return tuple(buffers)


def _reads(walk: Walk) -> set[str]:
    pointers: list[Pointer] = [walk.source] + ([walk.centre] if walk.centre else [])
    return {str(pointer.key) for pointer in pointers if pointer.role == "workspace"}


def _walk(call: Call, reduction: Reduction) -> Walk:
    """Return the whole reduction as one walk over as few axes as the strides allow."""
    x, axes = call["x"], reduced_axes(call)
    kept_axes = [axis for axis in range(x.ndim) if axis not in axes]
    results = _result_strides(call.outputs[0], axes if call.params["keepdims"] else ())
    layouts = [tuple(x.strides[a] for a in kept_axes), results]
    kept, (strides, results) = collapse(tuple(x.shape[a] for a in kept_axes), layouts)
    reduced, (inner,) = collapse(tuple(x.shape[a] for a in axes), [tuple(x.strides[a] for a in axes)])
    if not reduced:
        reduced, inner = (1,), (0,)
    return Walk(
        call.op.name,
        call.input("x"),
        call.output(),
        kept,
        reduced,
        strides + inner,
        results,
        reduction.passes,
        reduction.indexed,
        tiles=tiles(call.target, x.dtype),
    )


def _result_strides(result: Spec, dropped: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(stride for axis, stride in enumerate(result.strides) if axis not in dropped)


def _pieces(walk: Walk, piece: int, room: int) -> int:
    """Return how many pieces the reduced elements are cut into: 1 where the results alone give programs enough.

    Args:
        walk: The whole reduction.
        piece: Elements that are worth a program.
        room: Pieces whose totals the workspace holds.
    """
    count = shapes.numel(walk.reduced)
    programs = shapes.numel(walk.kept)
    if programs >= _PROGRAMS or count < 4 * piece:
        return 1
    pieces = min(_MOST_PIECES, -(-count // piece), room)
    return pieces if pieces > 1 else 1
