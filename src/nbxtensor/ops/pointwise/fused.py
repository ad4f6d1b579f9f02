"""Pointwise calls as expressions, and expressions as ops."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.errors import ArgumentError
from nbxtensor.op import Call, Cost, Expression, Kernel, Launch, Op, Pointwise, Scalar, Spec, Step
from nbxtensor.ops.pointwise import generate

__all__ = ["expression_of", "fused", "operands_of", "pointwise_kernel", "scalars_of"]


def expression_of(call: Call) -> Expression:
    """Return the one-step expression of a pointwise call whose results are known.

    Its inputs are `operands_of`, its scalars `scalars_of` the call.

    Raises:
        ArgumentError: The op is not pointwise.
    """
    how = _how(call)
    inputs = operands_of(call)
    numbers = [name for name in how.operands if name not in call.inputs]
    arguments = tuple(
        inputs.index(name) if name in call.inputs else Scalar(numbers.index(name), dtype)
        for name, dtype in zip(how.operands, how.compute, strict=True)
    )
    step = Step(
        how.function, arguments, how.compute, call.outputs[0].dtype, reference=_reference(call, how), flops=how.flops
    )
    return Expression(tuple(call[name].dtype for name in inputs), (step,), (len(inputs),), len(numbers))


def operands_of(call: Call) -> tuple[str, ...]:
    """Return the names of the operands that are the inputs of a pointwise call's expression, in order."""
    return tuple(name for name in _how(call).operands if name in call.inputs)


def scalars_of(call: Call) -> tuple[float, ...]:
    """Return the values of the scalars of a pointwise call's expression, in order."""
    return tuple(call.params[name] for name in _how(call).operands if name not in call.inputs)


def _how(call: Call) -> Pointwise:
    if call.op.pointwise is None:
        raise ArgumentError(f"{call.op.name}: an expression is made of pointwise ops. Got one that is not.")
    return call.op.pointwise(call)


def _reference(call: Call, how: Pointwise) -> Callable[..., Any]:
    """The op's reference as a function of the expression's arguments alone."""

    def evaluate(*values: Any) -> Any:
        given = {**call.params, **dict(zip(how.operands, values, strict=True))}
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for name, parameter in call.op.signature.parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                named[name] = given[name]
            else:
                positional.append(given[name])
        return call.op.reference(*positional, **named)

    return evaluate


def pointwise_kernel(
    name: str,
    plan: Callable[[Call], tuple[Expression, tuple[str, ...], Sequence[float]]],
) -> Kernel:
    """Return the kernel that computes an expression in one pass over its operands.

    Args:
        name: What the generated function is called after.
        plan: The expression of a call, the operand of each input, and the value of each scalar.
    """

    def cost(call: Call) -> Cost:
        expression, _, _ = plan(call)
        flops = sum(step.flops for step in expression.steps) * call.outputs[0].numel
        return Cost(flops, call.operand_nbytes if call.outputs[0].numel else 0, call.result_nbytes)

    def launch(call: Call) -> tuple[Launch, ...]:
        expression, operands, scalars = plan(call)
        return generate.launches(name, call, expression, operands, expression.numbers(scalars))

    return Kernel(name, cost, launch, strided=True)


@functools.lru_cache(maxsize=1024)
def fused(expression: Expression, name: str = "fused_pointwise") -> Op:
    """Return the op that computes ``expression`` over operands that broadcast to one shape.

    Its signature is ``name(operands, scalars=())``: one tensor for each input and one number for each scalar of the
    expression. It returns one tensor for each of the expression's outputs (a tuple where there are several), with the
    bits that its steps would give one by one.
    """

    def stub(operands: Any, scalars: tuple[float, ...] = ()) -> Any:
        """Return the results of a pointwise expression."""

    def result(call: Call) -> tuple[Spec, ...]:
        specs = call.sequence("operands")
        if tuple(s.dtype for s in specs) != expression.inputs:
            raise ArgumentError(
                f"{name}: one operand for each input of the expression. Got {[s.dtype for s in specs]}. "
                f"{list(expression.inputs)} are accepted."
            )
        shape = shapes.broadcast_shapes(*(s.shape for s in specs))
        return tuple(Spec(shape, expression.dtype(value)) for value in expression.outputs)

    def reference(operands: Sequence[Any], scalars: Sequence[float] = ()) -> Any:
        results = expression.evaluate(operands, scalars)
        shape = np.broadcast_shapes(*(np.shape(o) for o in operands))
        stretched = [np.broadcast_to(r, shape) for r in results]
        return tuple(stretched) if len(stretched) > 1 else stretched[0]

    def plan(call: Call) -> tuple[Expression, tuple[str, ...], Sequence[float]]:
        return expression, _members(call.inputs), call.params["scalars"]

    return Op(
        name=name,
        module="nbxtensor.ops.pointwise.kernel",
        signature=inspect.signature(stub),
        operands=("operands",),
        result=result,
        reference=reference,
        kernels=(pointwise_kernel(name, plan),),
        cases=(),
        doc=inspect.getdoc(stub) or "",
        expression=expression,
    )


def _members(inputs: Mapping[str, Spec]) -> tuple[str, ...]:
    return tuple(key for key in inputs if key.rpartition(".")[0] == "operands")
