"""rope: its two layouts, far positions, scaling, and that rope_update is rope and cache_update."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops import harness

import nbxtensor as nbx
from nbxtensor.errors import ArgumentError, DtypeError, ShapeError
from nbxtensor.op import Spec

FEW = settings(max_examples=15, deadline=None)


def rotate_half(x: np.ndarray, positions: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Hugging Face's form: cosines and sines of doubled angles, the second half negated and exchanged."""
    angle = np.concatenate([positions[:, None] * inverse] * 2, -1)
    half = x.shape[-1] // 2
    return x * np.cos(angle) + np.concatenate([-x[..., half:], x[..., :half]], -1) * np.sin(angle)


def as_complex(x: np.ndarray, positions: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """The paper's form: neighbours as complex numbers times e**(i angle)."""
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * positions[:, None] * inverse)
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


@pytest.mark.parametrize(("interleaved", "form"), [(False, rotate_half), (True, as_complex)])
@pytest.mark.parametrize("radians", [False, True])
def test_far_positions_are_as_exact_as_near_ones(interleaved: bool, form, radians: bool):
    rng = np.random.default_rng(3)
    width, base = 128, 500000.0
    positions = np.concatenate([np.arange(8), rng.integers(0, 2**20, 40), [2**20]]).astype(np.int32)
    x = rng.uniform(-1, 1, (1, 2, len(positions), width)).astype(np.float32)
    inverse = base ** (-np.arange(0, width, 2) / width)
    table = nbx.rope_frequencies(width, base=base)
    if radians:
        inverse = inverse.astype(np.float32).astype(np.float64)
        table = nbx.asarray(inverse.astype(np.float32))
    got = nbx.rope(nbx.asarray(x), nbx.asarray(positions), table, interleaved=interleaved).numpy()
    want = form(x.astype(np.float64), positions.astype(np.float64), inverse)
    # two products of a cosine or sine off by 1e-7, each rounded, and their sum rounded
    assert np.abs(got - want).max() < 2 * 1e-7 + 3 * 2.0**-24 * 2


@FEW
@given(bits=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40), position=st.integers(-(2**20), 2**20))
def test_any_float32_frequency(bits: list[int], position: int):
    frequency = np.array(bits, np.uint32).view(np.float32)
    frequency = np.where(np.isfinite(frequency), np.minimum(frequency, 1e6), 1).astype(np.float32)
    x = np.concatenate([np.ones(len(bits)), np.zeros(len(bits))]).astype(np.float32).reshape(1, 1, 1, -1)
    place = nbx.asarray(np.int32(position))
    got = nbx.rope(nbx.asarray(x), place, nbx.asarray(frequency)).numpy().ravel()
    angle = position * frequency.astype(np.float64)
    want = np.concatenate([np.cos(angle), np.sin(angle)])
    # beyond 2**53 a float64 product is rounded itself
    exact = np.concatenate([np.abs(angle) < 2.0**40] * 2)
    assert np.abs(got - want)[exact].max(initial=0) < 2e-7


