"""How a pointwise op is declared: its rule of dtypes, its numpy reference, and cases that follow from both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from nbxtensor import shape as shapes
from nbxtensor.dtype.itemsize import is_storage_only, kind
from nbxtensor.errors import ArgumentError, DtypeError
from nbxtensor.op import Call, Case, Expression, OpFunction, Pointwise, Spec, declare
from nbxtensor.ops.pointwise.fused import expression_of, operands_of, pointwise_kernel, scalars_of
from nbxtensor.ops.pointwise.rules import FLOAT, FLOATS, Rule

__all__ = ["pointwise"]

P = ParamSpec("P")
R = TypeVar("R")

_FUNCTIONS = "nbxtensor.ops.pointwise.kernel"


def pointwise(
    rule: Rule,
    reference: Callable[..., Any],
    *,
    flops: int = 1,
    function: Callable[[Call], str] | None = None,
    masks: Sequence[str] = (),
    static: Sequence[str] = (),
    fill: str = "",
    dtypes: Sequence[str] = (),
    rtol: Mapping[str, float] | None = None,
    params: Mapping[str, Any] | None = None,
    cases: Sequence[Case] = (),
) -> Callable[[Callable[P, R]], OpFunction[P, R]]:
    """Declare a pointwise op: every parameter of the stub that is not ``static`` is an operand of its function.

    Args:
        rule: Its rule of dtypes, applied to what the operands promote to.
        reference: The same function on numpy arrays; floats are given in float64.
        flops: Arithmetic operations per element, as `kernel` writes the function.
        function: Name of the device function of a call; left out, the op's own name.
        masks: Operands read as bools, which take no part in promotion.
        static: Parameters that choose the function and are not passed to it.
        fill: How the floats of the cases made here are filled, where the function is not defined everywhere.
        dtypes: Dtypes of the cases made here beside float32 with special values; left out, some that ``rule`` accepts.
        rtol: Bound of the cases made here by result dtype, where the function is worse than the harness's bound.
        params: Parameters of the cases made here.
        cases: More cases.
    """

    def wrap(stub: Callable[P, R]) -> OpFunction[P, R]:
        name = stub.__name__
        signature = inspect.signature(stub)
        operands = tuple(n for n in signature.parameters if n not in static)

        def given(call: Call) -> tuple[str, ...]:
            return tuple(n for n in operands if n in call.inputs or call.params.get(n) is not None)

        def common(call: Call) -> str:
            promoting = (n for n in given(call) if n not in masks)
            numbers = [call[n].dtype if n in call.inputs else _number(name, n, call.params[n]) for n in promoting]
            return rule.common(name, tuple(numbers))

        def result(call: Call) -> Spec:
            for mask in masks:
                if mask in call.inputs and is_storage_only(call[mask].dtype):
                    raise DtypeError(
                        f"{name}: {mask} is of no storage-only dtype. Got {call[mask].dtype}. astype converts it."
                    )
            shape = shapes.broadcast_shapes(*(spec.shape for spec in call.inputs.values()), op=call.op.name)
            return Spec(shape, rule.result(common(call)))

        def how(call: Call) -> Pointwise:
            compute = rule.compute(common(call))
            names = given(call)
            chosen = function(call) if function else name
            return Pointwise(
                f"{_FUNCTIONS}:{chosen}" if chosen else "",
                names,
                tuple("bool" if n in masks else compute for n in names),
                flops,
            )

        def plan(call: Call) -> tuple[Expression, tuple[str, ...], Sequence[float]]:
            return expression_of(call), operands_of(call), scalars_of(call)

        tensors = tuple(n for n in operands if "Tensor" in str(signature.parameters[n].annotation))
        made = _cases(rule, tensors, masks, fill, dtypes, rtol or {}, params or {})
        return declare(
            result=result,
            reference=_in_floats(reference) if rule is FLOAT else reference,
            kernels=(pointwise_kernel(name, plan),),
            cases=(*made, *cases),
            pointwise=how,
        )(stub)

    return wrap


def _number(op: str, name: str, value: Any) -> float:
    if isinstance(value, (bool, int, float)):
        return value
    raise ArgumentError(
        f"{op}: {name} is a tensor or a number. Got {type(value).__name__}. Tensors and Python numbers."
    )


def _in_floats(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference with integers and bools read as the rule reads them: as float32, with a Python float as float64."""

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        read = np.float64 if any(isinstance(a, float) for a in args) else np.float32
        return reference(
            *(
                a.astype(read).astype(np.float64) if isinstance(a, np.ndarray) and a.dtype.kind in "iub" else a
                for a in args
            ),
            **kwargs,
        )

    return evaluate


_LAYOUTS = {  # shape, strides: contiguous, gaps between rows, permuted
    "float32": ((7, 37), ()),
    "float16": ((3, 5, 4), (20, 1, 5)),
    "bfloat16": ((4, 33), (40, 1)),
    "float64": ((130,), ()),
    "int32": ((1, 65), ()),
    "int64": ((9,), (2,)),
    "int8": ((300,), ()),
    "uint8": ((6, 6), (1, 6)),
    "bool": ((2, 3, 3), ()),
}


def _cases(
    rule: Rule,
    tensors: tuple[str, ...],
    masks: Sequence[str],
    fill: str,
    dtypes: Sequence[str],
    rtol: Mapping[str, float],
    params: Mapping[str, Any],
) -> list[Case]:
    """Return cases over the dtypes that ``rule`` accepts: special values, layouts, broadcasting, no and one element."""
    others = ("int32",) if rule is FLOAT else ("int32", "uint8", "bool")
    accepted = [d for d in (dtypes or (*FLOATS, *others)) if kind(d) in rule.kinds]
    required = [n for n in tensors if n not in params]

    def case(dtype: str, specs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], filled: str) -> Case:
        own = [n for n in required if n not in masks]
        operands = {
            n: Spec(shape, "bool" if n in masks else dtype, strides)
            for n, (shape, strides) in zip(required, specs, strict=False)
        }
        return Case(
            operands, params, fill=dict.fromkeys(own, filled) if filled else {}, rtol=rtol.get(rule.result(dtype))
        )

    first = accepted[0] if "float32" not in accepted else "float32"
    if len(required) == 1:
        found = [case(d, [_LAYOUTS[d]], fill) for d in accepted]
        found.append(case(first, [((20,), ())], fill if rtol else "special"))
        found.append(case(first, [((0, 3), ())], fill))
        return found if rule is FLOAT else [*found, case(first, [((), ())], fill)]
    same = [(_LAYOUTS[d], d) for d in accepted if d != first]
    found = [case(d, [layout] * len(required), fill) for layout, d in same]
    stretched: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((4, 1, 33), ()), ((5, 1), ()), ((1, 5, 33), (0, 0, 1))]
    found.append(case(first, (stretched * 2)[: len(required)], fill))
    crossed: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((20, 1), ()), ((20,), ()), ((20, 20), ()), ((), ())]
    found.append(case(first, crossed[: len(required)], fill if rtol else "special"))
    found.append(case(first, [((2, 0), ()), ((1,), ()), ((), ()), ((), ())][: len(required)], fill))
    return found
