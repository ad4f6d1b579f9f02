"""The kernel of a pointwise expression, written for the layouts of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbxtensor import shape as shapes
from nbxtensor.op import Argument, Call, Expression, Launch, Number
from nbxtensor.op.kernel_text import INT32_ELEMENTS, KernelText, power_of_two, tiles
from nbxtensor.shape.collapse import collapse

__all__ = ["launches"]

_SIDE = 32  # of a square tile, where an operand is contiguous along another axis than the result


def launches(
    name: str, call: Call, expression: Expression, operands: Sequence[str], scalars: Sequence[Number]
) -> tuple[Launch, ...]:
    """Return the launch that computes every result of ``call``, or none where there is no element.

    Args:
        name: What the kernel is called after.
        call: The call; all its results have one shape, and its operands broadcast to it.
        expression: What is computed.
        operands: The operand of each of the expression's inputs, in order.
        scalars: The value of each of its scalars.
    """
    shape = call.outputs[0].shape
    if 0 in shape:
        return ()
    specs = [call[key] for key in operands]
    layouts = [shapes.broadcast_strides(s.shape, s.strides, shape)[1] for s in specs]
    layouts += [s.strides for s in call.outputs]
    extents, strides = collapse(shape, layouts, order=len(specs))
    spans = [shapes.numel(extents), *(shapes.extent_span(extents, s) for s in strides)]
    text = KernelText(f"{name}_kernel", wide=max(spans) > INT32_ELEMENTS)
    text.imports += expression.imports()
    arguments: dict[str, Argument] = {f"o{i}": call.output(i) for i in range(len(call.outputs))}
    arguments |= {f"x{i}": call.input(key) for i, key in enumerate(operands)}
    arguments |= {f"s{i}": scalar for i, scalar in enumerate(scalars)}
    text.arguments |= arguments
    size = tiles(call.target, *(spec.dtype for spec in (*specs, *call.outputs)))
    layout = _Layout(expression, extents, strides, size.elements)
    if len(extents) <= 1 and all(s in ((), (0,), (1,)) for s in strides):
        return (_flat(text, layout),)
    return (_tiled(text, layout),)


@dataclass(frozen=True, slots=True)
class _Layout:
    """An expression, where its inputs and then its outputs lie, and how many elements a program computes."""

    expression: Expression
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    tile: int

    @property
    def inputs(self) -> int:
        return len(self.expression.inputs)

    def pointer(self, index: int) -> str:
        """The parameter of layout ``index``."""
        return f"x{index}" if index < self.inputs else f"o{index - self.inputs}"


def _compute(text: KernelText, expression: Expression, addresses: Sequence[str], masks: Sequence[str]) -> None:
    """Write the loads, the expression and the stores; a mask may be ""."""
    count = len(expression.inputs)
    values = tuple(f"v{i}" for i in range(count))
    places = [a + (f", mask={m}" if m else "") for a, m in zip(addresses, masks, strict=True)]
    results_at = [(a, f", mask={m}" if m else "") for a, m in zip(addresses[count:], masks[count:], strict=True)]
    for value, place in zip(values, places, strict=False):
        text.line(f"{value} = tl.load({place})")
    statements, results = expression.body(values, tuple(f"s{i}" for i in range(expression.scalars)))
    for statement in statements:
        text.line(statement)
    for result, (address, mask) in zip(results, results_at, strict=True):
        text.line(f"tl.store({address}, {result}{mask})")


def _flat(text: KernelText, layout: _Layout) -> Launch:
    """Every operand is contiguous or one element."""
    total = shapes.numel(layout.extents)
    block = min(layout.tile, power_of_two(total))
    text.constants["BLOCK"] = block
    text.line(f"start = tl.program_id(0){text.long} * BLOCK")
    text.line("lane = tl.arange(0, BLOCK)")
    mask = "" if total % block == 0 else "inside"
    if mask:
        text.line(f"inside = lane < {text.size('n', total)} - start")
    single = [i < layout.inputs and s in ((), (0,)) for i, s in enumerate(layout.strides)]
    addresses = [layout.pointer(i) + ("" if one else " + start + lane") for i, one in enumerate(single)]
    _compute(text, layout.expression, addresses, ["" if one else mask for one in single])
    return text.launch(-(-total // block))


def _tiled(text: KernelText, layout: _Layout) -> Launch:
    """Programs over rectangles: the innermost axis of the result, by one other axis where that fills a tile."""
    extents, last = layout.extents, len(layout.extents) - 1
    across, rows, block = _tile(layout)
    text.constants["BLOCK"] = block
    indices = [("chunk", -(-extents[last] // block), f"tl.cdiv({text.size('n', extents[last])}, BLOCK)")]
    inside = [] if extents[last] % block == 0 else ["(column < n)"]
    row_inside: list[str] = []
    if across is not None:
        text.constants["ROWS"] = rows
        indices.append(("band", -(-extents[across] // rows), f"tl.cdiv({text.size('m', extents[across])}, ROWS)"))
        row_inside = [] if extents[across] % rows == 0 else ["(row < m)"]
    outer = [axis for axis in range(last) if axis != across]
    indices += [(f"i{axis}", extents[axis], text.size(f"e{axis}", extents[axis])) for axis in reversed(outer)]
    programs = text.split(indices)
    text.line(f"column = chunk * BLOCK + tl.arange(0, BLOCK){'' if across is None else '[None, :]'}{text.long}")
    if across is not None:
        text.line(f"row = band * ROWS + tl.arange(0, ROWS)[:, None]{text.long}")
    addresses: list[str] = []
    masks: list[str] = []
    for index, strides in enumerate(layout.strides):
        terms = [layout.pointer(index)]
        for axis in outer:
            terms += text.term(f"i{axis}", f"p{index}_{axis}", strides[axis])
        result = index >= layout.inputs
        mask: list[str] = []
        for name, axis, bounds in (("row", across, row_inside), ("column", last, inside)):
            if axis is not None and (result or strides[axis]):
                terms += text.term(name, f"p{index}_{axis}", strides[axis])
                mask += bounds
        addresses.append(" + ".join(terms))
        masks.append(" & ".join(mask))
    _compute(text, layout.expression, addresses, masks)
    return text.launch(programs)


def _tile(layout: _Layout) -> tuple[int | None, int, int]:
    """Return the axis of a tile's rows (None for tiles of one row), their number, and the number of columns."""
    extents, last = layout.extents, len(layout.extents) - 1
    crossed = [axis for axis in range(last) for s in layout.strides if abs(s[axis]) == 1 and abs(s[last]) > 1]
    if crossed:
        axis = crossed[0]
        return axis, min(_SIDE, power_of_two(extents[axis])), min(_SIDE, power_of_two(extents[last]))
    block = min(layout.tile, power_of_two(extents[last]))
    if block == layout.tile or last == 0:
        return None, 1, block
    axis = max(range(last), key=lambda a: (extents[a], a))
    return axis, min(layout.tile // block, power_of_two(extents[axis])), block
