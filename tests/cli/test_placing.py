"""`nbxtensor plan --lifetimes`: what it prints and writes, and what it refuses."""

import csv
import json

import pytest

from nbxtensor.cli import main
from nbxtensor.planning.lifetimes import Lifetime, read_csv
from nbxtensor.planning.verify import verify_placement

ROWS = "id,lower,upper,size\na,0,2,100\nb,1,3,60\nc,2,4,90\n"
STUCK = [(0, 1, 3), (0, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 1), (2, 5, 1), (3, 7, 2), (5, 7, 3)]
"""Five bytes are in use at each of many moments, and no placement needs fewer than six."""


@pytest.fixture
def traced(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(ROWS)
    return path


def test_what_is_printed(traced, capsys):
    assert main(["plan", "--lifetimes", str(traced)]) == 0
    lines = dict(
        line.split(maxsplit=1) for line in capsys.readouterr().out.replace("lower bound", "bound").splitlines()
    )
    assert lines["buffers"] == "3"
    assert lines["peak"] == lines["bound"] == "160 bytes"
    assert lines["ratio"] == "1.0000"
    assert lines["gap"].startswith("none")
    assert lines["algorithm"] == "best fit by size"
    assert float(lines["seconds"]) >= 0


def test_one_json_object(traced, capsys):
    assert main(["plan", "--lifetimes", str(traced), "--json", "--capacity", "160", "--seconds", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["peak", "lower_bound", "ratio", "algorithm", "seconds", "offsets"]
    assert (found["peak"], found["lower_bound"], found["ratio"]) == (160, 160, 1.0)
    verify_placement(read_csv(traced), found["offsets"], 160)


def test_a_solution_is_written_and_can_be_planned_again(traced, tmp_path, capsys):
    out = tmp_path / "solution.csv"
    assert main(["plan", "--lifetimes", str(traced), "--out", str(out)]) == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "lower", "upper", "size", "offset"]
    assert [Lifetime(r["id"], int(r["lower"]), int(r["upper"]), int(r["size"])) for r in rows] == list(read_csv(traced))
    verify_placement(read_csv(traced), {r["id"]: int(r["offset"]) for r in rows}, 160)
    capsys.readouterr()
    assert main(["plan", "--lifetimes", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["offsets"] == {r["id"]: int(r["offset"]) for r in rows}


def test_a_capacity_that_is_not_met(traced, tmp_path, capsys):
    out = tmp_path / "solution.csv"
    assert main(["plan", "--lifetimes", str(traced), "--capacity", "159", "--out", str(out)]) == 1
    told = capsys.readouterr()
    assert "ratio        1.0000" in told.out
    assert told.err == (
        "nbxtensor: trace.csv: the buffers fit in the capacity. Got 160 bytes for a capacity of 159. "
        "No placement does: 160 bytes are in use at one moment.\n"
    )
    assert not out.exists()


def test_a_capacity_that_searching_rules_out(tmp_path, capsys):
    path = tmp_path / "stuck.csv"
    path.write_text("id,lower,upper,size\n" + "".join(f"b{i},{a},{b},{n}\n" for i, (a, b, n) in enumerate(STUCK)))
    assert main(["plan", "--lifetimes", str(path), "--capacity", "5"]) == 1
    told = capsys.readouterr()
    assert "Got 6 bytes for a capacity of 5. No placement does: searching has proven that none needs less" in told.err
    assert "gap          none" in told.out


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("id,lower,upper,size\na,0,2,ten\n", "line 2, column size: an integer. Got 'ten'"),
        ("id,lower,upper,size\na,0,2,1\nb,x,2,1\n", "line 3, column lower: an integer"),
        ("id,lower,upper,size\na,0,2,1\nb,2,2,1\n", "line 3, column upper"),
        ("id,lower,upper,size\na,0,2,-1\n", "line 2, column size"),
        ("id,lower,upper,size\na,0,2\n", "line 2, column size: a row has 4 fields"),
        ("id,lower,upper,size\na,0,2,1\na,0,2,1\n", "line 3, column id"),
        ("id,lower,upper,size\na,0,99999999999999999999,1\n", "line 2, column upper"),
        ("id,lower,upper\na,0,2\n", "the first line names the columns"),
        ("", "the first line names the columns"),
    ],
)
def test_what_is_no_file_of_lifetimes(tmp_path, text, where, capsys):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert main(["plan", "--lifetimes", str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("nbxtensor: --lifetimes: bad.csv")
    assert where in told.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--lifetimes", "none.csv"], "--lifetimes: none.csv: no such file"),
        (["--lifetimes", "."], "--lifetimes: .: a folder"),
        (["--lifetimes", ""], "--lifetimes: .: a folder"),
        (["--lifetimes", "none.csv", "--device", ""], "in place of a model. Got device"),
        (["--lifetimes", "none.csv", "--capacity", "-1"], "--capacity"),
        (["--lifetimes", "none.csv", "--seconds", "-1"], "--seconds"),
        (["--lifetimes", "none.csv", "--seconds", "nan"], "--seconds"),
        (["--lifetimes", "none.csv", "--svg", "a.svg"], "in place of a model. Got svg"),
        (["model.py", "--lifetimes", "none.csv"], "in place of a model. Got model"),
    ],
)
def test_words_that_do_not_go_together(words, told, capsys):
    assert main(["plan", *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["model.py", "--capacity", "4"], ["--out", "a.csv"]])
def test_a_model_or_a_file_of_lifetimes(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *words])
    assert stopped.value.code == 2
    assert "MODEL, or --lifetimes FILE.csv, which --capacity, --seconds, --out belong to" in capsys.readouterr().err


def test_nothing_to_place(tmp_path, capsys):
    path = tmp_path / "empty.csv"
    path.write_text("id,lower,upper,size\n")
    assert main(["plan", "--lifetimes", str(path), "--capacity", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak"] == 0
