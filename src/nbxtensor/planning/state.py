"""State that outlives a run: from new values as results to nodes that write them where the old ones lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from nbxtensor.errors import PlanError
from nbxtensor.op import Op, Spec, Target
from nbxtensor.planning.alias import is_whole, lies_on
from nbxtensor.planning.graph import Graph, GraphBuffer, Node, Ref

__all__ = ["settle"]


def settle(graph: Graph, copy: Op, target: Target | None = None) -> Graph:
    """Return ``graph`` with every new value of a state (`Graph.new_state`) written to the state by a node.

    Where ``target`` is given, the node that makes a new value writes it straight to the state, if that is safe: the
    value fills a buffer of its own in the state's layout, nothing reads the old value later, and the node does not
    read it or can work in place (`alias.lies_on`). A chain of nodes that work in place on one another takes the state
    over from its first. A value that nothing else reads and that is made from inputs, weights and states alone is
    made at the end, after the last reader of the old value. All else is copied at the end, in an order in which no
    state is overwritten before it is read; where there is no such order (two states that swap), one goes through a
    temporary. Outputs that show a state's old value are copied before it is overwritten.

    Args:
        graph: The graph.
        copy: The op that copies its operand ``x``.
        target: What the graph is planned for; None: every new value is copied.

    Raises:
        PlanError: A state that changes has no name or no spec.
        UnsupportedError: No kernel serves a node that could work in place.
    """
    settling = _Settling(graph, copy)
    if target is not None:
        for index in tuple(settling.pending):
            settling.take_over(index, target)
        for index in tuple(settling.pending):
            settling.sink(index, target)
    settling.finish()
    return settling.result()


@dataclass(frozen=True, slots=True)
class _Late:
    """What writes a state after all other nodes.

    Attributes:
        node: The node.
        reads: The states whose old values it reads, its own left out where it can work in place on it.
    """

    node: Node
    reads: frozenset[int]


class _Settling:
    """The graph while new values find their places."""

    def __init__(self, graph: Graph, copy: Op) -> None:
        self.graph = graph
        self.copy = copy
        self.buffers = list(graph.buffers)
        self.nodes: list[Node | None] = list(graph.nodes)
        self.outputs = graph.outputs
        states = {b.name: i for i, b in graph.of_kind("state") if b.name and b.spec is not None}
        lacking = [name for name in graph.new_state if name not in states]
        if lacking:
            raise PlanError(f"{graph.name}: a state that changes has a name and a spec. Got {', '.join(lacking)}.")
        given = {states[name]: _normal(ref) for name, ref in graph.new_state.items()}
        self.pending = {i: ref for i, ref in given.items() if ref.spec.numel and ref != self._whole(i)}
        self.changed = frozenset(self.pending)
        self.late: dict[int, _Late] = {}

    def _whole(self, state: int) -> Ref:
        """Return the view that is all of a state."""
        spec = self.buffers[state].spec
        if spec is None:
            raise PlanError(f"{self.graph.name}: state {state} has no spec.")
        return Ref(state, spec.packed())

    def _places(self, buffer: int, *, written: bool) -> list[int]:
        """Return the nodes that write, or read, ``buffer``."""
        return [
            place
            for place, node in enumerate(self.nodes)
            if node is not None
            and any(ref.buffer == buffer for ref in (node.outputs if written else node.operands.values()))
        ]

    def _node(self, place: int) -> Node:
        node = self.nodes[place]
        if node is None:
            raise PlanError(f"{self.graph.name}: node {place} has moved.")
        return node

    # ---- in place

    def take_over(self, state: int, target: Target) -> None:
        """Let the node that makes the new value of ``state``, or a chain of nodes, write to the state itself."""
        ref = self.pending[state]
        if ref != replace(self._whole(state), buffer=ref.buffer) or not is_whole(self.graph, ref):
            return
        if any(other.buffer == state for other in self.pending.values()):
            return
        reads = self._places(state, written=False)
        chain = list(self._chain(ref.buffer, target))
        for count in range(len(chain), 0, -1):  # the longest first: it leaves the fewest copies
            place, index = chain[count - 1]
            if not any(at > place for at in reads) and self._writes_safely(state, place, index, target):
                self._move({self._node(at).outputs[i].buffer for at, i in chain[:count]}, state)
                del self.pending[state]
                return

    def _chain(self, buffer: int, target: Target) -> Iterator[tuple[int, int]]:
        """Yield (node, result) that writes ``buffer``, then what writes the temporary it works in place on, and on."""
        leaving = {ref.buffer for ref in (*self.outputs, *self.pending.values())}
        while True:
            places = self._places(buffer, written=True)
            indices = [i for place in places for i, r in enumerate(self._node(place).outputs) if r.buffer == buffer]
            if len(indices) != 1 or not is_whole(self.graph, self._node(places[0]).outputs[indices[0]]):
                return
            place, index = places[0], indices[0]
            yield place, index
            node = self._node(place)
            written = {ref.buffer for ref in node.outputs}
            free = (
                ref.buffer
                for name, ref in node.operands.items()
                if is_whole(self.graph, ref)
                and ref.buffer not in leaving | written
                and self._places(ref.buffer, written=False)[-1] == place
                and lies_on(node, index, name, target)
            )
            found = next(free, None)
            if found is None:
                return
            buffer = found

    def _writes_safely(self, state: int, place: int, index: int, target: Target) -> bool:
        """Return whether a node may write a result to ``state``, whose old value it may read."""
        node = self._node(place)
        names = [name for name, ref in node.operands.items() if ref.buffer == state]
        if any(ref.buffer == state for ref in node.outputs):
            return False
        return not names or (node.operands[names[0]] == self._whole(state) and lies_on(node, index, names[0], target))

    def _move(self, buffers: set[int], state: int) -> None:
        """Let ``state`` take the place of ``buffers`` everywhere."""

        def moved(ref: Ref) -> Ref:
            return replace(ref, buffer=state) if ref.buffer in buffers else ref

        for place, node in enumerate(self.nodes):
            if node is not None:
                operands = {name: moved(ref) for name, ref in node.operands.items()}
                self.nodes[place] = replace(node, operands=operands, outputs=tuple(map(moved, node.outputs)))
        self.outputs = tuple(map(moved, self.outputs))
        self.pending = {i: moved(ref) for i, ref in self.pending.items()}

    # ---- at the end

    def sink(self, state: int, target: Target) -> None:
        """Move the node that makes the new value of ``state`` to the end, where nothing else needs it earlier."""
        ref = self.pending[state]
        if ref != replace(self._whole(state), buffer=ref.buffer) or not is_whole(self.graph, ref):
            return
        places = self._places(ref.buffer, written=True)
        leaving = [r.buffer for r in (*self.outputs, *self.pending.values())]
        if len(places) != 1 or self._places(ref.buffer, written=False) or leaving.count(ref.buffer) != 1:
            return
        node = self._node(places[0])
        sources = {r.buffer for r in node.operands.values()}
        settled = self.changed - self.pending.keys() - self.late.keys()
        kept = all(self.buffers[i].kind != "temporary" and i not in settled for i in sources)
        if len(node.outputs) != 1 or not is_whole(self.graph, node.outputs[0]):
            return
        if not kept or not self._writes_safely(state, places[0], 0, target):
            return
        self.nodes[places[0]] = None
        # The node's own view of the value may have another shape than the state.
        written = replace(node.outputs[0], buffer=state)
        self.late[state] = _Late(replace(node, outputs=(written,)), frozenset(sources - {state}))

    def finish(self) -> None:
        """Append what is left, in an order in which each old value is read before it is overwritten."""
        waiting = {
            state: self.late[state] if state in self.late else self._copied(ref, self._whole(state))
            for state, ref in self.pending.items()
        }
        while waiting:
            read = {state: {i for i, late in waiting.items() if state in late.reads} for state in waiting}
            free = next((state for state in waiting if not read[state]), None)
            if free is not None:
                self.nodes.append(waiting.pop(free).node)
                continue
            state = next(iter(waiting))
            kept = self._temporary(self._whole(state).spec)
            node = waiting[state].node
            self.nodes.append(replace(node, outputs=(replace(node.outputs[0], buffer=kept.buffer),)))
            waiting[state] = self._copied(kept, self._whole(state))

    def _copied(self, source: Ref, to: Ref) -> _Late:
        old = self.changed & {source.buffer} & self.pending.keys()
        return _Late(Node(self.copy, {"x": source}, (to,), {}), old)

    def _temporary(self, spec: Spec) -> Ref:
        self.buffers.append(GraphBuffer(spec.nbytes, "temporary"))
        return Ref(len(self.buffers) - 1, spec.packed())

    def result(self) -> Graph:
        """Return the graph, outputs that show old values kept."""
        nodes = [node for node in self.nodes if node is not None]
        kept = self._kept(self.graph.outputs)
        for ref, copied in kept.items():
            first = next(i for i, node in enumerate(nodes) if any(r.buffer == ref.buffer for r in node.outputs))
            nodes.insert(first, Node(self.copy, {"x": ref}, (copied,), {}))
        before = zip(self.graph.outputs, self.outputs, strict=True)
        outputs = tuple(kept.get(old, new) for old, new in before)
        return replace(self.graph, buffers=tuple(self.buffers), nodes=tuple(nodes), outputs=outputs, new_state={})

    def _kept(self, outputs: tuple[Ref, ...]) -> Mapping[Ref, Ref]:
        """Return a temporary for each output that shows what a changed state held before."""
        return {ref: self._temporary(ref.spec) for ref in dict.fromkeys(outputs) if ref.buffer in self.changed}


def _normal(ref: Ref) -> Ref:
    """Return ``ref`` with the strides of packed elements where they are: those of axes of extent 1 say nothing."""
    return replace(ref, spec=ref.spec.packed()) if ref.spec.is_contiguous else ref
