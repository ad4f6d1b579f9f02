"""Audits: they pass what is true, and find each declaration that is off by one step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbxtensor as nbx
from nbxtensor.capture.audit import audit
from nbxtensor.capture.loading import PlanLoader
from nbxtensor.errors import PlanError
from nbxtensor.op import Buffer, Cost, Kernel, Launch, Source
from nbxtensor.planning.graph import Graph, GraphBuffer, Node, Ref
from nbxtensor.planning.plan import plan

WIDTH = 12
SPEC = nbx.Spec((6, WIDTH), "float32")
WEIGHTS = {"w": nbx.Spec((WIDTH, WIDTH), "float32"), "g": nbx.Spec((WIDTH,), "float32")}


@pytest.fixture(scope="module")
def cpu():
    return nbx.device("cpu")


def values(seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(spec.shape).astype(np.float32) for name, spec in WEIGHTS.items()}


def step(weights, state, x):
    """Layers with residuals, views and a cache that is updated in place."""
    y = nbx.linear(nbx.rms_norm(x, WIDTH, weights["g"]), weights["w"])
    cache = nbx.cache_update(state["cache"], y[:1], state["position"], axis=0)
    z = nbx.softmax(nbx.matmul(y, nbx.permute_dims(cache, (1, 0))), axis=-1)
    both = nbx.concat([nbx.matmul(z, cache), y * 2 + x], axis=1)
    return (both, nbx.sum(both, axis=0)), {"cache": cache, "position": state["position"] + 1}


def traced():
    state = {"cache": SPEC, "position": nbx.Spec((), "int32")}
    return nbx.plan(nbx.trace(step, SPEC, weights=WEIGHTS, state=state))


def test_what_is_true_passes():
    made = traced()
    start = {"cache": np.random.default_rng(3).standard_normal(SPEC.shape).astype(np.float32)}
    found = audit(made, weights=values(), state=start)
    assert found.launches == sum(len(s.launches) for s in made.steps)
    assert found.lifetimes == len(made.lifetimes)
    assert found.arena_nbytes == made.peak
    assert found.results_nbytes == 4 * (6 * 24 + 24) + SPEC.nbytes + 4


def test_each_lifetime_shorter_by_a_moment_is_found():
    made = traced()
    rng = np.random.default_rng(5)
    x = rng.standard_normal(SPEC.shape).astype(np.float32)
    start = {"cache": rng.standard_normal(SPEC.shape).astype(np.float32)}
    shortened = 0
    for index, life in enumerate(made.lifetimes):
        if life.upper - life.lower == 1:
            continue  # no life is shorter than a launch
        for changes in ({"lower": life.lower + 1}, {"upper": life.upper - 1}):
            is_input = made.graph.buffers[int(life.id[1:])].kind == "input" if life.id[0] == "b" else False
            if is_input and "upper" in changes:
                continue  # an input stays for the next run, whoever read it last
            lives = list(made.lifetimes)
            lives[index] = replace(life, **changes)
            with pytest.raises(PlanError, match="differs from a run"):
                audit(made, x, weights=values(), state=start, lifetimes=lives)
            shortened += 1
    assert shortened > 8


@pytest.mark.usefixtures("collection_waits")
def test_loading_and_running_allocate_what_is_declared(cpu):
    made = traced()
    cpu.allocator.trim()
    live, parked = cpu.allocator.live, cpu.allocator.parked
    program = made.load(values())
    assert parked == 0
    areas = (made.arena_nbytes, made.weights_nbytes, made.state_nbytes)
    assert cpu.allocator.live - live == sum(max(-(-n // 64), 1) * 64 for n in areas)
    x = np.ones(SPEC.shape, np.float32)
    cpu.allocator.trim()
    requests = cpu.allocator.requests
    program(x, borrow=True)
    assert cpu.allocator.requests == requests
    recording = program.capture(x)
    requests = cpu.allocator.requests
    recording(x, borrow=True)
    assert cpu.allocator.requests == requests


HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(o, x, w, n, BLOCK: tl.constexpr):\n"
BODY = """    at = tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
"""
GOOD = "    tl.store(o + at, v, mask=at < n)\n"
WRITE = "    tl.store(w + at, v, mask=at < n)\n"
READ = "    tl.store(o + at, tl.load(w + at, mask=at < n), mask=at < n)\n"


def kernel(*bodies, buffer=None, in_place=None):
    """Return a kernel of `negative` that copies eight floats by launches with the given last lines."""

    def launch(call):
        workspace = call.workspace("w", "float32") if buffer else call.output()
        arguments = {"o": call.output(), "x": call.input("x"), "w": workspace, "n": 8}
        return tuple(Launch(Source("k", HEAD + BODY + body), (1,), arguments, {"BLOCK": 16}) for body in bodies)

    def cost(call):
        return Cost(0, 32, 32, buffers=(buffer,) if buffer else ())

    return Kernel("k", cost, launch, in_place=in_place or {})


def graph(*kernels):
    """A chain of copies by the kernels, the first result an output too where there are two."""
    spec = nbx.Spec((8,), "float32")
    buffers = [GraphBuffer(32, "input", "x", spec)]
    nodes = []
    for one in kernels:
        buffers.append(GraphBuffer(32, "temporary"))
        op = replace(nbx.negative.op, kernels=(one,), pointwise=None)
        source, result = (Ref(len(buffers) - n, spec) for n in (2, 1))
        nodes.append(Node(op, {"x": source}, (result,), {}))
    outputs = tuple(node.outputs[0] for node in nodes)
    return Graph(tuple(buffers), tuple(nodes), outputs, "chain")


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ((kernel(GOOD), kernel(GOOD)), None),
        ((kernel(WRITE, READ, buffer=Buffer("w", 32, 0, 1)),), None),
        ((kernel(GOOD + "    tl.store(o + at, v, mask=at < n + 1)\n"),), r"wrote . other bytes of the arena"),
        ((kernel(GOOD + "    tl.store(x + at, v + 1, mask=at < 1)\n"),), "input x"),
        ((kernel(GOOD), kernel(GOOD + "    tl.store(x + at, v + 1, mask=at < 1)\n")), r"node 1 .*temporary 1"),
        ((kernel("    tl.store(o + at, v, mask=at < n - 1)\n"),), "output 0 differs"),
        ((kernel(WRITE, READ, buffer=Buffer("w", 31, 0, 1)),), "wrote 1 other bytes"),
        ((kernel(READ, buffer=Buffer("w", 32)),), "output 0 differs"),
    ],
)
def test_faults(cpu, kernels, words):
    made = plan(graph(*kernels), cpu.target, loader=PlanLoader(cpu))
    x = np.arange(1, 9, dtype=np.float32)
    if words is None:
        assert audit(made, x).results_nbytes == 32 * len(kernels)
    else:
        with pytest.raises(PlanError, match=words):
            audit(made, x)


def test_a_plan_that_lets_buffers_meet_is_found(cpu):
    """The check of placements would refuse such a plan; the audit finds it by what it computes."""
    made = plan(graph(kernel(GOOD), kernel(GOOD), kernel(GOOD)), cpu.target, loader=PlanLoader(cpu))
    locations = list(made.locations)
    locations[3] = locations[1]  # the last result over the first, which is an output too
    broken = replace(made, locations=tuple(locations))
    negated = kernel(GOOD.replace("v,", "-v,"))
    broken = replace(broken, graph=graph(kernel(GOOD), negated, kernel(GOOD)), steps=made.steps)
    steps = plan(broken.graph, cpu.target).steps
    with pytest.raises(PlanError, match="as planned, output"):
        audit(replace(broken, steps=steps), np.arange(1, 9, dtype=np.float32))


@st.composite
def functions(draw):
    """Chains of ops on two square values, some of them views."""
    words = draw(st.lists(st.sampled_from(["add", "relu", "matmul", "softmax", "norm", "turn", "half"]), max_size=6))
    return tuple((word, draw(st.integers(0, 9)), draw(st.integers(0, 9))) for word in words)


def build(words):
    def made(x, y):
        found = [x, y]
        for word, one, two in words:
            a, b = found[one % len(found)], found[two % len(found)]
            found.append(
                {
                    "add": lambda a=a, b=b: a + b,
                    "relu": lambda a=a: nbx.relu(a),
                    "matmul": lambda a=a, b=b: nbx.matmul(a, b),
                    "softmax": lambda a=a: nbx.softmax(a, axis=-1),
                    "norm": lambda a=a: nbx.layer_norm(a, 8),
                    "turn": lambda a=a: nbx.permute_dims(a, (1, 0)),
                    "half": lambda a=a, b=b: nbx.concat([a[:4], b[4:]], axis=0),
                }[word]()
            )
        return tuple(found[-2:])

    return made


@given(functions(), st.booleans())
@settings(max_examples=15)
def test_any_graph(words, optimize):
    square = nbx.Spec((8, 8), "float32")
    audit(nbx.plan(nbx.trace(build(words), square, square, name="any"), optimize=optimize))
