"""The conformance tests of memory, on the driver in Python."""

import threading

import numpy as np
import pytest
from tests.nbxtensor_backend_conformance.test_memory import *  # noqa: F403

from nbxtensor.errors import DriverError, OutOfMemoryError


def test_out_of_memory_has_the_driver_s_numbers(memory, library):
    memory.allocate(1 << 20)
    with pytest.raises(OutOfMemoryError, match=r"cuda:0: out of memory. Requested 1073741824 bytes with 1048576 live"):
        memory.allocate(1 << 30)
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


def test_memory_of_others_is_taken_as_it_is(cuda, memory, library):
    own, other = memory.allocate(100), cuda.memory(1)
    foreign = other.allocate(100)
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):  # not refused here: by the driver, which knows
        memory.copy(own, foreign, 100)
    library.misuse.clear()
