import numpy as np
import pytest
from tests.backend.cpu.native_kernels import compiled

from nbxtensor.backend.contract import Bound, Compiled, KernelRequest
from nbxtensor.backend.cpu import levels, pool
from nbxtensor.backend.cpu.device import CpuBackend
from nbxtensor.errors import ArgumentError, MissingFactError, UnsupportedError
from nbxtensor.op import Target
from nbxtensor.settings import set_cache_directory

TEXT = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef one(x):\n    tl.store(x, 1)\n"
REQUEST = KernelRequest("", "one", TEXT, {"x": "*i32"}, {})


@pytest.fixture
def cpu(tmp_path):
    """A backend with a cache of its own."""
    set_cache_directory(tmp_path)
    yield CpuBackend()
    set_cache_directory(None)
    pool.set_threads(None)


def test_the_target_is_this_processor(cpu):
    target = cpu.target()
    assert (target.backend, target.arch, target.features) == ("cpu", levels.detect(), levels.features())
    assert target.fact("compute_capability") == target.arch
    with pytest.raises(MissingFactError):
        target.fact("rates.matrix.float32")  # nobody has measured it


@pytest.mark.parametrize("arch", ["x86-64-v3", "x86-64-v4"])
def test_kernels_compile_for_levels_other_than_this_one(cpu, arch):
    made = cpu.compile(REQUEST, Target("cpu", arch))
    assert made.metadata["arch"] == arch
    assert made.binary.startswith(b"\x7fELF")
    assert made.parameters == (("x", "*i32"),)


def test_a_kernel_is_compiled_once(cpu, monkeypatch):
    target = cpu.target()
    first = cpu.compile(REQUEST, target)
    assert cpu.compile(REQUEST, target) is first
    again = CpuBackend()
    monkeypatch.setattr("nbxtensor.backend.cpu.device._compile", None)
    assert again.compile(REQUEST, target) == first  # from the disk


def test_a_target_of_another_backend_is_refused(cpu):
    with pytest.raises(ArgumentError, match=r"one: compiled for a target of the CPU. Got one of 'cuda'"):
        cpu.compile(REQUEST, Target("cuda", "sm_90"))


@pytest.mark.parametrize(("arch", "features"), [("x86-64-v9", []), (levels.detect(), ["no-such-feature"])])
def test_code_that_this_processor_cannot_run_is_not_loaded(cpu, arch, features):
    made = compiled("nothing")
    foreign = Compiled(made.name, made.binary, (), {**made.metadata, "arch": arch, "features": features})
    with pytest.raises(UnsupportedError, match=r"nothing: code runs on a processor that has its instructions. Got"):
        cpu.load(foreign)


def test_code_of_a_lower_level_is_loaded(cpu):
    made = compiled("nothing")
    lowest = next(reversed([name for name in levels.LEVELS if name[:3] == levels.detect()[:3]]))
    cpu.load(Compiled(made.name, made.binary, (), {**made.metadata, "arch": lowest}))


def test_the_number_of_threads_set_is_the_number_that_runs(cpu):
    out = np.zeros((12, 4), np.int64)
    bound = Bound(cpu.load(compiled("note")), (12, 1, 1), (out.ctypes.data,))
    for size in (1, 3, 2):
        pool.set_threads(size)
        cpu.launch(bound)
        assert len({tuple(row) for row in out.tolist()}) == size


def test_a_launch_too_small_to_split_runs_on_its_caller(cpu):
    out = np.zeros((12, 4), np.int64)
    pool.set_threads(3)
    cpu.launch(Bound(cpu.load(compiled("note")), (12, 1, 1), (out.ctypes.data,), 100.0))
    assert out[:, :2].tolist() == [[0, 12]] * 12


def test_a_device_that_is_not_there_is_refused(cpu):
    with pytest.raises(MissingFactError, match=r"device cpu:1 is not known. The CPU is one device, cpu:0"):
        cpu.launch(Bound(cpu.load(compiled("nothing")), (1, 1, 1), ()), 1)


def test_a_kernel_is_loaded_once_while_it_is_held(cpu):
    made = compiled("nothing")
    kernel = cpu.load(made)
    assert cpu.load(Compiled(made.name, bytes(made.binary), (), made.metadata)) is kernel
    assert cpu.load(compiled("note")) is not kernel
    other = cpu.load(Compiled(made.name, made.binary, (("n", "i32"),), made.metadata))
    assert other.compiled.parameters == (("n", "i32"),)
