"""Triton kernels whose programs hold several rows of one axis, written for the layouts of their operands."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence

from nbxtensor import shape as shapes
from nbxtensor.op.expression import Expression
from nbxtensor.op.kernel_text import INT32_ELEMENTS, KernelText, Tiles, power_of_two
from nbxtensor.shape.collapse import collapse

__all__ = ["RowText"]

_TILE = 1024  # elements of a tile whose rows lie across memory


class RowText(KernelText):
    """A kernel over tiles: some neighbouring rows, by all of one axis or by a stretch of it.

    A tile is two-dimensional. The axis of the rows lies along the dimension that is contiguous in memory: the columns
    (``dim`` 1) as a rule, the rows of the tile (``dim`` 0) where another axis is the contiguous one.

    Attributes:
        dim: Dimension of a tile that the rows' axis lies along.
        whole: Whether a tile holds whole rows.
        shape: Triton source of the shape of a tile.
        single: Triton source of the shape of a tile reduced along ``dim``.
        programs: Number of programs; known once `begin` has run.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], axis: int, layouts: Mapping[str, tuple[int, ...]], first: str,
        tiles: Tiles,
    ) -> None:  # fmt: skip
        """Start a kernel.

        Args:
            name: Name of the Triton function.
            shape: The shape that all layouts have.
            axis: The axis that rows lie along.
            layouts: Strides by name of pointer; 0 along an axis that an operand does not have.
            first: The layout that decides which axis is the contiguous one.
            tiles: How large tiles are.
        """
        names = list(layouts)
        around = [a for a in range(len(shape)) if a != axis]
        kept, strides = collapse(tuple(shape[a] for a in around), [tuple(layouts[n][a] for a in around) for n in names])
        spans = [shapes.extent_span(shape, layout) for layout in layouts.values()]
        super().__init__(name, wide=max(spans) > INT32_ELEMENTS)
        self.kept = kept
        self.extent: int = shape[axis]
        self._around = dict(zip(names, strides, strict=True))
        self._along = {n: layouts[n][axis] for n in names}
        self._beside = self._neighbour(first)
        step = self._around[first][self._beside] if kept else 0
        self.dim = 0 if kept and 0 < abs(step) < abs(self._along[first]) else 1
        self._tiles = tiles
        tile = _TILE if self.dim == 0 else tiles.elements
        narrow = tile // 8 if self.dim == 0 else tile
        self.whole: bool = power_of_two(self.extent) <= (tile // 16 if self.dim == 0 else tiles.whole)
        self.length: int = power_of_two(self.extent) if self.whole else 8 if self.dim == 0 else tile
        beside = kept[self._beside] if kept else 1
        self.width: int = min(power_of_two(beside), max(min(narrow, tile // self.length), 16 if self.dim == 0 else 1))
        self.constants.update(LENGTH=self.length, WIDTH=self.width)
        self.ragged: bool = self.extent % self.length != 0
        self.short: bool = beside % self.width != 0
        self.shape = "(WIDTH, LENGTH)" if self.dim == 1 else "(LENGTH, WIDTH)"
        self.single = "(WIDTH, 1)" if self.dim == 1 else "(1, WIDTH)"
        self.programs: int = 0
        self._base: dict[str, str] = {}

    @property
    def warps(self) -> int:
        """Warps of a program."""
        return self._tiles.warps(self.length * self.width)

    def _neighbour(self, first: str) -> int:
        """The kept axis that a tile lies along beside its rows: the contiguous one, else the last."""
        strides = self._around[first]
        smaller = [a for a, s in enumerate(strides) if 0 < abs(s) < abs(self._along[first])]
        return min(smaller, key=lambda a: abs(strides[a])) if smaller else len(strides) - 1

    def begin(self) -> None:
        """Write where a program works."""
        indices: list[tuple[str, int, str]] = []
        outer = [a for a in range(len(self.kept)) if a != self._beside]
        if self.kept:
            extent = self.kept[self._beside]
            indices.append(("band", -(-extent // self.width), f"tl.cdiv({self.size('rows', extent)}, WIDTH)"))
        indices += [(f"i{a}", self.kept[a], self.size(f"extent{a}", self.kept[a])) for a in reversed(outer)]
        self.programs = self.split(indices)
        across = "[:, None]" if self.dim == 1 else "[None, :]"
        start = "band * WIDTH + " if self.kept else ""
        self.line(f"beside = ({start}tl.arange(0, WIDTH)){across}{self.long}")
        for name, strides in self._around.items():
            terms = [name]
            for a in outer:
                terms += self.term(f"i{a}", f"{name}_{a}", strides[a])
            if self.kept:
                terms += self.term("beside", f"{name}_{self._beside}", strides[self._beside])
            self._base[name] = " + ".join(terms)

    @contextlib.contextmanager
    def walk(self) -> Generator[None]:
        """Write what is done inside for every tile of the rows: once where a tile holds them whole."""
        spread = "[None, :]" if self.dim == 1 else "[:, None]"
        if self.whole:
            self.line(f"along = tl.arange(0, LENGTH){spread}{self.long}")
            self._bounds()
            yield
        else:
            self.repeat(-(-self.extent // self.length))
            with self.block(f"for start in range(0, {self.size('n', self.extent)}, LENGTH):"):
                self.line(f"along = (start + tl.arange(0, LENGTH)){spread}{self.long}")
                self._bounds()
                yield

    def _bounds(self) -> None:
        if self.ragged:
            self.line(f"inside = along < {self.size('n', self.extent)}")

    def load(self, value: str, name: str) -> None:
        """Write ``value = elements of the tile`` of a layout."""
        address, mask = self._place(name, stored=False)
        self.line(f"{value} = tl.load({address}{mask})")

    def store(self, name: str, value: str) -> None:
        """Write the store of a tile."""
        address, mask = self._place(name, stored=True)
        self.line(f"tl.store({address}, {value}{mask})")

    def _place(self, name: str, *, stored: bool) -> tuple[str, str]:
        along = self._along[name]
        strides = self._around[name]
        terms = [self._base[name], *self.term("along", f"{name}_along", along)]
        masks = ["inside"] if self.ragged and (along or stored) else []
        if self.short and (stored or strides[self._beside]):
            masks.append("(beside < rows)")
        return " + ".join(terms), f", mask={' & '.join(masks)}" if masks else ""

    def compute(self, expression: Expression, names: Sequence[str]) -> tuple[str, ...]:
        """Write the loads of the layouts ``names`` and ``expression`` over them; return the names of its results.

        Its scalars are the arguments ``s0``, ``s1`` ...
        """
        values = tuple(f"{name}_v" for name in names)
        for value, name in zip(values, names, strict=True):
            self.load(value, name)
        self.imports.extend(expression.imports())
        statements, results = expression.body(values, tuple(f"s{i}" for i in range(expression.scalars)))
        for statement in statements:
            self.line(statement)
        return results

    def padded(self, value: str, identity: str) -> str:
        """Return ``value`` with ``identity`` past the end of the rows."""
        return f"tl.where(inside, {value}, {identity})" if self.ragged else value
