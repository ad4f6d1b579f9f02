import importlib.metadata
import subprocess
import sys

import pytest
import yaml

import nbxtensor as nbx
from nbxtensor.backend import device_files
from nbxtensor.backend.cpu import measure
from nbxtensor.backend.device_schema import check
from nbxtensor.cli import device, main
from nbxtensor.op import Target
from nbxtensor.settings import set_cache_directory


def test_the_devices_of_this_machine_and_those_described(capsys):
    assert main(["device", "list"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("device ")
    assert "\ncpu " in text
    assert "cpu/x86_64_v" in text
    for vendor in device_files.vendors():
        assert f"  {vendor}: {', '.join(device_files.names(vendor))}\n" in text


@pytest.mark.parametrize("name", ["h200", "nvidia/h200", "mi300x"])
def test_every_number_of_a_described_device_with_its_source(name, capsys):
    assert main(["device", "show", name]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    vendor = "amd" if name == "mi300x" else "nvidia"
    last = name.rpartition("/")[2]
    facts = device_files.facts(vendor, last)
    assert facts.keys() <= lines.keys()
    assert f"{facts['memory.bytes']:,}" in lines["memory.bytes"]
    assert device_files.source(vendor, last, "memory.bytes") in lines["memory.bytes"]


def test_a_device_of_this_machine_is_shown_with_what_was_measured(capsys):
    assert main(["device", "show", "cpu"]) == 0
    assert "dtypes.computed" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["device", "show", "h9000"], ["device", "measure", "--device", "null"]])
def test_what_is_not_there_is_told_in_one_line(words, capsys):
    assert main(words) == 1
    assert capsys.readouterr().err.startswith("nbxtensor: ")


def test_measuring_keeps_the_numbers_and_writes_a_device_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measure, "_RUN_NS", 1e4)
    monkeypatch.setattr(measure, "_RUNS", 1)
    monkeypatch.setattr(measure, "_MEMORY_NBYTES", 1 << 20)
    set_cache_directory(tmp_path)
    opened = nbx.device("cpu")
    before = opened.target
    try:
        out = tmp_path / "made.yml"
        assert main(["device", "measure", "--device", "cpu", "--out", str(out)]) == 0
        made = yaml.safe_load(out.read_text())
        check(made, where="made")
        rate = made["rates"]["matrix"]["float32"]
        assert rate == pytest.approx(opened.target.fact("rates.matrix.float32"), rel=1e-3)
        source = next(s["from"] for s in made["sources"] if "rates" in s["states"] or "rates.matrix" in s["states"])
        assert source.startswith("measured 20")
        assert f"Triton {importlib.metadata.version('triton')}" in source
        assert str(rate)[:4].rstrip("0") in capsys.readouterr().out.replace(",", "")
    finally:
        set_cache_directory(None)
        opened.target = before


def test_a_card_that_no_file_describes_is_written_from_what_its_driver_says():
    class Backend:
        name = "cuda"

    target = Target("cuda", "sm_75", frozenset({"float32", "float16"}), {"name": "A Card", "memory.bytes": 1 << 30})
    opened = type("Opened", (), {"backend": Backend(), "target": target, "index": 0})()
    made = device._description(opened)
    check(made, where="made")
    assert (made["recognised_as"], made["memory"]["bytes"]) == (["A Card"], 1 << 30)


def test_the_command_is_installed_and_runs_as_a_module():
    points = importlib.metadata.entry_points(group="console_scripts", name="nbxtensor")
    assert {point.value for point in points} <= {"nbxtensor.cli:main"}
    done = subprocess.run(
        [sys.executable, "-m", "nbxtensor.cli", "device", "--help"], capture_output=True, text=True, check=True
    )
    assert "measure" in done.stdout
