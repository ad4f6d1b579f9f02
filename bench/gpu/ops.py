"""Large cases of memory-bound ops and of products: time beside the price, bytes and operations per second."""

from __future__ import annotations

from typing import Any

import nbxtensor as nbx
from bench.gpu.card import Lines, short
from nbxtensor.op import Spec, Target
from nbxtensor.planning.graph import Graph
from nbxtensor.run.measuring import call_seconds

_PAST = 256 << 20  # bytes that calls take turns on: past every cache


def cases() -> list[tuple[str, dict[str, Spec], dict[str, Any]]]:
    """Return op, operands and parameters of each case."""
    found: list[tuple[str, dict[str, Spec], dict[str, Any]]] = []
    for dtype in ("bfloat16", "float32"):
        for rows, columns in ((16384, 4096), (8192, 16384)):
            x, weight = Spec((rows, columns), dtype), Spec((columns,), dtype)
            found += [
                ("add", {"x1": x, "x2": x}, {}),
                ("gelu", {"x": x}, {}),
                ("softmax", {"x": x}, {"axis": -1}),
                ("rms_norm", {"x": x, "weight": weight}, {"normalized_shape": (columns,)}),
                ("layer_norm", {"x": x, "weight": weight, "bias": weight}, {"normalized_shape": (columns,)}),
                ("sum", {"x": x}, {"axis": -1}),
            ]
        for inputs, outputs in ((4096, 14336), (14336, 4096), (4096, 4096)):
            found.append(("linear", {"x": Spec((1, inputs), dtype), "weight": Spec((outputs, inputs), dtype)}, {}))
    for dtype, side in (("bfloat16", 8192), ("float16", 8192), ("float32", 4096), ("float64", 2048), ("int8", 4096)):
        found.append(("matmul", {"x": Spec((side, side), dtype), "y": Spec((side, side), dtype)}, {}))
    return found


def call_of(name: str, operands: dict[str, Spec], given: dict[str, Any], target: Target) -> Any:
    """Return the call of an op."""
    op = getattr(nbx, name).op
    defaults = {
        n: p.default for n, p in op.signature.parameters.items() if n not in operands and p.default is not p.empty
    }
    return op.call(operands, {**defaults, **given}, target)


def run(lines: Lines) -> None:
    """Time every case."""
    device = nbx.device("cuda")
    for name, operands, given in cases():
        call = call_of(name, operands, given, device.target)
        cost = call.op.kernel(call).cost(call)
        seconds = call_seconds(device, call, apart=_PAST)
        shapes = " ".join("x".join(map(str, s.shape)) for s in operands.values())
        plan = _plan(name, operands, given)
        lines.add(
            "ops", f"{name} {shapes} {next(iter(operands.values())).dtype}", "us", 1e6 * seconds,
            priced=short(1e6 * plan.price().total.seconds),
            priced_over_measured=short(plan.price().total.seconds / seconds),
            terabytes_per_second=short((cost.read + cost.written) / seconds / 1e12),
            teraflops=short(cost.flops / seconds / 1e12) if name in ("matmul", "linear") else None,
        )  # fmt: skip


def _plan(name: str, operands: dict[str, Spec], given: dict[str, Any]) -> Any:
    """Return the plan of the call alone."""
    function = getattr(nbx, name)
    names = list(operands)

    def fn(*tensors: Any) -> Any:
        named = dict(zip(names, tensors, strict=True))
        places = {n: p.kind for n, p in function.op.signature.parameters.items()}
        plain = [named.pop(n) for n in names if places[n].name == "POSITIONAL_ONLY"]
        return function(*plain, **named, **given)

    graph: Graph = nbx.trace(fn, *operands.values(), name=name)
    return nbx.plan(graph, device="cuda")
