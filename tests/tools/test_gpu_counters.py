"""The counters' text as Nsight Compute prints it, matched to what kernels declare."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("gpu_counters", ROOT / "tools" / "gpu_counters.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


def text(*rows, unit="byte"):
    head = '"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'
    lines = ["==PROF== Connected to process 7", "declared: {}", head]
    for number, (kernel, read, written) in enumerate(rows):
        for name, value in (("dram__bytes_read.sum", read), ("dram__bytes_write.sum", written)):
            lines.append(f'"{number}","7","{kernel}","","{name}","{unit}","{value:,}"')
    return "\n".join([*lines, "==PROF== Disconnected"])


def test_each_call_gets_the_counters_of_its_launches(tool):
    launches = tool.counted(text(("fill(int)", 1, 2), ("add_kernel", 4000, 1000), ("a", 5, 6), ("b", 7, 8)))
    assert [name for name, _ in launches] == ["fill", "add_kernel", "a", "b"]
    calls = [tool.Declared("add", ("add_kernel",), 4000, 1000), tool.Declared("two", ("a", "b"), 1, 1)]
    assert tool.matched(calls, launches) == [(calls[0], 4000, 1000), (calls[1], 12, 14)]


def test_a_launch_that_was_not_counted_is_told(tool):
    with pytest.raises(ValueError, match="two: a launch of b is counted"):
        tool.matched([tool.Declared("two", ("a", "b"), 1, 1)], tool.counted(text(("a", 1, 1))))


def test_other_units_are_refused(tool):
    with pytest.raises(ValueError, match="Got Mbyte"):
        tool.counted(text(("a", 1, 1), unit="Mbyte"))


def test_every_case_runs_and_declares_what_it_moves(tool, capsys):
    tool.launch(4096, "cpu")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(tool.MARK)]
    assert len(lines) == 16
