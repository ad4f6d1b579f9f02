import subprocess
import sys

import pytest

from nbxtensor.backend import device_files
from nbxtensor.backend.contract import Bound, KernelRequest
from nbxtensor.backend.null import NullBackend, described_target
from nbxtensor.errors import ArgumentError, MissingFactError, OutOfMemoryError
from nbxtensor.op import Target

REQUEST = KernelRequest("kernels.that.are.nowhere", "scale", "", {"x": "*fp32", "n": "i32"}, {"BLOCK": 128})
H200 = described_target("nvidia", "h200")


@pytest.fixture
def null():
    made = NullBackend()
    made.add(H200)
    return made


def launch_of(null, grid=(4, 1, 1), arguments=(1, 2), index=0):
    return Bound(null.load(null.compile(REQUEST, null.target(index)), index), grid, arguments, 10.0)


@pytest.mark.parametrize(("vendor", "name"), [(v, n) for v in device_files.vendors() for n in device_files.names(v)])
def test_any_described_device_can_be_stood_in_for(vendor, name):
    target = described_target(vendor, name)
    null = NullBackend()
    index = null.add(target, nbytes=1 << 20)
    assert null.target(index) is target
    assert target.arch == device_files.read(vendor, name)["compute_capability"]
    assert target.fact("vendor") == vendor
    assert launch_of(null).kernel.compiled.metadata == {"arch": target.arch}


def test_a_device_is_as_large_as_its_file_says(null):
    total = device_files.fact("nvidia", "h200", "memory.bytes")
    memory = null.memory()
    assert memory.info().total == total
    memory.allocate(total - 100)
    assert memory.info().free == 100
    with pytest.raises(OutOfMemoryError, match=r"null:0 \(cuda sm_90\): out of memory. Requested 101 bytes") as caught:
        memory.allocate(101)
    assert (caught.value.live, caught.value.limit) == (total - 100, total)
    assert memory.allocate(100)


def test_freed_bytes_are_free_and_addresses_are_not_used_again(null):
    memory = null.memory()
    first = memory.allocate(1000)
    assert (memory.live, memory.info().free) == (1000, memory.total - 1000)
    memory.free(first)
    assert memory.live == 0
    assert memory.allocate(1000) > first


def test_a_device_without_a_stated_size_needs_one():
    with pytest.raises(MissingFactError, match=r"memory.bytes of metal m0 is not known"):
        NullBackend().add(Target("metal", "m0"))
    with pytest.raises(ArgumentError, match=r"null: a device has zero or more bytes. Got -1"):
        NullBackend().add(Target("metal", "m0"), nbytes=-1)


def test_there_is_no_device_before_one_is_declared():
    null = NullBackend()
    assert null.count() == 0
    with pytest.raises(
        MissingFactError, match=r"null device 0 is not known. 0 are declared. NullBackend.add declares one"
    ):
        null.target()


def test_launches_and_replays_are_recorded_in_order(null):
    other = null.add(Target("cpu", "x86-64-v4"), nbytes=100)
    one, two = launch_of(null, (1, 1, 1)), launch_of(null, (2, 1, 1))
    null.launch(one)
    replay = null.record([two, one])
    assert null.launches() == (one,)
    replay.run()
    replay.run()
    assert null.launches() == (one, two, one, two, one)
    assert null.launches(other) == ()


def test_a_kernel_of_another_backend_is_refused(null):
    class Other:
        compiled = launch_of(null).kernel.compiled

    with pytest.raises(ArgumentError, match=r"scale: a launch on a null device is of a kernel it loaded. Got Other"):
        null.launch(Bound(Other(), (1, 1, 1), (1, 2)))


def test_no_compiler_and_no_cpu_backend_is_loaded():
    code = (
        "import sys; from nbxtensor.backend.null import backend, described_target\n"
        "null = backend(); null.add(described_target('nvidia', 'h200'))\n"
        "unwanted = ('triton', 'torch', 'nbxtensor.backend.cpu')\n"
        "sys.exit(any(m.startswith(unwanted) for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
