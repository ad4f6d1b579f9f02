"""The kernel of one walk, or of two, over the elements of a reduction, written for the layout of its operand."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from nbxtensor import shape as shapes
from nbxtensor.op import Launch, Number, Pointer
from nbxtensor.op.kernel_text import INT32_ELEMENTS, KernelText, Tiles, power_of_two
from nbxtensor.ops.reduce.passes import Pass

__all__ = ["Walk", "launch"]

_TILE = 1024  # elements of a tile whose reduced axis lies across memory
_WHOLE = 4096  # elements of a row up to which it is one tile


@dataclass(frozen=True, slots=True)
class Walk:
    """A reduction over (kept axes, reduced axes) as one kernel.

    Attributes:
        name: What the kernel is called after.
        source: The elements.
        target: The results.
        kept: Extents of the kept axes.
        reduced: Extents of the reduced axes, in row-major order of the elements' places.
        strides: Of the elements, along the kept axes, then along the reduced ones.
        results: Strides of the results, along the kept axes.
        passes: What is computed.
        indexed: Whether the last pass looks at the place of an element.
        centre: The result of an earlier kernel that the last pass is given.
        centres: Strides of `centre`, along the kept axes.
        pieces: Number of pieces that the reduced axes are cut into: each gives a total of its own, along a new last
            axis of the results of stride 1.
        tiles: How large tiles are.
    """

    name: str
    source: Pointer
    target: Pointer
    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    strides: tuple[int, ...]
    results: tuple[int, ...]
    passes: tuple[Pass, ...]
    indexed: bool = False
    centre: Pointer | None = None
    centres: tuple[int, ...] = ()
    pieces: int = 1
    tiles: Tiles = field(default_factory=Tiles)

    @property
    def whole(self) -> bool:
        """Whether a program holds all it reduces at once, so that two passes read the elements once."""
        return _tile(self).whole


@dataclass(frozen=True, slots=True)
class _Tile:
    """A rectangle of elements.

    Attributes:
        along: The reduced axis it lies along.
        length: Its extent along that axis.
        beside: The kept axis it lies along, or None.
        width: Its extent along that axis.
        inner: Whether the reduced axis is the inner one.
        whole: Whether one tile holds all that is reduced.
    """

    along: int
    length: int
    beside: int | None
    width: int
    inner: bool
    whole: bool


def _tile(walk: Walk) -> _Tile:
    kept, reduced = walk.kept, walk.reduced
    count = len(kept)

    def step(axis: int) -> tuple[int, int]:
        stride = abs(walk.strides[axis])
        return (stride or INT32_ELEMENTS, -axis)

    inner = min(range(count + len(reduced)), key=step)
    if inner >= count:
        along = inner - count
        alone, tile = len(reduced) == 1 and walk.pieces == 1, walk.tiles.elements
        length = power_of_two(reduced[along])
        whole = alone and length <= _WHOLE
        length = length if whole else min(length, tile)
        beside = count - 1 if count and length < tile else None
        width = 1 if beside is None else min(tile // length, power_of_two(kept[beside]))
        return _Tile(along, length, beside, width, inner=True, whole=whole)
    along = max(range(len(reduced)), key=lambda axis: (reduced[axis], axis))
    width = min(_TILE // 8, power_of_two(kept[inner]))
    length = min(_TILE // width, power_of_two(reduced[along]))
    whole = len(reduced) == 1 and reduced[along] <= length and walk.pieces == 1
    return _Tile(along, length, inner, width, inner=False, whole=whole)


def launch(walk: Walk) -> Launch:
    """Return the launch that does ``walk``."""
    spans = [
        shapes.extent_span(walk.kept + walk.reduced, walk.strides),
        shapes.numel(walk.kept) * walk.pieces,
        shapes.numel(walk.reduced),
    ]
    writer = _Writer(walk, KernelText(f"{walk.name}_kernel", wide=max(spans) > INT32_ELEMENTS))
    return writer.launch()


class _Writer:
    """Writes the kernel of a walk."""

    def __init__(self, walk: Walk, text: KernelText) -> None:
        self.walk = walk
        self.text = text
        self.tile = _tile(walk)
        self.short = self.tile.beside is not None and walk.kept[self.tile.beside] % self.tile.width != 0
        reduced, along = walk.reduced, self.tile.along
        self.loops = {"n": reduced[along]}  # extents walked, by the name of their argument
        if len(reduced) > 1:
            self.loops["others"] = shapes.numel(reduced[:along] + reduced[along + 1 :])
        self.cut = max(self.loops, key=lambda name: self.loops[name]) if walk.pieces > 1 else ""
        self.ragged = self.cut == "n" or self.loops["n"] % self.tile.length != 0 or not self.loops["n"]

    def launch(self) -> Launch:
        walk, tile, text = self.walk, self.tile, self.text
        text.imports.append("from nbxtensor.ops.reduce import kernel as f")
        text.arguments |= {"o": walk.target, "x": walk.source}
        if walk.centre:
            text.arguments["c"] = walk.centre
        for index, step in enumerate(walk.passes):
            text.arguments[f"p{index}"] = Number(step.number, "float64" if step.total == "float64" else "float32")
        text.constants |= {"LENGTH": tile.length, "WIDTH": tile.width}
        programs = self.place()
        keep = ", mask=beside < w" if self.short else ""
        text.line(f"origin = {f'tl.load(middle{keep})' if walk.centre else '0.0'}")
        text.line(f"centre = {self.spread('origin') if walk.centre else 'origin'}")
        if tile.whole:
            self.load("0")
        axis = 1 if tile.inner and tile.beside is not None else 0
        for number, step in enumerate(walk.passes):
            if number:
                text.line(f"centre = {self.spread('origin')}")
            self.total(step, f"p{number}")
            text.line(f"total = tl.reduce(total, {axis}, f.{step.combine})")
            text.rounds += 1
            text.line(f"origin = f.{step.finish}(total, origin, p{number})")
        result = "origin != 0" if walk.target.dtype == "bool" else f"tl.cast(origin, tl.{walk.target.dtype})"
        text.line(f"tl.store(place{' + piece' if walk.pieces > 1 else ''}, {result}{keep})")
        return text.launch(programs, warps=walk.tiles.warps(tile.length * tile.width))

    def place(self) -> int:
        """Write where a program works: its elements, its results, its centres; return the number of programs."""
        walk, tile, text = self.walk, self.tile, self.text
        outer = [axis for axis in range(len(walk.kept)) if axis != tile.beside]
        indices: list[tuple[str, int, str]] = []
        if walk.pieces > 1:
            indices.append(("piece", walk.pieces, text.size("pieces", walk.pieces)))
        if tile.beside is not None:
            extent = walk.kept[tile.beside]
            indices.append(("band", -(-extent // tile.width), f"tl.cdiv({text.size('w', extent)}, WIDTH)"))
        indices += [(f"i{axis}", walk.kept[axis], text.size(f"e{axis}", walk.kept[axis])) for axis in reversed(outer)]
        programs = text.split(indices)
        if tile.beside is not None:
            text.line(f"beside = band * WIDTH + tl.arange(0, WIDTH){text.long}")
        places = {"base": ("x", walk.strides), "place": ("o", walk.results), "middle": ("c", walk.centres)}
        for name, (pointer, strides) in places.items():
            if name == "middle" and not walk.centre:
                continue
            terms = [pointer]
            for axis in outer:
                terms += text.term(f"i{axis}", f"{pointer}{axis}", strides[axis])
            if tile.beside is not None:
                index = self.spread("beside") if name == "base" else "beside"
                terms += _full(text.term(index, f"{pointer}{tile.beside}", strides[tile.beside]), index)
            text.line(f"{name} = {' + '.join(terms)}")
        return programs

    def spread(self, name: str) -> str:
        """A value for each result as a block that stretches to a tile."""
        if self.tile.beside is None:
            return name
        return f"{name}[:, None]" if self.tile.inner else f"{name}[None, :]"

    def total(self, step: Pass, number: str) -> None:
        """Write the total of a pass: a tile of totals, or of the lifted elements where one tile holds them all."""
        walk, tile, text = self.walk, self.tile, self.text
        if tile.whole:
            text.line(f"total = {self.lifted(step, number)}")
            return
        shape = "(LENGTH,)"
        if tile.beside is not None:
            shape = "(WIDTH, LENGTH)" if tile.inner else "(LENGTH, WIDTH)"
        text.line(f"total = tl.full({shape}, {step.identity}, tl.{step.total})")
        ranges = {name: f"0, {text.size(name, extent)}" for name, extent in self.loops.items()}
        if self.cut:
            span = text.size("span", -(-self.loops[self.cut] // walk.pieces))
            text.line(f"low = piece * {span}")
            text.line(f"high = tl.minimum(low + {span}, {self.cut})")
            ranges[self.cut] = "low, high"
        with contextlib.ExitStack() as loops:
            if "others" in self.loops:
                loops.enter_context(text.block(f"for other in range({ranges['others']}):"))
                text.rounds += self.loops["others"] // (walk.pieces if self.cut == "others" else 1)
            start = "0"
            if self.loops["n"] > tile.length or self.cut == "n":
                loops.enter_context(text.block(f"for start in range({ranges['n']}, LENGTH):"))
                text.rounds += -(-self.loops["n"] // tile.length // (walk.pieces if self.cut == "n" else 1))
                start = "start"
            self.load(start)
            text.line(f"total = f.{step.combine}(total, {self.lifted(step, number)})")

    def load(self, start: str) -> None:
        """Write the load of a tile, and the places of its elements where they are looked at."""
        walk, tile, text = self.walk, self.tile, self.text
        count = len(walk.kept)
        across = "" if tile.beside is None else "[None, :]" if tile.inner else "[:, None]"
        begin = "" if start == "0" else f"{start} + "
        text.line(f"along = {begin}tl.arange(0, LENGTH){across}{text.long}")
        weights = shapes.contiguous_strides(walk.reduced)
        step = text.term("along", f"x{count + tile.along}", walk.strides[count + tile.along])
        terms = ["base", *_full(step, "along")]
        places = [(tile.along, "along")]
        others = [axis for axis in range(len(walk.reduced)) if axis != tile.along]
        if others:
            text.line(f"rest = other{text.long}")
        for axis in reversed(others):
            if axis == others[0]:
                text.line(f"j{axis} = rest")
            else:
                extent = text.size(f"e{count + axis}", walk.reduced[axis])
                text.line(f"j{axis} = rest % {extent}")
                text.line(f"rest = rest // {extent}")
            terms += text.term(f"j{axis}", f"x{count + axis}", walk.strides[count + axis])
            places.append((axis, f"j{axis}"))
        if walk.indexed:
            index = [term for axis, name in places for term in text.term(name, f"r{axis}", weights[axis])]
            text.line(f"index = {' + '.join(index)}")
        masks: list[str] = []
        if self.ragged:
            text.line(f"inside = along < {'high' if self.cut == 'n' else text.size('n', self.loops['n'])}")
            masks.append("inside")
        if self.short:
            masks.append(f"({self.spread('beside')} < w)")
        keep = f", mask={' & '.join(masks)}" if masks else ""
        text.line(f"v = tl.load({' + '.join(terms)}{keep})")

    def lifted(self, step: Pass, number: str) -> str:
        """The elements of a tile as totals, the identity where there is none."""
        value = "v" if self.walk.source.dtype == step.compute else f"tl.cast(v, tl.{step.compute})"
        # A place fits the total it is compared in, also where a wide kernel counts in 64 bits.
        index = "0" if not self.walk.indexed else f"tl.cast(index, tl.{step.total})" if "int" in step.total else "index"
        lifted = f"tl.cast(f.{step.lift}({value}, {index}, centre, {number}), tl.{step.total})"
        return f"tl.where(inside, {lifted}, {step.identity})" if self.ragged else lifted


def _full(terms: list[str], index: str) -> list[str]:
    """``terms``, of the shape of ``index`` where they do not step along it."""
    return terms or [f"{index} * 0"]
