"""Norms go into the layers that read them where a GPU makes single rows, and nowhere else; the values stay."""

from __future__ import annotations

import numpy as np

import nbxtensor as nbx
from nbxtensor.backend import device_files
from nbxtensor.op import Target
from nbxtensor.planning.interpret import interpret
from nbxtensor.tracing.norms import fold_norms

HIDDEN, WIDE = 64, 96
WEIGHTS = {"norm": (HIDDEN,), "gate": (WIDE, HIDDEN), "up": (WIDE, HIDDEN), "down": (HIDDEN, WIDE)}


def h200() -> Target:
    facts = device_files.facts("nvidia", "h200")
    return Target("cuda", "sm_90", frozenset(facts["dtypes.computed"]), {"compute.units": 132, **facts})


def block(weights, x):
    normal = nbx.rms_norm(x, HIDDEN, weights["norm"], 1e-3)
    gate = nbx.silu(nbx.linear(normal, weights["gate"]))
    return nbx.linear(gate * nbx.linear(normal, weights["up"]), weights["down"]) + x


def traced(fn, rows: int, dtype: str = "float32"):
    weights = {name: nbx.Spec(shape, dtype) for name, shape in WEIGHTS.items()}
    return nbx.trace(fn, nbx.Spec((1, rows, HIDDEN), dtype), weights=weights)


def ops(graph, device=None) -> list[str]:
    target = device or h200()
    folded = fold_norms(graph, target if isinstance(target, Target) else nbx.device(target).target)
    return [node.op.name for node in nbx.plan(folded, device=target).graph.nodes]


def test_a_row_is_normed_by_the_layers_that_read_it():
    assert ops(traced(block, 1)) == ["rms_norm_linear", "rms_norm_linear", "linear"]
    assert ops(traced(block, 1, "bfloat16")) == ["rms_norm_linear", "rms_norm_linear", "linear"]


def test_several_rows_and_other_devices_keep_the_norm():
    assert ops(traced(block, 2))[0] == "rms_norm"
    assert "rms_norm" in ops(traced(block, 1), "cpu")


def test_a_norm_that_something_else_reads_stays():
    def added(weights, x):
        normal = nbx.rms_norm(x, HIDDEN, weights["norm"])
        return nbx.linear(normal, weights["gate"]), nbx.max(normal, axis=-1)

    def left(weights, x):
        normal = nbx.rms_norm(x, HIDDEN, weights["norm"])
        return nbx.linear(normal, weights["gate"]), normal

    def part(weights, x):
        normal = nbx.rms_norm(x, HIDDEN, weights["norm"])
        return nbx.linear(normal[..., :32], weights["gate"][:, :32])

    def bare(weights, x):
        return nbx.linear(nbx.rms_norm(x, HIDDEN), weights["gate"])

    for fn in (added, left, part, bare):
        assert "rms_norm" in ops(traced(fn, 1)), fn.__name__


def test_the_values_stay():
    graph = traced(block, 1)
    rng = np.random.default_rng(1)
    values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in WEIGHTS.items()}
    values |= {b.name: rng.standard_normal((1, 1, HIDDEN)).astype(np.float32) for _, b in graph.of_kind("input")}
    folded = fold_norms(graph, h200())
    assert len(folded.nodes) == len(graph.nodes) - 1
    (want,), (got,) = (interpret(g, values) for g in (graph, folded))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)
