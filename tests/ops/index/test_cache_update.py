"""cache_update: where it writes, what it moves, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops import harness

import nbxtensor as nbx
from nbxtensor.errors import DtypeError, ShapeError
from nbxtensor.op import Case, Spec
from nbxtensor.ops.index.cache import cache_update

OP = cache_update.op


@given(
    extent=st.integers(1, 12),
    length=st.integers(0, 12),
    position=st.integers(-(2**31), 2**31 - 1),
    axis=st.sampled_from([0, 1]),
)
def test_values_end_up_where_they_fit(extent: int, length: int, position: int, axis: int):
    length = min(length, extent)
    cache, values = np.zeros((extent, 3), np.int32), 1 + np.arange(length * 3, dtype=np.int32).reshape(length, 3)
    start = min(max(position, 0), extent - length)
    want = cache.copy()
    want[start : start + length] = values
    if axis:
        cache, values, want = cache.T, values.T, want.T
    place = nbx.asarray(np.array(position, np.int32))
    got = nbx.cache_update(nbx.asarray(cache), nbx.asarray(values), place, axis=axis)
    np.testing.assert_array_equal(got.numpy(), want)


def test_in_place_it_moves_the_values_alone(backend):
    case = Case(
        {"cache": Spec((4, 100, 8), "float16"), "values": Spec((4, 2, 8), "float16"), "position": Spec((), "int32")},
        {"axis": 1},
    )
    call = harness.call_of(OP, case, backend.target(0))
    (kernel,) = OP.kernels
    inside = harness.in_place(call, kernel)
    assert kernel.cost(inside).written == 4 * 2 * 8 * 2
    assert kernel.cost(inside).read == 4 * 2 * 8 * 2 + 4
    assert len(kernel.launch(inside)) == 1
    assert kernel.cost(call).written == 4 * 102 * 8 * 2
    assert len(kernel.launch(call)) == 2


@pytest.mark.parametrize(
    ("cache", "values", "position", "axis", "error"),
    [
        (Spec((4, 5), "float32"), Spec((1, 5), "float16"), Spec((), "int32"), 0, DtypeError),
        (Spec((4, 5), "int4"), Spec((1, 5), "int4"), Spec((), "int32"), 0, DtypeError),
        (Spec((4, 5), "float32"), Spec((1, 5), "float32"), Spec((), "uint8"), 0, DtypeError),
        (Spec((4, 5), "float32"), Spec((5, 5), "float32"), Spec((), "int32"), 0, ShapeError),
        (Spec((4, 5), "float32"), Spec((1, 4), "float32"), Spec((), "int32"), 0, ShapeError),
        (Spec((4, 5), "float32"), Spec((1, 5), "float32"), Spec((4,), "int32"), 0, ShapeError),
        (Spec((4, 5), "float32"), Spec((4, 1), "float32"), Spec((3,), "int32"), 1, ShapeError),
        (Spec((4, 5), "float32"), Spec((4,), "float32"), Spec((), "int32"), 1, ShapeError),
    ],
)
def test_it_refuses(cache: Spec, values: Spec, position: Spec, axis: int, error: type[Exception]):
    with pytest.raises(error, match="cache_update"):
        OP.call({"cache": cache, "values": values, "position": position}, {"axis": axis})
