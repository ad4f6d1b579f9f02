"""No op keeps memory a launch longer than it needs: every life that is shortened by one is found by an audit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.ops import harness
from tests.ops.declared import graph_of, values_of

from nbxtensor.capture.audit import audit
from nbxtensor.capture.loading import PlanLoader
from nbxtensor.errors import PlanError
from nbxtensor.planning.plan import plan
from nbxtensor.run import device

if TYPE_CHECKING:
    from nbxtensor.op import Op

# Poison is true, and so are most random values: bytes that are gone may leave the same answer.
_BLIND = ("all", "any", "count_nonzero")


def _several() -> list[object]:
    """Return the cases that take several launches or workspace, the first three of each op."""
    found = []
    for op in harness.declared_ops():
        taken = 0
        for index, case in enumerate(op.cases):
            call = harness.call_of(op, case, device("cpu").target)
            if case.bench or taken == 3 or op.name in _BLIND or not call.outputs[0].numel:
                continue
            if op.kernel(call).cost(call).buffers:
                taken += 1
                found.append(pytest.param(op, index, id=harness.case_id(op, index)))
    return found


@pytest.mark.parametrize(("op", "index"), _several())
def test_each_life_is_needed(op: Op, index: int):
    cpu, case = device("cpu"), op.cases[index]
    call = harness.call_of(op, case, cpu.target)
    given = harness.operands(case, harness.case_seed(op, index))
    made = plan(graph_of(call, op.kernel(call), given), cpu.target, loader=PlanLoader(cpu))
    inputs = {f"b{i}" for i, _ in made.graph.of_kind("input")}
    shortened = 0
    for number, life in enumerate(made.lifetimes):
        if life.id in inputs or life.upper - life.lower == 1:
            continue
        for changes in ({"lower": life.lower + 1}, {"upper": life.upper - 1}):
            lives = list(made.lifetimes)
            lives[number] = replace(life, **changes)
            with pytest.raises(PlanError):
                audit(made, *values_of(given), lifetimes=lives)
            shortened += 1
    assert shortened
