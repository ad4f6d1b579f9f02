"""The roofline: each point where its numbers say, under the roofs of the device."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.planning import roofline
from nbxtensor.planning.drawing import family_colours
from nbxtensor.planning.roofline import Point, draw_roofline

SVG = "{http://www.w3.org/2000/svg}"
FACTS = {"memory.copy_bandwidth": 1e11, "memory.l2_bandwidth": 5e11, "rates.vector.float32": 1e12, "compute.units": 8}
counts = st.integers(1, 10**15)
seconds = st.floats(1e-9, 1e3)
points = st.builds(
    Point, st.just("a < b & c"), st.sampled_from(["norm", "matmul"]), counts, counts, seconds, st.none() | seconds
)


def circles(svg):
    return [c for c in ElementTree.fromstring(svg).iter(f"{SVG}circle") if c.find(f"{SVG}title") is not None]


@given(st.lists(points, min_size=1, max_size=8))
def test_points_lie_where_their_rates_say(given):
    svg = draw_roofline("<model>", given, FACTS)
    drawn = circles(svg)
    assert len(drawn) == len(given)
    ordered = sorted(given, key=lambda p: -p.seconds)
    places = [(float(c.get("cx")), float(c.get("cy"))) for c in drawn]
    for p, (x, y) in zip(ordered, places, strict=True):
        assert roofline._LEFT <= x <= roofline._WIDTH - roofline._RIGHT
        assert roofline._TOP <= y <= roofline._HEIGHT - roofline._BOTTOM
        for q, (u, v) in zip(ordered, places, strict=True):
            if p.flops * q.nbytes > q.flops * p.nbytes:
                assert x >= u - 0.01
            if p.flops * q.seconds > q.flops * p.seconds:
                assert y <= v + 0.01
    titles = [c.find(f"{SVG}title").text for c in drawn]
    assert all(t.startswith("a < b & c\n") for t in titles)
    assert ["measured" in t for t in titles] == [p.measured is not None for p in ordered]


def test_a_point_at_the_ridge_lies_on_both_roofs():
    ridge = Point("ridge", "norm", 10**13, 10**12, 10.0)  # 10 operations a byte, 1e12 a second
    svg = ElementTree.fromstring(draw_roofline("m", [ridge], FACTS))
    (point,) = circles(ElementTree.tostring(svg))
    x, y = float(point.get("cx")), float(point.get("cy"))
    flat = [
        e
        for e in svg.iter(f"{SVG}line")
        if e.get("class") == "l" and e.get("y1") == e.get("y2") and e.get("x2") == "1256"
    ]
    assert [float(e.get("y1")) for e in flat] == pytest.approx([y])
    ends = sorted(float(e.get("x2")) for e in svg.iter(f"{SVG}line") if e.get("class") == "p")
    assert ends[-1] == pytest.approx(x)  # the slower memory reaches the roof there
    a = sorted(float(c.get("r")) for c in svg.iter(f"{SVG}circle"))
    assert a[-1] == pytest.approx(26)  # all of the time


def test_work_without_arithmetic_is_counted_and_not_drawn():
    svg = draw_roofline("m", [Point("a", "norm", 8, 8, 1.0), Point("b", "index", 0, 8, 3.0)], FACTS)
    assert len(circles(svg)) == 1
    assert "1 of 2 calls drawn, the others do no arithmetic (75.0% of the time)" in svg
    assert circles(draw_roofline("m", [], FACTS)) == []
    assert circles(draw_roofline("m", [Point("a", "norm", 8, 8, 1.0)], {})) == []


def test_roofs_say_what_they_are():
    facts = {"memory.bandwidth": 1e11, "compute.matrix_flops.bfloat16": 9e14, "rates.vector.float32": 1e12,
             "rates.vector.int32": 1.05e12}  # fmt: skip
    texts = re.findall(r"<text[^>]*>([^<]*)<", draw_roofline("m", [Point("a", "norm", 8, 8, 1.0)], facts))
    assert "matrix bfloat16, as stated: 900 Tflop/s" in texts
    assert "vector float32: 1 Tflop/s" in texts
    assert not any("int32" in text for text in texts)  # as good as the one named
    assert "memory, as stated: 100 GB/s" in texts


@given(st.sets(st.text("abc", min_size=1), min_size=2, max_size=12))
def test_each_family_has_its_colour(names):
    colours = family_colours(names)
    assert set(colours) == names | {"input"}
    assert len(set(colours.values())) == len(colours)
    assert all(re.fullmatch("#[0-9a-f]{6}", c) for c in colours.values())
