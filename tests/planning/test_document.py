"""Plans as JSON: an exact round trip, and a refusal of everything else."""

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning import operators as ops
from tests.planning.graphs import Builder, graphs
from tests.planning.test_plan import small

from nbxtensor.errors import FormatError
from nbxtensor.op import Expression, Kernel, Launch, Number, Scalar, Source, Spec, Step
from nbxtensor.planning import picture
from nbxtensor.planning.document import _digest, read_document, write_document
from nbxtensor.planning.plan import Plan, plan


def resolve(name):
    return ops.OPS[name]


@given(graphs())
def test_round_trip(graph):
    made = plan(graph, ops.TARGET)
    text = made.to_json()
    again = Plan.from_json(text, resolve)
    assert again == made
    assert again.to_json() == text
    assert dict(again.target.facts) == dict(made.target.facts)
    for one, other in zip(made.graph.buffers, again.graph.buffers, strict=True):
        assert (one.value is None) == (other.value is None)
        if one.value is not None:
            assert (one.value.dtype, one.value.tobytes()) == (other.value.dtype, other.value.tobytes())
    assert again.price() == made.price()
    assert again.svg() == made.svg()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.sampled_from((Spec((2, 3), "int8"), Source("f", "def f(): pass"), Scalar(1, "float32"), np.int8(3))),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.just("$"), inner, max_size=3)
        | st.dictionaries(st.integers() | st.booleans(), inner, max_size=3)
        | st.frozensets(st.text(max_size=3), max_size=3)
    ),
    max_leaves=12,
)


def _same(one, other):
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return list(map(type, one)) == list(map(type, other)) and _same(list(one), list(other)) and all(
            _same(v, w) for v, w in zip(one.values(), other.values(), strict=True)
        )  # fmt: skip
    return one == other and (not isinstance(one, float) or math.copysign(1, one) == math.copysign(1, other))


@given(st.dictionaries(st.text(), plain, max_size=3))
def test_plain_data_comes_back_as_it_was(content):
    text = write_document("d", 3, content)
    assert _same(read_document(text, "d", 3, (Spec, Source, Scalar), resolve), content)


def test_nan_and_arrays():
    content = {"a": math.nan, "b": np.arange(6, dtype=np.float16).reshape(2, 3).T, "c": np.zeros((0, 2), bool)}
    again = read_document(write_document("d", 1, content), "d", 1, (), resolve)
    assert math.isnan(again["a"])
    for name in ("b", "c"):
        assert again[name].dtype == content[name].dtype
        np.testing.assert_array_equal(again[name], content[name])


def test_generated_source_and_expressions_are_kept():
    step = Step("m:f", (0, Scalar(0, "float32")), ("float32", "float32"), "float32", reference=np.add)
    expression = Expression(("float32",), (step,), (1,), 1)
    source = Source("made", "import triton\n\ndef made(): ...\n")

    def launch(call):
        arguments = {"x": call.input("x"), "s": Number(2.5, "float32"), "n": 3, "f": 0.5}
        return (Launch(source, (1, 2), {**arguments, "out": call.output()}, {"fn": source, "dtype": "tl.float32"}),)

    op = replace(ops.relu.op, name="fused", kernels=(Kernel("k", ops._cost, launch),))
    b = Builder()
    node_op = replace(op, signature=ops.scale.op.signature)
    made = plan(b.graph(b.call(node_op, b.input((2, 2)), epilogue=expression)), ops.TARGET)
    text = made.to_json(describe=lambda op: ("fused", expression))
    keys = []
    again = Plan.from_json(text, lambda key: keys.append(key) or node_op)
    assert keys == [("fused", expression)]
    assert again == made
    assert again.steps[0].launches[0].kernel == source
    assert again.graph.nodes[0].params["epilogue"].steps[0].reference is None


def _changed(text, change):
    document = json.loads(text)
    change(document)
    document["sha256"] = _digest(document.get("content"))
    return json.dumps(document)


def _without(key):
    return lambda document: document["content"].pop(key)


