"""The conformance tests of memory, on the driver in Python."""

import gc
import threading

import numpy as np
import pytest
from tests.nbxtensor_backend_conformance.test_memory import *  # noqa: F403

from nbxtensor.backend.abi import Driver
from nbxtensor.backend.abi_staging import Staging
from nbxtensor.backend.cuda.libcuda import CUDA
from nbxtensor.errors import ArgumentError, DriverError, OutOfMemoryError


def test_out_of_memory_has_the_driver_s_numbers(memory, library):
    memory.allocate(1 << 20)
    told = r"cuda:0: out of memory. Requested 1073741824 bytes with 1048576 live"
    with pytest.raises(OutOfMemoryError, match=told) as no:
        memory.allocate(1 << 30)
    assert no.value.fits == (no.value.free - (4 << 20)) // (2 << 20) * (2 << 20)
    memory.free(memory.allocate(no.value.fits))
    library.failing["cuMemAlloc_v2"] = 700
    with pytest.raises(DriverError, match=r"cuMemAlloc_v2 failed. The driver reports CUDA_ERROR_ILLEGAL_ADDRESS \(an"):
        memory.allocate(1)


def test_a_source_may_be_changed_once_it_was_copied_in(memory):
    address, data = memory.allocate(4), bytearray(b"abcd")
    memory.copy_in(address, memoryview(data))
    data[:] = b"----"
    out = bytearray(4)
    memory.copy_out(memoryview(out), address)
    assert out == b"abcd"


def test_every_thread_reaches_the_memory(memory):
    address = memory.allocate(64)
    memory.fill(address, 7, 64)
    found = []

    def read():
        out = np.zeros(64, np.uint8)
        memory.copy_out(out.data, address)
        found.append(out.tolist())

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert found == [[7] * 64]


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4096, 40960, 100_003])
def test_large_copies_go_through_pinned_blocks(library, cuda, nbytes):
    driver = Driver(CUDA, lambda _: library.exports)
    memory = cuda.memory(0)
    card = cuda._card(0)
    staging = Staging(driver, card.stream, card.enter, workers=3, slot_nbytes=4096, least_nbytes=1)
    driver.call("initialise", 0)
    rng = np.random.default_rng(nbytes)
    data = rng.integers(0, 256, nbytes).astype(np.uint8)
    address = memory.allocate(max(nbytes, 1))
    for _ in range(2):
        staging.copy_in(address, data.ctypes.data, nbytes)
        cuda.synchronize(0)
        whole, through = np.empty_like(data), np.empty_like(data)
        memory.copy_out(whole.data, address)
        staging.copy_out(through.ctypes.data, address, nbytes)
        assert whole.tobytes() == through.tobytes() == data.tobytes()
        data[:] = data[::-1].copy()
    assert len(library.host) == 2 * max(min(3, nbytes // 16384), 1)
    del staging
    gc.collect()
    assert not library.host


def test_memory_stages_what_is_large(memory, library):
    data = np.arange(9 << 20, dtype=np.uint32)
    address = memory.allocate(data.nbytes)
    memory.copy_in(address, data.data)
    assert library.host
    out = np.empty_like(data)
    memory.copy_out(out.data, address)
    assert (out == data).all()


def test_a_failure_in_a_thread_reaches_the_caller(memory, library):
    data = np.zeros(33 << 20, np.uint8)
    address = memory.allocate(data.nbytes)
    library.failing["cuMemcpyHtoDAsync_v2"] = 700
    with pytest.raises(DriverError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        memory.copy_in(address, data.data)
    library.failing.clear()
    memory.copy_in(address, data.data)


def test_copies_are_started_and_waited_for(memory, library):
    block, back = memory.allocate_host(64), memory.allocate_host(64)
    block.view[:] = bytes(range(64))
    address = memory.allocate(64)
    first = memory.start_copy_in(address, block, 64)
    second = memory.start_copy_out(back, address, 60)
    second.wait()
    assert bytes(back.view[:60]) == bytes(range(60))
    first.wait()
    with pytest.raises(ArgumentError, match=r"start_copy_in: host memory holds the bytes. Got 65 for a block of 64"):
        memory.start_copy_in(address, block, 65)
    with pytest.raises(ArgumentError, match="start_copy_out: a range ends in the block"):
        memory.start_copy_out(back, address + 32, 64)
    with pytest.raises(ArgumentError, match="allocate_host: a block has zero or more bytes"):
        memory.allocate_host(-1)
    view = block.view
    del block, back, first, second
    gc.collect()
    assert len(library.host) == 1
    assert view[5] == 5
    del view
    assert not library.host


def test_a_copy_from_another_card_waits_for_it_and_is_waited_for(cuda, library):
    """Whatever card is asked first, nothing runs before what it depends on."""
    one, other = cuda.memory(0), cuda.memory(1)
    source, target = one.allocate(16), other.allocate(16)
    for turn in range(3):
        one.fill(source, turn + 1, 16)  # not run yet: streams run when they are waited for
        cuda.copy_between(1, target, 0, source, 16)
        one.fill(source, 99, 16)  # after the copy
        cuda.synchronize(turn % 2)
        out = bytearray(16)
        other.copy_out(memoryview(out), target)
        assert out == bytes([turn + 1]) * 16
    assert library.reaches == [(1, 0)]
    cuda.copy_between(0, source, 1, target, 0)
    with pytest.raises(ArgumentError, match="copy: a range ends in the block"):
        cuda.copy_between(0, source, 1, target, 17)
    assert cuda.device_of(source) == 0
    assert cuda.device_of(target + 15) == 1
    with pytest.raises(DriverError, match="cuPointerGetAttribute"):
        cuda.device_of(5)


def test_streams_of_other_libraries_wait_and_are_waited_for(cuda, memory, library):
    order = []
    mine, theirs = cuda.stream(0), library.default[0]
    memory.fill(memory.allocate(8), 1, 8)
    library.handles[mine].queue.append(lambda: order.append("mine"))
    cuda.let_wait(1)
    theirs.queue.append(lambda: order.append("theirs"))
    cuda.wait_for(1)
    library.handles[mine].queue.append(lambda: order.append("mine again"))
    cuda.synchronize(0)
    assert order == ["mine", "theirs", "mine again"]


def test_memory_of_others_is_taken_as_it_is(cuda, memory, library):
    own, other = memory.allocate(100), cuda.memory(1)
    foreign = other.allocate(100)
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):  # not refused here: by the driver, which knows
        memory.copy(own, foreign, 100)
    library.misuse.clear()
