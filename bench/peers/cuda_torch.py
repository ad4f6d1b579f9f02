"""A torch module on a GPU as contenders: eager, in a CUDA graph, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.gpu.card import Contender


def contenders(model: Any, inputs: tuple[Any, ...], *, compiled: bool = True) -> list[tuple[Contender, Any]]:
    """Return each contender with what it computes.

    torch's own defaults hold: float32 products in IEEE arithmetic.

    Args:
        model: A module or function on the GPU.
        inputs: Its operands; they stay where they are.
        compiled: Whether torch.compile takes part.
    """
    found: list[tuple[Contender, Any]] = []
    with torch.inference_mode():
        value = model(*inputs).clone()
        found.append((Contender("torch eager", _repeated(lambda: model(*inputs)), "inference mode"), value))
        replay, result = graphed(lambda: model(*inputs))
        replay()
        torch.cuda.synchronize()
        found.append((Contender("torch CUDA graph", _repeated(replay), "eager kernels"), result.clone()))
        if compiled:
            fast: Callable[..., Any] = torch.compile(model, dynamic=False)
            for _ in range(2):
                fast(*inputs)
            replay, result = graphed(lambda: fast(*inputs))
            replay()
            torch.cuda.synchronize()
            note = "inductor, then one CUDA graph: what mode reduce-overhead does"
            found.append((Contender("torch.compile", _repeated(replay), note), result.clone()))
    return found


def graphed(call: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
    """Return a call recorded as a CUDA graph, and the tensor that replays write."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph.replay, result


def _repeated(call: Callable[[], Any]) -> Callable[[int], None]:
    def run(times: int) -> None:
        with torch.inference_mode():
            for _ in range(times):
                call()
        torch.cuda.synchronize()

    return run
