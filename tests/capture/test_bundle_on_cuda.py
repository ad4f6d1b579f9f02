"""Bundles of programs of GPUs, on a driver in Python: weights copied in, kernels loaded and never compiled."""

from __future__ import annotations

import gc
import json
from dataclasses import replace

import numpy as np
import pytest
from tests.backend.cuda.fake_libcuda import FakeLibrary

import nbxtensor as nbx
from nbxtensor.backend.abi import Driver
from nbxtensor.backend.contract import Compiled
from nbxtensor.backend.cuda.device import CudaBackend
from nbxtensor.backend.cuda.libcuda import CUDA
from nbxtensor.errors import CompileError, UnsupportedError
from nbxtensor.run import Device

N = 64
SPEC = nbx.Spec((N,), "float32")


def scaled(weights, state, x):
    y = x * weights["scale"]
    return y * weights["scale"], {"last": y * state["last"]}


def library():
    """A driver whose cards run the two kernels that the function takes."""
    made = FakeLibrary(devices=2)

    def floats(address):
        # The device of a launch is not among its arguments: addresses are never the same on two.
        for device, blocks in enumerate(made.blocks):
            if any(start <= address < start + len(block) for start, block in blocks.items()):
                return np.frombuffer(made.span(address, 4 * N, device), np.float32)
        raise AssertionError(address)

    def multiply(grid, out, x, y, scratch, profile):
        floats(out)[:] = floats(x) * floats(y)

    def copy(grid, out, x, scratch, profile):
        floats(out)[:] = floats(x)

    made.kernels = {"multiply_kernel": ("QQQQQ", multiply, {}), "copy_kernel": ("QQQQ", copy, {})}
    return made


def compiled(request, target):
    """What the compiler would return; the order of pointers is out, then the operands."""
    pointers = [(n, k) for n, k in request.signature.items() if k.startswith("*")]
    facts = {"arch": target.arch, "warps": 4, "shared_nbytes": 0, "hidden": 2}
    return Compiled(request.name, f"fake:{request.name}\0".encode(), tuple(pointers), facts)


@pytest.fixture
def cuda():
    """The devices of a process of its own: a library, a backend that can or cannot compile."""
    opened = []

    def start(made, compile):
        backend = CudaBackend(Driver(CUDA, lambda name: {"libcuda.so.1": made.exports}[name]))
        backend.compile = compile
        opened.append((made, backend))
        return [Device(backend, index) for index in range(made.devices)]

    yield start
    for made, backend in opened:
        for index in backend._cards:
            backend.synchronize(index)
        assert made.misuse == []
    gc.collect()


def refuse(request, target):
    raise CompileError(f"{request.name}: nothing is compiled here.")


def test_a_program_of_a_gpu_is_saved_and_loaded(cuda, tmp_path):
    device, _ = cuda(library(), compiled)
    values = np.arange(N, dtype=np.float32)
    graph = nbx.trace(scaled, SPEC, weights={"scale": SPEC}, state={"last": SPEC})
    program = nbx.plan(graph, device=device, optimize=False).load({"scale": values})
    x = np.linspace(-1, 1, N, dtype=np.float32)
    wanted = program(x).numpy()
    np.testing.assert_allclose(wanted, x * values * values)
    program.save(tmp_path / "bundle")
    manifest = json.loads((tmp_path / "bundle" / "bundle.json").read_text())["content"]
    assert (manifest["backend"], manifest["targets"][0]["arch"]) == ("cuda", "sm_90")
    del program
    for there in cuda(library(), refuse):  # another process, and its second card too
        loaded = nbx.load_program(tmp_path / "bundle", device=there)
        assert loaded.device is there
        assert loaded(x).numpy().tobytes() == wanted.tobytes()
        assert loaded.capture()(x).numpy().tobytes() == wanted.tobytes()
        loaded.state["last"] = np.ones(N, np.float32)
        loaded(x)
        np.testing.assert_array_equal(loaded.state["last"].numpy(), x * values)
    with pytest.raises(UnsupportedError, match=r"Got cpu\. It is for cuda"):
        nbx.load_program(tmp_path / "bundle", device="cpu")


def test_another_architecture_is_refused_by_name(cuda, tmp_path):
    device, _ = cuda(library(), compiled)
    graph = nbx.trace(scaled, SPEC, weights={"scale": SPEC}, state={"last": SPEC})
    program = nbx.plan(graph, device=device, optimize=False).load({"scale": np.ones(N, np.float32)})
    program.save(tmp_path / "bundle")
    other = library()
    other.attributes = other.attributes | {75: 8}
    there, _ = cuda(other, refuse)
    with pytest.raises(UnsupportedError, match=r"sm_80.*It is for sm_90"):
        nbx.load_program(tmp_path / "bundle", device=there)
    sm_80 = replace(program.plan.target, arch="sm_80")
    program.save(tmp_path / "both", targets=[sm_80])  # compiled without the card
    x = np.linspace(-1, 1, N, dtype=np.float32)
    loaded = nbx.load_program(tmp_path / "both", device=there)
    assert {bound.kernel.compiled.metadata["arch"] for bound in loaded.launches} == {"sm_80"}
    assert loaded(x).numpy().tobytes() == program(x).numpy().tobytes()
