"""Products as a GPU makes them: any tile, any shares of the depth, either way round, on the CPU against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops import harness

from nbxtensor.backend import device_files
from nbxtensor.op import Case, Kernel, Spec, Target
from nbxtensor.ops.matmul.op import addmm, linear, matmul
from nbxtensor.ops.matmul.rows import Row, row_cost, row_launches, row_of, serves_row
from nbxtensor.ops.matmul.rows import launches_of as row_launches_of
from nbxtensor.ops.matmul.tiles import (
    Choice,
    Tile,
    candidates_of,
    choice_of,
    launches_of,
    serves_tiles,
    tile_cost,
    tile_launches,
)

if TYPE_CHECKING:
    from nbxtensor.op import Call, Cost, Op

FLOATS = ("float32", "float16", "bfloat16", "float64")
CARDS = ("v100", "t4", "a100", "l40s", "h100", "h200")


def card(name: str) -> Target:
    """Return the target of a described card."""
    facts = device_files.facts("nvidia", name)
    return Target("cuda", facts["compute_capability"], frozenset(facts["dtypes.computed"]), facts)


H200 = card("h200")


def on_cpu(op: Op, case: Case, kernel: Kernel, backend, *, bake: bool, fixed: frozenset[str] = frozenset()):
    """Run a GPU's kernel as the GPU would launch it, on the CPU, and compare; return what it gave."""
    given = harness.operands(case, 7)
    call = replace(harness.call_of(op, case, backend.target(0)), fixed=fixed)

    def there(call: Call) -> Call:
        return replace(call, target=H200)

    moved = Kernel(kernel.name, lambda c: kernel.cost(there(c)), lambda c: kernel.launch(there(c)))
    got = harness.run(call, moved, given, backend, bake=bake)
    arrays = {name: laid.values for name, laid in given.items()}
    want = harness.reference(op, arrays, case.params)
    size = harness.reference(op, arrays, case.params, absolute=True)
    cost = moved.cost(call)
    harness.compare(call, got[0], want[0], size[0], call.outputs[0].dtype, flops=cost.flops)
    return got[0]


@st.composite
def products(draw) -> tuple[Op, Case]:
    dtype = draw(st.sampled_from(FLOATS))
    m, n, k = (draw(st.sampled_from((1, 3, 16, 31, 64, 70))) for _ in range(3))
    form = draw(st.sampled_from(("linear", "matmul", "batched", "turned", "addmm")))
    x = Spec((m, k), dtype)
    if form == "linear":
        return linear.op, Case({"x": x, "weight": Spec((n, k), dtype), "bias": Spec((n,), dtype)})
    if form == "addmm":
        operands = {"addend": Spec((m, n), dtype), "x": x, "y": Spec((k, n), dtype)}
        return addmm.op, Case(operands, {"alpha": 0.37, "beta": 1.61})
    if form == "turned":
        return matmul.op, Case({"x": Spec((m, k), dtype, (1, m)), "y": Spec((k, n), dtype, (1, k))})
    batch = (2, 1) if form == "batched" else ()
    return matmul.op, Case({"x": Spec((*batch, m, k), dtype), "y": Spec((*(3,) * bool(batch), k, n), dtype)})


@given(
    product=products(),
    tile=st.sampled_from((Tile(16, 16, 32, 4, 2), Tile(32, 64, 32, 4, 3), Tile(64, 16, 64, 4, 2))),
    splits=st.sampled_from((1, 2, 3)),
    is_turned=st.booleans(),
    in_parts=st.booleans(),
    bake=st.booleans(),
)
@settings(max_examples=25)
def test_every_choice_is_the_product(backend, product, tile, splits, is_turned, in_parts, bake):
    op, case = product
    parts = 3 if in_parts and case.operands["x"].dtype == "float32" else 1
    choice = Choice(tile, splits, is_turned, parts, 2)

    def cost(call: Call) -> Cost:
        whole = tile_cost(call)
        nbytes = call.outputs[0].numel * splits * (8 if call.outputs[0].dtype == "float64" else 4)
        from nbxtensor.op import Buffer

        buffers = (Buffer("partial", nbytes, 0, 1),) if splits > 1 else ()
        return replace(whole, buffers=buffers)

    on_cpu(op, case, Kernel("tile_kernel", cost, lambda call: launches_of(call, choice)), backend, bake=bake)


@given(
    n=st.sampled_from((1, 5, 32)), k=st.sampled_from((1, 130, 512)), dtype=st.sampled_from(FLOATS),
    row=st.sampled_from((Row(2, 128, 2, 1, 1), Row(4, 64, 4, 4, 1), Row(2, 64, 2, 1, 3))),
    is_turned=st.booleans(), fixed=st.booleans(), bake=st.booleans(),
)  # fmt: skip
@settings(max_examples=20)
def test_every_way_to_make_a_row_is_the_product(backend, n, k, dtype, row, is_turned, fixed, bake):
    if is_turned:
        op, case = matmul.op, Case({"x": Spec((n, k), dtype), "y": Spec((k,), dtype)})
    else:
        operands = {"x": Spec((1, k), dtype), "weight": Spec((n, k), dtype), "bias": Spec((n,), dtype)}
        op, case = linear.op, Case(operands)

    def cost(call: Call) -> Cost:
        from nbxtensor.op import Buffer

        nbytes = n * row.splits * (8 if dtype == "float64" else 4)
        return replace(row_cost(call), buffers=(Buffer("partial", nbytes, 0, 1),) if row.splits > 1 else ())

    kernel = Kernel("row_kernel", cost, lambda call: row_launches_of(call, row))
    on_cpu(op, case, kernel, backend, bake=bake, fixed=frozenset({"weight"}) if fixed else frozenset())


