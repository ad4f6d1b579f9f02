"""Where elements are: indices that wrap, offsets past 2^31, views that are read through their strides."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor.dtype.itemsize import bits, names, nbytes
from nbxtensor.errors import DtypeError
from nbxtensor.op import Spec
from nbxtensor.run.binding import request

TABLE = np.arange(200 * 300, dtype=np.float32).reshape(200, 300)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("flipped", [False, True])
def test_a_narrow_index_does_not_wrap_where_it_is_stepped(dtype, flipped):
    """An int16 index times a stride of 300 wrapped in a plan; a uint32 one times -300 left the memory."""
    signed = dtype.startswith("i")
    index = np.array([0, 127, 110, -1 if signed else 5, -100 if signed else 120], dtype)
    table = TABLE[::-1] if flipped else TABLE
    place = index.astype(int)
    calls = {
        "take": (lambda x, i: nbx.take(x, i, axis=0), index, table[place]),
        "columns": (lambda x, i: nbx.take(x, i, axis=1), index, table[:, place]),
        "along": (lambda x, i: nbx.take_along_axis(x, i, axis=0), np.tile(index[:, None], 300), table[place]),
        "embedding": (nbx.embedding, index, table[place]),
    }
    for name, (call, indices, want) in calls.items():
        got = call(nbx.asarray(table), nbx.asarray(indices))
        np.testing.assert_array_equal(got.numpy(), want, err_msg=name)
        if not flipped:
            program = nbx.plan(nbx.trace(call, Spec(table.shape, "float32"), Spec(indices.shape, dtype))).load({})
            np.testing.assert_array_equal(program(table, indices).numpy(), want, err_msg=f"{name}, planned")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_every_value_of_a_narrow_index_reads_its_place_or_nothing(dtype):
    limits = np.iinfo(dtype)
    index = np.arange(limits.min, limits.max + 1).astype(dtype)
    place = np.where(index.astype(int) < 0, index.astype(int) + 200, index.astype(int))
    inside = (place >= 0) & (place < 200)
    values = np.arange(200, dtype=np.float32) + 1
    want = np.where(inside, values[np.clip(place, 0, 199)], np.nan)
    np.testing.assert_array_equal(nbx.take(nbx.asarray(values), nbx.asarray(index)).numpy(), want)
    program = nbx.plan(nbx.trace(nbx.take, Spec((200,), "float32"), Spec(index.shape, dtype))).load({})
    np.testing.assert_array_equal(program(values, index).numpy(), want)


FAR = """
import numpy as np, nbxtensor as nbx
from numpy.lib.stride_tricks import as_strided
def far(shape, strides, dtype="float32"):
    size = np.dtype(dtype).itemsize
    base = np.zeros(sum((n - 1) * s for n, s in zip(shape, strides)) + 1, dtype)  # the system maps only what is touched
    view = as_strided(base, shape, [s * size for s in strides])
    view[...] = np.arange(1, view.size + 1).reshape(shape)
    return view
STEP = 2**30 + 7
"""


FAR_CASES = {
    "moves and products": """
v = far((3, 5), (STEP, 1)); x = nbx.asarray(v)
for got, want in ((x.copy(), v), (x + 1, v + 1), (x @ x.T, v @ v.T), (nbx.flip(x), v[::-1, ::-1]),
    (nbx.concat([x, x]), np.concatenate([v, v])), (nbx.linear(x, x), v @ v.T)):
    np.testing.assert_array_equal(got.numpy(), want)
""",
    "sums of strides": """
v = far((2, 2, 2), (2**30 - 1, 2**30 - 2, 2**30 - 3), 'int8'); x = nbx.asarray(v)
np.testing.assert_array_equal(x.copy().numpy(), v)
np.testing.assert_array_equal(nbx.pad(x, 1).numpy(), np.pad(v, 1))
""",
    "indices": """
i = far((3,), (STEP,), 'int64'); i[...] = [2, 0, 1]; t = np.arange(12.).reshape(3, 4)
np.testing.assert_array_equal(nbx.take(nbx.asarray(t), nbx.asarray(i), axis=0).numpy(), t[[2, 0, 1]])
j = far((3, 4), (STEP, 1), 'int64'); j[...] = [[2], [0], [1]]
got = nbx.take_along_axis(nbx.asarray(t), nbx.asarray(j), axis=0)
np.testing.assert_array_equal(got.numpy(), t[[2, 0, 1]])
""",
    "attention": """
v = far((3, 5), (STEP, 1)); near = nbx.asarray(v.copy())[None, None]; x = nbx.asarray(v)[None, None]
want = nbx.attention(near, near, near, scale=0.01).numpy()
for args in ((x, near, near), (near, x, near), (near, near, x)):
    np.testing.assert_array_equal(nbx.attention(*args, scale=0.01).numpy(), want)
