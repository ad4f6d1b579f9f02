"""Running one op on tensors that have data: choose, compile once, allocate, launch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbxtensor.backend.contract import Bound
from nbxtensor.errors import ArgumentError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Op, Pointer, Spec, typed
from nbxtensor.ops.launch_observer import launch_observer
from nbxtensor.run.binding import Prepared, prepare
from nbxtensor.run.device import Device
from nbxtensor.settings import settings

__all__ = ["Layout", "Ready", "launch", "layout", "ready"]


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """What launches depend on of a value in memory, beside its address; `layout` keeps equal ones as one object.

    Attributes:
        spec: Shape, dtype and strides.
        device: Where it lies.
        aligned: Whether it begins at a multiple of `ALIGNED_NBYTES`.
    """

    spec: Spec
    device: Device
    aligned: bool


@functools.lru_cache(maxsize=16384)
def layout(spec: Spec, device: Device, *, aligned: bool) -> Layout:
    """Return the layout of those parts."""
    return Layout(spec, device, aligned)


class Ready:
    """A call that is prepared: kernels chosen and loaded, everything known but addresses.

    Attributes:
        outputs: Layout of each result: fresh storages, packed row-major.
        start: What starts a call that is one launch, takes no workspace and has one result, on the addresses of the
            result and the operands; None for other calls.
    """

    __slots__ = ("_allocate", "_device", "_launches", "_nbytes", "_spare", "outputs", "start")

    def __init__(
        self,
        device: Device,
        operands: Sequence[str],
        outputs: Sequence[Spec],
        workspace: Mapping[str, int],
        launches: Sequence[Prepared],
    ) -> None:
        """Keep a call.

        Args:
            device: What it runs on.
            operands: Names of the operands, in the order of the addresses that `run` takes.
            outputs: Specs of the results.
            workspace: Bytes of each workspace buffer.
            launches: Its launches.
        """
        self.outputs: tuple[Layout, ...] = tuple(layout(spec, device, aligned=True) for spec in outputs)
        self._device = device
        self._allocate = device.allocator.allocate
        self._nbytes = tuple(spec.nbytes for spec in outputs)
        self._spare = tuple(workspace.values())
        blocks: list[tuple[str, str | int]] = [("output", index) for index in range(len(outputs))]
        blocks += [("input", name) for name in operands]
        blocks += [("workspace", name) for name in workspace]
        places = {block: place for place, block in enumerate(blocks)}
        self._launches = tuple(_Launch(device, prepared, places) for prepared in launches)
        whole = tuple((place, 0) for place in range(1 + len(operands)))
        alone = len(outputs) == len(launches) == 1 and not workspace and self._launches[0].pointers == whole
        self.start: Callable[[Sequence[int]], None] | None = self._launches[0].start if alone else None

    def run(self, addresses: list[int], into: Sequence[Storage] | None = None) -> list[Storage]:
        """Run the call on operands at those addresses and return its results.

        Args:
            addresses: Where the operands begin.
            into: Where each result goes, at a multiple of `ALIGNED_NBYTES`; left out, to fresh storages.

        Raises:
            OutOfMemoryError: There is no memory for them.
            NbxError: A launch fails.
        """
        allocate = self._allocate
        results = [allocate(nbytes) for nbytes in self._nbytes] if into is None else list(into)
        blocks = [storage.address for storage in results] + addresses
        if self._spare:
            spare = [allocate(nbytes) for nbytes in self._spare]
            blocks += [storage.address for storage in spare]
        if settings().launch_observer is None:
            for each in self._launches:
                each.start([blocks[place] + offset for place, offset in each.pointers])
        else:
            for each in self._launches:
                launch(self._device, each.bound(blocks))
        return results


class _Launch:
    """One launch of a prepared call, started again and again on other addresses."""

    __slots__ = ("_bound", "_varying", "pointers", "start")

    def __init__(self, device: Device, prepared: Prepared, places: Mapping[tuple[str, str | int], int]) -> None:
        found = [(i, slot) for i, slot in enumerate(prepared.slots) if isinstance(slot, Pointer)]
        self._varying = tuple(i for i, _ in found)
        self._bound = prepared.bind(lambda _: 0)
        self.pointers = tuple((places[slot.role, slot.key], prepared.offsets[i]) for i, slot in found)
        starter = getattr(device.backend, "starter", None)
        if starter is None:
            self.start: Callable[[Sequence[int]], None] = functools.partial(self._launched, device)
        else:
            self.start = starter(self._bound, self._varying, device.index)

    def bound(self, blocks: Sequence[int]) -> Bound:
        """Return the launch on blocks at those addresses."""
        return self._bound.at(self._varying, [blocks[place] + offset for place, offset in self.pointers])

    def _launched(self, device: Device, addresses: Sequence[int]) -> None:
        device.backend.launch(self._bound.at(self._varying, addresses), device.index)


def launch(device: Device, bound: Bound) -> None:
    """Run one launch on ``device``, unless an observer makes this a dry run."""
    if settings().launch_observer is not None:
        observer = launch_observer()
        if observer.active():
            observer.record(False, (bound.kernel.compiled.name, bound.grid))
            observer.shadow_run(bound)
            return
    device.backend.launch(bound, device.index)


def ready(op: Op, operands: Mapping[str, Layout], params: Mapping[str, Any], device: Device) -> Ready:
    """Return the call of ``op`` on operands of those layouts, prepared for ``device`` or kept from before.

    Raises:
        NbxError: What the op's result rule refuses, or no kernel serves.
    """
    tiling = settings().tiling
    sizes = None if tiling is None else tuple((family, *each.items()) for family, each in tiling.items())
    return _ready(op, tuple(operands.items()), _Params(params), device, sizes)


@functools.lru_cache(maxsize=4096)
def _ready(
    op: Op, operands: tuple[tuple[str, Layout], ...], params: _Params, device: Device, _: Hashable
) -> Ready:  # the last: the split sizes in force, which kernels keep to
    call = op.call({name: found.spec for name, found in operands}, dict(params), device.target)
    names = [name for name, _ in operands]
    if not any(s.numel for s in call.outputs):
        return Ready(device, names, call.outputs, {}, ())
    kernel = op.kernel(call)
    cost = kernel.cost(call)
    workspace = {b.name: b.nbytes for b in cost.buffers}
    aligned = {name for name, found in operands if found.aligned}

    def known(pointer: Pointer) -> bool:  # an allocator's blocks begin at multiples of more
        return pointer.role != "input" or pointer.key in aligned

    launches = prepare(
        call, kernel, kernel.launch(call), device.backend, device.index, bake=False, aligned=known, cost=cost
    )
    return Ready(device, names, call.outputs, workspace, launches)


class _Params(Mapping[str, Any]):
    """Parameters as a hashable key that keeps 1, 1.0, True and -0.0 apart."""

    __slots__ = ("_key", "_values")

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._values = {name: _plain(value) for name, value in params.items()}
        self._key = tuple((name, typed(value)) for name, value in self._values.items())

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
