import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.shape.collapse import collapse


def offsets(shape, strides):
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*map(range, shape))]


@st.composite
def several_layouts(draw):
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    count = draw(st.integers(1, 3))
    layouts = []
    for _ in range(count):
        dense = np.empty(shape, np.int8).strides
        layouts.append(tuple(draw(st.sampled_from([s, 0, 2 * s, -s])) for s in dense))
    return shape, layouts


@given(several_layouts())
def test_collapsed_layouts_visit_the_same_offsets_in_the_same_order(drawn):
    shape, layouts = drawn
    extents, strides = collapse(shape, layouts)
    assert 1 not in extents
    for before, after in zip(layouts, strides, strict=True):
        assert offsets(extents, after) == offsets(shape, before)


@given(several_layouts())
def test_ordered_layouts_pair_the_same_offsets(drawn):
    shape, layouts = drawn
    extents, strides = collapse(shape, layouts, order=0)
    before = sorted(zip(*(offsets(shape, s) for s in layouts), strict=True))
    assert sorted(zip(*(offsets(extents, s) for s in strides), strict=True)) == before
    assert list(map(abs, strides[0])) == sorted(map(abs, strides[0]), reverse=True)


@given(st.lists(st.integers(2, 4), min_size=1, max_size=4).map(tuple))
def test_dense_layouts_collapse_to_one_axis(shape):
    dense = tuple(s for s in np.empty(shape, np.int8).strides)
    assert collapse(shape, [dense, (0,) * len(shape)]) == ((int(np.prod(shape)),), ((1,), (0,)))
