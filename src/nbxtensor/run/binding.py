"""From a declared launch to a compiled one: what is compiled, and the value of every argument."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nbxtensor.backend.contract import Backend, Bound, KernelRequest, LoadedKernel
from nbxtensor.dtype.itemsize import bits, triton_type
from nbxtensor.errors import CompileError, UnsupportedError
from nbxtensor.op import Call, Cost, Kernel, Launch, Number, Op, Pointer, Source

__all__ = ["ALIGNED_NBYTES", "Prepared", "grid3", "prepare", "request"]

ALIGNED_NBYTES = 16
"""What an address has to be a multiple of for a kernel to be told so: the widest load of a GPU's thread."""
_MARK = f"@{ALIGNED_NBYTES}"
_INT32_MAX = 2**31 - 1
# A core's copy bandwidth and arithmetic rate, to the order of magnitude: what a launch must exceed to be split.
_NBYTES_PER_NS = 10.0
_FLOPS_PER_NS = 30.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch whose kernel is loaded; only addresses are missing.

    Attributes:
        kernel: The loaded kernel.
        grid: Programs along three axes.
        slots: Per run-time argument: a `Pointer` still to be resolved, or the value itself.
        offsets: Per run-time argument: bytes to add to a resolved address.
        nanoseconds: Predicted time, 0 when not known.
    """

    kernel: LoadedKernel
    grid: tuple[int, int, int]
    slots: tuple[Pointer | int | float, ...]
    offsets: tuple[int, ...]
    nanoseconds: float

    def bind(self, resolve: Callable[[Pointer], int]) -> Bound:
        """Return the launch with ``resolve(pointer)`` as the address of each pointer."""
        values = tuple(
            resolve(slot) + offset if isinstance(slot, Pointer) else slot
            for slot, offset in zip(self.slots, self.offsets, strict=True)
        )
        return Bound(self.kernel, self.grid, values, self.nanoseconds)


def _unknown(_: Pointer) -> bool:
    return False


def request(
    op: Op,
    launch: Launch,
    *,
    bake: bool,
    aligned: Callable[[Pointer], bool] = _unknown,
    most: Sequence[int] = (),
) -> KernelRequest:
    """Return what has to be compiled for ``launch``.

    Pointers known to be multiples of 16 bytes, and integers that stay arguments and are multiples of 16, are marked:
    the kernel may then use wide loads, and is launched with no others.

    Args:
        op: The op, whose module holds the kernel and the device functions.
        launch: The launch.
        bake: Whether integers (sizes, strides) and the grid become part of the compiled kernel: right for a program,
            whose shapes are known; an eager call bakes only 0 and 1, so that other shapes reuse the kernel.
        aligned: Whether the value that a pointer points to begins at a multiple of `ALIGNED_NBYTES`.
        most: Programs along the three axes that a launch of the target may have, where it says so. A longer second or
            third axis becomes part of the compiled kernel, which the backend then launches along one.

    Raises:
        UnsupportedError: The launch has more programs than the target takes in all.
    """
    long = any(map(operator.gt, launch.grid[1:], most[1:]))
    if most and (math.prod(launch.grid) if long else launch.grid[0]) > most[0]:
        raise UnsupportedError(
            f"{op.name}: a launch has at most {most[0]} programs along one axis of the target's grid. "
            f"Got {launch.grid}. Smaller operands, one part after the other, are accepted."
        )
    signature: dict[str, str] = {}
    constants = dict(launch.constants)
    for name, value in launch.arguments.items():
        if isinstance(value, Pointer):
            marked = _offset(value) % ALIGNED_NBYTES == 0 and aligned(value)
            signature[name] = f"*{triton_type(value.dtype)}{_MARK if marked else ''}"
        elif isinstance(value, Number):
            signature[name] = triton_type(value.dtype)
        elif isinstance(value, bool):
            constants[name] = value
        elif isinstance(value, int):
            if bake or value in (0, 1):
                constants[name] = value
            else:
                mark = "" if value % ALIGNED_NBYTES else _MARK
                signature[name] = f"{'i32' if abs(value) <= _INT32_MAX else 'i64'}{mark}"
        else:
            signature[name] = "fp32"
    source = launch.kernel
    return KernelRequest(
        module="" if isinstance(source, Source) else op.module,
        name=source.name if isinstance(source, Source) else source,
        text=source.text if isinstance(source, Source) else "",
        signature=signature,
        constants=constants,
        functions=op.module,
        warps=launch.warps,
        stages=launch.stages,
        grid=launch.grid if bake or long else (),
    )


def grid3(grid: tuple[int, ...]) -> tuple[int, int, int]:
    """Return ``grid`` with its missing axes as 1."""
    x, y, z = (*grid, 1, 1, 1)[:3]
    return x, y, z


def prepare(
    call: Call,
    kernel: Kernel,
    launches: tuple[Launch, ...],
    backend: Backend,
    index: int,
    *,
    bake: bool,
    aligned: Callable[[Pointer], bool] = _unknown,
    cost: Cost | None = None,
) -> tuple[Prepared, ...]:
    """Compile and load every launch of a call; ``bake`` and ``aligned`` are those of `request`.

    ``cost`` is what ``kernel`` says of the call, where it was asked already.

    What ``aligned`` says has to hold of every address that the launches are bound to.

    Raises:
        CompileError: A kernel does not compile for the target; names the op.
        UnsupportedError: A launch has more programs than the target takes.
    """
    nanoseconds = _predicted(cost or kernel.cost(call)) / max(len(launches), 1)
    most: Sequence[int] = call.device.facts.get("dispatch.max_grid", ())
    prepared: list[Prepared] = []
    for launch in launches:
        try:
            compiled = backend.compile(request(call.op, launch, bake=bake, aligned=aligned, most=most), call.device)
        except CompileError as error:
            raise CompileError(f"{call.op.name}: {error}") from error
        given = (launch.arguments[name] for name, _ in compiled.parameters)
        slots = tuple(value.value if isinstance(value, Number) else value for value in given)
        offsets = tuple(_offset(s) if isinstance(s, Pointer) else 0 for s in slots)
        loaded = backend.load(compiled, index)
        prepared.append(Prepared(loaded, grid3(launch.grid), slots, offsets, nanoseconds))
    return tuple(prepared)


def _offset(pointer: Pointer) -> int:
    """Return the bytes from the start of a value to where ``pointer`` points."""
    return pointer.offset * bits(pointer.dtype) // 8


def _predicted(cost: Cost) -> float:
    """Return a rough time in nanoseconds on one worker: it only decides whether a launch is worth splitting."""
    return max((cost.read + cost.written) / _NBYTES_PER_NS, cost.flops / _FLOPS_PER_NS)
