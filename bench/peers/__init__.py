"""What is measured beside us. A peer is imported only where it is used; one that is not installed is named absent."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.race import Contender

NAMES = ("numpy", "torch", "onnxruntime", "onnx")


def versions() -> dict[str, str]:
    """Return the version of each peer, or "absent"."""
    return {n: importlib.metadata.version(n) if importlib.util.find_spec(n) else "absent" for n in NAMES}


def present(name: str) -> bool:
    """Return whether a peer can be measured (onnxruntime needs onnx to make its graphs)."""
    needed = ("onnxruntime", "onnx") if name == "onnxruntime" else (name,)
    return all(importlib.util.find_spec(n) is not None for n in needed)


def set_threads(count: int) -> None:
    """Hold the peers that have one number of threads per process to ``count``."""
    if present("torch"):
        import torch

        torch.set_num_threads(count)


@dataclass(frozen=True)
class Asked:
    """What a peer is asked to compute.

    Attributes:
        op: Name of the op.
        arrays: Operands by name, laid out as the case has them.
        params: The other arguments that are not left at their default.
        weights: Operands that are known when a model is loaded: a peer may prepare them beforehand.
        threads: How many threads to use.
    """

    op: str
    arrays: Mapping[str, np.ndarray]
    params: Mapping[str, Any]
    weights: Sequence[str]
    threads: int


def contenders(asked: Asked) -> list[Contender]:
    """Return every peer's way to compute a call, each on operands of its own, as we have: none finds them cached."""
    found: list[Contender] = []
    for name in ("numpy", "torch", "onnxruntime"):
        if present(name):
            own = replace(asked, arrays={key: array.copy(order="K") for key, array in asked.arrays.items()})
            found += importlib.import_module(f"bench.peers.{name}_ops").contenders(own)
    return found
