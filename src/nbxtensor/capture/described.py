"""Plans as text that names every op: those of the library by name, fused ones by their expression."""

from __future__ import annotations

from typing import Any

import nbxtensor
from nbxtensor.op import Expression, Op
from nbxtensor.ops.pointwise.fused import fused
from nbxtensor.planning.plan import Plan

__all__ = ["resolved", "save_plan"]


def save_plan(plan: Plan) -> str:
    """Return ``plan`` as JSON text, ops by name and fused ones by their expression; `load_plan` reads it."""
    return plan.to_json(describe=_described)


def resolved(key: Any) -> Op:
    """Return the op that `save_plan` wrote ``key`` for."""
    if isinstance(key, Expression):
        return fused(key)
    return getattr(nbxtensor, key).op


def _described(op: Op) -> Any:
    return op.expression or op.name
