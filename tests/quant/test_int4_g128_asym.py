import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.dtype.itemsize import representation_bytes
from nbxtensor.errors import DtypeError, ShapeError
from nbxtensor.quant import Int4G128Asym, dequantise, quantise


@st.composite
def weights(draw):
    rows, groups = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = 10.0 ** draw(st.integers(-7, 3))
    offset = draw(st.sampled_from([0.0, 1.0, -3.0])) * scale
    values = generator.standard_normal((rows, groups * 128)) * scale + offset
    if draw(st.booleans()):
        values = np.round(values / scale) * scale
    return values.astype(np.float32)


def decoded(packed):
    """The representation as the dtype table states it, one value at a time in float64."""
    out = np.empty(packed.shape)
    for row in np.ndindex(packed.shape[:-1]):
        for k in range(packed.shape[-1]):
            code = packed.codes[row][k // 2] >> (4 * (k % 2)) & 15
            out[row][k] = float(code) * float(packed.scale[row][k // 128]) + float(packed.minimum[row][k // 128])
    return out


@given(weights())
def test_no_value_is_off_by_more_than_half_a_step(weight):
    packed = quantise(weight)
    assert packed.shape == weight.shape
    assert packed.nbytes == representation_bytes("int4-g128-asym", weight.size)
    values = decoded(packed)
    rounding = 4e-7 * (np.abs(values) + np.repeat(packed.scale, 128, axis=-1).astype(float) * 15)
    bound = np.repeat(packed.scale.astype(float), 128, axis=-1) / 2 + rounding
    assert np.all(np.abs(values - weight) <= bound)
    assert np.allclose(dequantise(packed), values, rtol=1e-6, atol=1e-12)


@given(weights())
def test_a_group_that_fits_exactly_is_kept_exactly(weight):
    codes = quantise(weight).unpacked()
    exact = codes.astype(np.float32) * np.float32(0.25) - np.float32(2)
    codes_again = quantise(exact)
    spans = codes.reshape(*codes.shape[:-1], codes.shape[-1] // 128, 128)
    full = (spans.min(-1) == 0) & (spans.max(-1) == 15)
    kept = dequantise(codes_again) == exact
    assert kept.reshape(spans.shape)[full].all()


def test_equal_values_have_scale_zero():
    packed = quantise(np.full((2, 128), 0.5, dtype=np.float32))
    assert packed.scale.tolist() == [[0.0], [0.0]]
    assert np.array_equal(dequantise(packed), np.full((2, 128), 0.5, dtype=np.float32))


def test_the_bytes_of_a_group_are_pinned():
    weight = (np.arange(128) % 16).astype(np.float32)[None]
    packed = quantise(weight)
    assert packed.codes.tobytes() == bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 8)
    assert (packed.scale.tolist(), packed.minimum.tolist()) == ([[1.0]], [[0.0]])
    assert np.array_equal(packed.unpacked(), weight.astype(np.uint8))


def test_dequantise_writes_where_it_is_told():
    packed = quantise(np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32))
    whole = np.zeros((4, 512), dtype=np.float32)
    assert dequantise(packed, out=whole[:, ::2]) is not None
    assert np.array_equal(whole[:, ::2], dequantise(packed))
    assert not whole[:, 1::2].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e7, -1e6])
def test_what_the_representation_cannot_hold_is_refused(bad):
    weight = np.zeros((2, 256), dtype=np.float32)
    weight[1, 200] = bad
    with pytest.raises(DtypeError, match="finite minimum and scale"):
        quantise(weight)


@pytest.mark.parametrize("shape", [(), (127,), (2, 130), (128, 2)])
def test_a_last_axis_without_whole_groups_is_refused(shape):
    with pytest.raises(ShapeError, match="groups of 128"):
        quantise(np.zeros(shape, dtype=np.float32))


def test_parts_that_do_not_belong_together_are_refused():
    codes, half = np.zeros((2, 64), np.uint8), np.zeros((2, 1), np.float16)
    assert Int4G128Asym(codes, half, half).shape == (2, 128)
    for parts in ((codes[:, :63], half, half), (codes, half[:1], half), (codes, half, half[:, :0])):
        with pytest.raises(ShapeError, match="group of 128"):
            Int4G128Asym(*parts)
    for parts in ((codes.astype(np.int8), half, half), (codes, half.astype(np.float32), half)):
        with pytest.raises(DtypeError, match="codes are uint8"):
            Int4G128Asym(*parts)
    with pytest.raises(DtypeError, match="float32"):
        quantise(np.zeros((1, 128)))
    packed = Int4G128Asym(codes, half, half)
    with pytest.raises(ShapeError, match="out"):
        dequantise(packed, out=np.empty((2, 64), np.float32))
    with pytest.raises(DtypeError, match="out"):
        dequantise(packed, out=np.empty((2, 128)))
