import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor import shape as S
from nbxtensor.errors import ArgumentError, BoundsError

bounds = st.one_of(st.none(), st.integers(-20, 20))


@given(bounds, bounds, st.integers(0, 12))
def test_slice_bounds_is_numpys(start, stop, extent):
    first, last = S.slice_bounds(start, stop, extent)
    assert 0 <= first <= last <= extent
    assert np.arange(extent)[first:last].tolist() == np.arange(extent)[start:stop].tolist()


@given(st.integers(-7, 7), st.integers(0, 5))
def test_normalize_axis_is_pythons_index(axis, ndim):
    try:
        expected = range(ndim)[axis]
    except IndexError:
        with pytest.raises(BoundsError, match=r"sum: .*dimensions"):
            S.normalize_axis(axis, ndim, op="sum")
    else:
        assert S.normalize_axis(axis, ndim) == expected


def test_axes_keep_their_order_and_none_means_all():
    assert S.normalize_axes([-1, 0], 3) == (2, 0)
    assert S.normalize_axes(-2, 3) == (1,)
    assert S.normalize_axes(None, 3) == (0, 1, 2)
    assert S.normalize_axes((), 3) == ()


def test_an_axis_named_twice_is_refused_by_its_operation():
    with pytest.raises(ArgumentError, match=r"mean: an axis is named twice. Got axes \(1, -1\)"):
        S.normalize_axes((1, -1), 2, op="mean")


def test_a_bad_axis_is_both_a_value_error_and_an_index_error():
    with pytest.raises(IndexError):
        S.normalize_axis(2, 2)
    with pytest.raises(ValueError, match="no axis"):
        S.normalize_axis(0, 0)
