import copy
import re

import pytest

from nbxtensor.backend import device_facts, device_files
from nbxtensor.backend.cpu.levels import LEVELS
from nbxtensor.backend.device_names import arch_string, recognise
from nbxtensor.backend.device_schema import FIELDS, check, leaves
from nbxtensor.dtype.itemsize import names as dtype_names
from nbxtensor.errors import ArgumentError, FormatError, MissingFactError, UnknownDtypeError

ALL = [(vendor, name) for vendor in device_files.vendors() for name in device_files.names(vendor)]
every_device = pytest.mark.parametrize(("vendor", "name"), ALL)


def test_the_declared_families_are_there():
    assert set(device_files.names("nvidia")) >= {"v100", "a100", "h100", "h200", "l40s", "t4", "rtx_4090", "b200"}
    families = {f"apple_m{n}" for n in range(1, 6)} | {"apple_m4_pro", "apple_m4_max"}
    assert set(device_files.names("apple")) >= families
    assert {device_files.fact("amd", name, "architecture") for name in device_files.names("amd")} == {
        "cdna1",
        "cdna2",
        "cdna3",
    }
    assert {device_files.fact("cpu", name, "compute_capability") for name in device_files.names("cpu")} == set(LEVELS)


@every_device
def test_every_number_has_one_source_and_the_text_is_not_empty(vendor, name):
    numbers = [
        path
        for path, value in device_files.facts(vendor, name).items()
        if type(value) is int or (isinstance(value, list) and type(value[0]) is int)
    ]
    assert numbers
    for path in numbers:
        assert len(device_files.source(vendor, name, path)) > 10
    with pytest.raises(MissingFactError, match="Only numbers"):
        device_files.source(vendor, name, "architecture")


@every_device
def test_the_numbers_are_in_proportion(vendor, name):
    """Slips of a power of ten, and rates with sparsity, break one of these."""
    facts = device_files.facts(vendor, name)
    ranges = {
        "memory.bytes": (8e9, 3e11),
        "memory.bandwidth": (5e10, 1e13),
        "memory.copy_bandwidth": (5e10, facts.get("memory.bandwidth", 1e13)),
        "memory.l2_nbytes": (1 << 20, 1 << 28),
        "memory.max_shared_memory_per_block": (32 << 10, 256 << 10),
        "compute.vector_flops.float32": (1e12, 2e14),
        "compute.matrix_flops.float16": (5e13, 3e15),
        "cpu.l1_nbytes": (16 << 10, 256 << 10),
        "cpu.l2_nbytes": (128 << 10, 64 << 20),
    }
    for path, (low, high) in ranges.items():
        if path in facts:
            assert low <= facts[path] <= high, path
    half = facts.get("compute.matrix_flops.float16")
    for path, value in facts.items():
        dtype = path.rpartition(".")[2]
        if path.startswith("compute.matrix_flops.float8"):
            assert value == pytest.approx(2 * half, rel=0.02), path
        if path == "compute.matrix_flops.tensorfloat32":
            assert value == pytest.approx(half / 2, rel=0.02), path
        if path.startswith("compute.matrix_flops.") and dtype != "tensorfloat32":
            assert dtype in facts["dtypes.computed"] or dtype == "float4_e2m1fn", path
    if "cpu.vector_bits" in facts:
        assert facts["cpu.lanes_f32"] * 32 == facts["cpu.vector_bits"]
    assert set(facts["dtypes.computed"]) <= set(facts["dtypes.stored"]) <= set(dtype_names())


def test_what_kernels_are_compiled_for_is_spelt_as_the_targets_spell_it():
    patterns = {"nvidia": r"sm_\d+", "amd": r"gfx[0-9a-f]+", "apple": r"apple-m\d(-[a-z]+)?", "cpu": r"[a-z0-9-]+"}
    for vendor, name in ALL:
        key = device_files.fact(vendor, name, "compute_capability")
        assert re.fullmatch(patterns[vendor], key), (vendor, name)
    assert device_files.fact("nvidia", "h200", "compute_capability") == "sm_90"
    for name in device_files.names("apple"):
        product = device_files.fact("apple", name, "name")
        assert device_files.fact("apple", name, "compute_capability") == arch_string(product)


def test_limits_of_the_cuda_guide_and_the_measured_copy():
    shared = {"v100": 96, "t4": 64, "a100": 163, "l40s": 99, "rtx_4090": 99, "h100": 227, "h200": 227, "b200": 227}
    for name, kibibytes in shared.items():
        assert device_files.fact("nvidia", name, "memory.max_shared_memory_per_block") == kibibytes * 1024
        assert device_files.fact("nvidia", name, "dispatch.max_grid") == [2**31 - 1, 65535, 65535]
        assert device_files.fact("nvidia", name, "memory.warp_size") == 32
    assert device_files.fact("nvidia", "h200", "memory.bandwidth") == 4.8e12
    assert device_files.fact("amd", "mi300x", "memory.warp_size") == 64


@pytest.mark.parametrize(
    ("vendor", "name", "path"),
    [
        ("nvidia", "h100", "memory.copy_bandwidth"),
        ("apple", "apple_m4_pro", "memory.bytes"),
        ("cpu", "x86_64_v4", "memory.bandwidth"),
        ("nvidia", "h200", "memory"),
        ("nvidia", "h200", "nonsense"),
    ],
)
def test_an_unknown_number_is_refused_by_name(vendor, name, path):
    with pytest.raises(MissingFactError, match=rf"{re.escape(path)} of {vendor} {name}"):
        device_files.fact(vendor, name, path)