def _set(value, *path):
    def change(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(1, "version"), "version 4 is read. Got version 1"),
        (_set("other", "format"), "Got 'other'"),
        (_set([], "content"), "the content is a plan"),
        (_without("steps"), "a Plan has other fields.*steps"),
        (_set(1, "content", "more"), "a Plan has other fields.*more"),
        (_set(1, "content", "loader"), "a Plan has other fields.*loader"),
        (_set({"$": "Unheard"}, "content", "target"), "no 'Unheard' is known"),
        (_set({"$": "Spec", "shape": [1]}, "content", "target"), "a Spec has other fields"),
        (_set("x", "content", "target", "facts"), "facts of a Target is of another type. Got 'x'"),
        (_set([3], "content", "graph", "buffers", 0), "buffers of a Graph"),
        (_set("float31", "content", "graph", "buffers", 0, "spec", "dtype"), "not a 'Spec'.*float31"),
        (_set("unheard", "content", "graph", "nodes", 0, "op", "key"), "the op 'unheard'"),
        (_set("unheard", "content", "steps", 0, "kernel"), "matmul has the kernel that was chosen. Got 'unheard'"),
        (_set(128, "content", "locations", 0, "offset"), "not a valid plan"),
        (_set("0", "content", "locations", 0, "offset"), "offset of a Location is of another type. Got '0'"),
        (_set("up", "content", "locations", 0, "area"), "area of a Location"),
        (_set("9", "content", "arena_nbytes"), "arena_nbytes of a Plan"),
        (_set([], "content", "steps", 0), "steps of a Plan"),
        (_set(-1, "content", "arena_nbytes"), "not a valid plan"),
        (_set("???", "content", "graph", "buffers", 2, "value", "data"), "not a 'array'"),
        (_set([9, 9], "content", "graph", "buffers", 2, "value", "shape"), "not a 'array'"),
        (_set("O", "content", "graph", "buffers", 2, "value", "dtype"), "not a 'array'"),
    ],
)
def test_refusals(change, message):
    text = plan(small(), ops.TARGET).to_json()
    with pytest.raises(FormatError, match=message):
        Plan.from_json(_changed(text, change), resolve)


def test_a_wrong_digest_is_seen():
    text = plan(small(), ops.TARGET).to_json().replace('"sha256": "', '"sha256": "0')
    with pytest.raises(FormatError, match="damaged"):
        Plan.from_json(text, resolve)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"nbxtensor.plan"', "{}"])
def test_no_document(text):
    with pytest.raises(FormatError, match=r"nbxtensor\.plan: "):
        Plan.from_json(text, resolve)


def test_what_is_nested_past_reading_is_refused():
    with pytest.raises(FormatError, match="the text is JSON"):
        Plan.from_json("[" * 100_000, resolve)


@given(st.data())
def test_damage_is_seen(data):
    text = plan(small(), ops.TARGET).to_json().rstrip()
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from('0123456789abcxyz"{}[],: '))
    damaged = text[:at] + other + text[at + 1 :]
    try:
        same = json.loads(damaged) == json.loads(text)
    except ValueError:
        same = False
    if same:
        assert Plan.from_json(damaged, resolve) == plan(small(), ops.TARGET)
    else:
        with pytest.raises(FormatError):
            Plan.from_json(damaged, resolve)
    with pytest.raises(FormatError):
        Plan.from_json(text[:at], resolve)


def test_what_is_no_data_is_refused():
    b = Builder()
    b.call(ops.scale, b.input((2, 2)), factor=object())
    with pytest.raises(FormatError, match=r"Got builtins\.object"):
        plan(b.graph(), ops.TARGET).to_json()


_SVG = "{http://www.w3.org/2000/svg}"


@given(graphs())
def test_the_picture_shows_each_buffer_where_it_lies(graph):
    made = plan(graph, ops.TARGET)
    root = ElementTree.fromstring(made.svg())
    drawn = {}
    for rect in root.iter(f"{_SVG}rect"):
        title = rect.find(f"{_SVG}title")
        if title is not None:
            name = title.text.split(":")[0]
            drawn[name] = [float(rect.get(key)) for key in ("x", "y", "width", "height")]
    assert drawn.keys() == made.offsets.keys()
    high = (picture._HEIGHT - picture._TOP - picture._BOTTOM) / max(made.arena_nbytes, 1)
    for one in made.lifetimes:
        _, y, _, h = drawn[one.id]
        assert picture._HEIGHT - picture._BOTTOM - (y + h) == pytest.approx(made.offsets[one.id] * high, abs=0.5)
    for one in made.lifetimes:  # in the drawing too, what is in use together does not overlap
        for other in made.lifetimes:
            if one.id < other.id and one.lower < other.upper and other.lower < one.upper:
                (_, y, _, h), (_, v, _, k) = drawn[one.id], drawn[other.id]
                assert y + h <= v + 0.02 or v + k <= y + 0.02


def test_the_picture_escapes_names():
    b = Builder()
    x = b.input((2, 2), name='<a & "b">')
    svg = plan(b.graph(b.call(ops.relu, x), name="<&>"), ops.TARGET).svg()
    assert '<a & "b">' in "".join(ElementTree.fromstring(svg).itertext())


def test_the_picture_has_one_colour_per_family():
    b = Builder()
    x = b.input((2, 2))
    for family in ("norm", "matmul", "norm"):
        x = b.call(ops.in_family(ops.relu.op, family), x)
    svg = ElementTree.fromstring(plan(b.graph(x), ops.TARGET).svg())
    fills = [r.get("fill") for r in svg.iter(f"{_SVG}rect") if r.find(f"{_SVG}title") is not None]
    assert fills[1] == fills[3] != fills[2]
    texts = {t.text for t in svg.iter(f"{_SVG}text")}
    assert {"norm", "matmul", "input"} <= texts
