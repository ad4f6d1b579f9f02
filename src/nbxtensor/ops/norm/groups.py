"""The kernel that normalises groups of channels over their channels and positions."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from nbxtensor import shape as shapes
from nbxtensor.errors import ArgumentError, ShapeError, UnsupportedError
from nbxtensor.op import Call, Cost, Kernel, Launch, Number, Spec
from nbxtensor.op.kernel_text import INT32_ELEMENTS, KernelText, power_of_two
from nbxtensor.ops.norm.rows import check_floats, compute_dtype
from nbxtensor.shape.collapse import collapse

__all__ = ["group_kernel", "group_result"]

_TILE = 1024  # elements of a tile that is walked
_WHOLE = 8192  # elements of a group up to which it is one tile


def group_count(call: Call) -> int:
    """Return the number of groups: every channel is one where the op has no such parameter."""
    return call.params.get("groups", call["x"].shape[1])


def group_result(call: Call) -> Spec:
    """Return the spec of the result.

    Raises:
        ShapeError: ``x`` has fewer than two axes, or a weight is not one number for each channel.
        ArgumentError: The groups do not divide the channels.
        DtypeError: An operand is no float of 16 bits or more.
    """
    x = call["x"]
    if x.ndim < 2:
        raise ShapeError(f"{call.op.name}: x is [batch, channels, ...]. Got shape {x.shape}. Two axes or more.")
    channels, groups = x.shape[1], group_count(call)
    if groups < (1 if channels else 0) or (groups and channels % groups):
        raise ArgumentError(f"{call.op.name}: groups divide the channels. Got {groups} for {channels}.")
    affine = [name for name in ("weight", "bias") if name in call.inputs]
    check_floats(call, x.dtype, *(call[name].dtype for name in affine))
    for name in affine:
        if call[name].shape != (channels,):
            raise ShapeError(
                f"{call.op.name}: {name} has one number for each channel. Got shape {call[name].shape}, "
                f"not {(channels,)}."
            )
    return x.packed()


def group_kernel() -> Kernel:
    """Return the kernel of group_norm and instance_norm: one program for each group of each batch entry."""
    return Kernel("groups", _cost, _launch)


def _launch(call: Call) -> tuple[Launch, ...]:
    return (_Writer(call).launch(),) if call.outputs[0].numel else ()


def _cost(call: Call) -> Cost:
    if not call.outputs[0].numel:
        return Cost(0, 0, 0)
    walks = 1 if _Writer(call).whole else 3
    again = (walks - 1) * call.operand_nbytes
    return Cost(7 * call.outputs[0].numel, walks * call.operand_nbytes, call.result_nbytes, again=again)


class _Writer:
    """Writes the kernel of one call: tiles of channels by positions."""

    def __init__(self, call: Call) -> None:
        self.call = call
        x, result = call["x"], call.outputs[0]
        self.channels = x.shape[1] // group_count(call)
        layouts = (x.strides, result.strides)
        extents, places = collapse(x.shape[2:], [s[2:] for s in layouts])
        if len(extents) > 1:
            raise UnsupportedError(
                f"{call.op.name}: the positions of a channel are one walk through memory. Got extents {x.shape[2:]} "
                f"with strides {x.strides[2:]}. contiguous() makes a copy where they are."
            )
        self.positions = extents[0] if extents else 1
        self.strides = {  # of a batch entry, a channel, a position
            name: (*s[:2], *(p or (0,))) for name, s, p in zip(("x", "o"), layouts, places, strict=True)
        }
        wide = max(shapes.extent_span(x.shape, s) for s in layouts) > INT32_ELEMENTS
        self.text = KernelText(f"{call.op.name}_kernel", wide=wide)
        length, tall = power_of_two(self.positions), power_of_two(self.channels)
        self.whole = length * tall <= _WHOLE
        self.length = length if self.whole else min(length, _TILE)
        self.tall = tall if self.whole else min(tall, _TILE // self.length)
        # The dimension of a tile that is contiguous in memory is the second one.
        self.last = not 0 < abs(self.strides["x"][1]) < abs(self.strides["x"][2])

    def launch(self) -> Launch:
        call, text = self.call, self.text
        compute = compute_dtype(call["x"].dtype)
        text.imports.append("from nbxtensor.ops.norm import kernel as f")
        text.arguments |= {"o": call.output(), "x": call.input("x")}
        for pointer, name in (("w", "weight"), ("b", "bias")):
            if name in call.inputs:
                text.arguments[pointer] = call.input(name)
        text.arguments["eps"] = Number(float(call.params["eps"]), compute)
        text.constants |= {"LENGTH": self.length, "TALL": self.tall}
        text.size("n", self.positions)
        text.size("c", self.channels)
        groups = group_count(call)
        programs = text.split([("group", groups, text.size("groups", groups)), ("entry", call["x"].shape[0], "")])
        text.line("count = n * c")
        text.rounds += 2  # sums over a group
        shape = "(TALL, LENGTH)" if self.last else "(LENGTH, TALL)"
        if self.whole:
            with self.walk():
                self.value(compute)
                text.line("mean = f.tile_mean(tl.where(inside, v, 0.0), count)")
                text.line("d = tl.where(inside, v - mean, 0.0)")
                text.line("scale = f.scale(f.tile_mean(d * d, count), eps)")
                self.finish(compute)
        else:
            text.line(f"total = tl.zeros({shape}, tl.{compute})")
            with self.walk():
                self.value(compute)
                text.line("total = total + tl.where(inside, v, 0.0)")
            text.line("mean = f.tile_mean(total, count)")
            text.line(f"squares = tl.zeros({shape}, tl.{compute})")
            with self.walk():
                self.value(compute)
                text.line("d = tl.where(inside, v - mean, 0.0)")
                text.line("squares = squares + d * d")
            text.line("scale = f.scale(f.tile_mean(squares, count), eps)")
            with self.walk():
                self.value(compute)
                self.finish(compute)
        return text.launch(programs, warps=8 if self.length * self.tall > 2 * _TILE else 4)

    @contextlib.contextmanager
    def walk(self) -> Generator[None]:
        """Write what is done inside for every tile of the group."""
        text = self.text
        down, across = ("[:, None]", "[None, :]") if self.last else ("[None, :]", "[:, None]")
        with contextlib.ExitStack() as loops:
            if not self.whole:
                loops.enter_context(text.block("for low in range(0, c, TALL):"))
                loops.enter_context(text.block("for start in range(0, n, LENGTH):"))
            channel, position = ("", "") if self.whole else ("low + ", "start + ")
            text.line(f"member = ({channel}tl.arange(0, TALL)){down}{text.long}")
            text.line(f"place = ({position}tl.arange(0, LENGTH)){across}{text.long}")
            text.line("inside = (member < c) & (place < n)")
            text.line("channel = group * c + member")
            yield

    def _address(self, name: str) -> str:
        entry, channel, position = self.strides[name]
        text = self.text
        terms = text.term("entry", f"{name}_entry", entry) + text.term("channel", f"{name}_channel", channel)
        return " + ".join([name, *terms, *text.term("place", f"{name}_place", position)])

    def value(self, compute: str) -> None:
        """Write the load of a tile."""
        self.text.line(f"v = tl.cast(tl.load({self._address('x')}, mask=inside), tl.{compute})")

    def finish(self, compute: str) -> None:
        """Write the result of a tile."""
        text = self.text
        text.line("y = (v - mean) * scale")
        for pointer, name, sign in (("w", "weight", "*"), ("b", "bias", "+")):
            if pointer in text.arguments:
                terms = text.term("channel", f"{pointer}_channel", self.call[name].strides[0]) or ["channel * 0"]
                load = f"tl.load({pointer} + {terms[0]}, mask=member < c)"
                text.line(f"y = y {sign} tl.cast({load}, tl.{compute})")
        text.line(f"tl.store({self._address('o')}, tl.cast(y, tl.{self.call['x'].dtype}), mask=inside)")