def test_an_unknown_device_is_refused_and_the_known_ones_are_named():
    with pytest.raises(MissingFactError, match="h200"):
        device_files.read("nvidia", "h300")
    with pytest.raises(MissingFactError, match="apple"):
        device_files.names("intel")
    with pytest.raises(MissingFactError, match="nvidia"):
        device_files.read("nvidia", "../nvidia/h200")


def test_what_is_read_is_the_callers_own():
    first = device_files.read("nvidia", "h200")
    first["memory"]["bytes"] = 1
    first["dtypes"]["stored"].clear()
    device_files.fact("nvidia", "h200", "dispatch.max_grid").clear()
    assert device_files.read("nvidia", "h200")["memory"]["bytes"] == 141 * 10**9
    assert device_files.fact("nvidia", "h200", "dispatch.max_grid")
    assert device_facts.stores("nvidia", "h200", "float32")
    with pytest.raises(TypeError):
        device_files.facts("nvidia", "h200")["memory.bytes"] = 1


def edits():
    def put(path, value):
        def edit(d):
            *groups, last = path.split(".")
            for group in groups:
                d = d.setdefault(group, {})
            d[last] = value

        return edit

    yield "no such field. Got memory.size", put("memory.size", 3)
    yield "no such field. Got colour", put("colour", "green")
    yield "memory.bytes is a number", put("memory.bytes", "141 GB")
    yield "memory.bytes is a number", put("memory.bytes", 1.5)
    yield "memory.bytes is a number", put("memory.bytes", -1)
    yield "memory.bytes is a number", put("memory.bytes", True)
    yield "dispatch.max_grid is a numbers", put("dispatch.max_grid", [1, "x", 1])
    yield "shares_host_memory is a flag", put("shares_host_memory", "no")
    yield "names dtypes", put("compute.matrix_flops.float17", 3)
    yield "names dtypes", put("dtypes.computed", ["fp32"])
    yield "needed field is missing", lambda d: d.pop("architecture")
    yield "every number has one source", put("cpu.l1_nbytes", 1 << 15)
    yield "every number has one source", lambda d: d.pop("sources")
    yield "every number has one source", lambda d: d["sources"].append({"from": "x", "states": ["memory"]})
    yield "every number has one source", lambda d: d["sources"].append({"from": "x", "states": ["architecture"]})
    yield "a source states a number", lambda d: d["sources"].append({"from": "x", "states": ["memory.gone"]})
    yield "a path has one source", lambda d: d["sources"].append({"from": "x", "states": ["launch"]})
    yield "keys from and states", lambda d: d["sources"].append({"from": "x"})
    yield "keys from and states", lambda d: d["sources"].append("x")


@pytest.mark.parametrize(("message", "edit"), list(edits()))
def test_a_file_that_breaks_the_schema_is_refused(message, edit):
    description = copy.deepcopy(device_files.read("nvidia", "h200"))
    check(description, where="h200.yml")
    edit(description)
    with pytest.raises(FormatError, match=rf"h200\.yml: .*{message}"):
        check(description, where="h200.yml")


def test_every_field_of_the_schema_is_used_by_some_file():
    used = {path for vendor, name in ALL for path, _ in leaves(device_files.read(vendor, name))}
    for path, field in FIELDS.items():
        measured = field.meaning.endswith("as measured")  # and need not have been on any device
        assert measured or any(re.fullmatch(path.replace(".", r"\.").replace("*", r"\w+"), f) for f in used), path


def test_names_of_drivers_find_their_file():
    assert arch_string("Apple M4 Pro") == "apple-m4-pro"
    assert arch_string("  NVIDIA GeForce RTX 4090 ") == "nvidia-geforce-rtx-4090"
    assert recognise("Apple M4 Pro") == ("apple", "apple_m4_pro")
    assert recognise("NVIDIA H200") == ("nvidia", "h200")
    assert recognise("Tesla V100-SXM2-32GB") == ("nvidia", "v100")
    assert recognise("AMD Instinct MI300X") == ("amd", "mi300x")
    for name in ("NVIDIA H100 PCIe", "Apple M9", "Radeon VII"):
        with pytest.raises(MissingFactError, match=re.escape(name)):
            recognise(name)
    with pytest.raises(ArgumentError, match="device name"):
        arch_string(" -- ")


def test_no_two_devices_share_a_drivers_name():
    aliases = [a for vendor, name in ALL for a in device_files.fact(vendor, name, "recognised_as")]
    assert len({arch_string(a) for a in aliases}) == len(aliases)


@every_device
def test_every_device_is_a_target(vendor, name):
    target = device_facts.target(vendor, name)
    assert target.arch == device_files.fact(vendor, name, "compute_capability")
    assert ("float64" in target.features) == device_facts.computes_float64(vendor, name)
    assert dict(target.facts) == dict(device_files.facts(vendor, name))
    with pytest.raises(MissingFactError, match=r"launch\.nonsense"):
        target.fact("launch.nonsense")


def test_questions_of_code():
    assert device_facts.shares_host_memory("apple", "apple_m1")
    assert not device_facts.shares_host_memory("nvidia", "b200")
    assert not device_facts.computes_float64("apple", "apple_m5")
    assert device_facts.computes_float64("cpu", "x86_64_v3")
    assert not device_facts.computes("nvidia", "t4", "bfloat16")
    assert device_facts.stores("nvidia", "t4", "bfloat16")
    assert not device_facts.stores("apple", "apple_m1", "float64")
    with pytest.raises(UnknownDtypeError):
        device_facts.computes("nvidia", "t4", "bf17")
    assert device_facts.this_cpu()[0] == "cpu"