@pytest.mark.parametrize("shape", [(1, 40, 384), (3, 65, 700), (70, 33, 96), (16, 16, 4096)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_choice_made_for_an_h200_is_the_product(backend, shape, dtype):
    m, n, k = shape
    case = Case({"x": Spec((m, k), dtype), "weight": Spec((n, k), dtype)})
    call = harness.call_of(linear.op, case, H200)
    tile = Kernel("tile_kernel", tile_cost, tile_launches)
    assert serves_tiles(call)
    on_cpu(linear.op, case, tile, backend, bake=True)
    if m == 1:
        assert serves_row(call)
        assert linear.op.kernel(call).name == "row_kernel"
        on_cpu(linear.op, case, Kernel("row_kernel", row_cost, row_launches), backend, bake=True)


def in_parts(backend, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x @ y, multiplied as three bfloat16 parts."""
    choice = Choice(Tile(16, 16, 32, 4, 2), 1, turned=False, parts=3)
    case = Case({"x": Spec(x.shape, "float32"), "y": Spec(y.shape, "float32")})
    call = harness.call_of(matmul.op, case, H200)
    launches = launches_of(call, choice)
    kernel = Kernel("tile_kernel", tile_cost, lambda _: launches)
    given = {"x": harness.lay(x, "float32"), "y": harness.lay(y, "float32")}
    on_host = replace(call, target=backend.target(0))
    free = replace(kernel, cost=lambda _: replace(tile_cost(call), buffers=()))
    return harness.run(on_host, free, given, backend, bake=True)[0]


def test_three_parts_are_the_whole_number(backend):
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 16 * 32, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32).reshape(16, 32)
    x[~np.isfinite(x) | (np.abs(x) < 2.0**-100)] = 1.0  # smaller ones have parts that bfloat16 does not hold
    x[0, :4] = np.finfo(np.float32).max, -np.finfo(np.float32).max, 1 + 2.0**-23, 3.3895e38
    for column in (0, 17, 31):
        one = np.zeros((32, 1), np.float32)
        one[column] = 1
        np.testing.assert_array_equal(in_parts(backend, x, one)[:, 0], x[:, column])


def test_infinities_and_nans_are_those_of_plain_arithmetic(backend):
    x = np.ones((4, 3), np.float32)
    x[0, 1], x[1, 2] = np.inf, np.nan
    x[2, 0] = np.array([0x7F800001], np.uint32).view(np.float32)[0]  # a NaN in the lower half of the bits
    y = np.array([[1.0, 0.3], [-2.5, 0.1], [1.0, -0.7]], np.float32)
    got = in_parts(backend, x, y)
    np.testing.assert_array_equal(got[0], [-np.inf, np.inf])
    assert np.isnan(got[1:3]).all()
    np.testing.assert_allclose(got[3], y.sum(0), rtol=1e-6)


SHAPES = (
    (1, 1, 1), (5, 7, 9), (1, 4096, 4096), (16, 4096, 14336), (64, 14336, 4096), (100, 100, 100), (4096, 384, 384),
    (4096, 1536, 384), (4096, 384, 1536), (128, 384, 1536), (1000, 30522, 384), (8192, 8192, 8192), (33, 1, 50000),
)  # fmt: skip


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_every_candidate_fits_the_card(name, dtype):
    target = card(name)
    shared = target.fact("memory.max_shared_memory_per_block")
    for m, n, k in SHAPES:
        case = Case({"x": Spec((m, k), dtype), "y": Spec((k, n), dtype)})
        call = harness.call_of(matmul.op, case, target)
        found = candidates_of(call)
        assert found[0] == choice_of(call)
        for choice in found:
            tile = choice.tile
            width = np.dtype(harness.value_dtype(dtype)).itemsize
            assert (tile.rows + tile.columns) * tile.depth * width * tile.stages <= shared
            launches = launches_of(call, choice)
            assert len(launches) == (2 if choice.splits > 1 else 1)
            programs = np.prod(launches[0].grid)
            rows, columns = (n, m) if choice.turned else (m, n)
            assert programs == -(-rows // tile.rows) * -(-columns // tile.columns) * choice.splits
        assert sum(b.nbytes for b in tile_cost(call).buffers) == (
            m * n * found[0].splits * (8 if dtype == "float64" else 4) if found[0].splits > 1 else 0
        )


def test_float32_is_multiplied_in_parts_only_where_that_is_faster():
    def parts(name: str) -> int:
        case = Case({"x": Spec((512, 512), "float32"), "y": Spec((512, 512), "float32")})
        return choice_of(harness.call_of(matmul.op, case, card(name))).parts

    assert {name: parts(name) for name in CARDS} == {"v100": 1, "t4": 1, "a100": 3, "l40s": 1, "h100": 3, "h200": 3}


@pytest.mark.parametrize(("n", "k"), [(14336, 4096), (4096, 14336), (4096, 4096), (2048, 2048), (7, 9), (33, 11008)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_row_is_shared_out_whole(n, k, dtype):
    case = Case({"x": Spec((1, k), dtype), "weight": Spec((n, k), dtype)})
    row = row_of(harness.call_of(linear.op, case, H200))
    assert row.depth & (row.depth - 1) == 0
    assert 1 <= row.warps <= 8
    if k % 2048 == 0:
        assert k % row.depth == 0  # no masks
