"""The kernel that normalises rows: the last axes of an operand, by their mean and variance or by their mean square."""

from __future__ import annotations

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import bits, kind
from nbxtensor.errors import DtypeError, ShapeError, UnsupportedError
from nbxtensor.op import Call, Cost, Kernel, Launch, Number, Spec
from nbxtensor.op.kernel_text import tiles
from nbxtensor.op.prologue import Prologue
from nbxtensor.op.row_text import RowText
from nbxtensor.shape.collapse import collapse

__all__ = ["check_floats", "compute_dtype", "row_kernel", "row_result"]


def check_floats(call: Call, *dtypes: str) -> None:
    """Raise DtypeError unless every dtype is a float of 16 bits or more."""
    for dtype in dtypes:
        if kind(dtype) != "float" or bits(dtype) < 16:
            raise DtypeError(
                f"{call.op.name}: floats of 16 bits or more. Got {', '.join(dtypes)}. astype converts an operand."
            )


def compute_dtype(*dtypes: str) -> str:
    """Return the dtype that statistics of ``dtypes`` are computed in."""
    return "float64" if "float64" in dtypes else "float32"


def row_result(call: Call) -> Spec | tuple[Spec, ...]:
    """Return the spec of the result, with that of the value before it where ``keep`` is set.

    Raises:
        ShapeError: The last axes of the value, or a weight, are not ``normalized_shape``.
        DtypeError: An operand is no float of 16 bits or more.
    """
    value = Prologue(call).spec
    rows = normalized_shape(call)
    affine = [name for name in ("weight", "bias") if name in call.inputs]
    check_floats(call, value.dtype, *(call[name].dtype for name in affine))
    if not rows or value.shape[-len(rows) :] != rows:
        raise ShapeError(
            f"{call.op.name}: the last axes of x are normalized_shape. Got shape {value.shape} and {rows}. "
            "One axis or more, of equal extents."
        )
    for name in affine:
        if call[name].shape != rows:
            raise ShapeError(f"{call.op.name}: {name} has shape normalized_shape. Got {call[name].shape}, not {rows}.")
    return (value, value) if call.params["keep"] else value


def normalized_shape(call: Call) -> tuple[int, ...]:
    """Return the extents of the axes that are normalised."""
    return shapes.as_shape(call.params["normalized_shape"], op=call.op.name)


def _text(call: Call) -> RowText:
    """Start the kernel: the normalised axes as one axis."""
    prologue, shape = Prologue(call), call.outputs[0].shape
    split = len(shape) - len(normalized_shape(call))
    layouts = {f"o{i}": spec.strides for i, spec in enumerate(call.outputs)} | prologue.layouts(call)
    for pointer, name in (("w", "weight"), ("b", "bias")):
        if name in call.inputs:
            layouts[pointer] = (0,) * split + call[name].strides
    names = list(layouts)
    extents, rows = collapse(shape[split:], [layouts[name][split:] for name in names])
    if len(extents) > 1:
        raise UnsupportedError(
            f"{call.op.name}: the normalised axes are one walk through memory. Got axes of extents {shape[split:]} "
            f"with strides {call['x'].strides[-len(shape[split:]) :]}. contiguous() makes a copy that is."
        )
    merged = {n: (*layouts[n][:split], *(r or (1,))) for n, r in zip(names, rows, strict=True)}
    size = tiles(call.target, *(call[name].dtype for name in prologue.names), *(o.dtype for o in call.outputs))
    return RowText(f"{call.op.name}_kernel", (*shape[:split], *(extents or (1,))), split, merged, "x", size)


def row_kernel(*, centred: bool) -> Kernel:
    """Return the kernel of layer_norm (``centred``) or of rms_norm."""

    def launch(call: Call) -> tuple[Launch, ...]:
        return (_launch(call, centred=centred),) if call.outputs[0].numel else ()

    def cost(call: Call) -> Cost:
        if not call.outputs[0].numel:
            return Cost(0, 0, 0)
        walks = 1 if _text(call).whole else 3 if centred else 2
        each = (5 if centred else 3) + sum(name in call.inputs for name in ("weight", "bias")) + Prologue(call).flops
        again = (walks - 1) * call.operand_nbytes
        return Cost(each * call.outputs[0].numel, walks * call.operand_nbytes, call.result_nbytes, again=again)

    return Kernel("rows", cost, launch, strided=True)


def _launch(call: Call, *, centred: bool) -> Launch:
    prologue, text, dtype = Prologue(call), _text(call), call.outputs[0].dtype
    compute = compute_dtype(dtype)
    text.imports.append("from nbxtensor.ops.norm import kernel as f")
    text.arguments |= {f"o{i}": call.output(i) for i in range(len(call.outputs))}
    text.arguments |= prologue.arguments(call)
    affine = [(p, name) for p, name in (("w", "weight"), ("b", "bias")) if name in call.inputs]
    text.arguments |= {pointer: call.input(name) for pointer, name in affine}
    text.arguments["eps"] = Number(float(call.params["eps"]), compute)
    text.begin()
    text.repeat(2 if centred else 1)  # sums over the rows
    count, dim = text.size("n", text.extent), text.dim
    away = "v - mean" if centred else "v"

    def value() -> str:
        (result,) = text.compute(prologue.expression, list(prologue.pointers()))
        text.line(f"v = tl.cast({result}, tl.{compute})")
        return result

    def finish(result: str) -> None:
        text.line(f"y = ({away}) * scale")
        for pointer, sign in zip(("w", "b"), "*+", strict=True):
            if pointer in text.arguments:
                text.load(f"{pointer}_v", pointer)
                text.line(f"y = y {sign} tl.cast({pointer}_v, tl.{compute})")
        text.store("o0", f"tl.cast(y, tl.{dtype})")
        if len(call.outputs) > 1:
            text.store("o1", result)

    if text.whole:
        with text.walk():
            result = value()
            if centred:
                text.line(f"mean = f.row_mean({text.padded('v', '0.0')}, {count}, {dim})")
            text.line(f"d = {text.padded(away, '0.0')}")
            text.line(f"scale = f.scale(f.row_mean(d * d, {count}, {dim}), eps)")
            finish(result)
    else:
        if centred:
            text.line(f"total = tl.zeros({text.shape}, tl.{compute})")
            with text.walk():
                value()
                text.line(f"total = total + {text.padded('v', '0.0')}")
            text.line(f"mean = f.row_mean(total, {count}, {dim})")
        text.line(f"squares = tl.zeros({text.shape}, tl.{compute})")
        with text.walk():
            value()
            text.line(f"d = {text.padded(away, '0.0')}")
            text.line("squares = squares + d * d")
        text.line(f"scale = f.scale(f.row_mean(squares, {count}, {dim}), eps)")
        with text.walk():
            finish(value())
    return text.launch(text.programs, warps=text.warps)
