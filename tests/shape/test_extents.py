import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.shape.layouts import layouts, shapes, view_of

from nbxtensor import shape as S
from nbxtensor.errors import ShapeError


@given(shapes())
def test_numel_and_contiguous_strides_are_numpys(shape):
    array = np.empty(shape, dtype=np.int8)
    assert S.numel(shape) == array.size
    assert S.is_contiguous(shape, S.contiguous_strides(shape))
    if array.size:
        assert S.contiguous_strides(shape) == array.strides


@given(layouts())
def test_is_contiguous_is_numpys(layout):
    assert S.is_contiguous(*layout) == view_of(*layout).flags.c_contiguous


@given(layouts())
def test_extent_span_counts_from_the_first_to_the_last_element(layout):
    touched = view_of(*layout)
    assert S.extent_span(*layout) == (int(touched.max()) - int(touched.min()) + 1 if touched.size else 0)


def test_extent_span_of_a_reversed_dimension_is_that_of_the_forward_one():
    assert S.extent_span((4, 3), (-3, 1)) == S.extent_span((4, 3), (3, 1)) == 12


@given(st.lists(shapes(max_extent=3), max_size=4))
def test_broadcast_shapes_is_numpys(given_shapes):
    try:
        expected = np.broadcast_shapes(*given_shapes)
    except ValueError:
        with pytest.raises(ShapeError, match="axis"):
            S.broadcast_shapes(*given_shapes)
    else:
        assert S.broadcast_shapes(*given_shapes) == expected


@given(shapes(max_dims=4), st.data())
def test_infer_shape_is_numpys_reshape(shape, data):
    target = data.draw(st.one_of(st.permutations(shape).map(tuple), shapes(max_extent=6)))
    if target and data.draw(st.booleans()):
        axis = data.draw(st.integers(0, len(target) - 1))
        target = (*target[:axis], -1, *target[axis + 1 :])
    try:
        expected = np.empty(shape, dtype=np.int8).reshape(target).shape
    except ValueError:
        with pytest.raises(ShapeError, match="reshape"):
            S.infer_shape(shape, target)
    else:
        assert S.infer_shape(shape, target) == expected
        assert math.prod(expected) == S.numel(shape)


@pytest.mark.parametrize("target", [(-1, -1), (-2, 12), (-1, 0), (5, -1)])
def test_infer_shape_refuses_what_no_extent_fits(target):
    with pytest.raises(ShapeError, match="reshape"):
        S.infer_shape((2, 3, 4), target)


@pytest.mark.parametrize("extents", [(2, -1), (1.5,), ("3",), None])
def test_as_shape_refuses_what_is_not_an_extent(extents):
    with pytest.raises(ShapeError, match="zeros: "):
        S.as_shape(extents, op="zeros")


def test_as_shape_takes_one_int_and_numpy_ints():
    assert S.as_shape(np.int64(3)) == (3,)
    assert S.as_shape(np.array([2, 3])) == (2, 3)
    assert all(type(extent) is int for extent in S.as_shape(np.array([2, 3])))


def test_negative_extents_and_mismatched_lengths_are_refused():
    with pytest.raises(ShapeError, match="negative"):
        S.numel((2, -3))
    for rule in (S.is_contiguous, S.extent_span):
        with pytest.raises(ShapeError, match="one stride for each"):
            rule((2, 3), (1,))
