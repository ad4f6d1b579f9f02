"""What a card is measured with, run on the CPU: the numbers are of no use, but all of them are there."""

import numpy as np
import pytest

from nbxtensor.backend.contract import MemoryInfo
from nbxtensor.backend.cpu.device import CpuBackend
from nbxtensor.backend.cuda import measure
from nbxtensor.backend.device_schema import FIELDS
from nbxtensor.op import Target


class Memory:
    """Host memory of which the system hands out 64 KiB at a time."""

    def __init__(self, memory):
        self.inner, self.live = memory, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def allocate(self, nbytes, alignment=64):
        self.live += nbytes
        return self.inner.allocate(nbytes, alignment)

    def info(self):
        return MemoryInfo(free=(1 << 30) - -(-self.live // 65536) * 65536, total=1 << 30)


class Card(CpuBackend):
    """The CPU, with what a card states of itself."""

    def __init__(self):
        super().__init__()
        self.wrapped = Memory(super().memory())
        self.compiled = {}

    def memory(self, index=0):
        return self.wrapped

    def target(self, index=0):
        found = super().target(index)
        facts = {**found.facts, "compute.units": 2, "memory.l2_nbytes": 1 << 20}
        return Target(found.backend, found.arch, found.features, facts)


@pytest.fixture
def card(monkeypatch):
    monkeypatch.setattr(measure, "_RUNS", 1)
    monkeypatch.setattr(measure, "_WORK_SECONDS", 1e-6)
    monkeypatch.setattr(measure, "_MOST_LONGER", 2.0)
    monkeypatch.setattr(measure, "_MOVED_NBYTES", 1 << 20)
    return Card()


def test_every_number_is_measured_and_may_stand_in_a_device_file(card):
    facts = measure.measure(card, nbytes=1 << 23)
    assert all(type(value) is int for value in facts.values())
    assert facts["memory.granule_nbytes"] == 65536
    assert {name if name in FIELDS else f"{name.rpartition('.')[0]}.*" for name in facts} <= FIELDS.keys()
    expected = {"copy_bandwidth", "read_bandwidth", "l2_bandwidth", "unit_bandwidth", "latency_ns", "l2_latency_ns"}
    assert {f"memory.{name}" for name in expected} <= facts.keys()
    assert {"launch.eager_ns", "launch.recorded_ns", "launch.early_ns"} <= facts.keys()
    assert {"rates.vector.float32", "rates.vector.float64", "rates.vector.bfloat16"} <= facts.keys()
    assert card.wrapped.inner.info().free > 0


def test_a_reading_reads_every_block_and_a_copy_copies_them(card):
    probe = measure._Probes(card, 0)
    values = np.random.default_rng(0).integers(0, 1 << 30, 4 * measure._BLOCK, dtype=np.int32)
    out = np.zeros(4 * measure._BLOCK, np.int32)
    arguments = {"out": ("*i32@16", out.ctypes.data), "x": ("*i32@16", values.ctypes.data), "blocks": ("i32", 4)}
    card.launch(probe.bound("read_kernel", 3, arguments, BLOCK=measure._BLOCK))
    assert np.bitwise_xor.reduce(out[:3]) == np.bitwise_xor.reduce(values)
    probe.copying(out.ctypes.data, values.ctypes.data, values.nbytes)
    assert np.array_equal(out, values)


def test_a_chase_goes_through_every_link(card):
    memory = np.zeros(1 << 14, np.int64)
    probe = measure._Probes(card, 0)
    probe.chasing(memory.ctypes.data, memory.nbytes, turns=4)
    step = measure._LINE // 8
    at, seen = int(memory[1]), set()
    assert at  # it is left where the last launch stopped
    while at not in seen:
        seen.add(at)
        at = int(memory[at])
    assert seen == set(range(0, memory.size, step))


def test_facts_are_kept_and_taken_up_by_the_target(cuda, monkeypatch):
    assert cuda.measured_facts() == {}
    before = cuda.target(0)
    monkeypatch.setattr(measure, "measure", lambda backend, index: {"memory.copy_bandwidth": 3, "launch.early_ns": 5})
    assert cuda.measured_facts(create=True)["memory.copy_bandwidth"] == 3
    cuda.keep_facts(0, {"rates.matrix.float32": 7})
    target = cuda.target(0)
    assert (target.fact("memory.copy_bandwidth"), target.fact("rates.matrix.float32")) == (3, 7)
    assert before.fact("memory.copy_bandwidth") > 1e12
    monkeypatch.setattr(measure, "measure", lambda backend, index: {"memory.copy_bandwidth": 4})
    assert cuda.measured_facts(create=True)["memory.copy_bandwidth"] == 3
    assert cuda.measured_facts(anew=True) == {"memory.copy_bandwidth": 4}
    assert cuda.target(0).fact("memory.copy_bandwidth") == 4


def test_a_run_that_seems_to_take_no_time_is_not_made_endless(card, monkeypatch):
    probe = measure._Probes(card, 0)
    turns = []

    def recorded(bounds, count):
        turns.append(bounds[0].arguments[-1])
        return 1e-12

    monkeypatch.setattr(probe, "recorded", recorded)
    address = card.memory().allocate(1 << 16)
    assert probe.computing(address, "float32") > 0
    assert max(turns) <= 2 * min(turns)
    card.memory().free(address)
