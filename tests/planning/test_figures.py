"""`python -m bench plan`: what it counts, and the tables it writes."""

import json

import pytest
from bench import lines
from bench import plan as figures
from tests.planning.test_search import TIGHT

from nbxtensor.planning.lifetimes import Lifetime, write_csv


@pytest.fixture
def traces(tmp_path):
    for group in ("one", "two"):
        (tmp_path / group).mkdir()
    write_csv(tmp_path / "one" / "chain.csv", figures.chain(300))
    write_csv(tmp_path / "one" / "pair.csv", [Lifetime("a", 0, 2, 5), Lifetime("b", 1, 3, 5)])
    rows = [Lifetime(f"b{i}", a, b, 1000 * n) for i, (a, b, n) in enumerate(TIGHT[0][1])]
    write_csv(tmp_path / "two" / "tight.csv", rows)
    write_csv(tmp_path / "two" / "tight.6000.csv", rows)
    return tmp_path


def test_every_file_is_placed_and_the_tables_are_written(traces, monkeypatch, capsys):
    monkeypatch.setattr(lines, "RESULTS", traces / "results")
    document = traces / "PLANNING.md"
    marks = [mark.format(name) for name in ("sets", "growth", "instances") for mark in (figures.BEGIN, figures.END)]
    document.write_text("# Title\n\n" + "\nwords\n".join(marks) + "\nlast\n")
    words = [str(traces), "--seconds", "5", "--chains", "100", "200", "--document", str(document)]
    assert figures.main(words) == 1  # tight.csv does not fit at its bound
    text = document.read_text()
    assert "| one | 2 | 2 to 300 | 2 | 1.0000 | 1.0000 |" in text
    assert "| two | 2 | 8 | 1 | 1.0954 | 1.2000 |" in text
    assert "| two/tight | 8 | 6,000 | 5,000 | 1.2000 |" in text
    assert "| 200 | 1.0000 |" in text
    kept = [json.loads(line) for file in (traces / "results").iterdir() for line in file.read_text().splitlines()]
    assert [x["case"] for x in kept] == [
        "one/chain", "one/pair", "two/tight.6000", "two/tight", "chain/100", "chain/200",
    ]  # fmt: skip
    assert kept[2] | {"peak": 6000, "lower_bound": 5000, "over": 1.2, "unit": "s"} == kept[2]
    again = text.replace("6,000", "old")
    document.write_text(again)
    figures.main(words)
    assert "old" not in document.read_text()
    assert document.read_text().count("| two/tight |") == 1
    capsys.readouterr()


def test_marks_are_needed():
    with pytest.raises(ValueError, match="no marks"):
        figures.written("nothing", {"sets": "table"})


def test_a_folder_without_files(tmp_path):
    with pytest.raises(SystemExit):
        figures.main([str(tmp_path), "--no-write"])


@pytest.mark.parametrize("count", [1, 10, 999])
def test_chains_have_as_many_buffers_as_asked(count):
    made = figures.chain(count)
    assert len(made) == len({x.id for x in made}) == count
    assert made == figures.chain(count)
