import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.shape.layouts import layouts, shapes, view_of

from nbxtensor import shape as S
from nbxtensor.errors import ArgumentError, BoundsError, ShapeError


def factorings(count):
    """Draw shapes that hold exactly ``count`` elements, with extents of 1 between."""

    @st.composite
    def build(draw):
        rest, out = count, []
        while rest > 1:
            factor = draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0]))
            out.append(factor)
            rest //= factor
        for _ in range(draw(st.integers(0, 2))):
            out.insert(draw(st.integers(0, len(out))), 1)
        return tuple(out)

    return build()


@given(layouts(min_extent=1), st.data())
def test_view_strides_show_the_same_elements_and_none_means_numpy_would_copy(layout, data):
    array = view_of(*layout)
    target = data.draw(factorings(array.size))
    found = S.view_strides(*layout, target)
    expected = array.reshape(target)
    if found is None:
        assert not np.shares_memory(expected, array)
    else:
        assert np.shares_memory(expected, array)
        assert np.array_equal(view_of(target, found), expected)


@given(layouts())
def test_a_layout_is_a_view_of_itself(layout):
    found = S.view_strides(*layout, layout[0])
    assert found is not None
    assert np.array_equal(view_of(layout[0], found), view_of(*layout))


def test_an_empty_layout_is_a_view_of_every_empty_shape():
    assert S.view_strides((0, 3), (7, 2), (0, 3)) == [7, 2]
    assert S.view_strides((0, 3), (7, 2), (4, 0)) == [1, 1]


@pytest.mark.parametrize("target", [(5,), (-1,), (2, 3, 4, 2)])
def test_view_strides_validates_the_number_of_elements(target):
    with pytest.raises(ShapeError):
        S.view_strides((2, 3, 4), (12, 4, 1), target)


@given(layouts(), shapes(), st.data())
def test_broadcast_strides_is_numpys_broadcast_to(layout, target, data):
    shape, strides = layout
    stretched = tuple(e if e != 1 else t for e, t in zip(shape, target, strict=False))
    wanted = data.draw(st.sampled_from([target, (*target, *stretched), (2, *stretched, *shape[len(stretched) :])]))
    try:
        expected = np.broadcast_to(view_of(*layout), wanted)
    except ValueError:
        with pytest.raises(ShapeError, match="broadcast"):
            S.broadcast_strides(shape, strides, wanted)
    else:
        got = S.broadcast_strides(shape, strides, wanted)
        assert got[0] == wanted
        assert np.array_equal(view_of(*got), expected)


def test_expand_keeps_minus_one_and_refuses_it_for_an_added_dimension():
    assert S.expand((3, 1), (1, 1), (-1, 4)) == ((3, 4), (1, 0))
    for target in ((-1, 3, 4), (3, -2), (3,)):
        with pytest.raises(ShapeError):
            S.expand((3, 1), (1, 1), target)


@given(layouts(), st.data())
def test_permute_is_numpys_transpose(layout, data):
    ndim = len(layout[0])
    axes = data.draw(st.permutations(range(ndim)))
    signed = tuple(axis - ndim if data.draw(st.booleans()) else axis for axis in axes)
    assert np.array_equal(view_of(*S.permute(*layout, signed)), view_of(*layout).transpose(axes))


@pytest.mark.parametrize("axes", [(0,), (0, 0), (0, 2), (0, 1, 2)])
def test_permute_refuses_what_is_no_permutation(axes):
    with pytest.raises(ArgumentError, match="permute"):
        S.permute((2, 3), (3, 1), axes)


@given(layouts(), st.data())
def test_narrow_and_select_are_numpys_indexing(layout, data):
    shape, strides = layout
    if not shape:
        return
    array = view_of(*layout)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    extent = shape[axis]
    start = data.draw(st.integers(0, extent))
    length = data.draw(st.integers(0, extent - start))
    got = S.narrow(shape, strides, axis, start, length)
    assert np.array_equal(view_of(*got), np.take(array, range(start, start + length), axis))
    if extent:
        index = data.draw(st.integers(-extent, extent - 1))
        got = S.select(shape, strides, axis, index)
        assert np.array_equal(view_of(*got), np.take(array, index, axis))


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, 4), (3, 1), (0, -1), (4, 0)])
def test_narrow_refuses_entries_outside_the_dimension(start, length):
    with pytest.raises(BoundsError, match="narrow"):
        S.narrow((2, 3), (3, 1), 1, start, length)


@pytest.mark.parametrize("index", [3, -4])
def test_select_refuses_an_index_outside_the_dimension(index):
    with pytest.raises(IndexError, match="select"):
        S.select((2, 3), (3, 1), 1, index)
