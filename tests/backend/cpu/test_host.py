import ctypes
import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.backend.cpu.host import HostMemory
from nbxtensor.errors import ArgumentError, OutOfMemoryError

MIB = 1 << 20


@given(st.integers(0, 3 * MIB) | st.sampled_from([MIB - 1, MIB, 4 * MIB]), st.sampled_from([1, 64, 4096, 1 << 16]))
def test_blocks_are_aligned_and_whole(nbytes, alignment):
    memory = HostMemory()
    address = memory.allocate(nbytes, alignment)
    assert address % alignment == 0
    memory.fill(address, 0xA5, nbytes)
    out = np.zeros(nbytes, np.uint8)
    memory.copy_out(memoryview(out), address)
    assert (out == 0xA5).all()
    memory.free(address)


def test_large_blocks_start_at_huge_pages():
    memory = HostMemory()
    assert memory.allocate(4 * MIB) % (2 * MIB) == 0


@pytest.mark.parametrize("nbytes", [100, 2 * MIB, 5 * MIB])
def test_a_view_keeps_its_bytes(nbytes):
    memory = HostMemory()
    address = memory.allocate(nbytes)
    memory.fill(address, 7, nbytes)
    view = memory.view(address + 3, nbytes - 3)
    memory.free(address)
    gc.collect()
    assert bytes(view[-10:]) == b"\7" * 10
    assert not view.readonly


def test_a_view_is_the_block_itself():
    memory = HostMemory()
    address = memory.allocate(16)
    memory.view(address, 16)[:] = bytes(range(16))
    assert ctypes.string_at(address, 16) == bytes(range(16))


@given(
    st.integers(0, 100), st.integers(0, 120), st.sampled_from(["copy_in", "copy_out", "fill", "view", "copy", "from"])
)
def test_a_range_ends_in_the_block_it_starts_in(start, nbytes, way):
    memory = HostMemory()
    address, other = memory.allocate(100), memory.allocate(200)
    place = address + start
    data = bytearray(nbytes)
    calls = {
        "copy_in": lambda: memory.copy_in(place, memoryview(data)),
        "copy_out": lambda: memory.copy_out(memoryview(data), place),
        "fill": lambda: memory.fill(place, 0, nbytes),
        "view": lambda: memory.view(place, nbytes),
        "copy": lambda: memory.copy(place, other, nbytes),
        "from": lambda: memory.copy(other, place, nbytes),
    }
    if start + nbytes <= 100:
        calls[way]()
    elif start < 100:
        with pytest.raises(ArgumentError, match=rf"a range ends in the block it starts in. Got {nbytes} bytes at"):
            calls[way]()


def test_memory_of_another_library_is_reached_by_its_address():
    memory = HostMemory()
    array = np.arange(10, dtype=np.int32)
    out = np.zeros(10, np.int32)
    memory.copy_out(memoryview(out), array.ctypes.data)
    assert np.array_equal(out, array)
    memory.view(array.ctypes.data, 4)[:] = b"\1\0\0\0"
    assert array[0] == 1


def test_a_request_the_system_refuses_says_what_is_there():
    memory = HostMemory()
    memory.allocate(1000)
    with pytest.raises(OutOfMemoryError, match=r"cpu: out of memory. Requested") as caught:
        memory.allocate(1 << 60)
    assert caught.value.requested == 1 << 60
    assert caught.value.live == 1000
    assert caught.value.limit > 1000


def test_info_is_the_host_s():
    info = HostMemory().info()
    assert 0 < info.free <= info.total
