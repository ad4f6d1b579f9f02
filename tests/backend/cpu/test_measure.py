import re

import numpy as np
import pytest
from tests.backend.cpu.native_kernels import HEAD

from nbxtensor.backend.cpu import facts_file, levels, measure, pool, probes
from nbxtensor.backend.cpu.device import CpuBackend
from nbxtensor.settings import set_cache_directory


@pytest.fixture
def cpu(tmp_path):
    set_cache_directory(tmp_path)
    yield CpuBackend()
    set_cache_directory(None)
    pool.set_threads(None)


@pytest.fixture
def small(monkeypatch):
    """Probes that are over at once: what is measured is of no use, but all of it is there."""
    monkeypatch.setattr(measure, "_RUN_NS", 1e4)
    monkeypatch.setattr(measure, "_RUNS", 1)
    monkeypatch.setattr(measure, "_MEMORY_NBYTES", 1 << 20)


@pytest.mark.usefixtures("small")
def test_facts_are_absent_until_asked_for_and_kept_then(cpu, monkeypatch):
    pool.set_threads(2)
    assert cpu.measured_facts() == {}
    made = cpu.measured_facts(create=True)
    assert made["workers"] == 2
    assert all(value > 0 for value in made.values())
    expected = {f"compute.matrix_flops.{dtype}" for dtype in probes.PRODUCTS}
    expected |= {
        "compute.vector_flops.float32",
        "compute.vector_flops.float64",
        "memory.copy_bandwidth",
        "memory.read_bandwidth",
        "launch.seconds",
        "workers",
    }
    assert expected <= made.keys() <= expected | {"memory.l2_nbytes", "memory.l2_bandwidth"}
    monkeypatch.setattr(measure, "measure", None)
    assert CpuBackend().measured_facts(create=True) == made  # from the disk
    assert cpu.target().fact("compute.matrix_flops.float32") == made["compute.matrix_flops.float32"]
    pool.set_threads(1)
    assert cpu.measured_facts() == {}  # another number of threads is another measurement


@pytest.mark.usefixtures("small")
def test_the_file_says_what_was_measured_when_and_with_what(cpu):
    cpu.measured_facts(create=True)
    text = facts_file.facts_path(pool.threads()).read_text()
    assert f"processor: {facts_file.processor_name()}" in text
    assert re.search(r"^date: '\d{4}-\d\d-\d\d'$", text, re.MULTILINE)
    assert re.search(r"^  nbxtensor: ", text, re.MULTILINE)


@pytest.mark.parametrize("damage", ["{", "", "[1]", "format: 0", "format: 1\nlevel: other\nfacts: {}"])
def test_a_file_that_is_none_counts_as_absent(cpu, damage):
    path = facts_file.facts_path(pool.threads())
    path.parent.mkdir(parents=True)
    path.write_text(damage)
    assert cpu.measured_facts() == {}


@pytest.mark.parametrize(
    ("level", "features"),
    [
        ("x86-64-v3", frozenset()),
        ("x86-64-v3", frozenset({"avxvnni"})),
        ("x86-64-v4", frozenset()),
        ("x86-64-v4", frozenset({"avx512bf16", "avx512vnni"})),
    ],
)
def test_probes_run_the_instruction_of_each_product(level, features):
    text = probes.probes_text(level, features)
    assert text.count(f"({HEAD})") == len(probes.probe_names())
    lanes = 16 if level == "x86-64-v4" else 8
    chains = 28 if level == "x86-64-v4" else 12
    assert text.count(f"llvm.fma.v{lanes}f32(") >= chains
    assert probes.operations("float32", level, features) == 2 * lanes * chains
    assert probes.operations("float64", level, features) == lanes * chains
    dot = "avx512vnni" in features or "avxvnni" in features
    assert ("vpdpbusd" in text) == dot
    assert probes.operations("int8", level, features) == 2 * lanes * chains * (4 if dot else 2)


def test_memory_probes_go_through_every_byte(cpu):
    source = np.arange(1 << 16, dtype=np.uint8)
    target = np.zeros_like(source)
    level, features = levels.detect(), levels.features()
    from nbxtensor.backend.cpu.codegen import object_code

    code = object_code(probes.probes_text(level, features), level, features)
    probe = measure._Probes(2, code, cpu.load, cpu.record)
    pool.set_threads(2)
    probe.copying(target.ctypes.data, source.ctypes.data, source.nbytes)
    assert np.array_equal(source, target)
