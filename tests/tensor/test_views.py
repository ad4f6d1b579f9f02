"""Views of a tensor against numpy's views of the same elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbxtensor as nbx
from nbxtensor.errors import ArgumentError, NbxError, ShapeError, UnsupportedError

SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple)


def array(shape):
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


@st.composite
def steps(draw):
    """Draw a shape and some views to take of it one after the other, as (name, arguments)."""
    shape = draw(SHAPES)
    view, taken = array(shape), []
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(["permute", "narrow", "select", "expand", "unsqueeze", "reshape"]))
        if name == "permute":
            order = draw(st.permutations(range(view.ndim)))
            view, args = view.transpose(order), (tuple(order),)
        elif name == "narrow" and view.ndim:
            axis = draw(st.integers(0, view.ndim - 1))
            start = draw(st.integers(0, view.shape[axis]))
            length = draw(st.integers(0, view.shape[axis] - start))
            index = (slice(None),) * axis + (slice(start, start + length),)
            view, args = view[index], (axis, start, length)
        elif name == "select" and view.ndim and 0 not in view.shape:
            axis = draw(st.integers(0, view.ndim - 1))
            at = draw(st.integers(-view.shape[axis], view.shape[axis] - 1))
            view, args = view[(slice(None),) * axis + (at,)], (axis, at)
        elif name == "expand":
            wanted = (draw(st.integers(1, 3)), *(draw(st.integers(1, 3)) if n == 1 else n for n in view.shape))
            view, args = np.broadcast_to(view, wanted), (wanted,)
        elif name == "unsqueeze":
            axis = draw(st.integers(0, view.ndim))
            view, args = np.expand_dims(view, axis), (axis,)
        elif name == "reshape" and view.size:
            wanted = (-1, view.shape[-1] if view.ndim else 1)
            view, args = view.reshape(wanted), (wanted,)
        else:
            continue
        taken.append((name, args))
    return shape, taken, view


@given(steps())
def test_chains_of_views_are_numpys(case):
    shape, taken, want = case
    tensor = nbx.asarray(array(shape))
    for name, args in taken:
        tensor = getattr(tensor, name)(*args)
    assert tensor.shape == want.shape
    np.testing.assert_array_equal(tensor.numpy(), want)
    np.testing.assert_array_equal(tensor.copy().numpy(), want)
    assert tensor.copy().is_contiguous()


@pytest.mark.parametrize(
    "key",
    [
        *(0, -1, (1, 2), (slice(1, 3),), (..., 1), (slice(None), None, 2)),
        *((None, ..., slice(-2, None)), (), ..., (slice(5, 2),)),
    ],
)
def test_indexing_is_numpys(key):
    values = array((3, 4, 5))
    np.testing.assert_array_equal(nbx.asarray(values)[key].numpy(), values[key])


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (slice(None, None, 2), UnsupportedError, "step 2"),
        (slice(None, None, -1), UnsupportedError, "step -1"),
        ([0, 1], UnsupportedError, "list"),
        (np.array([0, 1]), UnsupportedError, "ndarray"),
        (True, UnsupportedError, "bool"),
        ((0, 0, 0, 0), ArgumentError, "at most 3"),
        ((..., ...), ArgumentError, "Ellipsis"),
        (7, NbxError, "7"),
        (-4, NbxError, "-4"),
    ],
)
def test_what_is_no_view_is_refused_by_name(key, error, words):
    with pytest.raises(error, match=words):
        _ = nbx.asarray(array((3, 4, 5)))[key]


def test_a_view_shares_memory_and_keeps_it_alive():
    values = array((3, 4)).copy()
    row = nbx.asarray(values)[1]
    values[1, 0] = 99
    assert row.numpy()[0] == 99
    kept = nbx.full((1000,), 3.0, dtype="float32")[10:20].numpy()
    assert (kept == 3).all()


def test_view_refuses_what_needs_a_copy_and_reshape_copies():
    turned = nbx.asarray(array((3, 4))).T
    with pytest.raises(ShapeError, match="needs a copy"):
        turned.view(12)
    np.testing.assert_array_equal(turned.reshape(12).numpy(), array((3, 4)).T.reshape(12))
    with pytest.raises(ShapeError):
        turned.reshape(5, 5)


@pytest.mark.parametrize("axis", [0, -1, (0, 2), None])
def test_flip_roll_tile_repeat_are_numpys(axis):
    values = array((2, 3, 4))
    tensor = nbx.asarray(values)
    np.testing.assert_array_equal(nbx.flip(tensor, axis=axis).numpy(), np.flip(values, axis))
    shift = 5 if axis is None or isinstance(axis, int) else (1, -2)
    np.testing.assert_array_equal(nbx.roll(tensor, shift, axis=axis).numpy(), np.roll(values, shift, axis))
    np.testing.assert_array_equal(nbx.tile(tensor, (2, 1, 3, 2)).numpy(), np.tile(values, (2, 1, 3, 2)))
    if axis is None or isinstance(axis, int):
        np.testing.assert_array_equal(nbx.repeat(tensor, 3, axis=axis).numpy(), np.repeat(values, 3, axis))


def test_stack_split_move_broadcast_are_numpys():
    values = array((2, 3, 4))
    tensor = nbx.asarray(values)
    np.testing.assert_array_equal(nbx.stack([tensor, tensor], axis=-1).numpy(), np.stack([values, values], -1))
    for part, want in zip(nbx.split(tensor, 3, axis=2), np.split(values, [3], 2), strict=True):
        np.testing.assert_array_equal(part.numpy(), want)
    np.testing.assert_array_equal(nbx.moveaxis(tensor, (0, 1), (-1, 0)).numpy(), np.moveaxis(values, (0, 1), (-1, 0)))
    a, b = nbx.broadcast_arrays(tensor[:, :1], tensor[:1])
    assert a.shape == b.shape == (2, 3, 4)
    for part, want in zip(nbx.unstack(tensor, axis=1), np.moveaxis(values, 1, 0), strict=True):
        np.testing.assert_array_equal(part.numpy(), want)
