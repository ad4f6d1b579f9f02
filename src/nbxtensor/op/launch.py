"""A launch as plain data, what it costs, and the facts it is chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from nbxtensor.errors import ArgumentError, MissingFactError
from nbxtensor.op.spec import Spec

if TYPE_CHECKING:
    from nbxtensor.op.declaration import Op

__all__ = ["Argument", "Buffer", "Call", "Cost", "Launch", "Number", "Pointer", "Round", "Source", "Target"]

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Target:
    """What a kernel is chosen and compiled for: a kind of device, its code target and its declared facts.

    Attributes:
        backend: Name of the backend ("cpu", "cuda", "null").
        arch: Code target in the backend's own spelling ("x86-64-v4", "sm_90").
        features: Capabilities a kernel may need ("avx512bf16", "float64").
        facts: Numbers of the device by dotted name, as its device file or a measurement states them.
    """

    backend: str
    arch: str
    features: frozenset[str] = frozenset()
    facts: Mapping[str, Any] = field(default_factory=lambda: _EMPTY, hash=False, compare=False)

    def fact(self, name: str) -> Any:
        """Return the number called ``name``.

        Raises:
            MissingFactError: The device states no such number.
        """
        if name not in self.facts:
            raise MissingFactError(
                f"{name} of {self.backend} {self.arch}", "Numbers of devices live in backend/devices/."
            )
        return self.facts[name]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory a kernel needs beside its operands.

    Attributes:
        name: The name its launches use for it.
        nbytes: Size in bytes.
        first: Index of the first of the kernel's launches that touches it.
        last: Index of the last one.
    """

    name: str
    nbytes: int
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call of a kernel takes.

    Attributes:
        flops: Arithmetic operations (an FMA counts two).
        read: Bytes read from device memory, each operand once unless the kernel reads it again.
        written: Bytes written.
        matrix: Dtype of the matrix unit that does the flops, or None for the vector units.
        buffers: Workspace, each with its lifetime in launches.
        beside: Operations that the vector units do beside those of the matrix unit: exponentials, an epilogue.
        again: Those bytes of ``read`` that the call has read before: a cache may hold them.
        issued: Bytes of all loads and stores of its programs, where several read the same (blocks of a product); 0:
            no more than ``read`` and ``written``.
    """

    flops: int
    read: int
    written: int
    matrix: str | None = None
    buffers: tuple[Buffer, ...] = ()
    beside: int = 0
    again: int = 0
    issued: int = 0

    @property
    def moved(self) -> tuple[int, int]:
        """Least and most bytes that pass the device's memory: each once, and as often as programs ask for it.

        >>> Cost(0, read=300, written=50, again=200, issued=400).moved
        (150, 400)
        """
        both = self.read + self.written
        return both - self.again, max(self.issued, both)


@dataclass(frozen=True, slots=True)
class Source:
    """Triton source made for one use: a function named ``name``, defined by ``text``.

    The text imports what it uses; it is compiled as a module of its own.
    """

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Pointer:
    """A launch argument that is the address of an operand, a result or a workspace buffer.

    Attributes:
        role: Which of the three.
        key: Operand name, index of the result, or name of the workspace buffer.
        dtype: Element type the kernel sees.
        offset: Elements from the start of the value.
    """

    role: Literal["input", "output", "workspace"]
    key: str | int
    dtype: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Number:
    """A launch argument that is a number of a stated dtype and stays an argument whatever its value.

    A plain int may be compiled in; a plain float is a float32.
    """

    value: int | float
    dtype: str


Argument = Pointer | Number | int | float
"""What a launch passes for a parameter of its kernel."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a program that multiplies blocks, on the device its launch was made for.

    Attributes:
        flops: Operations of the program's round.
        nbytes: Bytes that the program's round loads.
        stored: Bytes that the program writes at its end.
        resident: Programs that a unit holds at once, by the registers and the shared memory they take.
        rate: Operations per second that a unit full of such programs reaches, as far as their instructions go.
        threads: Threads that a unit needs for that rate; fewer of them wait for themselves.
        nanoseconds: What a round of each program adds to a unit beside its operations.
        between: Nanoseconds from the end of a program to the first round of the one after it.
    """

    flops: int
    nbytes: int
    stored: int
    resident: int
    rate: float
    threads: int = 128
    nanoseconds: float = 0.0
    between: float = 0.0


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch, known whole before any device is opened: key of compilation, of a dry run and of a record.

    Attributes:
        kernel: Name of a Triton function in the op's kernel module, or source made for this use.
        grid: Number of programs along up to three axes.
        arguments: Kernel parameters that vary from launch to launch, by name.
        constants: Kernel parameters fixed at compilation, by name: numbers, bools, strings, None, the dtype name of
            a ``tl`` type as ``"tl.float32"``, the name of a device function as ``"fn:relu"``, or `Source`.
        warps: Warps per program, where the device has them.
        stages: Depth of software pipelining, where the device has it.
        rounds: What a program does one after another at least, each waiting for what the one before brought: a load,
            a turn of a loop of loads that are asked for together, a sum over the whole program. A price rests on it.
        round: What each round of a product is, where rounds share a unit's arithmetic; None for all else.
    """

    kernel: str | Source
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]
    constants: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    warps: int = 4
    stages: int = 2
    rounds: int = 1
    round: Round | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One use of an op: the specs of its operands and results, its parameters, and the target.

    Attributes:
        op: The op called.
        inputs: Spec of each operand that is present, by parameter name (``name.0``, ``name.1`` ... for a sequence).
        params: Every other parameter by name, defaults filled in.
        target: What it runs on; None while only shapes and dtypes are asked for.
        outputs: Specs of the results; empty while the result rule itself runs.
        in_place: Operand that each result lies in the memory of, by the result's index, where a plan has it so.
        fixed: Operands that no launch of the same program writes: weights and constants. A kernel may read them before
            the launches before it are done.
    """

    op: Op
    inputs: Mapping[str, Spec]
    params: Mapping[str, Any]
    target: Target | None = None
    outputs: tuple[Spec, ...] = ()
    in_place: Mapping[int, str] = field(default_factory=lambda: _EMPTY, hash=False)
    fixed: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Spec:
        """Return the spec of operand ``name``."""
        try:
            return self.inputs[name]
        except KeyError:
            known = ", ".join(self.inputs)
            raise ArgumentError(f"{self.op.name}: no operand {name!r}. It was called with {known}.") from None

    def sequence(self, name: str) -> tuple[Spec, ...]:
        """Return the specs of the operand sequence ``name``, in order."""
        return tuple(self.inputs[k] for k in self.inputs if k.rpartition(".")[0] == name)

    def input(self, name: str, offset: int = 0) -> Pointer:
        """Return the launch argument that points to operand ``name``."""
        return Pointer("input", name, self[name].dtype, offset)

    def output(self, index: int = 0, offset: int = 0) -> Pointer:
        """Return the launch argument that points to result ``index``."""
        return Pointer("output", index, self.outputs[index].dtype, offset)

    def workspace(self, name: str, dtype: str, offset: int = 0) -> Pointer:
        """Return the launch argument that points to workspace buffer ``name``, seen as ``dtype``."""
        return Pointer("workspace", name, dtype, offset)

    @property
    def device(self) -> Target:
        """The target, where one is needed.

        Raises:
            MissingFactError: The call was made without one.
        """
        if self.target is None:
            raise MissingFactError(f"the target of {self.op.name}", "Kernels are chosen for a named target.")
        return self.target

    @property
    def operand_nbytes(self) -> int:
        """Bytes of all operands, each element counted once (a broadcast one is not repeated)."""
        return sum(distinct_nbytes(s) for s in self.inputs.values())

    @property
    def result_nbytes(self) -> int:
        """Bytes of all results."""
        return sum(s.nbytes for s in self.outputs)


def distinct_nbytes(spec: Spec) -> int:
    """Return the bytes of the elements ``spec`` reaches, each counted once."""
    extents = tuple(1 if stride == 0 else n for n, stride in zip(spec.shape, spec.strides, strict=True))
    return Spec(extents, spec.dtype).nbytes
