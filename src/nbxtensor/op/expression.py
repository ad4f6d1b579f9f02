"""A pointwise computation as plain data: a sequence of device-function calls over block values."""

from __future__ import annotations

from dataclasses import dataclass

from nbxtensor.op.launch import Source

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
    """

    function: str
    arguments: tuple[int | Scalar, ...]
    compute: tuple[str, ...]
    dtype: str


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

    def device_function(self, name: str) -> Source:
        """Return a Triton device function ``name(v0, v1, ..., s0, s1, ...)`` that computes the expression."""
        values = tuple(f"v{i}" for i in range(len(self.inputs)))
        scalars = tuple(f"s{i}" for i in range(self.scalars))
        lines, results = self.body(values, scalars)
        text = "\n".join(
            [
                *self.imports(),
                "",
                "",
                "@triton.jit",
                f"def {name}({', '.join((*values, *scalars))}):",
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
