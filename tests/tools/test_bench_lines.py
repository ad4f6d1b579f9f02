"""Figures of the benchmark: one past what the machine allows is a wrong declaration, and is told."""

import pytest
from bench.lines import Lines


@pytest.mark.parametrize(
    ("unit", "ours", "floor", "red"),
    [("ms", 2.0, 2.3, False), ("ms", 1.0, 1.3, True), ("GB/s", 13.0, 10.0, True), ("GB/s", 9.0, 10.0, False)],
)
def test_faster_than_the_machine(unit, ours, floor, red, capsys):
    lines = Lines(keep=False)
    lines.add("ops", "made up", unit=unit, ours=ours, floor=floor)
    assert bool(lines.impossible) == red
    assert "made up" in capsys.readouterr().out
