"""Our way to compute a declared case: as a recorded program, and eagerly."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import nbxtensor as nbx
from bench.race import Contender
from nbxtensor import ops
from nbxtensor.op import Case, Op, Spec

# Operands that a model knows when it is loaded.
_WEIGHTS = ("weight", "bias")


@dataclass(frozen=True)
class Timed:
    """A declared case that is timed.

    Attributes:
        op: The op.
        function: Its public function.
        case: The case.
        weights: Operands that are weights of the program: prepared when it is loaded.
    """

    op: Op
    function: Callable[..., Any]
    case: Case
    weights: tuple[str, ...]

    @property
    def name(self) -> str:
        """The op, its shapes and dtype, its parameters, and what was packed beforehand."""
        shapes = " ".join("x".join(map(str, s.shape)) for s in self.case.operands.values())
        dtype = next(iter(self.case.operands.values())).dtype
        told = "".join(f" {key}={value}" for key, value in self.case.params.items())
        packed = "".join(f" {name} packed" for name in self.weights if name not in _WEIGHTS)
        return f"{self.op.name} {shapes} {dtype}{told}{packed}"

    @property
    def call(self) -> Any:
        """The call that the case is, on the CPU."""
        target = nbx.device("cpu").target
        present = {name.rpartition(".")[0] or name for name in self.case.operands}
        defaults = {n: p.default for n, p in self.op.signature.parameters.items() if n not in present}
        return self.op.call(self.case.operands, {**defaults, **self.case.params}, target)


def timed_cases(only: str = "") -> Iterator[Timed]:
    """Yield every case marked for timing of every exported op whose name contains ``only``."""
    found: dict[str, tuple[Op, Callable[..., Any]]] = {}
    for module in pkgutil.walk_packages(ops.__path__, "nbxtensor.ops."):
        if module.name.endswith(".kernel"):
            continue
        loaded = importlib.import_module(module.name)
        for name in getattr(loaded, "__all__", ()):
            function = getattr(loaded, name)
            if isinstance(getattr(function, "op", None), Op):
                found[function.op.name] = (function.op, function)
    for name in sorted(found):
        op, function = found[name]
        for case in op.cases:
            if case.bench and only in name:
                known = tuple(n for n in case.operands if n in _WEIGHTS)
                yield Timed(op, function, case, known)
                if name == "matmul":
                    yield Timed(op, function, case, ("y",))


def arrays(timed: Timed) -> dict[str, np.ndarray]:
    """Return values for the operands, laid out as the case has them."""
    rng = np.random.default_rng(0)
    return {name: _array(spec, timed.case.fill.get(name, ""), rng) for name, spec in timed.case.operands.items()}


def _array(spec: Spec, fill: str, rng: np.random.Generator) -> np.ndarray:
    order = _order(spec)
    shape = tuple(spec.shape[axis] for axis in order)
    if fill.startswith("index:"):
        values = rng.integers(0, int(fill.removeprefix("index:")), shape).astype(spec.dtype)
    elif spec.dtype == "bool":
        values = rng.random(shape) < 0.5
    elif spec.dtype.startswith("float"):
        values = rng.standard_normal(shape).astype(spec.dtype)
        values = np.abs(values) + np.asarray(1e-2, spec.dtype) if fill == "positive" else values
    else:
        values = rng.integers(0, 100, shape).astype(spec.dtype)
    return values.transpose(np.argsort(order))


def _order(spec: Spec) -> list[int]:
    """Return the axes from the slowest to the fastest in memory; the case has to be a permuted packed array."""
    order = sorted(range(spec.ndim), key=lambda axis: -spec.strides[axis])
    packed = Spec(tuple(spec.shape[axis] for axis in order), spec.dtype)
    if packed.strides != tuple(spec.strides[axis] for axis in order):
        raise ValueError(f"a case with gaps or repeats is not timed: {spec}")
    return order


def recorded(timed: Timed, values: Mapping[str, np.ndarray]) -> tuple[Contender, Any]:
    """Return the case as a recorded program, and the recording."""
    weights = {n: values[n] for n in timed.weights}
    inputs = [n for n in values if n not in weights]
    orders = {n: _order(timed.case.operands[n]) for n in inputs}
    packed = {n: np.ascontiguousarray(values[n].transpose(orders[n])) for n in inputs}

    def whole(given: Mapping[str, Any], *tensors: Any) -> Any:
        views = {n: t.permute(*map(int, np.argsort(orders[n]))) for n, t in zip(inputs, tensors, strict=True)}
        return _called(timed, {**views, **given})

    specs = [Spec(packed[n].shape, timed.case.operands[n].dtype) for n in inputs]
    known = {n: Spec(v.shape, timed.case.operands[n].dtype) for n, v in weights.items()}
    graph = nbx.trace(whole, *specs, weights=known, name=timed.op.name)
    recording = nbx.plan(graph, device="cpu").load(weights).capture(*packed.values())
    recording.program.fill(tuple(packed.values()))

    def value(_: object) -> np.ndarray:
        results = recording.program.results(borrow=True)
        return (results[0] if isinstance(results, tuple) else results).numpy()

    return Contender("ours", recording.replay, value, "recorded"), recording


def eager(timed: Timed, values: Mapping[str, np.ndarray]) -> Contender:
    """Return the case as a plain call on tensors."""
    tensors = {name: nbx.asarray(value) for name, value in values.items()}

    def run() -> Any:
        return _called(timed, tensors)

    def value(result: Any) -> np.ndarray:
        return (result[0] if isinstance(result, tuple) else result).numpy()

    return Contender("eager", run, value)


def _called(timed: Timed, tensors: Mapping[str, Any]) -> Any:
    """Call the op by its signature: tensors by name, sequences gathered, parameters as in the case."""
    given: dict[str, Any] = dict(timed.case.params)
    for name, tensor in tensors.items():
        group = name.rpartition(".")[0]
        if group:
            given.setdefault(group, []).append(tensor)
        else:
            given[name] = tensor
    positional = [
        given.pop(n) for n, p in timed.op.signature.parameters.items() if p.kind is p.POSITIONAL_ONLY and n in given
    ]
    return timed.function(*positional, **given)
