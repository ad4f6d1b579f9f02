"""Recorded launches: a CUDA graph with one node for each, started by one call."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Sequence

from nbxtensor.backend.contract import Bound
from nbxtensor.backend.cuda.card import Card
from nbxtensor.backend.cuda.loaded import CudaKernel, cuda_kernel
from nbxtensor.backend.launch_order import predecessors, rebound

__all__ = ["CudaReplay"]

# CUgraphEdgeData: from the port that a kernel's programs trigger, to the whole node, a programmatic dependency.
_EARLY_EDGE = bytes((1, 0, 1, 0, 0, 0, 0, 0))


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
    """Nodes and what each waits for."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._owned: list[tuple[str, int]] = []  # what destroys each handle, in the order they were made
        self._kernels: list[CudaKernel] = []  # loaded until the nodes that run them are gone
        weakref.finalize(self, _destroy, card, self._owned, self._kernels).atexit = False
        card.enter()
        self._graph = self._own("destroy_graph", card.driver.handle("make_graph", 0))
        self._early: list[tuple[int, int]] = []
        self._instance = 0

    def add_kernel(self, kernel: CudaKernel, bound: Bound, before: Sequence[int], *, early: bool = False) -> int:
        """Add a launch, whose arguments the driver copies, after the nodes ``before``; return its node.

        Args:
            kernel: The kernel.
            bound: The launch.
            before: Nodes that it waits for.
            early: Whether it waits for them by itself, so that it may be started when they let it.
        """
        self._kernels.append(kernel)
        with kernel.arguments.lock:
            node = self._add("add_kernel", () if early else before, ctypes.byref(_filled(kernel, bound)))
        if early:
            self._early += [(earlier, node) for earlier in before]
        return node

    def add_event(self, before: Sequence[int]) -> tuple[int, int]:
        """Add a node that notes the time when the nodes ``before`` are done; return it and its event."""
        event = self._own("destroy_event", self._card.driver.handle("make_event", 0))
        return self._add("add_event", before, event), event

    def finish(self) -> None:
        """Make the graph ready to run, with all that the device needs for it in place."""
        driver = self._card.driver
        if self._early:
            count = len(self._early)
            ends = ((ctypes.c_void_p * count)(*(edge[end] for edge in self._early)) for end in (0, 1))
            driver.call("add_edges", self._graph, *ends, _EARLY_EDGE * count, count)
        self._instance = self._own("destroy_instance", driver.handle("instantiate", self._graph, 0))
        driver.call("upload", self._instance, self._card.stream)

    def rebind(self, node: int, kernel: CudaKernel, bound: Bound) -> None:
        """Give a launch that was added other arguments, for the runs that follow."""
        self._card.enter()
        with kernel.arguments.lock:
            self._card.driver.call("set_kernel", self._instance, node, ctypes.byref(_filled(kernel, bound)))

    def start(self) -> None:
        """Run the graph once, after everything started before."""
        self._card.enter()
        self._card.driver.call("launch_graph", self._instance, self._card.stream)

    def run(self) -> None:
        """Run the graph once and wait."""
        self.start()
        self._card.driver.call("wait_stream", self._card.stream)

    def _add(self, operation: str, before: Sequence[int], what: object) -> int:
        node = ctypes.c_void_p()
        nodes = (ctypes.c_void_p * len(before))(*before) if before else None
        self._card.driver.call(operation, ctypes.byref(node), self._graph, nodes, len(before), what)
        return node.value or 0

    def _own(self, operation: str, handle: int) -> int:
        self._owned.append((operation, handle))
        return handle