def test_llama_3_scaling():
    factor, low, high, context = 32.0, 1.0, 4.0, 8192
    plain = 500000.0 ** (-np.arange(0, 64, 2) / 64)
    want = []
    for f in plain:  # as Hugging Face's configuration is read
        wavelength = 2 * math.pi / f
        if wavelength < context / high:
            want.append(f)
        elif wavelength > context / low:
            want.append(f / factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            want.append((1 - smooth) * f / factor + smooth * f)
    got = nbx.rope_frequencies(
        64, base=500000.0, factor=factor, low_freq_factor=low, high_freq_factor=high, original_context=context
    )
    np.testing.assert_allclose(got.numpy().view(np.uint64) / 2.0**64 * 2 * math.pi, want, rtol=1e-14, atol=2.0**-62)
    linear = nbx.rope_frequencies(64, base=500000.0, factor=4.0).numpy()
    np.testing.assert_allclose(linear / 2.0**64 * 2 * math.pi, plain / 4, rtol=1e-14, atol=2.0**-62)


@FEW
@given(
    batch=st.integers(1, 3),
    tokens=st.integers(1, 5),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    position=st.integers(-2, 9),
    interleaved=st.booleans(),
    each=st.booleans(),
)
def test_rope_update_is_rope_and_cache_update(
    batch: int, tokens: int, groups: int, per_group: int, position: int, interleaved: bool, each: bool
):
    rng = np.random.default_rng(position + 10)
    heads, width, length = groups * per_group, 12, 8
    qkv = nbx.asarray(rng.standard_normal((batch, tokens, (heads + 2 * groups) * width)).astype(np.float32))
    caches = [nbx.asarray(rng.standard_normal((batch, groups, length, width)).astype(np.float32)) for _ in "kv"]
    first = np.full((batch,), position, np.int32) + np.arange(batch, dtype=np.int32) if each else np.int32([position])
    place, table = nbx.asarray(first), nbx.rope_frequencies(8)
    got = nbx.rope_update(qkv, *caches, place, table, heads=heads, interleaved=interleaved)
    rows = nbx.permute_dims(nbx.reshape(qkv, (batch, tokens, heads + 2 * groups, width)), (0, 2, 1, 3))
    turned = nbx.rope(rows, nbx.reshape(place, (-1, 1)), table, interleaved=interleaved)
    k = nbx.cache_update(caches[0], turned[:, heads : heads + groups], place, axis=2)
    v = nbx.cache_update(caches[1], rows[:, heads + groups :], place, axis=2)
    for one, other in zip(got, (turned[:, :heads], k, v), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_plan_writes_into_the_caches(backend):
    kernel = nbx.rope_update.op.kernels[0]
    specs = {
        "qkv": Spec((1, 1, 4 * 16), "bfloat16"),
        "k_cache": Spec((1, 1, 1000, 16), "bfloat16"),
        "v_cache": Spec((1, 1, 1000, 16), "bfloat16"),
        "position": Spec((), "int32"),
        "frequencies": Spec((8,), "int64"),
    }
    call = nbx.rope_update.op.call(specs, {"heads": 2, "interleaved": False}, backend.target(0))
    inside = harness.in_place(call, kernel)
    assert kernel.cost(inside).written == 4 * 16 * 2
    assert len(kernel.launch(inside)) == 1
    assert len(kernel.launch(call)) == 3


@pytest.mark.parametrize(
    ("x", "positions", "frequencies", "error"),
    [
        (Spec((1, 2, 3, 8), "float64"), Spec((3,), "int32"), Spec((4,), "int64"), DtypeError),
        (Spec((1, 2, 3, 8), "float32"), Spec((3,), "float32"), Spec((4,), "int64"), DtypeError),
        (Spec((1, 2, 3, 8), "float32"), Spec((3,), "int32"), Spec((4,), "float64"), DtypeError),
        (Spec((2, 3, 8), "float32"), Spec((3,), "int32"), Spec((4,), "int64"), ShapeError),
        (Spec((1, 2, 3, 8), "float32"), Spec((2,), "int32"), Spec((4,), "int64"), ShapeError),
        (Spec((1, 2, 3, 8), "float32"), Spec((1, 1, 3), "int32"), Spec((4,), "int64"), ShapeError),
        (Spec((1, 2, 3, 8), "float32"), Spec((3,), "int32"), Spec((5,), "int64"), ShapeError),
        (Spec((1, 2, 3, 8), "float32"), Spec((3,), "int32"), Spec((0,), "int64"), ShapeError),
    ],
)
def test_rope_refuses(x: Spec, positions: Spec, frequencies: Spec, error: type[Exception]):
    operands = {"x": x, "positions": positions, "frequencies": frequencies}
    with pytest.raises(error, match="rope"):
        nbx.rope.op.call(operands, {"interleaved": False})


@pytest.mark.parametrize(
    "given",
    [
        {"width": 7},
        {"width": 0},
        {"width": 8, "base": 1.0},
        {"width": 8, "factor": 0.0},
        {"width": 8, "low_freq_factor": 1.0},
        {"width": 8, "low_freq_factor": 4.0, "high_freq_factor": 1.0, "original_context": 8192},
        {"width": "8"},
        {"width": 8.0},
        {"width": 8, "base": None},
        {"width": 8, "factor": "2"},
        {"width": 8, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": "long"},
    ],
)
def test_rope_frequencies_refuses(given):
    with pytest.raises(ArgumentError, match="rope_frequencies"):
        nbx.rope_frequencies(**given)
