"""A pointwise computation as plain data: a sequence of device-function calls over block values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nbxtensor.dtype.itemsize import bits, numpy_dtype
from nbxtensor.errors import ArgumentError
from nbxtensor.op.launch import Number, Source

__all__ = ["Expression", "Scalar", "Step"]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A step's argument that is the same for all elements.

    Attributes:
        index: Position among the expression's scalars.
        dtype: The dtype the function sees it in.
    """

    index: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Step:
    """One device-function call.

    Attributes:
        function: ``module:name`` of a Triton device function, or "" for a plain cast.
        arguments: What it is applied to: the index of a value (the expression's inputs first, then the results of
            the steps before) or a `Scalar`.
        compute: Dtype that each value argument is cast to before the call (one entry per argument).
        dtype: Dtype the result is cast to: what the value would be stored as, so that a fused chain gives the same
            bits as one kernel per step.
        reference: The same call on numpy arrays; not part of what the step is, so not compared.
        flops: Arithmetic operations per element.
    """

    function: str
    arguments: tuple[int | Scalar, ...]
    compute: tuple[str, ...]
    dtype: str
    reference: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    flops: int = 1


@dataclass(frozen=True, slots=True)
class Expression:
    """Steps over ``len(inputs)`` block values and some scalars.

    Attributes:
        inputs: Dtype of each input value.
        steps: The calls, in order.
        outputs: Index of each value that leaves (inputs first, then steps).
        scalars: Number of scalar arguments.
    """

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    scalars: int = 0

    def dtype(self, value: int) -> str:
        """Return the dtype of value ``value``."""
        count = len(self.inputs)
        return self.inputs[value] if value < count else self.steps[value - count].dtype

    def numbers(self, values: Sequence[float]) -> tuple[Number, ...]:
        """Return the launch arguments that hold the scalars' ``values``, each of a dtype its function's fits in."""
        dtypes = {
            argument.index: argument.dtype
            for step in self.steps
            for argument in step.arguments
            if isinstance(argument, Scalar)
        }
        found: list[Number] = []
        for index, value in enumerate(values):
            dtype = dtypes.get(index, "float32")
            if dtype == "bool":
                found.append(Number(int(bool(value)), "int32"))
            elif dtype.startswith(("int", "uint")):
                found.append(Number(int(value), dtype if bits(dtype) >= 32 else "int32"))
            else:
                found.append(Number(float(value), "float64" if dtype == "float64" else "float32"))
        return tuple(found)

    def then(self, following: Expression, value: int) -> Expression:
        """Return this expression with ``following`` applied to its result.

        Args:
            following: What comes after. Its other inputs become inputs of the whole, after those of this one; its
                scalars come after this one's.
            value: Which input of ``following`` the (single) result of this expression is.
        """
        if len(self.outputs) != 1:
            raise ArgumentError(f"then: an expression with one result. Got {len(self.outputs)}.")
        others = tuple(d for i, d in enumerate(following.inputs) if i != value)
        count, added = len(self.inputs), len(others)

        def own(index: int) -> int:
            return index if index < count else index + added

        extra = iter(range(count, count + added))
        place = {i: own(self.outputs[0]) if i == value else next(extra) for i in range(len(following.inputs))}
        for i in range(len(following.steps)):
            place[len(following.inputs) + i] = count + added + len(self.steps) + i
        mine = tuple(
            replace(s, arguments=tuple(a if isinstance(a, Scalar) else own(a) for a in s.arguments)) for s in self.steps
        )
        theirs = tuple(
            replace(
                s,
                arguments=tuple(
                    replace(a, index=a.index + self.scalars) if isinstance(a, Scalar) else place[a] for a in s.arguments
                ),
            )
            for s in following.steps
        )
        return Expression(
            self.inputs + others,
            mine + theirs,
            tuple(place[i] for i in following.outputs),
            self.scalars + following.scalars,
        )

    def evaluate(self, values: Sequence[Any], scalars: Sequence[float] = ()) -> tuple[Any, ...]:
        """Return what leaves the expression, computed by the steps' numpy references.

        Values are arrays in a dtype that holds them (float64 for any float); each step's result is rounded only where
        its dtype is not a float, so that the outcome is a reference and not a simulation of the kernel.

        Raises:
            ArgumentError: A step has no reference.
        """
        results = [np.asarray(v) for v in values]
        for step in self.steps:
            arguments = [scalars[a.index] if isinstance(a, Scalar) else results[a] for a in step.arguments]
            if step.function and step.reference is None:
                raise ArgumentError(f"evaluate: the step {step.function} has no reference.")
            value = np.asarray(step.reference(*arguments) if step.reference else arguments[0])
            carrier = np.dtype(numpy_dtype(step.dtype))
            floats = step.dtype.startswith(("float", "bfloat"))
            results.append(value if floats else value.astype(carrier))
        return tuple(results[i] for i in self.outputs)

    def body(self, values: tuple[str, ...], scalars: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
        """Return Triton statements that compute the expression, and the names of what leaves it.

        Args:
            values: The name of each input value in the surrounding source; each holds its input's dtype.
            scalars: The name of each scalar.

        A value of dtype "bool" is an ``int1`` block. The surrounding source must hold `imports()`.
        """
        names = list(values)
        lines: list[str] = []
        for number, step in enumerate(self.steps):
            arguments = []
            for argument, compute in zip(step.arguments, step.compute, strict=True):
                if isinstance(argument, Scalar):
                    arguments.append(_cast(scalars[argument.index], None, argument.dtype))
                else:
                    arguments.append(_cast(names[argument], self.dtype(argument), compute))
            name = f"t{number}"
            module, _, function = step.function.rpartition(":")
            inner = f"{_alias(module)}.{function}({', '.join(arguments)})" if function else arguments[0]
            source = None if function else step.compute[0]
            lines.append(f"{name} = {_cast(inner, source, step.dtype)}")
            names.append(name)
        return lines, tuple(names[i] for i in self.outputs)

    def imports(self) -> list[str]:
        """Return the import lines that `body` relies on."""
        modules = sorted({step.function.rpartition(":")[0] for step in self.steps if step.function})
        return ["import triton", "import triton.language as tl", *(f"import {m} as {_alias(m)}" for m in modules)]

    def device_function(self, name: str, values: int = 0, scalars: int = 0) -> Source:
        """Return a Triton device function ``name(v0, v1, ..., s0, s1, ...)`` that computes the expression.

        Args:
            name: What it is called.
            values: Number of value parameters, where a kernel passes more than the expression has (0: just as many).
            scalars: Number of scalar parameters, likewise.
        """
        parameters = tuple(f"v{i}" for i in range(max(values, len(self.inputs))))
        numbers = tuple(f"s{i}" for i in range(max(scalars, self.scalars)))
        lines, results = self.body(parameters[: len(self.inputs)], numbers)
        text = "\n".join(
            [
                *self.imports(),
                "",
                "",
                "@triton.jit",
                f"def {name}({', '.join((*parameters, *numbers))}):",
                *("    " + line for line in lines),
                f"    return {', '.join(results)}",
                "",
            ]
        )
        return Source(name, text)


def _alias(module: str) -> str:
    return "_" + module.replace(".", "_")


def _cast(name: str, source: str | None, target: str) -> str:
    """Return Triton source that turns a block of dtype ``source`` (None: not known) into ``target``."""
    if source == target:
        return name
    if target == "bool":
        return f"({name} != 0)"
    return f"tl.cast({name}, tl.{target})"
