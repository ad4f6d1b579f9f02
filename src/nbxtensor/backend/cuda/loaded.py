"""A compiled kernel on a card: its module, its function, what it takes of the card, its launches."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from nbxtensor.backend.abi import Driver
from nbxtensor.backend.abi_arguments import Arguments
from nbxtensor.backend.contract import Bound, Compiled, adjacent
from nbxtensor.backend.cuda.card import Card, forked
from nbxtensor.backend.cuda.libcuda import FUNCTION_ATTRIBUTES, PROGRAMMATIC_LAUNCH, WRONG_CONTEXT
from nbxtensor.errors import ArgumentError, CompileError, DriverError, UnsupportedError

__all__ = ["CudaKernel", "Fixed", "Resources", "cuda_kernel"]

_WITHOUT_ASKING = 48 << 10  # bytes of dynamic shared memory that a launch has without opting in
_WARP = 32


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_nbytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, whose value is one int here."""

    _fields_ = (
        ("name", ctypes.c_uint),
        ("unused", ctypes.c_uint),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_int * 15),
    )


# The driver's function, told nothing of its arguments: what `c_void_p.from_param` made once is passed as it is.
_Launch = ctypes.CFUNCTYPE(ctypes.c_int)

# The launch may start before the one before it on the stream is done: it waits for it by itself. Measured on an H200,
# such a launch also costs the host 0.5 to 1 microsecond less.
_EARLY = _LaunchAttribute(PROGRAMMATIC_LAUNCH, 0, 1)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel takes of a card, as the driver counts it.

    Attributes:
        registers: Registers of each thread.
        local_nbytes: Bytes of local memory of each thread: what was spilled, and arrays that registers cannot hold.
        shared_nbytes: Bytes of shared memory of each program.
        threads: Threads of each program.
    """

    registers: int
    local_nbytes: int
    shared_nbytes: int
    threads: int


class CudaKernel:
    """A kernel ready to launch on one card; its module stays loaded while this object lives.

    Attributes:
        compiled: What it was loaded from.
        card: The card.
        function: Handle of the function.
        resources: What it takes of the card.
        arguments: Its argument block.
        folded: The only grid that its code is for, where that is longer than the card allows.
    """

    __slots__ = (
        "__weakref__",
        "_early",
        "_launch",
        "_shared_nbytes",
        "arguments",
        "card",
        "compiled",
        "folded",
        "function",
        "resources",
    )

    def __init__(self, compiled: Compiled, card: Card) -> None:
        """Load a kernel.

        Raises:
            UnsupportedError: It was compiled for another architecture, or needs more shared memory or threads than
                the card has.
            CompileError: Its code cannot be loaded.
            DriverError: The driver fails.
        """
        self.compiled: Compiled = compiled
        self.card: Card = card
        driver, name = card.driver, compiled.name
        arch, shared = compiled.metadata["arch"], int(compiled.metadata["shared_nbytes"])
        threads = int(compiled.metadata["warps"]) * _WARP
        if arch != card.target.arch:
            raise UnsupportedError(f"{name}: code runs on its own architecture. Got {arch} for {card.target.arch}.")
        self.arguments: Arguments = Arguments(compiled, int(compiled.metadata["hidden"]))
        card.enter()
        try:
            module = driver.handle("load_module", compiled.binary)
        except DriverError as error:
            raise CompileError(f"{name}: its code is loaded by the driver. {error}") from error
        weakref.finalize(self, _unload, card, module).atexit = False
        try:
            self.function: int = driver.handle("function", module, name.encode())
        except DriverError as error:
            raise CompileError(f"{name}: its code has a function of that name. {error}") from error
        static = self._attribute(driver, "static_shared_nbytes")
        if shared + static > card.most_shared_nbytes:
            raise UnsupportedError(
                f"{name}: a program's shared memory fits the card. It needs {shared + static} bytes, and the driver "
                f"allows {card.most_shared_nbytes}. Smaller blocks or fewer stages are accepted."
            )
        if shared > _WITHOUT_ASKING:
            code = FUNCTION_ATTRIBUTES["max_dynamic_shared_nbytes"]
            driver.call("set_function_attribute", self.function, code, shared)
        most = self._attribute(driver, "max_threads")
        if threads > most:
            raise UnsupportedError(
                f"{name}: a program's threads have registers. It needs {threads} threads, the driver allows {most}. "
                "Fewer warps are accepted."
            )
        self.resources: Resources = Resources(
            registers=self._attribute(driver, "registers"),
            local_nbytes=self._attribute(driver, "local_nbytes"),
            shared_nbytes=shared + static,
            threads=threads,
        )
        self._shared_nbytes = shared
        self._launch = _Launch(ctypes.cast(cast("Any", driver.function("launch")), ctypes.c_void_p).value or 0)
        folded = compiled.metadata.get("folded")
        self.folded: tuple[int, int, int] | None = folded and (folded[0], folded[1], folded[2])
        self._early = card.starts_early and bool(compiled.metadata.get("waits_first"))

    def starter(
        self, grid: tuple[int, int, int], arguments: Sequence[int | float], varying: Sequence[int] = ()
    ) -> Callable[[Sequence[int]], None]:
        """Return what starts the kernel on the card's stream, as `Backend.starter` says; it may run on after that.

        Raises:
            ArgumentError: Values that the kernel does not take.
            UnsupportedError: (when it is called) The process was forked.
            DriverError: (when it is called) The driver fails.
        """
        card, forms = self.card, self.compiled
        config = self._config(grid)

        def filled() -> tuple[Any, Callable[[], int], Arguments]:
            block = Arguments(forms, int(forms.metadata["hidden"]))
            block.fill(arguments)
            return block.words, self.call(config, block), block

        first = filled()
        places = first[2].pointers(varying)
        run = adjacent(places)
        spare = deque([first])  # one for each thread that launches at the same moment

        def start(addresses: Sequence[int]) -> None:
            if card.forked:
                raise forked()
            try:
                held = spare.pop()
            except IndexError:
                held = filled()
            words, launch, block = held
            if run is not None:
                words[run] = addresses
            else:
                for place, address in zip(places, addresses, strict=True):
                    words[place] = address
            status = launch()
            if status:
                self.again(status, config, block)
            spare.append(held)

        return start

    def fixed(self, grid: tuple[int, int, int], arguments: Sequence[int | float]) -> Fixed:
        """Return the launch on those arguments, ready to be started any number of times.

        Raises:
            ArgumentError: Values that the kernel does not take.
        """
        block = Arguments(self.compiled, int(self.compiled.metadata["hidden"]))
        block.fill(arguments)
        return Fixed(self, block, self._config(grid))

    def call(self, config: _LaunchConfig, block: Arguments) -> Callable[[], int]:
        """Return what starts a launch and returns the driver's answer; what it takes has to be kept by the caller."""
        handles = (ctypes.addressof(config), self.function, block.table)
        return partial(self._launch, *map(ctypes.c_void_p.from_param, handles), None)

    def again(self, status: int, config: _LaunchConfig, block: Arguments) -> None:
        """Start a launch that answered ``status`` once more where the thread's current context was the cause.

        Raises:
            DriverError: It was not, or the driver fails.
        """
        if status in WRONG_CONTEXT:
            self.card.enter()
            status = self.call(config, block)()
        if status:
            raise self.card.driver.error("launch", status)

    def _config(self, grid: tuple[int, int, int]) -> _LaunchConfig:
        threads, early = (self.resources.threads, 1, 1), self._early
        attributes = ctypes.addressof(_EARLY) if early else None
        return _LaunchConfig(
            self.launched(grid), threads, self._shared_nbytes, self.card.stream, attributes, int(early)
        )

    def launched(self, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the grid as the driver is given it: along one axis where the code is for a folded grid."""
        return grid if self.folded is None else (grid[0] * grid[1] * grid[2], 1, 1)

    def _attribute(self, driver: Driver, name: str) -> int:
        return driver.integer("function_attribute", FUNCTION_ATTRIBUTES[name], self.function)


class Fixed:
    """A launch with its arguments in place.

    Attributes:
        card: What it runs on.
        call: Starts it and returns the driver's answer.
    """

    __slots__ = ("_block", "_config", "_kernel", "call", "card")

    def __init__(self, kernel: CudaKernel, block: Arguments, config: _LaunchConfig) -> None:
        self._kernel, self._block, self._config = kernel, block, config
        self.card: Card = kernel.card
        self.call: Callable[[], int] = kernel.call(config, block)

    def again(self, status: int) -> None:
        """Start it once more where that helps; see `CudaKernel.again`."""
        self._kernel.again(status, self._config, self._block)


def cuda_kernel(bound: Bound, card: Card) -> CudaKernel:
    """Return the kernel of a launch on ``card``, its grid checked.

    Raises:
        ArgumentError: The kernel was loaded by another backend or on another card, or an axis of the grid is negative
            or longer than the card allows.
    """
    kernel = bound.kernel
    if not isinstance(kernel, CudaKernel) or kernel.card is not card:
        found = f"one of cuda:{kernel.card.index}" if isinstance(kernel, CudaKernel) else type(kernel).__name__
        raise ArgumentError(
            f"{kernel.compiled.name}: a launch on cuda:{card.index} runs a kernel loaded there. Got {found}. "
            "What load() returned for that device is accepted."
        )
    folded = kernel.folded
    if folded is not None and 0 not in bound.grid and bound.grid != folded:
        raise ArgumentError(
            f"{kernel.compiled.name}: code for a grid too long for the card runs on that grid. Got {bound.grid} for "
            f"{folded}."
        )
    (x, y, z), (most_x, most_y, most_z) = kernel.launched(bound.grid), card.most_programs
    if not (0 <= x <= most_x and 0 <= y <= most_y and 0 <= z <= most_z):
        raise ArgumentError(
            f"{kernel.compiled.name}: a grid counts programs. Got {bound.grid}. Zero or more along each axis, at most "
            f"{card.most_programs}."
        )
    return kernel


def _unload(card: Card, module: int) -> None:
    # Launches return before they have run: the code stays until they have.
    card.wait()
    card.driver.call("unload_module", module)
