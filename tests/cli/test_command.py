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


@pytest.mark.parametrize("words", [["device", "show", "h9000"], ["device", "measure", "--device", "cuda:99"]])
def test_what_is_not_there_is_told_in_one_line(words, capsys):
    assert main(words) == 2
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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bogus"], "invalid choice: 'bogus'"),
        (["plan"], "MODEL, or --lifetimes"),
        (["plan", "x.py", "--by", "z"], "argument --by: invalid choice"),
        (["device", "list", "x"], "unrecognized arguments: x"),
    ],
)
def test_what_the_parser_refuses_is_told_in_one_line(words, told, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith("nbxtensor: ")
    assert told in line
    assert "--help has the words" in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["device", "show", "h9000"], "NAME: no 'h9000' here"),
        (["device", "show", ""], "NAME: no '' here"),
        (["device", "show", "none.yml"], "NAME: none.yml: no such file"),
        (["device", "show", "ODD"], "a needed field is missing"),
        (["device", "measure", "--device", "h200"], "That is a device file"),
        (["device", "measure", "--device", ""], "--device: no '' here"),
        (["device", "measure", "--device", "cpu", "--out", "/none/x.yml"], "--out: a file that can be written"),
        (["run", "x.py", "--device", ""], "--device: no '' here"),
        (["plan", "x.py", "--device", "ODD"], "x.py"),
    ],
)
def test_words_that_name_no_device_or_file(words, told, capsys, tmp_path):
    odd = tmp_path / "odd.yml"
    odd.write_text("vendor: nvidia\nname: x\n")
    assert main([str(odd) if word == "ODD" else word for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_place_that_cannot_be_written_is_refused_before_the_work(capsys, tmp_path):
    file = tmp_path / "lives.csv"
    file.write_text("id,lower,upper,size\na,0,1,4\n")
    assert main(["plan", "--lifetimes", str(file), "--out", str(file / "x.csv")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--out: a file that can be written, in a folder that is there" in said.err


def test_a_device_file_is_shown_with_where_it_is(capsys, tmp_path):
    path = tmp_path / "card.yml"
    path.write_text(yaml.safe_dump(device_files.read("nvidia", "h200")))
    assert main(["device", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "memory.bandwidth" in shown
    assert str(path) in shown


def test_an_interrupted_command_says_so_in_one_line(capsys, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("nbxtensor.backend.registry.installed", interrupted)
    assert main(["device", "list"]) == 130
    assert capsys.readouterr().err == "nbxtensor: interrupted\n"


def test_the_package_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "nbxtensor", "device", "list"], capture_output=True, text=True, check=True
    )
    assert "described, there or not" in done.stdout
