"""Operands on an NVIDIA GPU for one call, and how long the call takes: what the tools that time kernels share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from nbxtensor.backend import registry
from nbxtensor.dtype.itemsize import bits
from nbxtensor.op import Kernel, Launch, Op, Pointer, Spec
from nbxtensor.run.binding import prepare

L2_NBYTES = 1 << 28  # what operands of all copies exceed, so that none is found in a cache
CHUNK = 1 << 22  # random elements; larger operands repeat them
SECONDS = 0.01  # a measured recording takes about that long, at least


def normal(count: int, dtype: str, seed: int) -> np.ndarray:
    """Return normal values as they lie in memory."""
    values = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    if dtype == "bfloat16":
        raw = values.view(np.uint32)
        return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(dtype)


def floats(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Return what lies in memory as float64."""
    if dtype == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.view(dtype).astype(np.float64)


class Rig:
    """Operands of one call on the device, several times over, and memory for its results."""

    def __init__(
        self, op: Op, specs: Mapping[str, Spec], params: Mapping[str, Any], given: Mapping[str, np.ndarray],
        *, in_place: bool = False,
    ) -> None:  # fmt: skip
        self.backend = registry.backend("cuda")
        self.memory = self.backend.memory(0)
        defaults = {n: p.default for n, p in op.signature.parameters.items() if n not in specs}
        self.call = op.call(specs, {**defaults, **params}, self.backend.target(0))
        kernel = op.kernel(self.call)
        if in_place and kernel.in_place:
            outputs = tuple(
                self.call[kernel.in_place[i]] if i in kernel.in_place else s for i, s in enumerate(self.call.outputs)
            )
            self.call = replace(self.call, outputs=outputs, in_place=kernel.in_place)
        nbytes = sum(s.nbytes for s in (*specs.values(), *self.call.outputs))
        self.copies = max(1, min(64, -(-L2_NBYTES // nbytes)))
        self._blocks: list[int] = []
        self.inputs = [
            {name: self._filled(spec, given.get(name), seed) for seed, (name, spec) in enumerate(specs.items())}
            for _ in range(self.copies)
        ]
        self.outputs = [
            [inputs[self.call.in_place[i]] if i in self.call.in_place else self._block(s.nbytes)
             for i, s in enumerate(self.call.outputs)]
            for inputs in self.inputs
        ]  # fmt: skip

    def _block(self, nbytes: int) -> int:
        address = self.memory.allocate(max(nbytes, 16))
        self._blocks.append(address)
        return address

    def _filled(self, spec: Spec, given: np.ndarray | None, seed: int) -> int:
        address, width = self._block(spec.nbytes), bits(spec.dtype) // 8
        if given is not None:
            self.memory.copy_in(address, memoryview(np.ascontiguousarray(given).reshape(-1).view(np.uint8)))
            return address
        piece = normal(min(spec.numel, CHUNK), spec.dtype, seed)
        self.memory.copy_in(address, memoryview(piece.view(np.uint8)))
        for first in range(CHUNK, spec.numel, CHUNK):
            count = min(CHUNK, spec.numel - first)
            self.memory.copy(address + first * width, address, count * width)
        return address

    def host(self, spec: Spec, seed: int) -> np.ndarray:
        """Return the first elements of an operand filled at random, as they lie in memory."""
        return normal(min(spec.numel, CHUNK), spec.dtype, seed)

    def read(self, address: int, dtype: str, first: int, count: int) -> np.ndarray:
        """Return some elements as float64."""
        width = bits(dtype) // 8
        raw = np.empty(count * width, np.uint8)
        self.memory.copy_out(memoryview(raw), address + first * width)
        return floats(raw, dtype)

    def launches(self, change: Callable[[Launch], Launch] | None = None) -> tuple[Kernel, tuple[Launch, ...]]:
        """Return the kernel and what it launches."""
        kernel = self.call.op.kernel(self.call)
        made = kernel.launch(self.call)
        return kernel, tuple(map(change, made)) if change else made

    def seconds(self, change: Callable[[Launch], Launch] | None = None) -> float:
        """Return the time of one call within a recording of many."""
        kernel, launches = self.launches(change)
        named = {buffer.name: self._block(buffer.nbytes) for buffer in kernel.cost(self.call).buffers}
        prepared = prepare(self.call, kernel, launches, self.backend, 0, bake=True, aligned=lambda _: True)
        sets: list[list[Any]] = []
        for inputs, outputs in zip(self.inputs, self.outputs, strict=True):

            def resolve(pointer: Pointer, inputs: dict[str, int] = inputs, outputs: list[int] = outputs) -> int:
                if pointer.role == "input":
                    return inputs[str(pointer.key)]
                return outputs[int(pointer.key)] if pointer.role == "output" else named[str(pointer.key)]

            sets.append([p.bind(resolve) for p in prepared])
        one = self.backend.record(sets[0], 0)
        one.run()
        alone = best(one.run, 5)
        count = max(self.copies, min(2000, round(SECONDS / alone)), 8)
        many = self.backend.record([b for i in range(count) for b in sets[i % self.copies]], 0)
        many.run()
        return max((best(many.run, 5) - alone) / (count - 1), 1e-9)

    def free(self) -> None:
        """Give the memory back."""
        self.backend.synchronize(0)
        for address in self._blocks:
            self.memory.free(address)


def best(run: Callable[[], None], times: int) -> float:
    """Return the median time of ``run`` in seconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return float(np.median(took))


@contextmanager
def replaced(module: Any, **names: Any) -> Iterator[None]:
    """Let names of a module be others for a while."""
    before = {name: getattr(module, name) for name in names}
    for name, value in names.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


# ---- attention
