"""A backend on a driver in Python; at the end nothing was misused and nothing is left."""

import gc

import numpy as np
import pytest
from tests.backend.cuda.fake_libcuda import FakeLibrary
from tests.nbxtensor_backend_conformance.subjects import Subject

from nbxtensor.backend.abi import Driver
from nbxtensor.backend.contract import Compiled
from nbxtensor.backend.cuda.device import CudaBackend
from nbxtensor.backend.cuda.libcuda import CUDA
from nbxtensor.settings import set_cache_directory


def on(library):
    return CudaBackend(Driver(CUDA, lambda name: {"libcuda.so.1": library.exports}[name]))


def kernel(name="scale", **metadata):
    """A kernel as the compiler returns it: out[i] = x[i] * factor + extra, n of them."""
    parameters = (
        ("out", "*fp32"),
        ("narrow", "i8"),
        ("x", "*fp32@16"),
        ("n", "i32"),
        ("factor", "fp64"),
        ("add", "fp32"),
    )
    facts = {"arch": "sm_90", "warps": 4, "shared_nbytes": 0, "hidden": 2}
    return Compiled(name, f"fake:{name}\0".encode(), parameters, facts | metadata)


@pytest.fixture
def library():
    made = FakeLibrary(devices=2)

    def scale(grid, out, narrow, x, n, factor, add, scratch, profile):
        assert (scratch, profile) == (0, 0)
        # The device of a launch is not among its arguments: addresses are never the same on two.
        device = next(
            d for d, blocks in enumerate(made.blocks) if any(a <= out < a + len(b) for a, b in blocks.items())
        )
        source = np.frombuffer(made.span(x, 4 * n, device), np.float32)
        np.frombuffer(made.span(out, 4 * n, device), np.float32)[:] = source * factor + add + narrow

    made.kernels["scale"] = ("Q", "b", "Q", "i", "d", "f", "Q", "Q"), scale, {}
    return made


@pytest.fixture
def cuda(library, tmp_path):
    set_cache_directory(tmp_path)
    backend = on(library)
    yield backend
    set_cache_directory(None)
    for index in range(library.devices if backend._cards else 0):
        backend.synchronize(index)
    for card in backend._cards.values():
        card.memory._staging._slots.clear()  # kept as long as the card, which a process never closes
        del card
    del backend
    gc.collect()
    assert library.misuse == []
    assert not any(library.live(kind) for kind in ("module", "graph", "instance", "event"))


@pytest.fixture
def subject(cuda):
    return Subject(cuda, 0, computes=True)


@pytest.fixture
def memory(cuda):
    return cuda.memory(0)


class Floats:
    """Arrays on a device."""

    def __init__(self, memory):
        self.memory = memory

    def put(self, *values):
        array = np.array(values, np.float32)
        address = self.memory.allocate(array.nbytes)
        self.memory.copy_in(address, array.data)
        return address

    def get(self, address, count):
        out = np.empty(count, np.float32)
        self.memory.copy_out(out.data, address)
        return out.tolist()


@pytest.fixture
def floats(memory):
    return Floats(memory)
