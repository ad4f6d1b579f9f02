"""The frequencies of rotary position embeddings, computed once on the host."""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np

from nbxtensor.errors import ArgumentError
from nbxtensor.op import Array
from nbxtensor.run import Device
from nbxtensor.tensor.creation import asarray
from nbxtensor.tensor.tensor import Tensor

__all__ = ["rope_frequencies"]

_PER_RADIAN = 2.0**64 / (2 * math.pi)


def rope_frequencies(
    width: int,
    *,
    base: float = 10000.0,
    factor: float = 1.0,
    low_freq_factor: float | None = None,
    high_freq_factor: float | None = None,
    original_context: int | None = None,
    device: str | Device | None = None,
) -> Tensor:
    """Return what `rope` turns each pair by from one position to the next: int64, in 2**-64 of a turn.

    Pair i turns by ``base ** (-2 i / width)`` radians per position, computed in float64. With ``factor`` alone, all
    frequencies are divided by it (linear scaling). With the other three as well, scaling is Llama 3's: frequencies
    that turn fewer than ``low_freq_factor`` times in ``original_context`` positions are divided by ``factor``, those
    that turn more than ``high_freq_factor`` times stay, and between them the share that is divided falls linearly.

    Args:
        width: Elements of a row that are turned, even; the result has half as many.
        base: Base of the geometric series; ``rope_theta`` in Hugging Face's configurations.
        factor: What frequencies are divided by, at least in part.
        low_freq_factor: See above.
        high_freq_factor: See above; larger than ``low_freq_factor``.
        original_context: Positions that the model was first trained with.
        device: Where the result goes; left out, the CPU.

    Raises:
        ArgumentError: A number out of its range, or some of the last three without the others.

    >>> import numpy as np
    >>> (rope_frequencies(4, base=100.0).numpy() / 2.0**64 * 2 * np.pi).round(6).tolist()
    [1.0, 0.1]
    """
    scaling = {"low_freq_factor": low_freq_factor, "high_freq_factor": high_freq_factor}
    scaling["original_context"] = original_context
    numbers = {"base": base, "factor": factor} | {k: v for k, v in scaling.items() if v is not None}
    odd = [f"{type(value).__name__} for {name}" for name, value in numbers.items() if not isinstance(value, Real)]
    if odd or not isinstance(width, Integral):
        raise ArgumentError(
            f"rope_frequencies: width is an int, the others are numbers. Got {', '.join(odd) or type(width).__name__}."
        )
    if width < 2 or width % 2:
        raise ArgumentError(f"rope_frequencies: an even width of 2 or more. Got {width}.")
    if not (base > 1 and math.isfinite(base) and factor > 0 and math.isfinite(factor)):
        raise ArgumentError(f"rope_frequencies: a base above 1 and a factor above 0. Got {base} and {factor}.")
    radians = base ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    radians = radians * _shares(radians, factor, low_freq_factor, high_freq_factor, original_context)
    turns = [round(float(f) * _PER_RADIAN) % 2**64 for f in radians]
    return asarray(np.array(turns, np.uint64).view(np.int64), device=device)


def _shares(radians: Array, factor: float, low: float | None, high: float | None, context: int | None) -> Array | float:
    """Return what each frequency is multiplied by."""
    if low is None and high is None and context is None:
        return 1 / factor
    if low is None or high is None or context is None or not (0 <= low < high and context > 0):
        raise ArgumentError(
            "rope_frequencies: low_freq_factor, high_freq_factor and original_context together, in order and above 0. "
            f"Got {low}, {high} and {context}."
        )
    kept = np.clip((context * radians / (2 * math.pi) - low) / (high - low), 0, 1)
    return kept + (1 - kept) / factor
