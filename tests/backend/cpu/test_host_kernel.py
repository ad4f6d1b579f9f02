import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.backend.cpu.native_kernels import compiled, kernel

from nbxtensor.backend.cpu.host_kernel import HostKernel
from nbxtensor.errors import ArgumentError, UnsupportedError

INTEGERS = {f"{sign}{bits}": (sign, bits) for sign in "iu" for bits in (8, 16, 32, 64)}
LIMITS = {
    name: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if sign == "i" else (0, (1 << bits) - 1)
    for name, (sign, bits) in INTEGERS.items()
}


def packed(type_, value):
    """The slot of one argument, as the bytes a kernel reads."""
    return HostKernel(compiled("nothing", (("p", type_),))).pack((value,))


@given(st.sampled_from(sorted(INTEGERS)), st.data())
def test_integers_are_extended_to_their_slot(type_, data):
    low, high = LIMITS[type_]
    value = data.draw(st.integers(low, high) | st.sampled_from([low, high]))
    slot = packed(type_, value)
    assert len(slot) == 8
    assert int.from_bytes(slot, "little", signed=type_[0] == "i") == value


@given(st.sampled_from(sorted(INTEGERS)), st.booleans(), st.integers(1, 1 << 70))
def test_integers_outside_their_type_are_refused(type_, above, excess):
    low, high = LIMITS[type_]
    value = high + excess if above else low - excess
    with pytest.raises(ArgumentError, match=f"nothing: p is {type_}. Got {value}."):
        packed(type_, value)


@pytest.mark.parametrize(("type_", "dtype"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16), ("fp32", np.float32)])
@given(
    value=st.floats(-60000, 60000) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, 1e-41, 1.00390625, 1.01171875])
)
def test_floats_stand_rounded_in_the_low_bytes(type_, dtype, value):
    slot = packed(type_, value)
    expected = np.float32(value).astype(dtype) if type_ == "bf16" else np.asarray(value, dtype)
    assert slot == expected.tobytes().ljust(8, b"\0")


@pytest.mark.parametrize("type_", ["fp16", "bf16", "fp32", "fp64"])
def test_nan_stays_nan(type_):
    bits = int.from_bytes(packed(type_, math.nan), "little")
    form = {"fp16": "e", "fp32": "f", "fp64": "d"}.get(type_)
    if form is None:
        form, bits = "f", bits << 16
    size = struct.calcsize(form)
    assert math.isnan(struct.unpack(form, bits.to_bytes(8, "little")[:size])[0])


@given(st.floats())
def test_doubles_are_exact(value):
    assert packed("fp64", value) == struct.pack("<d", value)


@pytest.mark.parametrize(
    ("type_", "value"), [("fp32", 1e300), ("fp16", 1e9), ("*fp32", -1), ("*fp32", 1.5), ("i32", 0.5)]
)
def test_values_their_type_does_not_hold_are_refused(type_, value):
    with pytest.raises(ArgumentError, match="nothing: p is"):
        packed(type_, value)


def test_addresses_fill_their_slot_whatever_is_known_of_their_alignment():
    assert packed("*fp32@16", 2**47 + 16) == struct.pack("<Q", 2**47 + 16)
    assert packed("u1", True) == packed("i1", 1) == struct.pack("<Q", 1)


@pytest.mark.parametrize("arguments", [(), (1, 2), (1, 2, 3, 4)])
def test_one_value_per_parameter(arguments):
    with pytest.raises(
        ArgumentError, match=rf"shift: one value per parameter. Got {len(arguments)}. It takes \(out: \*i64"
    ):
        kernel("shift").pack(arguments)


def test_a_type_without_a_slot_is_refused():
    with pytest.raises(
        UnsupportedError, match=r"nothing: no argument slot for a parameter of that type. Got p: tensordesc"
    ):
        HostKernel(compiled("nothing", (("p", "tensordesc"),)))
