import math
import re

import numpy as np
import pytest
from tests.backend.cuda.conftest import on
from tests.backend.cuda.fake_libcuda import FakeLibrary

from nbxtensor.backend import registry
from nbxtensor.backend.contract import Bound, Compiled, KernelRequest
from nbxtensor.backend.cpu import codegen
from nbxtensor.backend.cpu.frontend import ttir
from nbxtensor.backend.cuda.compiling import capability
from nbxtensor.backend.cuda.folding import folded_text
from nbxtensor.backend.kernel_source import kernel_function
from nbxtensor.errors import ArgumentError, CompileError
from nbxtensor.op import Target
from nbxtensor.settings import set_cache_directory

pytest.importorskip("triton")

TEXT = """
import triton
import triton.language as tl


@triton.jit
def affine(out, x, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * scale + 1.0, mask=i < n)
"""
SIGNATURE = {"out": "*fp32@16", "x": "*fp32@16", "n": "i32", "scale": "fp32"}
SM90 = Target("cuda", "sm_90")


def request(**changes):
    fields = {"module": "", "name": "affine", "text": TEXT, "signature": SIGNATURE, "constants": {"BLOCK": 1024}}
    return KernelRequest(**(fields | changes))


@pytest.fixture
def compiler(tmp_path):
    """A backend without a device, with a cache of its own."""
    set_cache_directory(tmp_path)
    yield on(FakeLibrary(devices=0))
    set_cache_directory(None)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_compile_without_a_device(compiler, arch):
    made = compiler.compile(request(), Target("cuda", arch))
    assert made.name == "affine"
    assert made.binary.startswith(b"\x7fELF")
    assert made.parameters == tuple(SIGNATURE.items())
    early = {"early": arch == "sm_90", "waits_first": arch == "sm_90", "folded": None}
    assert made.metadata == {"arch": arch, "warps": 4, "shared_nbytes": 0, "hidden": 2} | early


def test_a_kernel_is_compiled_once_and_kept_on_disk(compiler, monkeypatch):
    first = compiler.compile(request(), SM90)
    assert compiler.compile(request(), SM90) is first
    monkeypatch.setattr("nbxtensor.backend.cuda.device.compile_kernel", None)
    assert on(FakeLibrary(devices=0)).compile(request(), SM90) == first


def test_warps_and_stages_make_another_kernel(compiler):
    assert compiler.compile(request(warps=8), SM90).metadata["warps"] == 8
    assert compiler.compile(request(warps=4), SM90).metadata["warps"] == 4


@pytest.fixture
def assembly(monkeypatch):
    """The assembly of every kernel that Triton compiles."""
    from triton.compiler import compiler as triton_compiler

    texts = []
    original = triton_compiler.CompiledKernel

    class Seen(original):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            texts.append(self.asm["ptx"])

    monkeypatch.setattr(triton_compiler, "CompiledKernel", Seen)
    return texts


RELEASE, WAIT = "griddepcontrol.launch_dependents", "griddepcontrol.wait"


@pytest.mark.parametrize(("arch", "times"), [("sm_80", 0), ("sm_90", 1), ("sm_100", 1)])
def test_every_kernel_waits_before_it_touches_memory_where_launches_start_early(compiler, assembly, arch, times):
    assert compiler.compile(request(), Target("cuda", arch)).metadata["early"] is bool(times)
    (text,) = assembly
    assert text.count(WAIT) == text.count(RELEASE) == times
    body = text[text.index("{", text.index(".entry")) :]
    if times:
        assert body.index(WAIT) < body.index(RELEASE) < min(body.index("ld."), body.index("st."))


PLACED = TEXT.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr, PDL: tl.constexpr").replace(
    "    tl.store(out + i, tl.load(x + i, mask=i < n) * scale",
    """    scale = scale + tl.load(x)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    tl.store(out + i, tl.load(x + i, mask=i < n) * scale""",
)


@pytest.mark.parametrize("given", [{}, {"PDL": False}, {"PDL": True}])
def test_a_kernel_places_its_own_wait_where_it_has_the_parameter(compiler, assembly, given):
    placed = request(text=PLACED, constants={"BLOCK": 1024} | given)
    found = compiler.compile(placed, SM90).metadata
    assert (found["early"], found["waits_first"]) == (True, False)
    assert not compiler.compile(placed, Target("cuda", "sm_80")).metadata["early"]
    new, old = assembly
    assert new.count(WAIT) == 1
    assert WAIT not in old
    assert new.index("ld.global") < new.index(WAIT) < new.index("st.global")


def test_a_kernel_that_promises_to_wait_and_does_not_is_refused(compiler):
    with pytest.raises(CompileError, match="affine: a kernel with a parameter PDL waits where it is true"):
        compiler.compile(request(text=TEXT.replace("constexpr", "constexpr, PDL: tl.constexpr", 1)), SM90)


