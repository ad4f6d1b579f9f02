"""attention: a length is the same as fewer keys, few queries as many, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbxtensor as nbx
from nbxtensor.backend.device_facts import target
from nbxtensor.errors import DtypeError, ShapeError
from nbxtensor.op import Spec
from nbxtensor.ops.attention.blocks import decode_splits, is_decode

OP = nbx.attention.op
FEW = settings(max_examples=25, deadline=None)


@FEW
@given(
    queries=st.sampled_from([1, 2, 5, 20]),
    length=st.integers(-1, 90),
    groups=st.integers(1, 2),
    per_group=st.sampled_from([1, 2, 4]),
    causal=st.booleans(),
    each=st.booleans(),
)
def test_a_length_is_the_same_as_fewer_keys(
    queries: int, length: int, groups: int, per_group: int, causal: bool, each: bool
):
    rng = np.random.default_rng(length + 1)
    keys, width = 80, 16
    q = rng.standard_normal((2, groups * per_group, queries, width)).astype(np.float32)
    k, v = (rng.standard_normal((2, groups, keys, width)).astype(np.float32) for _ in "kv")
    lengths = np.array([length, length // 2] if each else [length], np.int32)
    got = nbx.attention(*map(nbx.asarray, (q, k, v)), kv_length=nbx.asarray(lengths), is_causal=causal).numpy()
    for entry, n in enumerate(np.clip(np.broadcast_to(lengths, (2,)), 0, keys)):
        rows = np.arange(queries)[:, None] + n - queries
        seen = np.broadcast_to(np.arange(n) <= rows if causal else True, (queries, n))
        fewer = [nbx.asarray(np.ascontiguousarray(x[entry : entry + 1, :, :n])) for x in (k, v)]
        want = nbx.attention(nbx.asarray(q[entry : entry + 1]), *fewer, nbx.asarray(np.array(seen))).numpy()
        np.testing.assert_allclose(got[entry : entry + 1], want, rtol=0, atol=3e-6)
        assert not got[entry][:, ~seen.any(1)].any()


def test_keys_past_the_length_are_not_read():
    q, k = np.ones((1, 2, 1, 8), np.float32), np.ones((1, 1, 64, 8), np.float32)
    k[:, :, 10:] = np.nan
    got = nbx.attention(*map(nbx.asarray, (q, k, k)), kv_length=nbx.asarray(np.int32(10)), is_causal=True)
    np.testing.assert_array_equal(got.numpy(), q)


@pytest.mark.parametrize(
    ("batch", "keys", "splits"), [(1, 8192, 16), (1, 1024, 8), (1, 64, 1), (16, 8192, 2), (64, 4096, 1)]
)
def test_keys_are_split_where_groups_are_few(batch: int, keys: int, splits: int):
    specs = {
        "q": Spec((batch, 32, 1, 128), "bfloat16"),
        "k": Spec((batch, 8, keys, 128), "bfloat16"),
        "v": Spec((batch, 8, keys, 128), "bfloat16"),
    }
    call = OP.call(specs, {"is_causal": False, "scale": None}, target("nvidia", "h200"))
    assert is_decode(call)
    assert decode_splits(call) == splits
    launches = OP.kernel(call).launch(call)
    assert [launch.kernel for launch in launches] == ["decode_kernel", "combine_kernel"][: 2 if splits > 1 else 1]
    buffers = OP.kernel(call).cost(call).buffers
    assert sum(buffer.nbytes for buffer in buffers) == (batch * 32 * splits * 129 * 4 if splits > 1 else 0)


@pytest.mark.parametrize(
    ("length", "error"),
    [
        (Spec((), "float32"), ShapeError),
        (Spec((3,), "int32"), ShapeError),
        (Spec((2, 1), "int32"), ShapeError),
    ],
)
def test_it_refuses_lengths(length: Spec, error: type[Exception]):
    x = Spec((2, 1, 4, 8), "float32")
    with pytest.raises(error, match="kv_length"):
        OP.call({"q": x, "k": x, "v": x, "kv_length": length}, {"is_causal": False, "scale": None})


def test_it_refuses_operands_of_several_dtypes():
    x, y = Spec((2, 1, 4, 8), "float32"), Spec((2, 1, 4, 8), "float16")
    with pytest.raises(DtypeError, match="one dtype"):
        OP.call({"q": x, "k": y, "v": x}, {"is_causal": False, "scale": None})
