"""Times of single calls on a device, and the rates that only the library's own products can tell."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nbxtensor.backend.contract import Bound, Replay
from nbxtensor.dtype.convert import convert
from nbxtensor.dtype.itemsize import kind
from nbxtensor.op import Call, Pointer, Spec
from nbxtensor.ops.matmul.op import linear_packed, matmul
from nbxtensor.ops.matmul.plain import panel_width
from nbxtensor.ops.pointwise.elementary import exp
from nbxtensor.run.binding import prepare

if TYPE_CHECKING:
    from nbxtensor.run.device import Device

__all__ = ["call_once", "call_seconds", "kernel_rates", "product_rates"]

_SIDES: Mapping[str, int] = {"float16": 8192, "bfloat16": 8192, "float32": 4096, "float64": 2048, "int8": 4096}
# Rows, columns and depth of the product that is timed for each dtype: it takes far longer than starting it.
_HOST_PRODUCT = (1024, 768, 768)  # rows, outputs and inputs of the layer that is timed on a processor
_HOST_DTYPES = ("float32", "bfloat16")
_HOST_ELEMENTS = 1 << 16  # for each worker: what it reads and writes stays in its cache
_RUNS = 7
_TURN_SECONDS = 4e-3  # what a run is filled up to with calls
_MOST_LAUNCHES = 4000
_ALIGNMENT = 512
_NOISE = 1 << 20  # random values; operands repeat them


def kernel_rates(device: Device) -> dict[str, int]:
    """Measure what the library's own kernels reach on ``device``, in about a second beside compilation.

    Returns:
        "rates.matrix.<dtype>" by name, as `product_rates` measures it on a GPU, and on a processor a linear layer with
        its weight packed. On a processor also "rates.vector.float32": operations per second of exponentials, twelve
        each, which is about what any function of elements reaches.

    Raises:
        OutOfMemoryError: There is no room for the operands.
        NbxError: The device fails.
    """
    workers = device.target.facts.get("workers")
    if workers is None:
        return product_rates(device)
    rates: dict[str, int] = {}
    rows, outputs, inputs = _HOST_PRODUCT
    width = panel_width(device.target) or outputs
    for dtype in _HOST_DTYPES:
        operands = {"x": Spec((rows, inputs), dtype), "panels": Spec((-(-outputs // width), inputs, width), dtype)}
        params = {"n": outputs, "epilogue": None, "extras": (), "scalars": ()}
        call = replace(linear_packed.op.call(operands, params, device.target), fixed=frozenset({"panels"}))
        rates[f"rates.matrix.{dtype}"] = round(2 * rows * outputs * inputs / call_seconds(device, call))
    call = exp.op.call({"x": Spec((int(workers) * _HOST_ELEMENTS,), "float32")}, {}, device.target)
    flops = call.op.kernel(call).cost(call).flops
    return rates | {"rates.vector.float32": round(flops / call_seconds(device, call))}


def product_rates(device: Device, sides: Mapping[str, int] | None = None) -> dict[str, int]:
    """Measure the library's matrix products on ``device``, in about a second beside compilation.

    Args:
        device: The device.
        sides: Rows, columns and depth of the product, by dtype; left out, a large one of each dtype that the device
            computes.

    Returns:
        "rates.matrix.<dtype>" by name: operations per second; a multiplication and an addition are two.

    Raises:
        OutOfMemoryError: There is no room for the operands.
        NbxError: The device fails.
    """
    if sides is None:
        sides = {dtype: side for dtype, side in _SIDES.items() if dtype in device.target.features}
    rates: dict[str, int] = {}
    for dtype, side in sides.items():
        operand = Spec((side, side), dtype)
        params = {"dtype": None, "epilogue": None, "extras": (), "scalars": ()}
        call = matmul.op.call({"x": operand, "y": operand}, params, device.target)
        rates[f"rates.matrix.{dtype}"] = round(2 * side**3 / call_seconds(device, call))
    return rates


def call_seconds(device: Device, call: Call, *, apart: int = 0) -> float:
    """Return the median seconds that a call takes inside a recording, as one of many like it.

    Operands hold random numbers; integers among them are 0, so that indices are in range.

    Args:
        device: Where it runs; the call's target is its.
        call: The call.
        apart: Where it is above 0, calls take turns on operands and results of their own, at least as many bytes in
            all: nothing is found in a cache that is smaller. Left out, every call finds what the one before touched.

    Raises:
        UnsupportedError: No kernel serves the call.
        CompileError: A kernel does not compile.
        OutOfMemoryError: There is no room for the operands.
    """
    layout = _Layout(device, call)
    places = max(1, -(-apart // max(layout.nbytes, 1)))
    memory = device.backend.memory(device.index)
    block = memory.allocate(places * layout.nbytes, _ALIGNMENT)
    try:
        bounds: list[Bound] = []
        for start in range(block, block + places * layout.nbytes, max(layout.nbytes, 1)):
            layout.fill(start)
            bounds += layout.bound(start)
        return _seconds(device, bounds, places)
    finally:
        device.backend.synchronize(device.index)
        memory.free(block)


def call_once(device: Device, call: Call) -> None:
    """Run a call once, each of its launches started from the host, on random operands; return when it is done.

    It is for a profiler: nothing else runs on the device.

    Raises:
        NbxError: As `call_seconds`.
    """
    layout = _Layout(device, call)
    memory = device.backend.memory(device.index)
    block = memory.allocate(layout.nbytes, _ALIGNMENT)
    try:
        layout.fill(block)
        for bound in layout.bound(block):
            device.backend.launch(bound, device.index)
    finally:
        device.backend.synchronize(device.index)
        memory.free(block)


class _Layout:
    """A call's launches, and where in one block of memory its operands, results and workspace lie.

    Attributes:
        nbytes: Size of the block.
    """

    def __init__(self, device: Device, call: Call) -> None:
        self._device = device
        self._inputs = dict(call.inputs)
        kernel = call.op.kernel(call)
        sizes = {("input", name): spec.nbytes for name, spec in call.inputs.items()}
        sizes |= {("output", index): spec.nbytes for index, spec in enumerate(call.outputs)}
        sizes |= {("workspace", buffer.name): buffer.nbytes for buffer in kernel.cost(call).buffers}
        self._offsets: dict[tuple[str, str | int], int] = {}
        self.nbytes: int = 0
        for key, size in sizes.items():
            self._offsets[key] = self.nbytes
            self.nbytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        launches = kernel.launch(call)
        self._prepared = prepare(
            call, kernel, launches, device.backend, device.index, bake=True, aligned=lambda _: True
        )

    def bound(self, block: int) -> list[Bound]:
        """Return the launches on a block of memory."""

        def resolve(pointer: Pointer) -> int:
            return block + self._offsets[pointer.role, pointer.key]

        return [each.bind(resolve) for each in self._prepared]

    def fill(self, block: int) -> None:
        """Fill the operands in a block."""
        for name, spec in self._inputs.items():
            _fill(self._device, block + self._offsets["input", name], spec)


def _seconds(device: Device, bounds: Sequence[Bound], calls: int) -> float:
    """Return the seconds of each of ``calls`` calls: what twice as many turns of them take longer."""
    clock = _clock_of(device)
    took = max(clock(device.backend.record(bounds, device.index)), 1e-9)
    turns = max(1, min(round(_TURN_SECONDS / took), _MOST_LAUNCHES // max(len(bounds), 1)))
    one, two = (device.backend.record(list(bounds) * n, device.index) for n in (turns, 2 * turns))
    samples = [clock(two) - clock(one) for _ in range(_RUNS)]
    return max(statistics.median(samples) / (turns * calls), 1e-12)


def _clock_of(device: Device) -> Callable[[Replay], float]:
    """Return what times a replay: by the clock, or by the processor time of each worker of the host.

    Other processes of a busy machine do not add to the latter.
    """
    workers = device.target.facts.get("workers")
    read = time.perf_counter if workers is None else time.process_time

    def seconds(replay: Replay) -> float:
        replay.run()
        began = read()
        replay.run()
        return (read() - began) / (workers or 1)

    return seconds


def _fill(device: Device, address: int, spec: Spec) -> None:
    memory = device.backend.memory(device.index)
    if kind(spec.dtype) != "float" and spec.dtype != "int8":
        memory.fill(address, 0, spec.nbytes)
        return
    values = np.random.default_rng(0).standard_normal(_NOISE, np.float32)
    carried = values * 50 if spec.dtype == "int8" else values
    noise = convert(carried, "float32", spec.dtype).data.cast("B")
    for start in range(0, spec.nbytes, noise.nbytes):
        memory.copy_in(address + start, noise[: spec.nbytes - start])
