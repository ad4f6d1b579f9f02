"""The kernel of a pointwise expression, written for the layouts of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbxtensor import shape as shapes
from nbxtensor.op import Argument, Call, Expression, Launch, Number, Source
from nbxtensor.shape.collapse import collapse

__all__ = ["launches"]

_TILE = 1024  # elements a program computes
_SIDE = 32  # of a square tile, where an operand is contiguous along another axis than the result
_INT32 = 2**31 - 2 * _TILE  # offsets up to here, and one tile past them, are computed in 32 bits


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
    wide = any(shapes.extent_span(extents, s) > _INT32 for s in strides) or shapes.numel(extents) > _INT32
    pointers: dict[str, Argument] = {f"o{i}": call.output(i) for i in range(len(call.outputs))}
    pointers |= {f"x{i}": call.input(key) for i, key in enumerate(operands)}
    pointers |= {f"s{i}": scalar for i, scalar in enumerate(scalars)}
    parts = _Parts(name, expression, extents, strides, wide, pointers)
    if len(extents) <= 1 and all(s in ((), (0,), (1,)) for s in strides):
        return (_flat(parts),)
    return (_tiled(parts),)


@dataclass(frozen=True, slots=True)
class _Parts:
    name: str
    expression: Expression
    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  # of the inputs, then of the outputs
    wide: bool
    pointers: dict[str, Argument]

    def value(self, index: int) -> str:
        """The parameter of layout ``index``."""
        inputs = len(self.expression.inputs)
        return f"x{index}" if index < inputs else f"o{index - inputs}"

    def source(self, parameters: Sequence[str], constants: Sequence[str], body: Sequence[str]) -> Source:
        """The kernel with ``body``."""
        signature = ", ".join([*self.pointers, *parameters, *(f"{c}: tl.constexpr" for c in constants)])
        function = f"{self.name}_kernel"
        lines = [*self.expression.imports(), "", "", "@triton.jit", f"def {function}({signature}):"]
        return Source(function, "\n".join([*lines, *("    " + line for line in body), ""]))

    def compute(self, loads: Sequence[str], stores: Sequence[str], mask: Sequence[str]) -> list[str]:
        """Statements that load, compute and store; addresses and masks ("" for none) are Triton source."""
        count = len(loads)
        names = tuple(f"v{i}" for i in range(count))
        lines = [f"{n} = tl.load({a}{_masked(m)})" for n, a, m in zip(names, loads, mask, strict=False)]
        scalars = tuple(f"s{i}" for i in range(self.expression.scalars))
        statements, results = self.expression.body(names, scalars)
        lines += statements
        lines += [f"tl.store({a}, {r}{_masked(m)})" for a, r, m in zip(stores, results, mask[count:], strict=True)]
        return lines


def _masked(mask: str) -> str:
    return f", mask={mask}" if mask else ""


def _flat(parts: _Parts) -> Launch:
    """Every operand is contiguous or one element."""
    total = shapes.numel(parts.extents)
    block = min(_TILE, _power_of_two(total))
    even = total % block == 0
    start = "tl.program_id(0).to(tl.int64)" if parts.wide else "tl.program_id(0)"
    body = [f"start = {start} * BLOCK", "lane = tl.arange(0, BLOCK)"]
    mask = "" if even else "inside"
    if not even:
        body.append("inside = lane < n - start")
    addresses: list[str] = []
    masks: list[str] = []
    for index, strides in enumerate(parts.strides):
        single = strides in ((), (0,)) and index < len(parts.expression.inputs)
        addresses.append(parts.value(index) + ("" if single else " + start + lane"))
        masks.append("" if single else mask)
    count = len(parts.expression.inputs)
    body += parts.compute(addresses[:count], addresses[count:], masks)
    arguments = dict(parts.pointers) if even else {**parts.pointers, "n": total}
    return Launch(
        parts.source([] if even else ["n"], ["BLOCK"], body), (-(-total // block),), arguments, {"BLOCK": block}
    )


def _tiled(parts: _Parts) -> Launch:
    """Programs over rectangles: the innermost axis of the result, by one other axis where that fills a tile."""
    extents = parts.extents
    last = len(extents) - 1
    rows_axis, rows, block = _tile(parts)
    chunks = -(-extents[last] // block)
    bands = 1 if rows_axis is None else -(-extents[rows_axis] // rows)
    outer = [axis for axis in range(last) if axis != rows_axis]
    sizes: dict[str, Argument] = {}
    body = ["pid = tl.program_id(0)" + (".to(tl.int64)" if parts.wide else "")]

    def place(name: str, count: int, expression: str, *, final: bool) -> None:
        """Split an index off the program number."""
        if count == 1:
            body.append(f"{name} = 0")
        elif final:
            body.append(f"{name} = pid")
        else:
            body.extend([f"{name} = pid % {expression}", f"pid = pid // {expression}"])

    sizes["n"] = extents[last]
    place("chunk", chunks, "tl.cdiv(n, BLOCK)", final=bands == 1 and not outer)
    if rows_axis is not None:
        sizes["m"] = extents[rows_axis]
        place("band", bands, "tl.cdiv(m, ROWS)", final=not outer)
    for axis in reversed(outer):
        if axis != outer[0]:
            sizes[f"e{axis}"] = extents[axis]
        place(f"i{axis}", extents[axis], f"e{axis}", final=axis == outer[0])
    two = rows_axis is not None
    long = ".to(tl.int64)" if parts.wide else ""
    body.append(f"column = chunk * BLOCK + tl.arange(0, BLOCK){'[None, :]' if two else ''}{long}")
    inside = [] if extents[last] % block == 0 else ["(column < n)"]
    row_inside: list[str] = []
    if two:
        body.append(f"row = band * ROWS + tl.arange(0, ROWS)[:, None]{long}")
        row_inside = [] if bands * rows == extents[rows_axis or 0] else ["(row < m)"]
    addresses: list[str] = []
    masks: list[str] = []
    for index, strides in enumerate(parts.strides):
        terms = [parts.value(index)]
        for axis in outer:
            if strides[axis]:
                sizes[f"p{index}_{axis}"] = strides[axis]
                terms.append(f"i{axis} * p{index}_{axis}")
        output = index >= len(parts.expression.inputs)
        varies = [strides[last] != 0 or output, two and (strides[rows_axis or 0] != 0 or output)]
        for name, axis, used in (("row", rows_axis, varies[1]), ("column", last, varies[0])):
            if used and axis is not None:
                one = strides[axis] == 1
                sizes |= {} if one else {f"p{index}_{axis}": strides[axis]}
                terms.append(name if one else f"{name} * p{index}_{axis}")
        addresses.append(" + ".join(terms))
        masks.append(" & ".join((inside if varies[0] else []) + (row_inside if varies[1] else [])))
    count = len(parts.expression.inputs)
    body += parts.compute(addresses[:count], addresses[count:], masks)
    constants = {"BLOCK": block, "ROWS": rows} if two else {"BLOCK": block}
    grid = chunks * bands * shapes.numel(tuple(extents[axis] for axis in outer))
    return Launch(parts.source(list(sizes), list(constants), body), (grid,), {**parts.pointers, **sizes}, constants)


def _tile(parts: _Parts) -> tuple[int | None, int, int]:
    """Return the axis of a tile's rows (None for tiles of one row), their number, and the number of columns."""
    extents, last = parts.extents, len(parts.extents) - 1
    crossed = [
        axis
        for axis in range(last)
        for s in parts.strides
        if abs(s[axis]) == 1 and abs(s[last]) > 1 and extents[axis] > 1
    ]
    if crossed:
        axis = crossed[0]
        return axis, min(_SIDE, _power_of_two(extents[axis])), min(_SIDE, _power_of_two(extents[last]))
    block = min(_TILE, _power_of_two(extents[last]))
    if block == _TILE or last == 0:
        return None, 1, block
    axis = max(range(last), key=lambda a: (extents[a], a))
    return axis, min(_TILE // block, _power_of_two(extents[axis])), block


def _power_of_two(n: int) -> int:
    """The least power of two that is at least ``n``."""
    return 1 << (n - 1).bit_length()
