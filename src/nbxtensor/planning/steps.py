"""What each node of a graph runs on a target: its kernel, launches and cost, checked against each other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from nbxtensor.dtype.itemsize import bits
from nbxtensor.errors import PlanError
from nbxtensor.op import Buffer, Call, Cost, Launch, Pointer, Target, typed
from nbxtensor.planning.graph import Graph, Node

__all__ = ["PlanStep", "choose", "family", "pointers"]


@dataclass(frozen=True, slots=True)
class PlanStep:
    """What one node runs.

    Attributes:
        kernel: Name of the chosen kernel; "" where no result has an element, so that there is nothing to run.
        launches: Its launches, in order.
        cost: What they take.
    """

    kernel: str
    launches: tuple[Launch, ...]
    cost: Cost

    @property
    def moments(self) -> int:
        """Moments of time the node takes: its launches, and at least one."""
        return max(len(self.launches), 1)


def family(node: Node) -> str:
    """Return the op family of a node: the folder its op is declared in ("matmul"), or the op's name without one."""
    folders = [part for part in node.op.module.split(".") if part]
    return folders[-2] if len(folders) > 1 else node.op.name


def pointers(launch: Launch) -> Iterator[Pointer]:
    """Yield every address that ``launch`` is given."""
    return (a for a in launch.arguments.values() if isinstance(a, Pointer))


def choose(graph: Graph, target: Target) -> tuple[PlanStep, ...]:
    """Return what each node of ``graph`` runs on ``target``.

    Raises:
        UnsupportedError: No kernel serves a node.
        PlanError: A kernel's launches name an operand, a result or workspace that the call or the kernel's cost does
            not have, or workspace outside its declared lifetime.
    """
    # Declarations are functions of the call alone, and the layers of a model make the same calls.
    known: dict[Hashable, PlanStep] = {}
    steps: list[PlanStep] = []
    for place, node in enumerate(graph.nodes):
        kinds = {name: graph.buffers[ref.buffer].kind for name, ref in node.operands.items()}
        fixed = frozenset(name for name, kind in kinds.items() if kind in ("weight", "constant"))
        call = replace(node.call(target), fixed=fixed)
        key = _key(call)
        step = None if key is None else known.get(key)
        if step is None:
            step = _step(f"{graph.name}, node {place} ({node.op.name})", node, call)
            if key is not None:
                known[key] = step
        steps.append(step)
    return tuple(steps)


def _key(call: Call) -> Hashable | None:
    """Return what calls on one target are the same by; None where a parameter is not hashable."""
    params = tuple((name, typed(value)) for name, value in call.params.items())
    places = tuple(call.in_place.items())
    key = (call.op, tuple(call.inputs.items()), params, call.outputs, places, call.fixed)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _step(where: str, node: Node, call: Call) -> PlanStep:
    if not any(spec.numel for spec in call.outputs):
        return PlanStep("", (), Cost(0, 0, 0))
    kernel = node.op.kernel(call)
    step = PlanStep(kernel.name, kernel.launch(call), kernel.cost(call))
    buffers = {b.name: b for b in step.cost.buffers}
    if len(buffers) != len(step.cost.buffers):
        raise PlanError(f"{where}: kernel {kernel.name} declares two workspace buffers of one name.")
    for buffer in buffers.values():
        if buffer.nbytes < 0 or not 0 <= buffer.first <= buffer.last < step.moments:
            raise PlanError(
                f"{where}: workspace lives inside the launches of its kernel. Got {buffer} of {kernel.name}, which "
                f"makes {len(step.launches)}."
            )
    for number, launch in enumerate(step.launches):
        for pointer in pointers(launch):
            _check_pointer(f"{where}, launch {number} of {kernel.name}", node, buffers, number, pointer)
    return step


def _check_pointer(where: str, node: Node, buffers: dict[str, Buffer], launch: int, pointer: Pointer) -> None:
    if pointer.role == "input":
        known = pointer.key in node.operands
    elif pointer.role == "output":
        known = isinstance(pointer.key, int) and 0 <= pointer.key < len(node.outputs)
    else:
        known = pointer.key in buffers
    if not known:
        have = {"input": list(node.operands), "output": list(range(len(node.outputs)))}
        raise PlanError(
            f"{where}: a launch names what the call has. Got {pointer.role} {pointer.key!r}. "
            f"The call has {have.get(pointer.role, list(buffers))}."
        )
    if pointer.role != "workspace":
        return
    buffer = buffers[str(pointer.key)]
    if not buffer.first <= launch <= buffer.last:
        raise PlanError(
            f"{where}: workspace is used within its declared lifetime. Got {buffer.name!r} in launch {launch}. It "
            f"lives in launches {buffer.first} to {buffer.last}."
        )
    if not 0 <= pointer.offset * bits(pointer.dtype) <= 8 * buffer.nbytes:
        raise PlanError(
            f"{where}: an address lies inside its workspace. Got element {pointer.offset} of dtype {pointer.dtype} of "
            f"{buffer.name!r} ({buffer.nbytes} bytes)."
        )
