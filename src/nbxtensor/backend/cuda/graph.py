"""Recorded launches: a CUDA graph with one node for each, started by one call."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Sequence

from nbxtensor.backend.contract import Bound
from nbxtensor.backend.cuda.card import Card
from nbxtensor.backend.cuda.loaded import CudaKernel, cuda_kernel

__all__ = ["CudaReplay"]


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS; the last two fields are those of its second version, unused."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_nbytes", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class _Graph:
    """A chain of nodes, each waiting for the one before."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._owned: list[tuple[str, int]] = []  # what destroys each handle, in the order they were made
        self._kernels: list[CudaKernel] = []  # loaded until the nodes that run them are gone
        weakref.finalize(self, _destroy, card, self._owned, self._kernels).atexit = False
        card.enter()
        self._graph = self._own("destroy_graph", card.driver.handle("make_graph", 0))
        self._last = ctypes.c_void_p()
        self._instance = 0

    def add_kernel(self, kernel: CudaKernel, bound: Bound) -> None:
        """Append a launch; the driver copies its arguments."""
        self._kernels.append(kernel)
        block, taken = kernel.arguments, kernel.resources
        shared = int(kernel.compiled.metadata["shared_nbytes"])
        node = _KernelNode(kernel.function, bound.grid, (taken.threads, 1, 1), shared, block.table, None, None, None)
        with block.lock:
            block.fill(bound.arguments)
            self._append("add_kernel", ctypes.byref(node))

    def add_event(self) -> int:
        """Append a node that notes the time, and return its event."""
        event = self._own("destroy_event", self._card.driver.handle("make_event", 0))
        self._append("add_event", event)
        return event

    def finish(self) -> None:
        """Make the graph ready to run, with all that the device needs for it in place."""
        driver = self._card.driver
        self._instance = self._own("destroy_instance", driver.handle("instantiate", self._graph, 0))
        driver.call("upload", self._instance, self._card.stream)

    def run(self) -> None:
        """Run the graph once and wait."""
        self._card.enter()
        self._card.driver.call("launch_graph", self._instance, self._card.stream)
        self._card.driver.call("wait_stream", self._card.stream)

    def _append(self, operation: str, what: object) -> None:
        node = ctypes.c_void_p()
        before = (ctypes.byref(self._last), 1) if self._last else (None, 0)
        self._card.driver.call(operation, ctypes.byref(node), self._graph, *before, what)
        self._last = node

    def _own(self, operation: str, handle: int) -> int:
        self._owned.append((operation, handle))
        return handle


class CudaReplay:
    """A recorded sequence of launches; its arguments are fixed addresses.

    Attributes:
        launches: The launches, in order; they keep their kernels loaded.
    """

    def __init__(self, launches: Sequence[Bound], card: Card) -> None:
        """Record launches.

        Raises:
            ArgumentError: A kernel that was not loaded on the card, a grid that it does not allow, or values that the
                kernel does not take.
            DriverError: The driver fails.
        """
        self.launches: tuple[Bound, ...] = tuple(launches)
        self._card = card
        self._kernels = tuple(cuda_kernel(bound, card) for bound in launches)
        self._graph = self._recorded()
        self._timed: tuple[_Graph, list[int]] | None = None

    def run(self) -> None:
        """Run all launches once, in order, and wait until they are done.

        Raises:
            DriverError: The driver fails, or a launch does.
        """
        self._graph.run()

    def profile(self) -> tuple[float, ...]:
        """Run all launches once and return the nanoseconds of each, to half a microsecond, as the device counts them.

        Raises:
            DriverError: The driver fails, or a launch does.
        """
        if self._timed is None:
            events: list[int] = []
            self._timed = (self._recorded(events), events)
        graph, events = self._timed
        graph.run()
        cell = ctypes.c_float()
        times: list[float] = []
        for start, end in itertools.pairwise(events):
            self._card.driver.call("elapsed", ctypes.byref(cell), start, end)
            times.append(1e6 * cell.value)
        return tuple(times)

    def _recorded(self, events: list[int] | None = None) -> _Graph:
        """Return the launches as a graph, with an event before the first and after each where ``events`` takes them."""
        graph = _Graph(self._card)
        if events is not None:
            events.append(graph.add_event())
        for kernel, bound in zip(self._kernels, self.launches, strict=True):
            if 0 not in bound.grid:
                graph.add_kernel(kernel, bound)
            if events is not None:
                events.append(graph.add_event())
        graph.finish()
        return graph


def _destroy(card: Card, owned: list[tuple[str, int]], kernels: list[CudaKernel]) -> None:
    card.wait()
    for operation, handle in reversed(owned):
        card.driver.call(operation, handle)
    kernels.clear()
