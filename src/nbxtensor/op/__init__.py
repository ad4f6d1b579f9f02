"""What an op declares: plain data that needs no device and no Triton."""

from __future__ import annotations

from nbxtensor.op.declaration import (
    Array,
    Case,
    Kernel,
    Op,
    Operand,
    OpFunction,
    Place,
    Pointwise,
    declare,
    forget_prepared,
)
from nbxtensor.op.expression import Expression, Scalar, Step
from nbxtensor.op.keys import argument_key, typed
from nbxtensor.op.launch import Argument, Buffer, Call, Cost, Launch, Number, Pointer, Round, Source, Target
from nbxtensor.op.spec import Spec

__all__ = [
    "Argument",
    "Array",
    "Buffer",
    "Call",
    "Case",
    "Cost",
    "Expression",
    "Kernel",
    "Launch",
    "Number",
    "Op",
    "OpFunction",
    "Operand",
    "Place",
    "Pointer",
    "Pointwise",
    "Round",
    "Scalar",
    "Source",
    "Spec",
    "Step",
    "Target",
    "argument_key",
    "declare",
    "forget_prepared",
    "typed",
]
