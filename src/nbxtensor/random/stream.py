"""A stream of random values that splits and seeks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nbxtensor.dtype.convert import f32_to_bf16_bits
from nbxtensor.errors import ArgumentError, DtypeError
from nbxtensor.random import transforms
from nbxtensor.random.philox import philox4x32
from nbxtensor.random.transforms import Words
from nbxtensor.shape import as_index, as_shape, integer, numel

__all__ = ["Stream"]

Transform = Callable[[Words], npt.NDArray[Any]]

_PIECE = 1 << 15  # elements made at a time: what they need stays in the second-level cache
_LAST = 1 << 65  # words of a stream: four of each of 2**63 blocks
_CHILD = 1 << 63  # set in the block number of the block that a child's key and lane are made from

# dtype -> (words an element takes, carrier, transform)
_UNIFORM: dict[str, tuple[int, type[np.generic], Transform]] = {
    "float32": (1, np.float32, lambda w: transforms.uniform(w, 24)),
    "float64": (2, np.float64, transforms.uniform64),
    "float16": (1, np.float16, lambda w: transforms.uniform(w, 11)),
    "bfloat16": (1, np.uint16, lambda w: f32_to_bf16_bits(transforms.uniform(w, 8))),
}
_NORMAL: dict[str, tuple[int, type[np.generic], Transform]] = {
    "float32": (2, np.float32, transforms.normal32),
    "float64": (4, np.float64, transforms.normal64),
    "float16": (2, np.float16, transforms.normal32),
    "bfloat16": (2, np.uint16, lambda w: f32_to_bf16_bits(transforms.normal32(w))),
}
_INTEGERS = {name: np.dtype(name) for kind in ("int", "uint") for name in (f"{kind}{n}" for n in (8, 16, 32, 64))}


class Stream:
    """A stream of random words of the Philox4x32-10 generator, and values drawn from them.

    The bits depend on the seed, the lane and the position alone: they are the same on every machine and
    backend, and the same whether values are drawn at once or in pieces. Each element takes a fixed number of
    32-bit words, stated by each draw, so that the stream can be sought to any element. A stream belongs to
    one thread at a time; give each thread a child.

    The word at position ``p`` is word ``p % 4`` of the block whose counter is ``(p // 4, lane)`` (64 bits
    each) under the key ``seed``.

    Attributes:
        seed: The key, from 0 to 2**64 - 1.
        lane: The upper half of every counter: 0 for a stream made from a seed, random bits for a child.

    >>> stream = Stream(7)
    >>> whole = stream.uniform((4,))
    >>> stream.seek(2)
    >>> bool((stream.uniform((2,)) == whole[2:]).all())
    True
    """

    __slots__ = ("_position", "lane", "seed")

    def __init__(self, seed: int, *, lane: int = 0, position: int = 0) -> None:
        """Make the stream of ``seed`` and ``lane``, at ``position``.

        Raises:
            ArgumentError: ``seed`` or ``lane`` is outside 0 to 2**64 - 1, or ``position`` outside 0 to 2**65.
        """
        self.seed: int = _bounded("seed", seed, 0, (1 << 64) - 1)
        self.lane: int = _bounded("lane", lane, 0, (1 << 64) - 1)
        self._position = _bounded("position", position, 0, _LAST)

    def __repr__(self) -> str:
        """Return the call that makes the stream as it is now."""
        return f"Stream({self.seed}, lane={self.lane}, position={self._position})"

    @property
    def position(self) -> int:
        """The number of 32-bit words that lie before the next draw."""
        return self._position

    def seek(self, position: int) -> None:
        """Let the next draw start at the word ``position``, counted from the start of the stream.

        Raises:
            ArgumentError: ``position`` is outside 0 to 2**65.
        """
        self._position = _bounded("position", position, 0, _LAST)

    def child(self, index: int) -> Stream:
        """Return the child number ``index``, at its start: a stream of its own, whatever this one has drawn.

        Key and lane of the child are the 128 bits of a block that no draw uses, so two different streams that
        derive from one seed coincide with a probability below the square of their number over 2**128.

        Raises:
            ArgumentError: ``index`` is outside 0 to 2**63 - 1.
        """
        block = self._blocks(_CHILD | _bounded("child", index, 0, _CHILD - 1), 1)
        seed, lane = (int(word) for word in block.reshape(-1, 2).astype("<u4").view("<u8").ravel())
        return Stream(seed, lane=lane)

    def split(self, count: int) -> tuple[Stream, ...]:
        """Return the children 0 to ``count - 1``.

        Raises:
            ArgumentError: ``count`` is negative.

        >>> a, b = Stream(0).split(2)
        >>> bool((a.uniform((8,)) == b.uniform((8,))).any())
        False
        """
        return tuple(self.child(index) for index in range(_bounded("split", count, 0, _CHILD)))

    def words(self, count: int) -> npt.NDArray[np.uint32]:
        """Return the next ``count`` words of the stream.

        Raises:
            ArgumentError: ``count`` is negative, or the stream has fewer words left.
        """
        start = self._position
        self._position = _bounded("position", start + _bounded("words", count, 0, _LAST), 0, _LAST)
        first = start // 4
        blocks = self._blocks(first, -(-(start + count) // 4) - first)
        return blocks.reshape(-1)[start % 4 : start % 4 + count]

    def uniform(self, shape: int | tuple[int, ...] = (), dtype: str = "float32") -> npt.NDArray[Any]:
        """Draw fractions in [0, 1), each a whole multiple of 2**-24, and every multiple as likely.

        Args:
            shape: Shape of the result.
            dtype: "float32" (one word an element); "float64" (2**-53, two words); "float16" (2**-11, one
                word); "bfloat16" (2**-8, one word), returned as bit patterns.

        Raises:
            DtypeError: Another dtype.
            ShapeError: An extent that is negative or no integer.
        """
        return self._floats("uniform", _UNIFORM, shape, dtype)

    def normal(self, shape: int | tuple[int, ...] = (), dtype: str = "float32") -> npt.NDArray[Any]:
        """Draw standard normal values by Box-Muller: ``sqrt(-2 log u) cos(2 pi v)``.

        Args:
            shape: Shape of the result.
            dtype: "float32" (two words an element, none beyond 6.77); "float64" (four words, none beyond
                9.50); "float16" and "bfloat16" (the float32 value rounded to nearest even; bfloat16 as bit
                patterns).

        Raises:
            DtypeError: Another dtype.
            ShapeError: An extent that is negative or no integer.
        """
        return self._floats("normal", _NORMAL, shape, dtype)

    def integers(
        self, low: int, high: int, shape: int | tuple[int, ...] = (), dtype: str = "int64"
    ) -> npt.NDArray[Any]:
        """Draw integers from ``low`` to ``high - 1``; an element takes two words.

        The value is ``low + floor(w * (high - low) / 2**64)`` of a 64-bit ``w``: the probability of a value
        differs from ``1 / (high - low)`` by less than 2**-64, and not at all where ``high - low`` is a power
        of two.

        Raises:
            DtypeError: ``dtype`` is no integer of 8 to 64 bits.
            ArgumentError: There is no value between the bounds, or ``dtype`` does not hold them.
        """
        if dtype not in _INTEGERS:
            raise DtypeError(f"integers: the dtype is an integer. Got {dtype!r}. One of {', '.join(_INTEGERS)}.")
        limits = np.iinfo(_INTEGERS[dtype])
        first, last = (as_index(end, op="integers", name="a bound") for end in (low, high))
        last -= 1
        if not int(limits.min) <= first <= last <= int(limits.max):
            raise ArgumentError(
                f"integers: low is below high and {dtype} holds what is between. Got {low} and {high}. "
                f"{limits.min} <= low < high <= {int(limits.max) + 1}."
            )
        base = np.uint64(first % (1 << 64))

        def transform(words: Words) -> npt.NDArray[Any]:
            return (transforms.integer_offsets(words, last - first + 1) + base).view(np.int64)

        return self._draw(shape, "integers", 2, _INTEGERS[dtype], transform)

    def bernoulli(self, probability: float, shape: int | tuple[int, ...] = ()) -> npt.NDArray[np.bool_]:
        """Draw bools, true with ``probability`` rounded to a multiple of 2**-32; an element takes one word.

        Raises:
            ArgumentError: ``probability`` is no number from 0 to 1.
        """
        if not isinstance(probability, (int, float, np.number)) or not 0.0 <= probability <= 1.0:
            raise ArgumentError(f"bernoulli: a probability is needed. Got {probability!r}. A number from 0 to 1.")
        threshold = np.uint64(round(probability * 2.0**32))
        return self._draw(shape, "bernoulli", 1, np.dtype(np.bool_), lambda words: words[:, 0] < threshold)

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """Return 0 to ``count - 1`` in a random order: by 64-bit random keys, equal keys in their own order.

        Two words an element. The order is uniform but for equal keys, of which there are any with a
        probability below ``count**2 / 2**65``.

        Raises:
            ArgumentError: ``count`` is negative.
        """
        keys = self._draw(
            _bounded("permutation", count, 0, _CHILD),
            "permutation",
            2,
            np.dtype(np.uint64),
            lambda words: transforms.integer_offsets(words, 1 << 64),
        )
        return np.argsort(keys, kind="stable").astype(np.int64, copy=False)

    def _floats(
        self,
        op: str,
        table: dict[str, tuple[int, type[np.generic], Transform]],
        shape: int | tuple[int, ...],
        dtype: str,
    ) -> npt.NDArray[Any]:
        if dtype not in table:
            raise DtypeError(f"{op}: the dtype is a float. Got {dtype!r}. One of {', '.join(table)}.")
        words, carrier, transform = table[dtype]
        return self._draw(shape, op, words, np.dtype(carrier), transform)

    def _draw(
        self, shape: int | tuple[int, ...], op: str, words: int, carrier: np.dtype[Any], transform: Transform
    ) -> npt.NDArray[Any]:
        extents = as_shape(shape, op=op)
        out = np.empty(numel(extents), dtype=carrier)
        for start in range(0, out.size, _PIECE):
            piece = out[start : start + _PIECE]
            piece[:] = transform(self.words(piece.size * words).reshape(-1, words))
        return out.reshape(extents)

    def _blocks(self, first: int, count: int) -> npt.NDArray[np.uint32]:
        numbers = np.arange(count, dtype=np.uint64) + np.uint64(first)
        counters = np.empty((count, 4), dtype=np.uint32)
        counters[:, 0] = numbers & np.uint64(0xFFFFFFFF)
        counters[:, 1] = numbers >> np.uint64(32)
        counters[:, 2] = self.lane & 0xFFFFFFFF
        counters[:, 3] = self.lane >> 32
        return philox4x32(counters, (self.seed & 0xFFFFFFFF, self.seed >> 32))


def _bounded(what: str, value: int, low: int, high: int) -> int:
    try:
        found = integer(value)
    except TypeError:
        found = math.nan
    if not low <= found <= high:
        raise ArgumentError(f"Stream: the {what} is a whole number. Got {value!r}. An int from {low} to {high}.")
    return int(found)
