"""From programs to a bundle: launches as plain data, compiled kernels, what memory holds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nbxtensor.backend.contract import Bound
from nbxtensor.capture.bounded import refuse_bundle
from nbxtensor.capture.described import save_plan
from nbxtensor.capture.folding import fold
from nbxtensor.capture.interface import Place, spec_of
from nbxtensor.capture.kernel_table import KernelTable, kernel_file
from nbxtensor.capture.program import Program
from nbxtensor.capture.references import References, WeightsFile
from nbxtensor.capture.writing import BundleWriter
from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import ArgumentError, PlanError
from nbxtensor.memory.allocator import Storage
from nbxtensor.op import Call, Launch, Pointer, Spec, Target
from nbxtensor.planning.graph import GraphBuffer, Node
from nbxtensor.run import Device, prepare

__all__ = ["save_programs"]

_ALIGNMENT = 1 << 16  # of a block in the file: a multiple of every system's page, so that it can be mapped
_PIECE = 4 << 20  # bytes copied from the device at once
_WEIGHTS = "weights.bin"


def save_programs(
    folder: str | os.PathLike[str],
    programs: Mapping[str, Program],
    *,
    targets: Sequence[Target | str] = (),
    weights: Sequence[WeightsFile] = (),
) -> None:
    """Write programs to a folder that `load_programs` reads; what they share is written once, and shared again.

    The folder appears whole or not at all. It has the plans, the launches as plain data, the compiled kernels and
    what the weights' memory holds; states are not written, and begin as zeros. It is loaded by the version of the
    library that wrote it.

    Args:
        folder: Where; not there yet, or empty.
        programs: The programs, by the names they are asked for, all of one device.
        targets: Further targets of the same backend that the kernels are compiled for, which need not be there: a
            `Target`, or the name of an architecture without features beyond it ("x86-64-v3"). Their kernels are
            the plan's: what a plan for that target would choose otherwise is not.
        weights: Open safetensors files that have every weight under its name. They are then referred to, with
            their SHA-256, instead of copied; what is folded from them is made again at each load, or copied where
            making it again gives other bytes than memory has.

    Raises:
        ArgumentError: No program, a name that is no file's name, a folder that has something in it, a weight that the
            safetensors files lack, or one that lies in memory as it is given and that they have with other values.
        PlanError: Programs of several devices, of a plan with dims, or loaded from a bundle.
        UnsupportedError: A kernel of a plan does not serve one of ``targets``.
        CompileError: A kernel does not compile for one of ``targets``.
        OSError: The folder cannot be written.

    >>> import tempfile, nbxtensor as nbx
    >>> def scaled(weights, x):
    ...     return x * weights["scale"]
    >>> graph = nbx.trace(scaled, nbx.Spec((2,), "float32"), weights={"scale": nbx.Spec((2,), "float32")})
    >>> program = nbx.plan(graph).load({"scale": nbx.full(2, 3.0, dtype="float32")})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nbx.save_programs(f"{folder}/scaled", {"scaled": program})
    ...     nbx.load_programs(f"{folder}/scaled")["scaled"](nbx.ones(2, dtype="float32")).numpy()
    array([3., 3.], dtype=float32)
    """
    device = _device_of(programs)
    with BundleWriter(Path(folder)) as writer:
        saving = _Saving(device, References(weights))
        for name, program in programs.items():
            writer.add(f"{name}.plan.json", [save_plan(program.plan).encode()])
            writer.add_json(f"{name}.launches.json", saving.program(program))
        fills, names = saving.fills(programs), list(programs)
        if saving.stored:
            writer.add(_WEIGHTS, saving.stored_bytes())
        writer.finish(
            {
                "backend": device.backend.name,
                "programs": names,
                "blocks": [{"kind": kind, "nbytes": storage.nbytes} for storage, kind in saving.blocks],
                "fills": fills,
                "references": saving.files.plain(),
                "targets": saving.write_kernels(writer, targets, next(iter(programs.values())).plan.target),
            }
        )


def _device_of(programs: Mapping[str, Program]) -> Device:
    if not isinstance(programs, Mapping):
        raise ArgumentError(f"save: programs are a mapping from names to programs. Got {type(programs).__name__}.")
    for name, program in programs.items():
        if not isinstance(program, Program):
            raise ArgumentError(f"save: a program. Got {type(program).__name__} for {name!r}. Plan.load returns one.")
        if not isinstance(name, str) or not name or Path(name).name != name or "\0" in name or name[0] == ".":
            raise ArgumentError(f"save: a program's name is part of a file's name. Got {name!r}. Letters and digits.")
        if program.saver is refuse_bundle:
            refuse_bundle("", {name: program})
        if program.saver is None:
            raise PlanError(f"save: {name} is a program of a bundle, and saved already. Copy the bundle's folder.")
    devices = {id(program.device): program.device for program in programs.values()}
    if len(devices) != 1:
        told = ", ".join(str(device) for device in devices.values()) or "no program"
        raise PlanError(f"save: one program or more, of one device. Got {told}.")
    return next(iter(devices.values()))


class _Saving:
    """What is gathered while a bundle is written.

    Attributes:
        files: The files that are referred to.
        blocks: (memory, kind) of every block that launches touch.
        stored: (address, size, value) of what the bundle has a copy of, in order: of device memory where value is b"".
    """

    def __init__(self, device: Device, files: References) -> None:
        self.blocks: list[tuple[Storage, str]] = []
        self.stored: list[tuple[int, int, bytes]] = []
        self.files: References = files
        self._device = device
        self._memory = device.backend.memory(device.index)
        self._kernels = KernelTable()
        self._end = 0

    # ---- launches

    def program(self, program: Program) -> dict[str, Any]:
        """Return a program as plain data, whose blocks and kernels are numbers."""
        plan = program.plan
        kinds = [x and x.area for x in plan.locations]
        places = [
            None if p is None else self._place(p, k or "arena") for p, k in zip(program.places, kinds, strict=True)
        ]
        arena = self._block(program.areas["arena"], "arena")
        graph, launches = plan.graph, iter(zip(program.launches, program.dependencies(), strict=True))
        return {
            "name": graph.name,
            "arena": arena,
            "places": places,
            "inputs": [[i, _spec(spec_of(b)), 0] for i, b in graph.of_kind("input")],
            "outputs": [[ref.buffer, _spec(ref.spec), ref.offset] for ref in graph.outputs],
            "states": {
                b.name or str(i): [i, _spec(b.spec or Spec((b.nbytes,), "uint8")), 0] for i, b in graph.of_kind("state")
            },
            "launches": [
                [number, *self._launch(*next(launches), node.call(plan.target), step.kernel, launch)]
                for number, (node, step) in enumerate(zip(graph.nodes, plan.steps, strict=True))
                for launch in step.launches
            ],
        }

    def _launch(self, bound: Bound, waits: Sequence[int], call: Call, kernel: str, launch: Launch) -> list[Any]:
        """Return a launch as plain data: its kernel, grid, arguments, predicted time, and the launches it waits for."""
        compiled = bound.kernel.compiled
        aligned: dict[Pointer, bool] = {}
        arguments: list[Any] = []
        for (name, _), value in zip(compiled.parameters, bound.arguments, strict=True):
            given = launch.arguments[name]
            if isinstance(given, Pointer):
                aligned[given] = int(value) % 16 == 0
                arguments.append(self._where(int(value)))
            else:
                arguments.append(value)
        number = self._kernels.number(compiled, call, kernel, launch, aligned)
        return [number, list(bound.grid), arguments, bound.nanoseconds, list(waits)]

    def _where(self, address: int) -> list[int]:
        """Return the block that an address is in, and how far from its start.

        Blocks may touch: an address is the end of a block only where no other starts there.
        """
        for past in (0, 1):
            for number, (storage, _) in enumerate(self.blocks):
                if 0 <= address - storage.address < storage.nbytes + past:
                    return [number, address - storage.address]
        raise PlanError(f"save: a launch touches the program's memory. Got the address {address:#x}.")

    def _block(self, storage: Storage, kind: str) -> int:
        for number, (known, _) in enumerate(self.blocks):
            if known is storage:
                return number
        self.blocks.append((storage, kind))
        return len(self.blocks) - 1

    def _place(self, place: Place, kind: str) -> list[int]:
        return [self._block(place.storage, kind), place.offset, place.nbytes]

    # ---- what memory holds

    def fills(self, programs: Mapping[str, Program]) -> list[dict[str, Any]]:
        """Return what the blocks of weights begin with: bytes of the bundle or of other files, or made from those."""
        if not self.files:
            return [
                {
                    "block": number,
                    "offset": 0,
                    "nbytes": storage.nbytes,
                    "at": self._store(storage.address, storage.nbytes),
                }
                for number, (storage, kind) in enumerate(self.blocks)
                if kind == "weights" and storage.nbytes
            ]
        found: list[dict[str, Any]] = []
        done: set[tuple[int, int]] = set()
        for program in programs.values():
            new = list(self._named(program, done))
            found += [self._referred(program, index, name) for index, name in new if not name.startswith("folded.")]
            found += self._constants(program, done)
            folded = {int(name.partition(".")[2]): index for index, name in new if name.startswith("folded.")}
            if folded:
                found += self._folded(program, folded)
        return found

    def _named(self, program: Program, done: set[tuple[int, int]]) -> Iterator[tuple[int, str]]:
        """Yield (buffer, name) of the weights that no program before has filled."""
        for index, buffer in program.plan.graph.of_kind("weight"):
            key = self._key(program, index)
            if key is not None and key not in done:
                done.add(key)
                yield index, buffer.name

    def _key(self, program: Program, index: int) -> tuple[int, int] | None:
        place = program.places[index]
        return (self._block(place.storage, "weights"), place.offset) if place is not None and place.nbytes else None

    def _constants(self, program: Program, done: set[tuple[int, int]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for index, _ in program.plan.graph.of_kind("constant"):
            key = self._key(program, index)
            if key is not None and key not in done:
                done.add(key)
                found.append(self._copied(program, index))
        return found

    def _copied(self, program: Program, index: int) -> dict[str, Any]:
        """Return the fill of a buffer whose bytes the bundle has."""
        place = _held(program, index)
        block = self._block(place.storage, "weights")
        at = self._store(place.address, place.nbytes)
        return {"block": block, "offset": place.offset, "nbytes": place.nbytes, "at": at}

    def _referred(self, program: Program, index: int, name: str) -> dict[str, Any]:
        """Return the fill of a weight that lies in a file as it is."""
        number, at = self.files.find(name, spec_of(program.plan.graph.buffers[index]))
        place = _held(program, index)
        if self.files.value(number, at) != self._read(place.address, place.nbytes):
            raise ArgumentError(
                f"save: {self.files.path(number)} has the weights. Weight {name} has other values there."
            )
        block = self._block(place.storage, "weights")
        return {"block": block, "offset": place.offset, "nbytes": place.nbytes, "reference": number, "at": at}

    def _folded(self, program: Program, folded: Mapping[int, int]) -> list[dict[str, Any]]:
        """Return the fills of what is made from weights: how it is made, and where each result goes."""
        prologue = program.plan.prologue
        if prologue is None:
            raise PlanError(f"{program.name}: a plan without prologue has no folded weights.")
        buffers = [self._source(buffer) for buffer in prologue.buffers]
        launches = [x for node in prologue.nodes for x in self._steps(node, program.plan.target, buffers)]
        wanted = [prologue.outputs[number].buffer for number in folded]
        kernels = [self._device.backend.load(compiled, self._device.index) for compiled in self._kernels.compiled]
        results: list[list[int]] = []
        for buffer, storage in fold(self._device, kernels, buffers, launches, wanted, self._given):
            for number, index in folded.items():
                ref, place = prologue.outputs[number], _held(program, index)
                start = ref.offset * bits(ref.spec.dtype) // 8
                # What is laid out or rounded otherwise than by these launches is kept as it is.
                if ref.buffer != buffer or not ref.spec.is_contiguous:
                    continue
                if self._read(storage.address + start, place.nbytes) == self._read(place.address, place.nbytes):
                    block = self._block(place.storage, "weights")
                    results.append([buffer, start, place.nbytes, block, place.offset])
        made = {(block, offset) for *_, block, offset in results}
        rest = [self._copied(program, i) for i in folded.values() if self._key(program, i) not in made]
        return [*rest, {"buffers": buffers, "launches": launches, "results": results}] if results else rest

    def _source(self, buffer: GraphBuffer) -> dict[str, Any]:
        """Return the size of a buffer of a prologue, and where its value comes from."""
        if buffer.kind == "input":
            number, at = self.files.find(buffer.name, spec_of(buffer))
            return {"nbytes": buffer.nbytes, "reference": number, "at": at}
        if buffer.value is not None:
            value = np.ascontiguousarray(buffer.value).tobytes()
            self.stored.append((0, len(value), value))
            return {"nbytes": buffer.nbytes, "at": self._advance(len(value))}
        return {"nbytes": buffer.nbytes}

    def _steps(self, node: Node, target: Target, buffers: list[dict[str, Any]]) -> Iterator[list[Any]]:
        """Yield the launches of a node of a prologue; workspace becomes more buffers."""
        call = node.call(target)
        kernel = call.op.kernel(call)
        spare = {b.name: len(buffers) + i for i, b in enumerate(kernel.cost(call).buffers)}
        buffers += ({"nbytes": b.nbytes} for b in kernel.cost(call).buffers)

        def where(pointer: Pointer, more: int) -> list[int]:
            if pointer.role == "workspace":
                return [spare[str(pointer.key)], more]
            ref = node.operands[str(pointer.key)] if pointer.role == "input" else node.outputs[int(pointer.key)]
            return [ref.buffer, ref.offset * bits(ref.spec.dtype) // 8 + more]

        def aligned(pointer: Pointer) -> bool:
            return where(pointer, 0)[1] % 16 == 0

        launches, backend, index = kernel.launch(call), self._device.backend, self._device.index
        ready = prepare(call, kernel, launches, backend, index, bake=True, aligned=aligned)
        for launch, each in zip(launches, ready, strict=True):
            marks = {p: aligned(p) for p in launch.arguments.values() if isinstance(p, Pointer)}
            number = self._kernels.number(each.kernel.compiled, call, kernel.name, launch, marks)
            slots = zip(each.slots, each.offsets, strict=True)
            arguments = [where(slot, more) if isinstance(slot, Pointer) else slot for slot, more in slots]
            yield [number, list(each.grid), arguments, each.nanoseconds]

    def _given(self, buffer: Mapping[str, Any]) -> memoryview | None:
        if "reference" in buffer:
            return self.files.value(buffer["reference"], buffer["at"])
        if "at" in buffer:
            return memoryview(next(value for at, value in self._values() if at == buffer["at"]))
        return None

    def _read(self, address: int, nbytes: int) -> memoryview:
        """Return bytes of the device's memory, copied."""
        found = np.empty(nbytes, np.uint8)
        if nbytes:
            self._memory.copy_out(found.data, address)
        return found.data

    def _store(self, address: int, nbytes: int) -> int:
        """Have bytes of the device copied into the bundle; return where they will be in its file."""
        self.stored.append((address, nbytes, b""))
        return self._advance(nbytes)

    def _advance(self, nbytes: int) -> int:
        at = self._end
        self._end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return at

    def _values(self) -> Iterator[tuple[int, bytes]]:
        """Yield (place in the file, value) of what is stored and lies in no program's memory."""
        at = 0
        for _, nbytes, value in self.stored:
            if value:
                yield at, value
            at += -(-nbytes // _ALIGNMENT) * _ALIGNMENT

    def stored_bytes(self) -> Iterator[memoryview]:
        """Yield the bytes of the bundle's file of weights."""
        for address, nbytes, value in self.stored:
            if value:
                yield memoryview(value)
            else:
                for start in range(0, nbytes, _PIECE):
                    yield self._read(address + start, min(_PIECE, nbytes - start))
            yield memoryview(bytes(-nbytes % _ALIGNMENT))

    # ---- kernels

    def write_kernels(self, writer: BundleWriter, targets: Sequence[Target | str], own: Target) -> list[dict[str, Any]]:
        """Write the kernels of each target; return what the targets are."""
        backend = self._device.backend
        if isinstance(targets, str):
            raise ArgumentError(f"save: targets are a sequence. Got {targets!r}. A list of it is one.")
        further = [_target(target, own) for target in targets]
        found: list[dict[str, Any]] = []
        for target in (own, *further):
            compiled = self._kernels.compiled if target is own else self._kernels.compile(backend, target)
            runtime = getattr(backend, "runtime", None)
            loops = [runtime(target.arch)] if runtime is not None else []
            file = f"{len(found)}-{target.backend}-{target.arch}.kernels"
            writer.add(file, kernel_file([*compiled, *loops]))
            about = {"arch": target.arch, "features": sorted(target.features), "kernels": file}
            found.append({**about, "loops": len(loops)})
        return found


def _target(target: Target | str, own: Target) -> Target:
    found = target if isinstance(target, Target) else Target(own.backend, target, frozenset(), own.facts)
    if found.backend != own.backend:
        raise ArgumentError(f"save: further targets are of {own.backend!r}. Got one of {found.backend!r}.")
    return found


def _held(program: Program, index: int) -> Place:
    place = program.places[index]
    if place is None:
        raise PlanError(f"{program.name}: buffer {index} has no place.")
    return place


def _spec(spec: Spec) -> list[Any]:
    return [list(spec.shape), spec.dtype, list(spec.strides)]
