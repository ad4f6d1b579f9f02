"""What attention launches on a GPU: the same results, computed here, and code that keeps its registers."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from tests.ops import harness

from nbxtensor.backend.device_facts import target
from nbxtensor.op import Case, Kernel, Launch, Spec
from nbxtensor.ops.attention.op import attention

OP = attention.op
CASES = [pytest.param(index, id=harness.case_id(OP, index)) for index, case in enumerate(OP.cases) if not case.bench]


@pytest.mark.parametrize("index", CASES)
def test_launches_for_a_gpu_give_the_same(index: int, backend):
    case = OP.cases[index]
    there = harness.call_of(OP, case, target("nvidia", "h200"))
    chosen = OP.kernel(there)
    launches = tuple(replace(launch, constants=_exact(launch)) for launch in chosen.launch(there))
    kernel = Kernel(chosen.name, lambda _: chosen.cost(there), lambda _: launches)
    call = replace(there, target=backend.target(0))
    given = harness.operands(case, harness.case_seed(OP, index))
    arrays = {name: laid.values for name, laid in given.items()}
    (want,) = harness.reference(OP, arrays, case.params)
    (size,) = harness.reference(OP, arrays, case.params, absolute=True)
    (got,) = harness.run(call, kernel, given, backend, bake=index % 2 == 0)
    flops = kernel.cost(call).flops
    harness.compare(call, got, want, size, call.outputs[0].dtype, flops=flops, rtol=case.rtol)


def _exact(launch: Launch) -> dict[str, Any]:
    """Return the constants with products as a CPU makes them."""
    return {name: "ieee" if name == "PRECISION" else value for name, value in launch.constants.items()}


SHAPES = (  # (dtype, queries, width, causal)
    ("bfloat16", 300, 64, True),
    ("bfloat16", 300, 128, False),
    ("bfloat16", 300, 128, True),
    ("float32", 300, 32, True),
    ("float32", 300, 64, False),
    ("bfloat16", 1, 64, True),
    ("bfloat16", 1, 128, True),
    ("float32", 1, 64, True),
)


@pytest.mark.parametrize(("dtype", "queries", "width", "causal"), SHAPES)
def test_no_registers_are_spilled(dtype: str, queries: int, width: int, causal: bool, tmp_path):
    pytest.importorskip("triton")
    from triton import knobs

    from nbxtensor.backend.cuda.compiling import compile_kernel
    from nbxtensor.run.binding import request

    operands = {
        "q": Spec((1, 8, queries, width), dtype),
        "k": Spec((1, 2, 4096, width), dtype),
        "v": Spec((1, 2, 4096, width), dtype),
    }
    if causal:
        operands["kv_length"] = Spec((), "int32")
    call = harness.call_of(OP, Case(operands, {"is_causal": causal}), target("nvidia", "h200"))
    for launch in OP.kernel(call).launch(call):
        asked = request(OP, launch, bake=True, aligned=lambda _: True)
        compiled = compile_kernel(asked, call.device)
        assert compiled.metadata["shared_nbytes"] <= call.device.fact("memory.max_shared_memory_per_block")
        path = tmp_path / "kernel.cubin"
        path.write_bytes(compiled.binary)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert re.findall(r"STACK:(\d+)", told) == ["0"], told
