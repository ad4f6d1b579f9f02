import types

import pytest

from nbxtensor.backend import registry, runtime
from nbxtensor.errors import ArgumentError, MissingFactError


class Gpu:
    def __init__(self, name, devices):
        self.name, self.devices = name, devices

    def count(self):
        return self.devices

    def target(self, index=0):
        return f"target {index}"

    def memory(self, index=0):
        return f"memory of {self.name}:{index}"

    compile = load = launch = record = synchronize = target


@pytest.fixture
def install(monkeypatch):
    def put(**counts):
        gpus = {name: Gpu(name, count) for name, count in counts.items()}
        monkeypatch.setattr(registry, "installed", lambda: ("cpu", "null", *sorted(gpus)))
        monkeypatch.setattr(registry, "backend", gpus.__getitem__)

    return put


def on(device):
    return types.SimpleNamespace(device=device)


CALLS = [
    runtime.gpu_backend,
    runtime.gpu_runtime,
    runtime.backend_table,
    runtime.device_memory,
    lambda: runtime.set_device(on("cuda")),
]


@pytest.mark.parametrize("call", CALLS)
def test_without_a_gpu_backend_what_is_installed_is_named(call, install):
    install()
    with pytest.raises(MissingFactError, match=r"GPU backend.*Installed: cpu, null\. .*nbxtensor\.backends"):
        call()


@pytest.mark.parametrize("call", CALLS)
def test_a_backend_without_a_device_is_not_in_force(call, install):
    install(cuda=0)
    with pytest.raises(MissingFactError, match="without a device here: cuda"):
        call()


def test_the_first_backend_with_a_device_is_in_force(install):
    install(hip=2, cuda=0, metal=1)
    assert runtime.gpu_backend() == "hip"
    assert runtime.gpu_runtime().devices == 2
    assert runtime.device_memory(1) == "memory of hip:1"
    with pytest.raises(ArgumentError, match="hip has 0 to 1"):
        runtime.device_memory(2)


def test_the_table_has_every_operation_of_the_contract(install):
    install(metal=1)
    table = runtime.backend_table()
    assert set(table) >= {"compile", "count", "launch", "load", "memory", "record", "synchronize", "target"}
    assert table["memory"](0) == "memory of metal:0"
    with pytest.raises(TypeError):
        table["memory"] = None


def test_set_device_takes_tensors_of_the_backend_in_force_only(install):
    install(cuda=2)
    assert runtime.set_device(on("cuda:1")) is None
    for device in ("cpu", "hip:0", "cuda:2"):
        with pytest.raises(ArgumentError):
            runtime.set_device(on(device))
