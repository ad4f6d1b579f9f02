"""Files of weights that a bundle refers to instead of copying them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nbxtensor.capture.writing import digests_of
from nbxtensor.errors import ArgumentError, DtypeError, ShapeError
from nbxtensor.op import Spec

__all__ = ["References", "WeightsFile"]


class WeightsFile(Protocol):
    """A file that has weights as they are: what `nbxtensor.io.safetensors.open_file` returns.

    Attributes:
        path: The file.
    """

    path: Path

    def __contains__(self, name: object, /) -> bool:
        """Return whether the file has a tensor."""
        ...

    def spec(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return (dtype, shape) of a tensor."""
        ...

    def place(self, name: str) -> tuple[int, int]:
        """Return where the bytes of a tensor begin in the file, and how many they are."""
        ...

    def array(self, name: str) -> Any:
        """Return a tensor."""
        ...


class References:
    """Open files, by number, and what has been found in them."""

    def __init__(self, files: Sequence[WeightsFile]) -> None:
        """Keep the files.

        Raises:
            ArgumentError: One is no open file of weights.
        """
        for file in files:
            if not hasattr(file, "place"):
                raise ArgumentError(
                    f"save: an open file of weights. Got {type(file).__name__}. What "
                    "nbxtensor.io.safetensors.open_file returns is accepted."
                )
        self._files = tuple(files)
        self._names: dict[tuple[int, int], str] = {}  # of what lies where in a file

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self._files)

    def find(self, name: str, spec: Spec) -> tuple[int, int]:
        """Return the number of the file that has a weight, and where it begins there.

        Raises:
            ArgumentError: None has it.
            ShapeError: It has another shape there.
            DtypeError: It has another dtype there.
        """
        for number, file in enumerate(self._files):
            if name in file:
                dtype, shape = file.spec(name)
                if shape != spec.shape:
                    raise ShapeError(f"save: weight {name} has shape {spec.shape}. Got {shape} in {file.path}.")
                if dtype != spec.dtype:
                    raise DtypeError(f"save: weight {name} is {spec.dtype}. Got {dtype} in {file.path}.")
                at, _ = file.place(name)
                self._names[number, at] = name
                return number, at
        told = ", ".join(str(file.path) for file in self._files)
        raise ArgumentError(f"save: the safetensors files have every weight. Got none called {name!r} in {told}.")

    def value(self, number: int, at: int) -> memoryview:
        """Return the bytes of what `find` found."""
        array = self._files[number].array(self._names[number, at])
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def path(self, number: int) -> Path:
        """Return where a file is."""
        return self._files[number].path.absolute()

    def plain(self) -> list[dict[str, Any]]:
        """Return the files as a bundle names them, with the checksums of all they hold."""
        return [{"path": str(file.path.absolute()), **digests_of(file.path)} for file in self._files]
