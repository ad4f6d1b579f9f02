import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbxtensor.errors import ArgumentError, OutOfMemoryError

pytestmark = pytest.mark.usefixtures("subject")
per_device = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
alignments = st.sampled_from([1, 16, 64, 256, 4096])


@pytest.fixture
def block(memory):
    """A block of 1000 bytes."""
    address = memory.allocate(1000)
    yield address
    memory.free(address)


def read(memory, address, nbytes):
    out = bytearray(nbytes)
    memory.copy_out(memoryview(out), address)
    return bytes(out)


@per_device
@given(st.lists(st.tuples(st.integers(0, 100_000), alignments), max_size=20))
def test_blocks_are_aligned_and_share_no_byte(memory, requests):
    blocks = [(memory.allocate(nbytes, alignment), nbytes, alignment) for nbytes, alignment in requests]
    assert all(address % alignment == 0 for address, _, alignment in blocks)
    ranges = sorted((address, address + nbytes) for address, nbytes, _ in blocks if nbytes)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert len({address for address, _, _ in blocks}) == len(blocks)
    for address, _, _ in reversed(blocks):
        memory.free(address)


def test_blocks_are_aligned_to_64_bytes_by_default(memory):
    blocks = [memory.allocate(1) for _ in range(5)]
    assert all(address % 64 == 0 for address in blocks)
    for address in blocks:
        memory.free(address)


@per_device
@given(data=st.binary(max_size=1000), start=st.integers(0, 1000))
def test_bytes_go_in_and_come_out(subject, memory, block, data, start):
    data = data[: 1000 - start]
    memory.fill(block, 0x5A, 1000)
    memory.copy_in(block + start, memoryview(data))
    expected = b"\x5a" * start + data + b"\x5a" * (1000 - start - len(data))
    assert read(memory, block, 1000) == (expected if subject.computes else bytes(1000))


@pytest.mark.parametrize("dtype", ["?", "i2", "f4", "c16"])
def test_host_arrays_of_any_dtype_and_shape_are_bytes(subject, memory, block, dtype):
    array = (np.arange(24) % 7).reshape(2, 3, 4).astype(dtype)
    memory.copy_in(block, memoryview(array))
    out = np.ones_like(array)
    memory.copy_out(memoryview(out), block)
    assert np.array_equal(out, array if subject.computes else np.zeros_like(array))


def test_read_only_host_bytes_go_in(memory, block):
    memory.copy_in(block, memoryview(b"abc"))


@per_device
@given(nbytes=st.integers(0, 400), value=st.integers(0, 255), source=st.integers(0, 100), gap=st.integers(0, 100))
def test_fill_and_copy_within_the_device(subject, memory, block, nbytes, value, source, gap):
    target = source + nbytes + gap
    memory.fill(block, 0, 1000)
    memory.fill(block + source, value, nbytes)
    memory.copy(block + target, block + source, nbytes)
    expected = bytearray(1000)
    expected[source : source + nbytes] = expected[target : target + nbytes] = bytes([value]) * nbytes
    assert read(memory, block, 1000) == (bytes(expected) if subject.computes else bytes(1000))


def test_large_blocks_hold_all_their_bytes(subject, memory):
    nbytes = (9 << 20) + 5
    pattern = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    first, second = memory.allocate(nbytes), memory.allocate(nbytes)
    memory.copy_in(first, memoryview(pattern))
    memory.copy(second, first, nbytes)
    out = np.zeros(nbytes, np.uint8)
    memory.copy_out(memoryview(out), second)
    assert not subject.computes or np.array_equal(out, pattern)
    memory.free(first)
    memory.free(second)


def test_info_counts_bytes(memory):
    info = memory.info()
    assert 0 <= info.free <= info.total


def test_a_view_is_the_block_where_the_host_reaches_it(subject, memory, block):
    if not hasattr(memory, "view"):
        pytest.skip("this device's memory is out of the host's reach")
    memory.view(block + 10, 4)[:] = b"wxyz"
    assert read(memory, block + 10, 4) == b"wxyz"


@pytest.mark.parametrize("freed", [True, False], ids=["freed", "inside"])
def test_an_address_that_is_no_block_is_not_freed(memory, freed):
    address = memory.allocate(100)
    if freed:
        memory.free(address)
    with pytest.raises(ArgumentError, match=r"free: an address is the start of a block in use. Got 0x"):
        memory.free(address if freed else address + 64)
    if not freed:
        memory.free(address)


@pytest.mark.parametrize(("nbytes", "alignment"), [(-1, 64), (10, 0), (10, 48), (10, -64)])
def test_sizes_and_alignments_that_are_none_are_refused(memory, nbytes, alignment):
    with pytest.raises(ArgumentError, match=f"allocate: .* Got {nbytes} bytes aligned to {alignment}"):
        memory.allocate(nbytes, alignment)


@pytest.mark.parametrize("start", [0, 1, 999])
@pytest.mark.parametrize("method", ["copy_in", "copy_out", "fill", "copy to", "copy from"])
def test_a_range_past_the_end_of_its_block_is_refused(memory, block, method, start):
    other = memory.allocate(2000)
    nbytes = 1001 - start
    data = bytearray(nbytes)
    calls = {
        "copy_in": lambda: memory.copy_in(block + start, memoryview(data)),
        "copy_out": lambda: memory.copy_out(memoryview(data), block + start),
        "fill": lambda: memory.fill(block + start, 0, nbytes),
        "copy to": lambda: memory.copy(block + start, other, nbytes),
        "copy from": lambda: memory.copy(other, block + start, nbytes),
    }
    with pytest.raises(
        ArgumentError, match=rf"{method.split()[0]}: a range .* Got {nbytes} bytes at {block + start:#x}"
    ):
        calls[method]()
    memory.free(other)


def test_host_memory_that_is_not_contiguous_is_refused(memory, block):
    strided = np.zeros((4, 6), np.int32)[:, ::2]
    with pytest.raises(ArgumentError, match=r"copy_in: host memory is contiguous. Got strides"):
        memory.copy_in(block, memoryview(strided))
    with pytest.raises(ArgumentError, match=r"copy_out: host memory is contiguous. Got strides"):
        memory.copy_out(memoryview(strided), block)


def test_read_only_host_memory_is_no_target(memory, block):
    with pytest.raises(ArgumentError, match=r"copy_out: the target is writable. Got read-only memory"):
        memory.copy_out(memoryview(bytes(4)), block)


def test_ranges_that_overlap_are_not_copied(memory, block):
    with pytest.raises(ArgumentError, match="copy: the ranges do not overlap"):
        memory.copy(block + 5, block, 6)


@pytest.mark.parametrize("value", [-1, 256])
def test_a_fill_value_is_a_byte(memory, block, value):
    with pytest.raises(ArgumentError, match=f"fill: a value is one byte. Got {value}. 0 to 255 is accepted"):
        memory.fill(block, value, 4)


def test_more_than_there_is_is_refused_with_the_numbers(memory):
    with pytest.raises(OutOfMemoryError, match=r"out of memory. Requested") as caught:
        memory.allocate(1 << 60)
    assert caught.value.requested == 1 << 60
    assert caught.value.live >= 0
    assert caught.value.limit < 1 << 60
