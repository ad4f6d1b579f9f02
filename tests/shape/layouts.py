"""Strategies for shapes and layouts, and the numpy view that stands for a layout."""

import numpy as np
from hypothesis import strategies as st


def shapes(max_dims=5, max_extent=5, min_extent=0):
    return st.lists(st.integers(min_extent, max_extent), max_size=max_dims).map(tuple)


@st.composite
def layouts(draw, min_extent=0):
    """Draw a (shape, strides) as real views have them: slices, transposes, broadcasts and free strides."""
    shape = draw(shapes(min_extent=min_extent))
    kind = draw(st.sampled_from(["row-major", "permuted", "padded", "free"]))
    if kind == "free":
        return shape, tuple(draw(st.lists(st.integers(0, 13), min_size=len(shape), max_size=len(shape))))
    pads = [draw(st.integers(0, 1)) if kind == "padded" else 0 for _ in shape]
    order = draw(st.permutations(range(len(shape)))) if kind == "permuted" else list(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = draw(st.sampled_from([0, step, step, step])) if shape[axis] != 1 else draw(st.integers(0, 99))
        step *= max(shape[axis] + pads[axis], 1)
    return shape, tuple(strides)


def view_of(shape, strides, offset=0):
    """Return the numpy array whose every element is its own storage offset, seen through a layout."""
    reach = 1 + offset + sum(max(e - 1, 0) * abs(s) for e, s in zip(shape, strides, strict=True))
    storage = np.arange(reach, dtype=np.int64)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, [s * 8 for s in strides])
