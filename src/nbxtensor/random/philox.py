"""The Philox4x32-10 generator: 128 random bits as a pure function of a counter and a key."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nbxtensor.errors import ShapeError

__all__ = ["philox4x32"]

# J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.3.
ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key between rounds: the golden ratio and sqrt(3) - 1
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counters: npt.NDArray[np.uint32], key: tuple[int, int]) -> npt.NDArray[np.uint32]:
    """Return the four random words of each counter under one key.

    Args:
        counters: Words of the counters, least significant first, shape ``(n, 4)``.
        key: The two words of the key, least significant first.

    Returns:
        The random words, shape ``(n, 4)``.

    Raises:
        ShapeError: ``counters`` has another shape.

    >>> [hex(word) for word in philox4x32(np.zeros((1, 4), np.uint32), (0, 0))[0].tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    if counters.ndim != 2 or counters.shape[1] != 4:
        raise ShapeError(f"philox4x32: a counter has four words. Got counters of shape {counters.shape}. (n, 4).")
    c0, c1, c2, c3 = (np.ascontiguousarray(column, dtype=np.uint64) for column in counters.T)
    k0, k1 = key
    for _ in range(ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0 = (product1 >> _HALF) ^ c1 ^ np.uint64(k0)
        c2 = (product0 >> _HALF) ^ c3 ^ np.uint64(k1)
        c1 = product1 & _LOW
        c3 = product0 & _LOW
        k0 = (k0 + _WEYL[0]) & 0xFFFFFFFF
        k1 = (k1 + _WEYL[1]) & 0xFFFFFFFF
    out = np.empty(counters.shape, dtype=np.uint32)
    for word, column in enumerate((c0, c1, c2, c3)):
        out[:, word] = column
    return out
