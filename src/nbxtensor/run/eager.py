"""Running one op on tensors that have data: choose, compile once, allocate, launch."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nbxtensor.backend.contract import Bound
from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import ArgumentError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Op, Pointer, Spec
from nbxtensor.ops.launch_observer import launch_observer
from nbxtensor.run.binding import ALIGNED_NBYTES, Prepared, prepare
from nbxtensor.run.device import Device

__all__ = ["View", "execute"]


@dataclass(frozen=True, slots=True)
class View:
    """Elements of a storage.

    Attributes:
        storage: The memory.
        spec: Shape, dtype and strides.
        offset: Elements from the storage's first byte to the first element.
    """

    storage: Storage
    spec: Spec
    offset: int = 0

    @property
    def address(self) -> int:
        """Address of the first element."""
        return self.storage.address + self.offset * bits(self.spec.dtype) // 8


@dataclass(frozen=True, slots=True)
class _Ready:
    outputs: tuple[Spec, ...]
    workspace: Mapping[str, int]  # name -> bytes
    launches: tuple[Prepared, ...]


def execute(op: Op, operands: Mapping[str, View], params: Mapping[str, Any], device: Device) -> tuple[View, ...]:
    """Run ``op`` on ``device`` and return its results in fresh storages, packed row-major.

    Raises:
        NbxError: What the op's result rule refuses, or no kernel or memory serves.
    """
    specs = tuple((name, view.spec) for name, view in operands.items())
    aligned = frozenset(name for name, view in operands.items() if view.address % ALIGNED_NBYTES == 0)
    ready = _ready(op, device, specs, _Params(params), aligned)
    results = tuple(View(device.allocator.allocate(s.nbytes), s) for s in ready.outputs)
    workspace = {name: device.allocator.allocate(nbytes) for name, nbytes in ready.workspace.items()}

    def resolve(pointer: Pointer) -> int:
        if pointer.role == "input":
            return operands[str(pointer.key)].address
        if pointer.role == "output":
            return results[int(pointer.key)].address
        return workspace[str(pointer.key)].address

    for prepared in ready.launches:
        launch(device, prepared.bind(resolve))
    return results


def launch(device: Device, bound: Bound) -> None:
    """Run one launch on ``device``, unless an observer makes this a dry run."""
    observer = launch_observer()
    if observer.active():
        observer.record(False, (bound.kernel.compiled.name, bound.grid))
        observer.shadow_run(bound)
        return
    device.backend.launch(bound, device.index)


@functools.lru_cache(maxsize=4096)
def _ready(
    op: Op, device: Device, specs: tuple[tuple[str, Spec], ...], params: _Params, aligned: frozenset[str]
) -> _Ready:
    call = op.call(dict(specs), dict(params), device.target)
    if not any(s.numel for s in call.outputs):
        return _Ready(call.outputs, {}, ())
    kernel = op.kernel(call)
    workspace = {b.name: b.nbytes for b in kernel.cost(call).buffers}

    def known(pointer: Pointer) -> bool:  # an allocator's blocks begin at multiples of more
        return pointer.role != "input" or pointer.key in aligned

    launches = prepare(call, kernel, kernel.launch(call), device.backend, device.index, bake=False, aligned=known)
    return _Ready(call.outputs, workspace, launches)


class _Params(Mapping[str, Any]):
    """Parameters as a hashable key that keeps 1, 1.0, True and -0.0 apart."""

    __slots__ = ("_key", "_values")

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._values = {name: _plain(value) for name, value in params.items()}
        self._key = tuple((name, _typed(value)) for name, value in self._values.items())

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Params) and self._key == other._key


def _plain(value: Any) -> Any:
    """Return ``value`` as plain, hashable data."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(v) for v in value)
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            f"a parameter is plain data (numbers, strings, tuples). Got {type(value).__name__}."
        ) from None
    return value


def _typed(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_typed(v) for v in value)
    return (type(value), value.hex() if isinstance(value, float) else value)
