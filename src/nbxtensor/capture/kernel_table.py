"""Every kernel that saved programs launch, once: compiled for one target or more, in a file for each."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from nbxtensor.backend.contract import Compiled
from nbxtensor.errors import UnsupportedError
from nbxtensor.op import Call, Launch, Op, Pointer, Target
from nbxtensor.run.binding import request

__all__ = ["KernelTable", "kernel_file", "kernels_in"]


class KernelTable:
    """The kernels by number, and what to compile for another target to have the same ones there.

    Attributes:
        compiled: The kernels.
    """

    def __init__(self) -> None:
        self.compiled: list[Compiled] = []
        self._origins: list[tuple[Call, str, Launch, Mapping[Pointer, bool]]] = []
        self._numbers: dict[tuple[object, ...], int] = {}

    def number(
        self, compiled: Compiled, call: Call, kernel: str, launch: Launch, aligned: Mapping[Pointer, bool]
    ) -> int:
        """Return the number of a kernel, which is noted where it is new."""
        key = (compiled.name, compiled.binary, compiled.parameters, repr(_request(call.op, launch, aligned, call)))
        found = self._numbers.setdefault(key, len(self.compiled))
        if found == len(self.compiled):
            self.compiled.append(compiled)
            self._origins.append((call, kernel, launch, aligned))
        return found

    def compile(self, backend: Any, target: Target) -> list[Compiled]:
        """Return all of them compiled for another target.

        Raises:
            UnsupportedError: A kernel does not serve the target.
            CompileError: A kernel does not compile for it.
        """
        found: list[Compiled] = []
        for (call, name, launch, aligned), mine in zip(self._origins, self.compiled, strict=True):
            there = Call(call.op, call.inputs, call.params, target, call.outputs, call.in_place)
            kernel = next(k for k in call.op.kernels if k.name == name)
            if not kernel.needs <= target.features or (kernel.accepts is not None and not kernel.accepts(there)):
                raise UnsupportedError(
                    f"{call.op.name}: the plan's kernels serve every target they are saved for. Got {name!r} and "
                    f"{target.arch}. Save a plan made for that target."
                )
            compiled = backend.compile(_request(call.op, launch, aligned, there), target)
            if compiled.parameters != mine.parameters:
                raise UnsupportedError(f"{call.op.name}: its kernel takes other arguments on {target.arch}.")
            found.append(compiled)
        return found


def _request(op: Op, launch: Launch, aligned: Mapping[Pointer, bool], call: Call) -> Any:
    most = call.device.facts.get("dispatch.max_grid", ())
    return request(op, launch, bake=True, aligned=aligned.__getitem__, most=most)


def kernel_file(kernels: Sequence[Compiled]) -> list[bytes]:
    """Return the parts of the file that `kernels_in` reads."""
    heads = [
        {"name": k.name, "nbytes": len(k.binary), "parameters": k.parameters, "metadata": dict(k.metadata)}
        for k in kernels
    ]
    head = json.dumps(heads, separators=(",", ":")).encode()
    return [struct.pack("<Q", len(head)), head, *(k.binary for k in kernels)]


def kernels_in(data: bytes) -> list[Compiled]:
    """Return the kernels of a file."""
    (size,) = struct.unpack_from("<Q", data)
    at = 8 + size
    found: list[Compiled] = []
    for head in json.loads(data[8:at]):
        parameters = tuple((name, kind) for name, kind in head["parameters"])
        found.append(Compiled(head["name"], data[at : at + head["nbytes"]], parameters, head["metadata"]))
        at += head["nbytes"]
    return found