class CudaReplay:
    """A recorded sequence of launches, each after those it has to wait for.

    Attributes:
        launches: The launches, in order; they keep their kernels loaded.
    """

    def __init__(
        self, launches: Sequence[Bound], card: Card, dependencies: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Record launches.

        Args:
            launches: The launches.
            card: What they run on.
            dependencies: For each launch, the earlier ones that it waits for; None: the one before it.

        Raises:
            ArgumentError: A kernel that was not loaded on the card, a grid that it does not allow, values that the
                kernel does not take, or dependencies that name no earlier launch.
            DriverError: The driver fails.
        """
        self.launches: tuple[Bound, ...] = tuple(launches)
        self._card = card
        self._kernels = tuple(cuda_kernel(bound, card) for bound in launches)
        self._before = predecessors(len(self.launches), dependencies)
        self._graph, self._nodes = self._recorded()
        self._timed: tuple[_Graph, list[int]] | None = None

    def run(self) -> None:
        """Run all launches once, each after those it waits for, and wait until they are done.

        Raises:
            DriverError: The driver fails, or a launch does.
        """
        self._graph.run()

    def start(self) -> None:
        """Start all launches once, after everything started before, and do not wait.

        Raises:
            DriverError: The driver fails.
        """
        self._graph.start()

    def rebind(self, number: int, arguments: Sequence[int | float]) -> None:
        """Give launch ``number`` other arguments, for the runs that follow; nothing is recorded anew.

        What the launch waits for stays: whoever hands in other addresses answers for the order.

        Raises:
            ArgumentError: There is no such launch, or values that its kernel does not take.
            DriverError: The driver fails.
        """
        launches = rebound(self.launches, number, arguments)
        bound, kernel, nodes = launches[number], self._kernels[number], self._nodes[number]
        with kernel.arguments.lock:  # also of a launch of no programs, which has no node
            kernel.arguments.fill(bound.arguments)
        if 0 not in bound.grid:
            self._graph.rebind(nodes[0], kernel, bound)
        self.launches = launches
        self._timed = None

    def profile(self) -> tuple[float, ...]:
        """Run all launches once, one after another, and return the nanoseconds of each.

        The device counts them, to half a microsecond.

        Raises:
            DriverError: The driver fails, or a launch does.
        """
        if self._timed is None:
            self._timed = self._timeline()
        graph, events = self._timed
        graph.run()
        cell = ctypes.c_float()
        times: list[float] = []
        for start, end in itertools.pairwise(events):
            self._card.driver.call("elapsed", ctypes.byref(cell), start, end)
            times.append(1e6 * cell.value)
        return tuple(times)

    def _recorded(self) -> tuple[_Graph, list[tuple[int, ...]]]:
        """Return the launches as a graph, and the node of each: for one of no programs, the nodes that it waits for."""
        graph = _Graph(self._card)
        nodes: list[tuple[int, ...]] = []
        for kernel, bound, earlier in zip(self._kernels, self.launches, self._before, strict=True):
            before = tuple(dict.fromkeys(node for number in earlier for node in nodes[number]))
            if 0 in bound.grid:
                nodes.append(before)
                continue
            early = self._card.starts_early and all(
                bool(k.compiled.metadata.get("early")) for k in (kernel, *(self._kernels[n] for n in earlier))
            )
            nodes.append((graph.add_kernel(kernel, bound, before, early=early),))
        graph.finish()
        return graph, nodes

    def _timeline(self) -> tuple[_Graph, list[int]]:
        """Return the launches as a graph in which each waits for all before it, and the events between them."""
        graph = _Graph(self._card)
        last, event = graph.add_event(())
        events = [event]
        for kernel, bound in zip(self._kernels, self.launches, strict=True):
            if 0 not in bound.grid:
                last = graph.add_kernel(kernel, bound, (last,))
            last, event = graph.add_event((last,))
            events.append(event)
        graph.finish()
        return graph, events


def _filled(kernel: CudaKernel, bound: Bound) -> _KernelNode:
    """Return a launch as the driver takes it; the arguments lie in the kernel's block, whose lock is held."""
    block = kernel.arguments
    block.fill(bound.arguments)
    shared = int(kernel.compiled.metadata["shared_nbytes"])
    threads = (kernel.resources.threads, 1, 1)
    return _KernelNode(kernel.function, kernel.launched(bound.grid), threads, shared, block.table, None, None, None)


def _destroy(card: Card, owned: list[tuple[str, int]], kernels: list[CudaKernel]) -> None:
    card.wait()
    for operation, handle in reversed(owned):
        card.driver.call(operation, handle)
    kernels.clear()
