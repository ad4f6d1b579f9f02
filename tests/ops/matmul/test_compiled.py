"""The kernels that GPUs are given for products, compiled: they fit, spill nothing and use the matrix unit."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.ops import harness

from nbxtensor.backend import device_files
from nbxtensor.backend.kernel_source import constant_values, early_start, kernel_function
from nbxtensor.op import Call, Case, Launch, Spec, Target
from nbxtensor.ops.matmul.op import linear, matmul
from nbxtensor.run.binding import request

triton = pytest.importorskip("triton")

DEVICES = {
    "sm_70": ("nvidia", "v100", ("cuda", 70, 32)),
    "sm_80": ("nvidia", "a100", ("cuda", 80, 32)),
    "sm_90": ("nvidia", "h200", ("cuda", 90, 32)),
    "sm_100": ("nvidia", "b200", ("cuda", 100, 32)),
    "gfx90a": ("amd", "mi250x", ("hip", "gfx90a", 64)),
    "gfx942": ("amd", "mi300x", ("hip", "gfx942", 64)),
}


def target(arch: str) -> Target:
    vendor, name, _ = DEVICES[arch]
    facts = {"compute.units": 100, **device_files.facts(vendor, name)}
    return Target("cuda", arch, frozenset(facts["dtypes.computed"]), facts)


def linear_call(arch: str, m: int, n: int, k: int, dtype: str) -> Call:
    case = Case({"x": Spec((m, k), dtype), "weight": Spec((n, k), dtype), "bias": Spec((n,), dtype)})
    return harness.call_of(linear.op, case, target(arch))


def compiled(call: Call, launch: Launch, arch: str, *, bake: bool) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    asked = request(call.op, launch, bake=bake, aligned=lambda _: True)
    function = kernel_function(asked)
    constants = constant_values(asked) | early_start(function, device_has_it=arch in ("sm_90", "sm_100"))
    names = function.arg_names
    signature = {n: asked.signature.get(n, "constexpr").partition("@")[0] for n in names}
    attributes = {
        (i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if asked.signature.get(n, "").endswith("@16")
    }
    values = {(names.index(n),): v for n, v in constants.items()}
    options = {"num_warps": asked.warps, "num_stages": asked.stages, "enable_fp_fusion": False}
    source = ASTSource(function, signature, values, attributes)
    return triton.compile(source, target=GPUTarget(*DEVICES[arch][2]), options=options)


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    """Return what ``cuobjdump`` says of the one kernel of a file."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    said = subprocess.run([tool, "--dump-resource-usage", file], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}


@pytest.mark.parametrize(
    ("shape", "dtype", "bake"),
    [
        ((8192, 8192, 8192), "bfloat16", True),
        ((512, 4096, 4096), "float16", False),
        ((16, 4096, 14336), "bfloat16", True),
        ((300, 1000, 700), "bfloat16", False),
        ((300, 1000, 701), "float32", False),
        ((300, 1000, 704), "bfloat16", False),
        ((70, 5000, 1000), "float16", True),
        ((1, 4096, 14336), "bfloat16", True),
        ((1, 1000, 700), "float32", False),
        ((4096, 1536, 384), "float32", True),
        ((4096, 1536, 384), "float32", False),
        ((4096, 384, 384), "float32", False),
        ((128, 384, 1536), "float32", True),
        ((500, 500, 500), "float64", False),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_h200_is_given_code_that_spills_nothing(shape, dtype, bake, tmp_path):
    call = replace(linear_call("sm_90", *shape, dtype), fixed=frozenset({"weight"}))
    for launch in call.op.kernel(call).launch(call):
        built = compiled(call, launch, "sm_90", bake=bake)
        assert built.metadata.shared <= call.device.fact("memory.max_shared_memory_per_block")
        used = resources(built.asm["cubin"], tmp_path)
        assert used["STACK"] == used["LOCAL"] == 0, f"{launch.kernel} {launch.constants} spills: {used}"
        text = built.asm["ptx"]
        if launch.kernel == "tile_kernel" and dtype != "float64" and shape[2] % 8 == 0:
            assert "wgmma.mma_async" in text
            assert "tf32" not in text
        if launch.kernel == "row_kernel":
            assert "ld.global" in text[: text.index("griddepcontrol.wait")]  # the weight is asked for first
            assert "v4.b32" in text or shape[2] % 8  # 16 bytes at a time


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_row_waits_before_it_reads_what_a_launch_may_have_written():
    call = linear_call("sm_90", 1, 256, 512, "bfloat16")
    (launch,) = call.op.kernel(call).launch(call)
    text = compiled(call, launch, "sm_90", bake=True).asm["ptx"]
    assert "ld.global" not in text[: text.index("griddepcontrol.wait")]


@pytest.mark.parametrize("arch", [a for a in DEVICES if a != "sm_90"])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((512, 512, 512), "float16"), ((16, 500, 2048), "float32"), ((1, 500, 700), "float32")],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_target_has_code(arch, shape, dtype):
    call = linear_call(arch, *shape, dtype)
    for launch in call.op.kernel(call).launch(call):
        built = compiled(call, launch, arch, bake=True)
        assert built.metadata.shared <= call.device.fact("memory.max_shared_memory_per_block")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_plain_right_operand_uses_the_matrix_unit_too(tmp_path):
    case = Case({"x": Spec((4096, 4096), "bfloat16"), "y": Spec((4096, 4096), "bfloat16")})
    call = harness.call_of(matmul.op, case, target("sm_90"))
    (launch,) = call.op.kernel(call).launch(call)
    built = compiled(call, launch, "sm_90", bake=True)
    assert "wgmma.mma_async" in built.asm["ptx"]
    assert resources(built.asm["cubin"], tmp_path)["LOCAL"] == 0


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_90", "gfx942"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_integers_have_code_too(arch):
    case = Case({"x": Spec((300, 512), "int8"), "y": Spec((512, 300), "int8")}, {"dtype": "int32"})
    call = harness.call_of(matmul.op, case, target(arch))
    for launch in call.op.kernel(call).launch(call):
        built = compiled(call, launch, arch, bake=True)
        if arch in ("sm_80", "sm_90") and launch.kernel == "tile_kernel":
            assert "mma" in built.asm["ptx"]
