"""From a bundle to programs: memory mapped or allocated, kernels loaded, launches bound; nothing is compiled."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbxtensor.backend.contract import Bound, Compiled, LoadedKernel
from nbxtensor.backend.registry import parse_device
from nbxtensor.capture.folder import BundleFolder
from nbxtensor.capture.interface import Interface, Place, View
from nbxtensor.capture.kernel_table import kernels_in
from nbxtensor.capture.program import Program
from nbxtensor.errors import ArgumentError, FormatError, NbxError, UnsupportedError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Spec, Target
from nbxtensor.run import Device
from nbxtensor.run import device as open_device

if TYPE_CHECKING:
    from nbxtensor.planning.plan import Plan

__all__ = ["open_programs"]

_WEIGHTS = "weights.bin"


def open_programs(bundle: BundleFolder, device: str | Device | None, paths: Sequence[Path]) -> dict[str, Program]:
    """Return the programs of a bundle, by name.

    Args:
        bundle: The bundle, whose files are being checked.
        device: Where they run; None: on the first device of the bundle's kind.
        paths: Where the files are that it refers to; none: where they were.
    """
    try:
        return _Opening(bundle, device, paths).programs()
    except NbxError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, struct.error) as error:
        raise FormatError(f"{bundle.folder}: a bundle as `Program.save` writes it. {error!r}.") from error


class _Opening:
    """A bundle on a device."""

    def __init__(self, bundle: BundleFolder, device: str | Device | None, paths: Sequence[Path]) -> None:
        self._bundle = bundle
        self._content = bundle.content
        kind = self._content["backend"]
        asked = kind if device is None else device
        if (parse_device(asked)[0] if isinstance(asked, str) else asked.backend.name) != kind:
            raise UnsupportedError(
                f"{bundle.folder}: a bundle runs on a device that it was saved for. Got {asked}. It is for {kind}."
            )
        self._device = open_device(asked)
        self._memory: Any = self._device.backend.memory(self._device.index)
        references = self._content["references"]
        if paths and len(paths) != len(references):
            raise ArgumentError(
                f"{bundle.folder}: a path for each file that the bundle refers to. Got {len(paths)} for "
                f"{len(references)}: {', '.join(x['path'] for x in references)}."
            )
        self._paths = list(paths) or [Path(x["path"]) for x in references]
        checked = zip(self._paths, references, strict=True)
        self._files = [bundle.check_outside(path, about["nbytes"], about["sha256"]) for path, about in checked]

    def programs(self) -> dict[str, Program]:
        """Return the programs, their weights filled."""
        kernels = self._kernels()
        texts = {name: json.loads(self._bundle.read(f"{name}.launches.json")) for name in self._content["programs"]}
        whole = self._mapped_blocks()
        blocks = [whole.get(number) or self._allocated(x) for number, x in enumerate(self._content["blocks"])]
        for fill in self._content["fills"]:
            if fill.get("block") not in whole:
                self._fill(fill, blocks, kernels)
        self._bundle.check()  # before anything of it can run, but what made the weights above
        return self._made(texts, blocks, kernels)

    def _made(
        self, texts: Mapping[str, Any], blocks: Sequence[Storage], kernels: Sequence[LoadedKernel]
    ) -> dict[str, Program]:
        found: dict[str, Program] = {}
        users: dict[int, Program] = {}  # of each block, the first
        for name, text in texts.items():
            mine = {text["arena"], *(p[0] for p in text["places"] if p is not None)}
            share = next((users[number] for number in sorted(mine) if number in users), None)
            found[name] = self._program(name, text, blocks, kernels, share)
            users.update((number, found[name]) for number in mine if number not in users)
        return found

    # ---- kernels

    def _kernels(self) -> list[LoadedKernel]:
        """Return the kernels of the first target that the device runs."""
        backend, index = self._device.backend, self._device.index
        runs: Callable[[Target], bool] = getattr(backend, "runs", self._same)
        for target in self._content["targets"]:
            if runs(Target(backend.name, target["arch"], frozenset(target["features"]))):
                compiled = kernels_in(self._bundle.read(target["kernels"]))
                use: Callable[[Compiled], None] | None = getattr(backend, "use_runtime", None)
                for loops in compiled[len(compiled) - target["loops"] :]:
                    if use is None:
                        raise FormatError(f"{self._bundle.folder}: kernels of {backend.name} alone. Got more code.")
                    use(loops)
                return [backend.load(x, index) for x in compiled[: len(compiled) - target["loops"]]]
        told = "; ".join(
            f"{t['arch']} with {', '.join(t['features']) or 'nothing more'}" for t in self._content["targets"]
        )
        target = self._device.target
        raise UnsupportedError(
            f"{self._bundle.folder}: a bundle runs on a device that it was saved for. Got {self._device}, "
            f"{target.arch} with {', '.join(sorted(target.features)) or 'nothing more'}. It is for {told}."
        )

    def _same(self, target: Target) -> bool:
        mine = self._device.target
        return target.arch == mine.arch and target.features <= mine.features

    # ---- memory

    def _mapped_blocks(self) -> dict[int, Storage]:
        """Return the blocks that are one part of the bundle's file, where the host runs the programs."""
        if not hasattr(self._memory, "view"):
            return {}
        found: dict[int, Storage] = {}
        for fill in self._content["fills"]:
            if (
                "at" in fill
                and "reference" not in fill
                and fill["nbytes"] == self._content["blocks"][fill["block"]]["nbytes"]
            ):
                mapped = np.frombuffer(self._bundle.whole(_WEIGHTS), np.uint8)
                address = mapped.__array_interface__["data"][0]
                if fill["at"] + fill["nbytes"] > mapped.nbytes:
                    raise FormatError(f"{self._bundle.folder}: a block lies inside {_WEIGHTS}. Got {fill}.")
                found[fill["block"]] = Storage(address + fill["at"], fill["nbytes"], None, mapped, readonly=True)
        return found

    def _allocated(self, about: Mapping[str, Any]) -> Storage:
        storage = self._device.allocator.allocate(about["nbytes"])
        if about["kind"] == "state":
            self._memory.fill(storage.address, 0, storage.nbytes)
        return storage

    def _fill(self, fill: Mapping[str, Any], blocks: Sequence[Storage], kernels: Sequence[LoadedKernel]) -> None:
        if "launches" not in fill:
            self._put(blocks, fill["block"], fill["offset"], self._value(fill), fill["nbytes"])
            return
        from nbxtensor.capture.folding import fold

        results: list[list[int]] = fill["results"]
        wanted = [buffer for buffer, *_ in results]
        for made, storage in fold(self._device, kernels, fill["buffers"], fill["launches"], wanted, self._given):
            for buffer, start, nbytes, block, offset in results:
                if buffer == made:
                    target = _inside(blocks, block, offset, nbytes)
                    self._memory.copy(target, storage.address + start, nbytes)
        self._device.backend.synchronize(self._device.index)
        self._device.allocator.trim()

    def _put(self, blocks: Sequence[Storage], block: int, offset: int, value: memoryview, nbytes: int) -> None:
        if value.nbytes != nbytes:
            raise FormatError(f"{self._bundle.folder}: a value has the size that it takes. Got {value.nbytes} bytes.")
        self._memory.copy_in(_inside(blocks, block, offset, nbytes), value)

    def _given(self, buffer: Mapping[str, Any]) -> memoryview | None:
        return self._value(buffer) if "at" in buffer else None

    def _value(self, about: Mapping[str, Any]) -> memoryview:
        """Return bytes of the bundle, or of a file that it refers to."""
        whole = self._files[about["reference"]] if "reference" in about else self._bundle.whole(_WEIGHTS)
        return memoryview(whole)[about["at"] : about["at"] + about["nbytes"]]

    # ---- programs

    def _program(
        self, name: str, text: Mapping[str, Any], blocks: Sequence[Storage], kernels: Sequence[LoadedKernel], share: Any
    ) -> Program:
        places = tuple(None if p is None else _place(blocks, *p) for p in text["places"])

        def view(given: Sequence[Any]) -> View:
            place, (shape, dtype, strides) = places[given[0]], given[1]
            if place is None:
                raise FormatError(f"{self._bundle.folder}: what a caller sees has a place. Got buffer {given[0]}.")
            return View(place, Spec(tuple(shape), dtype, tuple(strides)), given[2])

        interface = Interface(
            text["name"],
            tuple(view(x) for x in text["inputs"]),
            tuple(view(x) for x in text["outputs"]),
            {name: view(x) for name, x in text["states"].items()},
            places,
        )
        launches = [
            (node, Bound(kernels[kernel], (grid[0], grid[1], grid[2]), _arguments(blocks, arguments), nanoseconds))
            for node, kernel, grid, arguments, nanoseconds, _ in text["launches"]
        ]
        waits = [x[5] for x in text["launches"]]
        areas = {"arena": blocks[text["arena"]]}
        plan = _Later(self._bundle, name, self._device)
        return Program(interface, self._device, areas, launches, plan, dependencies=lambda: waits, share=share)


class _Later:
    """A plan that is read when it is asked for."""

    def __init__(self, bundle: BundleFolder, name: str, device: Device) -> None:
        self._bundle = bundle
        self._name = name
        self._device = device

    def __call__(self) -> Plan:
        """Return the plan.

        Raises:
            FormatError: The file is no longer there, or was changed.
        """
        from nbxtensor.capture.planned import load_plan

        return load_plan(self._bundle.read(f"{self._name}.plan.json").decode(), device=self._device)


def _inside(blocks: Sequence[Storage], block: int, offset: int, nbytes: int = 0) -> int:
    """Return the address of bytes of a block."""
    storage = blocks[block]
    if offset < 0 or offset + nbytes > storage.nbytes:
        raise FormatError(f"bundle: bytes lie inside their block. Got {nbytes} at {offset} of {storage.nbytes}.")
    return storage.address + offset


def _place(blocks: Sequence[Storage], block: int, offset: int, nbytes: int) -> Place:
    _inside(blocks, block, offset, nbytes)
    return Place(blocks[block], offset, nbytes)


def _arguments(blocks: Sequence[Storage], given: Sequence[Any]) -> tuple[int | float, ...]:
    return tuple(_inside(blocks, *x) if isinstance(x, list) else x for x in given)
