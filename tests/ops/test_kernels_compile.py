"""Every kernel of every op compiles for every declared GPU target, on a machine without a GPU.

A pointwise op is one device function in a generated kernel: those are compiled several to a kernel. For the other ops
each kernel is compiled for the first of its cases. Where a kernel is written for the layout of a case, every other text
is compiled too, for one target or another in turn.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from tests.ops import harness

from nbxtensor.backend.kernel_source import constant_values, early_start, kernel_function
from nbxtensor.errors import DtypeError
from nbxtensor.op import Case, Expression, Launch, Op, Scalar, Source, Spec, Step, Target
from nbxtensor.ops.pointwise.fused import expression_of, fused
from nbxtensor.run.binding import request

if TYPE_CHECKING:
    from collections.abc import Iterator

triton = pytest.importorskip("triton")

TARGETS = {
    "sm_70": (("cuda", 70, 32), 96 * 1024),  # compute capability, bytes of shared memory a block can have
    "sm_80": (("cuda", 80, 32), 163 * 1024),
    "sm_90": (("cuda", 90, 32), 227 * 1024),
    "sm_100": (("cuda", 100, 32), 227 * 1024),
    "gfx90a": (("hip", "gfx90a", 64), 64 * 1024),
    "gfx942": (("hip", "gfx942", 64), 64 * 1024),
}
GENERIC = Target("null", "gpu", frozenset({"float64"}))
OPS = harness.declared_ops()
ALL_LAYOUTS = ("sum", "var", "softmax", "layer_norm", "group_norm")  # one op of each way to write a kernel
GROUP = 12
LANES = 128  # of a pointwise group: one element for each thread


def compute_kind(op: Op, dtype: str) -> str | None:
    """Return the dtype ``op`` computes in for operands of ``dtype``, or None where it refuses them."""
    try:
        call = call_on(op, dtype)
        return op.pointwise(call).compute[-1]
    except DtypeError:
        return None


def call_on(op: Op, dtype: str) -> Any:
    """Return a call of a pointwise op on vectors of ``dtype``."""
    names = [n for n in op.operands if n not in ("min", "max")]
    operands = {n: Spec((LANES,), "bool" if n in ("condition", "mask") else dtype) for n in names}
    params = {"threshold": {"threshold": 1, "value": 2}, "astype": {"dtype": "float16"}, "clip": {"min": 1, "max": 2}}
    return harness.call_of(op, Case(operands, params.get(op.name, {})), GENERIC)


def gathered(ops: list[Op], dtype: str) -> Op:
    """Return one op that computes all of ``ops`` on the same vectors."""
    inputs, steps, scalars = (dtype, dtype, dtype, "bool"), [], 0
    for op in ops:
        call = call_on(op, dtype)
        expression = expression_of(call)
        places = [3 if call[n].dtype == "bool" != dtype else i for i, n in enumerate(call.inputs)]
        for step in expression.steps:
            arguments = tuple(
                Scalar(a.index + scalars, a.dtype) if isinstance(a, Scalar) else places[a] for a in step.arguments
            )
            steps.append(Step(step.function, arguments, step.compute, step.dtype))
        scalars += expression.scalars
    return fused(Expression(inputs, tuple(steps), tuple(range(4, 4 + len(steps))), scalars))


def pointwise_groups() -> Iterator[Any]:
    pointwise = [op for op in OPS if op.pointwise is not None]
    wanted = {
        "float32": [op for op in pointwise if compute_kind(op, "float32")],
        "int32": [op for op in pointwise if compute_kind(op, "int32") == "int32"],
        "bool": [op for op in pointwise if compute_kind(op, "bool") == "bool"],
        "bfloat16": [op for op in pointwise if op.name in ("add", "maximum", "gelu", "where", "less", "nextafter")],
        "float64": [op for op in pointwise if op.name in ("divide", "fmod", "pow", "erf", "round", "sqrt", "sin")],
    }
    for dtype, ops in wanted.items():
        for first in range(0, len(ops), GROUP):
            group = ops[first : first + GROUP]
            made = gathered(group, dtype)
            specs = {f"operands.{i}": Spec((LANES,), d) for i, d in enumerate((dtype, dtype, dtype, "bool"))}
            expression_scalars = tuple(1.0 for _ in range(made_scalars(group, dtype)))
            call = harness.call_of(made, Case(specs, {"scalars": expression_scalars}), GENERIC)
            (launch,) = made.kernel(call).launch(call)
            for target in TARGETS:
                yield pytest.param(target, made, launch, id=f"{target}-pointwise-{dtype}-{group[0].name}")


def made_scalars(ops: list[Op], dtype: str) -> int:
    return sum(expression_of(call_on(op, dtype)).scalars for op in ops)


def other_kernels() -> Iterator[Any]:
    turn = itertools.cycle(TARGETS)
    for op in OPS:
        if op.pointwise is not None:
            continue
        seen: set[Any] = set()
        for index, case in enumerate(op.cases):
            call = harness.call_of(op, case, GENERIC)
            for kernel in harness.kernels(call):
                for number, launch in enumerate(kernel.launch(call)):
                    text = launch.kernel.text if isinstance(launch.kernel, Source) else launch.kernel
                    first = (kernel.name, number) not in seen
                    if first or (op.name in ALL_LAYOUTS and text not in seen):
                        seen |= {(kernel.name, number), text}
                        name = f"{harness.case_id(op, index)}-{kernel.name}-{number}"
                        for target in TARGETS if first else (next(turn),):
                            yield pytest.param(target, op, launch, id=f"{target}-{name}")


KERNELS = [*pointwise_groups(), *other_kernels()]


@pytest.mark.parametrize(("target", "op", "launch"), KERNELS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiles(target: str, op: Op, launch: Launch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    asked = request(op, launch, bake=False, aligned=lambda _: True)
    function = kernel_function(asked)
    constants = constant_values(asked) | early_start(function, device_has_it=False)
    signature = {n: asked.signature.get(n, "constexpr").partition("@")[0] for n in function.arg_names}
    marked = [i for i, n in enumerate(function.arg_names) if asked.signature.get(n, "").endswith("@16")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in marked}
    values = {(function.arg_names.index(n),): v for n, v in constants.items()}
    where, shared = TARGETS[target]
    options = {"num_warps": asked.warps, "num_stages": asked.stages, "enable_fp_fusion": False}
    built = triton.compile(
        ASTSource(function, signature, values, attributes), target=GPUTarget(*where), options=options
    )
    assert built.metadata.shared <= shared
    assert built.asm["cubin" if where[0] == "cuda" else "hsaco"]


def test_every_op_and_kernel_is_among_them():
    compiled = {(p.values[1].name) for p in KERNELS}
    assert {op.name for op in OPS if op.pointwise is None} <= compiled
    functions = {s.rpartition(".")[2] for p in KERNELS for s in _functions(p.values[2])}
    for op in OPS:
        if op.pointwise is not None and op.name != "astype":
            (step,) = expression_of(call_on(op, "float32" if compute_kind(op, "float32") else "int32")).steps
            assert step.function.rpartition(":")[2] in functions


def _functions(launch: Launch) -> list[str]:
    text = launch.kernel.text if isinstance(launch.kernel, Source) else ""
    return [word.partition("(")[0] for word in text.replace("(", "( ").split() if word.startswith("_nbxtensor_")]