""",
}


@pytest.mark.parametrize("body", FAR_CASES.values(), ids=FAR_CASES)
def test_elements_past_two_gigaelements_are_reached(body):
    """In 32 bits an offset came back negative: in a process of its own, which would die."""
    done = subprocess.run([sys.executable, "-c", FAR + body], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-800:]


@pytest.mark.parametrize(("step", "wide"), [(2**30 + 7, True), (1000, False)])
def test_attention_steps_rows_of_a_far_head_in_64_bits(step, wide):
    """The CPU's addresses are 64 bits wide whatever the kernel says; a GPU's are not."""
    from nbxtensor.backend.registry import backend
    from nbxtensor.ops.attention.op import attention

    near, far = Spec((1, 1, 3, 5), "float32"), Spec((1, 1, 3, 5), "float32", (3 * step, 3 * step, step, 1))
    params = {"is_causal": False, "scale": None}
    for name in "qkv":
        call = attention.op.call({n: far if n == name else near for n in "qkv"}, params, backend("cpu").target())
        (launch,) = attention.op.kernel(call).launch(call)
        assert launch.constants["WIDE"] is wide


def test_a_copy_of_many_blocks_keeps_to_the_grid_of_a_gpu():
    from nbxtensor.backend import device_facts
    from nbxtensor.backend.registry import backend
    from nbxtensor.ops.layout.op import copy

    target = device_facts.target("nvidia", "h100")
    call = copy.op.call({"x": Spec((10**8,), "int8", (2,))}, {}, target)
    (launch,) = copy.op.kernel(call).launch(call)
    assert launch.grid[1] > 65535
    asked = request(copy.op, launch, bake=True, aligned=lambda _: True, most=target.fact("dispatch.max_grid"))
    assert backend("cuda").compile(asked, target).metadata["folded"] == [*launch.grid, 1]


VIEWS = {
    "transposed": lambda a: a.T, "narrowed": lambda a: a[1:4, 2:5], "reversed": lambda a: a[::-1, ::-1],
    "spaced": lambda a: a[::2, ::3], "expanded": lambda a: np.broadcast_to(a[:1], a.shape), "empty": lambda a: a[:0],
}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "float16", "float64", "complex64", "complex128"])
def test_a_view_is_copied_element_by_element_in_both_directions(view, dtype):
    """A view was copied as so many bytes from where it starts."""
    array = view((np.arange(60) % 2 if dtype == "bool" else np.arange(60)).reshape(6, 10).astype(dtype))
    tensor = nbx.asarray(array)
    for got in (tensor, tensor.copy(), nbx.asarray(array, copy=True), nbx.asarray(np.asarray(tensor))):
        np.testing.assert_array_equal(got.numpy(), array)
    program = nbx.plan(nbx.trace(nbx.copy, tensor.spec.packed())).load({})
    if array.size:
        np.testing.assert_array_equal(program(tensor).numpy(), array)


@pytest.mark.parametrize("dtype", [d for d in names() if bits(d) >= 8])
def test_every_dtype_of_the_table_has_its_size_and_its_item(dtype):
    """A table's default made buffers of half the size, and items of 0.0."""
    tensor = nbx.ones((3, 5), dtype=dtype)
    assert tensor.nbytes == nbytes(dtype, 15) == -(-15 * bits(dtype) // 8) == tensor.numpy().nbytes
    assert tensor[1, 2].item() == 1
    assert tensor.tolist() == [[1] * 5] * 3


def _spread(values, dtype, gap):
    """Return ``values`` as elements ``gap`` apart in memory that is mapped only where it is touched."""
    flat = np.asarray(values, dtype).reshape(-1)
    base = np.zeros(gap * (len(flat) - 1) + 1, dtype)
    view = np.lib.stride_tricks.as_strided(base, (len(flat),), (gap * base.itemsize,))
    view[...] = flat
    return view


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_reductions_of_elements_past_two_gigaelements(dtype):
    """Places were computed in 32 bits: the process died, or argmax gave -1."""
    gap = 2**30 + 3
    one = nbx.asarray(_spread([1, 2, 3], dtype, gap))
    assert [nbx.argmax(one).item(), nbx.argmin(one).item(), float(nbx.sum(one))] == [2, 0, 6.0]
    base = np.zeros(2 * gap + 5, dtype)
    far = np.lib.stride_tricks.as_strided(base, (3, 5), (gap * base.itemsize, base.itemsize))
    far[...] = np.arange(15).reshape(3, 5)
    x = nbx.asarray(far)
    for op in (nbx.sum, nbx.max, nbx.min, nbx.argmax, nbx.argmin, nbx.count_nonzero):
        assert op(x).item() == op.op.reference(np.ascontiguousarray(far).astype(np.float64)).item()
        for axis in (0, 1):
            want = op.op.reference(np.ascontiguousarray(far).astype(np.float64), axis=axis)
            np.testing.assert_array_equal(op(x, axis=axis).numpy(), want)


def test_dtypes_that_are_only_stored_are_refused_by_name():
    x, mask = nbx.ones(3), nbx.ones(3, dtype="float8_e4m3fn")
    for call in (
        lambda: nbx.where(mask, x, x),
        lambda: nbx.masked_fill(x, mask, 0.0),
        lambda: nbx.sum(x, dtype="float8_e4m3fn"),
        lambda: nbx.prod(x, dtype="float8_e5m2"),
    ):
        with pytest.raises(DtypeError, match="float8"):
            call()
