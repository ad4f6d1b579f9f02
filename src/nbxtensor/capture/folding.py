"""What a bundle makes from weights when it is loaded: launches over buffers that are kept while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nbxtensor.backend.contract import Bound, LoadedKernel
from nbxtensor.memory.allocator import Storage
from nbxtensor.run import Device, launch

__all__ = ["fold"]


def fold(
    device: Device,
    kernels: Sequence[LoadedKernel],
    buffers: Sequence[Mapping[str, Any]],
    launches: Sequence[Sequence[Any]],
    results: Sequence[int],
    given: Callable[[Mapping[str, Any]], memoryview | None],
) -> Iterator[tuple[int, Storage]]:
    """Yield (buffer, memory) of every result as soon as nothing else is done with it.

    Args:
        device: Where.
        kernels: The kernels, by number.
        buffers: ``nbytes`` of each buffer, and where its value comes from.
        launches: (kernel, grid, arguments, nanoseconds) of each; an argument that is a pair is a buffer and the bytes
            from its start.
        results: The buffers that are asked for.
        given: Returns the value of a buffer that no launch writes; None for one that launches write.
    """
    last = {a[0]: n for n, (_, _, arguments, _) in enumerate(launches) for a in arguments if isinstance(a, list)}
    memory = device.backend.memory(device.index)
    held: dict[int, Storage] = {}

    def storage(buffer: int) -> Storage:
        if buffer not in held:
            held[buffer] = device.allocator.allocate(buffers[buffer]["nbytes"])
            value = given(buffers[buffer])
            if value is not None:
                memory.copy_in(held[buffer].address, value)
        return held[buffer]

    for number, (kernel, grid, arguments, nanoseconds) in enumerate(launches):
        values = tuple(storage(a[0]).address + a[1] if isinstance(a, list) else a for a in arguments)
        launch(device, Bound(kernels[kernel], (grid[0], grid[1], grid[2]), values, nanoseconds))
        for buffer in [b for b in held if last[b] == number]:
            if buffer in results:
                yield buffer, held[buffer]
            del held[buffer]
    yield from ((buffer, storage(buffer)) for buffer in results if buffer not in last)
