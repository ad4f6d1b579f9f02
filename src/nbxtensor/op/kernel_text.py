"""Triton kernels written for one layout: their source while it grows, and the launch it becomes."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from nbxtensor.dtype.itemsize import bits
from nbxtensor.op.launch import Argument, Launch, Source, Target

__all__ = ["INT32_ELEMENTS", "KernelText", "Tiles", "power_of_two", "tiles"]

INT32_ELEMENTS = 2**31 - 2**16
"""Layouts that span fewer elements are addressed in 32 bits, with room for the padding of the last tile."""


def power_of_two(n: int) -> int:
    """Return the least power of two that is at least ``n``, and 1 for 0.

    >>> [power_of_two(n) for n in (0, 1, 5, 64)]
    [1, 1, 8, 64]
    """
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class Tiles:
    """How large the tiles of a kernel over rows are.

    Attributes:
        elements: Elements of a tile that holds several short rows, or that walks along a long one.
        whole: Elements of a row up to which it is one tile.
        nbytes: Bytes of an element.
    """

    elements: int = 1024
    whole: int = 8192
    nbytes: int = 4

    def warps(self, elements: int) -> int:
        """Return the warps for a tile of so many elements: 64 bytes or more to a thread, fewer in a small tile."""
        return max(4, min(16, elements * self.nbytes // _WARP_NBYTES))


_WARP_NBYTES = 32 * 64
_TILE_NBYTES = 4096
_GPU_WHOLE = 32768


def tiles(target: Target | None, *dtypes: str) -> Tiles:
    """Return the tiles for elements of the widest of ``dtypes``.

    On a CPU a tile lies in its registers and first-level cache. On a GPU it is 4 KiB, so that narrow elements keep as
    many bytes on their way as wide ones, and long rows stay in registers (measured on an H200: short rows of bfloat16
    gain 15 to 20 %).
    """
    nbytes = max(bits(dtype) // 8 or 1 for dtype in dtypes)
    if target is None or target.backend == "cpu":
        return Tiles(nbytes=nbytes)
    return Tiles(max(512, min(4096, _TILE_NBYTES // nbytes)), _GPU_WHOLE, nbytes)


class KernelText:
    """The source of a Triton kernel, statement by statement, with the arguments its statements name.

    Integers that describe the layout are arguments, so that kernels for layouts of one structure share their text;
    strides of 0 and 1 are written out.

    Attributes:
        arguments: Pointers and numbers, in the order of the kernel's parameters.
        constants: Parameters fixed at compilation.
        imports: Import lines beside Triton's own.
        rounds: What a program does one after another at least (`Launch.rounds`).
    """

    def __init__(self, name: str, *, wide: bool = False) -> None:
        """Start a kernel.

        Args:
            name: Name of the Triton function.
            wide: Whether indices are 64 bits wide.
        """
        self.arguments: dict[str, Argument] = {}
        self.constants: dict[str, int] = {}
        self.imports: list[str] = []
        self.rounds: int = 1
        self.long = ".to(tl.int64)" if wide else ""
        self._name = name
        self._sizes: dict[str, int] = {}
        self._lines: list[str] = []
        self._depth = 1

    def line(self, statement: str) -> None:
        """Append a statement."""
        self._lines.append("    " * self._depth + statement)

    @contextlib.contextmanager
    def block(self, head: str) -> Generator[None]:
        """Append a compound statement; what is appended inside is its body."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def size(self, name: str, value: int) -> str:
        """Return the name of the argument that holds an extent or a stride."""
        self._sizes[name] = value
        return name

    def term(self, index: str, name: str, stride: int) -> list[str]:
        """Return the summands (one or none) that step ``index`` times ``stride``, held by argument ``name``."""
        if stride == 0:
            return []
        return [index if stride == 1 else f"{index} * {self.size(name, stride)}"]

    def split(self, indices: Sequence[tuple[str, int, str]]) -> int:
        """Write the split of the program's number into indices, the first one changing fastest.

        Args:
            indices: Name, extent and the source of the extent of each.

        Returns:
            The number of programs.
        """
        self.line(f"pid = tl.program_id(0){self.long}")
        programs = 1
        for number, (name, extent, text) in enumerate(indices):
            programs *= extent
            if extent == 1:
                self.line(f"{name} = 0")
            elif number == len(indices) - 1:
                self.line(f"{name} = pid")
            else:
                self.line(f"{name} = pid % {text}")
                self.line(f"pid = pid // {text}")
        return programs

    def repeat(self, times: int) -> None:
        """Count ``times`` more of what a program does one after another."""
        self.rounds += times

    def launch(self, programs: int, *, warps: int = 4) -> Launch:
        """Return the launch of the finished kernel."""
        parameters = [*self.arguments, *self._sizes, *(f"{name}: tl.constexpr" for name in self.constants)]
        imports = dict.fromkeys(["import triton", "import triton.language as tl", *self.imports])
        text = [*imports, "", "", "@triton.jit", f"def {self._name}({', '.join(parameters)}):", *self._lines, ""]
        source = Source(self._name, "\n".join(text))
        arguments = {**self.arguments, **self._sizes}
        return Launch(source, (programs,), arguments, dict(self.constants), warps=warps, rounds=self.rounds)
