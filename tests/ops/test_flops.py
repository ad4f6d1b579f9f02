"""Declared operations: a multiply-add counts two, and the unit that does them is named."""

import math

import pytest
from tests.ops import harness

from nbxtensor.op import Target

OPS = {op.name: op for op in harness.declared_ops()}


@pytest.mark.parametrize("name", ["matmul", "mm", "bmm", "linear", "addmm"])
def test_a_multiply_add_is_two(name, backend):
    op = OPS[name]
    for case in op.cases:
        call = harness.call_of(op, case, backend.target(0))
        if not call.outputs[0].numel:
            continue
        left = next(iter(case.operands.values())).shape
        want = 2 * (left[-1] if left else 1) * math.prod(call.outputs[0].shape)
        for kernel in harness.kernels(call):
            cost = kernel.cost(call)
            assert cost.flops == want, (name, case)
            if cost.matrix is not None:
                assert cost.matrix in (s.dtype for s in call.inputs.values())


@pytest.mark.parametrize("length", [1, 5, 64])
def test_attention_is_two_products_and_an_exponential(length, backend):
    op = OPS["attention"]
    q, k = harness.Spec((2, 4, length, 16), "float32"), harness.Spec((2, 2, 96, 16), "float32")
    case = harness.Case({"q": q, "k": k, "v": k}, {})
    call = harness.call_of(op, case, backend.target(0))
    pairs = 2 * 4 * length * 96
    for kernel in harness.kernels(call):
        assert kernel.cost(call).flops == pairs * (2 * 16 + 2 * 16 + 4)


def test_bytes_of_a_product_by_blocks_lie_in_an_interval():
    """A GPU's blocks ask for their rows and columns again and again; what must move is each operand once."""
    facts = {"compute.units": 132, "memory.max_shared_memory_per_block": 232448}
    target = Target("null", "test", frozenset(), facts)
    op = OPS["matmul"]
    spec = harness.Spec((2048, 2048), "float32")
    call = harness.call_of(op, harness.Case({"x": spec, "y": spec}, {}), target)
    kernel = op.kernels[-1]
    least, most = kernel.cost(call).moved
    assert least == 3 * spec.nbytes
    blocks = kernel.launch(call)[0].constants
    asked = (2048 // blocks["BM"]) * (2048 // blocks["BN"]) * (blocks["BM"] + blocks["BN"]) * 2048 * 4
    assert most == asked + spec.nbytes
