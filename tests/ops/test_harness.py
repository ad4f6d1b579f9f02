"""The harness catches what it is there to catch: kernels with one fault each."""

import numpy as np
import pytest
from tests.ops import harness

from nbxtensor.op import Buffer, Case, Cost, Kernel, Launch, Source, Spec, declare

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(o, x, w, n, BLOCK: tl.constexpr):\n"
BODY = """    at = tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
"""
GOOD = "    tl.store(o + at, v, mask=at < n)\n"


def copying(*bodies, buffer=None):
    """An op that should copy eight floats, by kernels with the given last lines."""
    buffers = () if buffer is None else (buffer,)

    def launch(call):
        arguments = {"o": call.output(), "x": call.input("x")}
        arguments["w"] = call.workspace("w", "float32") if buffers else call.output()
        return tuple(
            Launch(Source("k", HEAD + BODY + body), (1,), {**arguments, "n": 8}, {"BLOCK": 16}) for body in bodies
        )

    def cost(call):
        return Cost(8, call.operand_nbytes, call.result_nbytes, buffers=buffers)

    def same(call):
        return call["x"].packed()

    @declare(result=same, reference=lambda x: x, kernels=(Kernel("k", cost, launch),), cases=())
    def copied(x: "Tensor"):  # noqa: F821
        """Return x."""

    return copied.op


def evaluate(backend, op):
    x = np.arange(1, 9, dtype=np.float32)
    (got,) = harness.evaluate(op, {"x": harness.lay(x, "float32")}, {}, backend)
    call = harness.call_of(op, Case({"x": Spec((8,), "float32")}), backend.target(0))
    harness.compare(call, got, x.astype(np.float64), x.astype(np.float64), "float32", flops=8)


def test_a_right_kernel_passes(backend):
    evaluate(backend, copying(GOOD))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    tl.store(o + at, v, mask=at < n + 1)\n", "after a buffer"),
        ("    tl.store(o + at - 1, v, mask=at < n)\n", "before a buffer"),
        ("    tl.store(o + at, v, mask=at < n - 1)\n", "1 of 8 elements are wrong"),
        (GOOD + "    tl.store(x + at, v + 1, mask=at < 1)\n", "operand x was written"),
        ("    tl.store(o + at, v * 1.000001, mask=at < n)\n", "elements are wrong"),
    ],
)
def test_a_faulty_kernel_is_caught(backend, body, words):
    with pytest.raises(AssertionError, match=words):
        evaluate(backend, copying(body))


def test_workspace_is_not_there_before_nor_after_its_lifetime(backend):
    write, read = "    tl.store(w + at, v, mask=at < n)\n", "    tl.store(o + at, tl.load(w + at), mask=at < n)\n"
    evaluate(backend, copying(write, read, buffer=Buffer("w", 64, 0, 1)))
    with pytest.raises(AssertionError, match="8 of 8 elements are wrong"):
        evaluate(backend, copying(write, read, buffer=Buffer("w", 64, 0, 0)))
    with pytest.raises(AssertionError, match="8 of 8 elements are wrong"):
        evaluate(backend, copying(read, write, buffer=Buffer("w", 64, 0, 1)))
    with pytest.raises(AssertionError, match="after a buffer"):
        evaluate(backend, copying(write, read, buffer=Buffer("w", 28, 0, 1)))


def test_gaps_between_the_elements_of_a_result_stay_untouched(backend):
    def strided(call):
        return Spec((8,), "float32", (2,))

    good = copying("    tl.store(o + 2 * at, v, mask=at < n)\n")
    bad = copying("    tl.store(o + 2 * at, v, mask=at < n)\n    tl.store(o + 2 * at + 1, v, mask=at < n - 1)\n")
    for op in (good, bad):
        object.__setattr__(op, "result", strided)
    evaluate(backend, good)
    with pytest.raises(AssertionError, match="between the elements"):
        evaluate(backend, bad)


@pytest.mark.parametrize("fill", ["", "special", "uniform", "probability", "positive", "bool", "index:5"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint64", "bool"])
def test_fills_stay_in_their_range(fill, dtype):
    values = harness.draw(np.random.default_rng(0), 500, dtype, fill).astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = {"uniform": (-1, 1), "probability": (0, 1), "positive": (0, np.inf), "index:5": (0, 4)}.get(
        fill, (-np.inf, np.inf)
    )
    if dtype in ("float32", "bfloat16") or fill.startswith("index"):
        assert (finite >= low).all()
        assert (finite <= high).all()
    if fill == "special" and dtype == "bfloat16":
        assert np.isnan(values).any()
        assert np.isinf(values).any()
