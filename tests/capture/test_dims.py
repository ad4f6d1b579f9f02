"""Plans with dims: every value under the bound gives what a plan of that value alone gives, at the same addresses."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbxtensor as nbx
from nbxtensor.capture.audit import audit
from nbxtensor.capture.bounded import PREPARED
from nbxtensor.cli.targets import named
from nbxtensor.errors import ArgumentError, PlanError, ShapeError

ROOT = Path(__file__).parent.parent.parent
TOKENS = nbx.Dim("tokens", max=9, min=2)
WIDE = 6


def f32(*shape):
    return nbx.Spec(shape, "float32")


def values(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def bytes_of(results):
    results = results if isinstance(results, tuple) else (results,)
    return [(r.shape, r.numpy().tobytes()) for r in results]


def mixed(x):
    return nbx.softmax(nbx.matmul(x, x.permute(1, 0)), axis=-1), nbx.sum(nbx.relu(x) + 1, axis=0)


_OPS = {
    "scale": lambda x, w: nbx.relu(x) * 2,
    "softmax": lambda x, w: nbx.softmax(x, axis=-1),
    "linear": lambda x, w: nbx.linear(x, w["square"]),
    "center": lambda x, w: x - nbx.mean(x, axis=1, keepdims=True),
    "places": lambda x, w: x + w["places"][: x.shape[1]] * 2,
    "turned": lambda x, w: nbx.exp(x.permute(0, 2, 1)).permute(0, 2, 1),
    "joined": lambda x, w: nbx.concat([x * 3, nbx.tanh(x)], axis=1)[:, : x.shape[1]],
    "flat": lambda x, w: nbx.gelu(x.reshape(-1, WIDE)).reshape(*x.shape),
    "mixing": lambda x, w: nbx.matmul(nbx.matmul(x, x.permute(0, 2, 1)), x),
}


@given(
    names=st.lists(st.sampled_from(sorted(_OPS)), min_size=1, max_size=5),
    skip=st.integers(0, 4),
    extents=st.tuples(st.integers(1, 3), st.integers(1, 8)),
    both=st.booleans(),
    optimize=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_a_value_gives_the_bytes_of_its_own_plan(names, skip, extents, both, optimize):
    def fn(weights, x):
        kept = [x]
        for name in names:
            kept.append(_OPS[name](kept[-1], weights))
        return kept[-1] + kept[min(skip, len(kept) - 1)], kept[1]

    weights = {"square": values(WIDE, WIDE), "places": values(8, WIDE)}
    specs = {name: f32(*w.shape) for name, w in weights.items()}
    batch, tokens = extents if both else (3, extents[1])
    first = nbx.Dim("batch", max=3) if both else 3
    made = nbx.trace(fn, f32(first, nbx.Dim("tokens", max=8), WIDE), weights=specs)
    plan = nbx.plan(made, optimize=optimize)
    x = values(batch, tokens, WIDE)
    own = nbx.plan(nbx.trace(fn, f32(batch, tokens, WIDE), weights=specs), optimize=optimize).load(weights)
    value = {"batch": batch, "tokens": tokens} if both else {"tokens": tokens}
    try:
        under = plan.at(**value)
    except PlanError:
        if 1 not in (batch, tokens):
            raise
        return  # a reshape that copies at other extents may be a view at extent 1: refused by name
    program = plan.load(weights)
    assert bytes_of(program(x)) == bytes_of(own(x))
    largest = program.bound.places
    assert [p and p.address for p in program.at(**value).places] == [p and p.address for p in largest]
    assert under.arena_nbytes == plan.arena_nbytes
    assert all(a.nbytes <= b.nbytes for a, b in zip(under.graph.buffers, plan.graph.buffers, strict=True))
    audit(under, x, weights=weights)


def test_values_are_read_from_inputs_and_recorded_one_by_one():
    program = nbx.plan(nbx.trace(mixed, f32(TOKENS, WIDE))).load()
    for tokens in (2, 5, 9):
        x = values(tokens, WIDE, seed=tokens)
        square, total = program(x)
        assert square.shape == (tokens, tokens)
        assert total.shape == (WIDE,)
        recording = program.capture(tokens=tokens)
        assert bytes_of(recording(x)) == bytes_of((square, total))
    assert len(program) == 2
    with pytest.raises(ArgumentError, match="inputs or values of dims"):
        program.capture(values(2, WIDE), tokens=2)


def test_what_is_prepared_is_bounded():
    many = PREPARED + 3
    program = nbx.plan(nbx.trace(lambda x: x + 1, f32(nbx.Dim("n", max=many)))).load()
    first = program.at(n=1)
    for n in range(1, many):
        program.at(n=n)
    assert len(program) == PREPARED
    assert program.at(n=1) is not first
    assert program.at(n=many) is program.at() is program.bound


def test_state_lies_in_memory_once_for_all_values():
    def step(state, x):
        new = state["sum"] + nbx.sum(x)
        return new, {"sum": new}

    program = nbx.plan(nbx.trace(step, f32(TOKENS), state={"sum": f32()})).load()
    assert [float(program(np.ones(n, np.float32))) for n in (2, 9, 3)] == [2.0, 11.0, 14.0]
    assert float(program.state["sum"]) == 14.0


def test_two_programs_share_weights():
    weights = {"w": values(4, WIDE)}
    made = [
        nbx.plan(nbx.trace(lambda w, x: nbx.linear(x, w["w"]), f32(d, WIDE), weights={"w": f32(4, WIDE)}))
        for d in (TOKENS, 3)
    ]
    one = made[0].load(weights)
    two = made[1].load(share=one)
    x = values(3, WIDE)
    assert bytes_of(one(x)) == bytes_of(two(x))


@pytest.mark.parametrize("tokens", [1, 10])
def test_a_value_out_of_bounds_is_refused_by_name(tokens):
    plan = nbx.plan(nbx.trace(mixed, f32(TOKENS, WIDE)))
    with pytest.raises(ShapeError, match=rf"input 0, axis 0 is dim tokens. Got {tokens}. 2 to 9 are accepted"):
        plan.load()(values(tokens, WIDE))
    with pytest.raises(ShapeError, match=rf"dim tokens stays within its bounds. Got {tokens}. 2 to 9"):
        plan.price(tokens=tokens)


def test_extents_that_disagree_are_refused_by_name():
    program = nbx.plan(nbx.trace(lambda a, b: a + b, f32(TOKENS), f32(3, TOKENS))).load()
    assert program(values(4), values(3, 4)).shape == (3, 4)
    with pytest.raises(ShapeError, match=r"one extent\. Got 4 in input 0, axis 0 and 5 in input 1, axis 1"):
        program(values(4), values(3, 5))
    with pytest.raises(ShapeError, match="input 1 has 2 axes"):
        program(values(4), values(4))
    with pytest.raises(ShapeError, match=r"input 1 was planned with shape \(3, 4\)"):
        program(values(4), values(2, 4))
    with pytest.raises(ArgumentError, match=r"one value per input\. Got 1 for 2"):
        program(values(4))


def test_a_function_that_looks_at_an_extent_is_refused_by_name():
    def fn(x):
        return nbx.softmax(x, axis=-1) if x.shape[0] > 4 else nbx.exp(x)

    program = nbx.plan(nbx.trace(fn, f32(TOKENS, 3))).load()
    assert program(values(5, 3)).shape == (5, 3)
    with pytest.raises(PlanError, match=r"at tokens=3: .* Got node 0 exp\(x\); softmax\(x\) at the bound"):
        program(values(3, 3))


def test_constants_that_follow_an_extent_are_refused_by_name():
    program = nbx.plan(
        nbx.trace(lambda x: x + nbx.asarray(np.arange(x.shape[0], dtype=np.float32)), f32(TOKENS))
    ).load()
    with pytest.raises(PlanError, match=r"at tokens=3: weights, constants and state do not depend on dims"):
        program(values(3))


def test_weights_and_state_have_no_dims():
    with pytest.raises(ArgumentError, match=r"weights and state do not. Got Dim\('tokens', max=9, min=2\) for 'w'"):
        nbx.trace(lambda w, x: x, f32(TOKENS), weights={"w": f32(TOKENS)})
    with pytest.raises(ArgumentError, match="Got int for input1"):
        nbx.trace(lambda x, y: x, f32(TOKENS), 3)
    with pytest.raises(ArgumentError, match="one pair of bounds"):
        nbx.trace(lambda x, y: x, f32(TOKENS), f32(nbx.Dim("tokens", max=4)))


def test_a_plan_is_saved_with_its_dims_and_traced_again_from_a_graph():
    graph = nbx.trace(mixed, f32(TOKENS, WIDE))
    plan = nbx.plan(graph)
    text = nbx.save_plan(plan)
    assert json.loads(text)["version"] == 4
    alone, whole = nbx.load_plan(text), nbx.load_plan(text, graph=graph)
    assert alone == whole == plan
    assert "tokens 2..9; planned at the bound" in str(alone)
    x, small = values(9, WIDE), values(4, WIDE)
    assert bytes_of(alone.load()(x)) == bytes_of(plan.load()(x))
    assert bytes_of(whole.load()(small)) == bytes_of(plan.load()(small))
    with pytest.raises(PlanError, match=r"load_plan\(text, graph=trace"):
        alone.load()(small)
    with pytest.raises(ArgumentError, match=r"the dims of the plan \(tokens 2..9\)"):
        nbx.load_plan(text, graph=nbx.trace(mixed, f32(9, WIDE)))


def test_prices_are_of_a_value():
    plan = nbx.plan(nbx.trace(mixed, f32(TOKENS, WIDE)), device=named("h200"))
    assert plan.price(tokens=4).total.flops < plan.price().total.flops
    assert plan.price(tokens=9) == plan.price()
    with pytest.raises(ArgumentError, match=r"dims are tokens\. Got batch"):
        plan.price(batch=1)


def test_a_bundle_is_refused(tmp_path):
    program = nbx.plan(nbx.trace(mixed, f32(TOKENS, WIDE))).load()
    for one in (program, program.at(tokens=3), program.bound):
        with pytest.raises(PlanError, match="this plan has dims"):
            one.save(tmp_path / "x")
    for one in (program.at(tokens=3), program.bound):
        with pytest.raises(PlanError, match="this plan has dims"):
            nbx.save_programs(tmp_path / "x", {"x": one})
    with pytest.raises(ArgumentError, match="Got BoundedProgram for 'x'"):
        nbx.save_programs(tmp_path / "x", {"x": program})


@pytest.mark.parametrize(("name", "most", "least"), [("a b", 3, 1), ("n", 3, 4), ("n", 3, 0), ("n", 2.5, 1), (3, 3, 1)])
def test_a_dim_that_is_none(name, most, least):
    with pytest.raises((ArgumentError, ShapeError), match="Dim: "):
        nbx.Dim(name, max=most, min=least)


def test_every_length_of_a_model_gives_the_bytes_of_its_own_plan():
    """Two layers of MiniLM's encoder, its weights those of the package where it is there."""
    found = importlib.util.spec_from_file_location("minilm_of_dims", ROOT / "examples" / "minilm.py")
    module = importlib.util.module_from_spec(found)
    sys.modules["minilm_of_dims"] = module
    found.loader.exec_module(module)
    try:
        folder = module.model_folder()
    except SystemExit:
        pytest.skip("the model is not there")
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 1}
    from nbxtensor.io import safetensors

    file = safetensors.open_file(folder / "model.safetensors")
    weights = {n: file.array(n) for n in file.names if file.spec(n)[0] == "float32"}
    specs = {n: f32(*w.shape) for n, w in weights.items()}

    def planned(tokens):
        inputs = nbx.Spec((1, tokens), "int64"), nbx.Spec((1, tokens), "bool")
        return nbx.plan(nbx.trace(module.encoder(config), *inputs, weights=specs))

    plan = planned(nbx.Dim("tokens", max=32))
    program, largest = plan.load(weights), planned(32).load(weights)
    for tokens in range(1, 33):
        ids = np.random.default_rng(tokens).integers(30000, size=(1, tokens))
        mask = np.ones((1, tokens), bool)
        own = planned(tokens).load(weights) if tokens < 32 else largest
        assert bytes_of(program(ids, mask)) == bytes_of(own(ids, mask)), tokens
        if tokens in (1, 7, 16):
            audit(plan.at(tokens=tokens), ids, mask, weights=weights)