PLACE = """
import triton
import triton.language as tl


@triton.jit
def place(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny, nz = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
    at = out + ((z * ny + y) * nx + x).to(tl.int64) * 4
    tl.store(at, x)
    tl.store(at + 1, y)
    tl.store(at + 2, z)
    tl.store(at + 3, nz)
"""
PLACES = {"name": "place", "text": PLACE, "signature": {"out": "*i32"}, "constants": {}}


@pytest.mark.parametrize("grid", [(2, 70_000), (1, 65_536, 1), (3, 5, 65_537), (7, 70_000, 3)])
def test_a_grid_that_no_card_allows_is_folded(compiler, assembly, grid):
    made = compiler.compile(request(**PLACES, grid=grid), SM90)
    assert made.metadata["folded"] == [*grid, 1][:3]
    assert (made.metadata["early"], made.metadata["waits_first"]) == (True, True)
    assert "%ctaid.x" in assembly[0]
    assert not re.search(r"%n?ctaid\.[yz]|%nctaid", assembly[0])


def test_nothing_is_concluded_from_a_limit_that_a_folded_grid_passes(compiler, assembly):
    """A place along the second axis is known to have 16 bits: multiplied by 256 and cut to even numbers of them, 24."""
    mask = str((65_535 << 8) & ~511)
    text = PLACE[: PLACE.index("    x, y, z")] + (
        "    y = tl.program_id(1)\n    tl.store(out + (y // 2).to(tl.int64) * 512, y)\n"
    )
    compiler.compile(request(**PLACES | {"text": text}, grid=(1, 7_000)), SM90)
    compiler.compile(request(**PLACES | {"text": text}, grid=(1, 70_000)), SM90)
    assert [mask in found for found in assembly] == [True, False]


@pytest.mark.parametrize("grid", [(2, 700, 1), (3, 5, 7), (1, 1, 9), (4, 1, 1)])
def test_programs_of_a_folded_grid_find_their_places(grid):
    """Run on the CPU, as one axis."""
    cpu = registry.backend("cpu")
    asked = request(**PLACES)
    text = ttir(kernel_function(asked), {"out": "*i32"}, {})
    made = codegen.compile_ttir(folded_text(text, grid), cpu.target().arch, cpu.target().features)
    facts = {"arch": cpu.target().arch, "features": [], "scratch_nbytes": made.scratch_nbytes}
    loaded = cpu.load(Compiled(made.name, made.object, (("out", "*i32"),), facts))
    out = np.full((*grid[::-1], 4), -1, np.int32)
    cpu.launch(Bound(loaded, (math.prod(grid), 1, 1), (out.ctypes.data,)))
    z, y, x = np.indices(grid[::-1])
    np.testing.assert_array_equal(out, np.stack([x, y, z, np.full_like(x, grid[2])], axis=-1))


def test_a_place_that_is_read_otherwise_is_refused():
    with pytest.raises(CompileError, match="in the known way"):
        folded_text("%0 = tt.get_program_id w : i32", (1, 2, 3))


@pytest.mark.parametrize("grid", [(), (2, 65_535, 65_535), (70_000,)])
def test_a_grid_that_every_card_allows_is_left_alone(compiler, assembly, grid):
    assert compiler.compile(request(**PLACES, grid=grid), SM90).metadata["folded"] is None
    assert all(f"%ctaid.{axis}" in assembly[0] for axis in "xyz")


def test_the_cpu_never_starts_launches_early():
    cpu = registry.backend("cpu")
    made = cpu.compile(request(text=PLACED, signature=SIGNATURE), cpu.target())
    assert made.parameters == tuple((name, kind.partition("@")[0]) for name, kind in SIGNATURE.items())


def test_steps_are_rounded_as_they_stand(compiler, assembly):
    """Nor are small numbers flushed to zero: the code has no such instruction."""
    compiler.compile(request(text=TEXT.replace("* scale", "* tl.floor(tl.rsqrt(scale))")), SM90)
    (text,) = assembly
    assert "mul" in text
    assert not {"fma", "ftz"} & set(re.findall(r"[a-z]+", text))
    assert {"rsqrt", "rmi"} <= set(re.findall(r"[a-z]+", text))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"text": TEXT.replace("i < n)", "i < undefined)", 1)}, CompileError, "(?s)affine: Triton refuses .*undefined"),
        ({"name": "missing"}, CompileError, "missing"),
        ({"constants": {}}, ArgumentError, r"affine: types and constants name every parameter"),
    ],
)
def test_what_cannot_be_compiled_is_named(compiler, changes, error, message):
    with pytest.raises(error, match=message):
        compiler.compile(request(**changes), SM90)


@pytest.mark.parametrize("arch", ["sm_", "90", "sm_90 ", "gfx942"])
def test_architectures_are_spelled_one_way(arch):
    with pytest.raises(ArgumentError, match="an architecture is sm_ and a number"):
        capability(arch)
