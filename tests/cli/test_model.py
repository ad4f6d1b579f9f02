"""What a MODEL file may be, what its options become, and what is said of one that is none."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.models import SMALL, write

import nbxtensor as nbx
from nbxtensor.cli import main
from nbxtensor.cli.model import build_model
from nbxtensor.cli.targets import here, named
from nbxtensor.cli.usage import UsageError

GRAPH = "import nbxtensor as nbx\ngraph = nbx.trace(nbx.relu, nbx.Spec((2, 2), 'float32'))\n"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], {"batch": 2, "depth": 2, "name": "small", "scale": 1.0, "deep": False, "extra": None}),
        (["batch=8", "name=7", "scale=2", "deep=yes", "extra=[1, 2]"],
         {"batch": 8, "depth": 2, "name": "7", "scale": 2.0, "deep": True, "extra": [1, 2]}),
        (["extra=words = and words", "deep=0"],
         {"batch": 2, "depth": 2, "name": "small", "scale": 1.0, "deep": False, "extra": "words = and words"}),
    ],
)  # fmt: skip
def test_options_are_of_the_type_of_their_defaults(tmp_path, options, wanted):
    text = (
        f"{GRAPH}"
        "def build(batch=2, depth: int = 2, name='small', scale=1.0, deep=False, extra=None):\n"
        "    import sys\n    sys.modules['seen_options'] = dict(locals())\n    return graph\n"
    )
    build_model(type(tmp_path)(write(tmp_path, text)), options)
    found = sys.modules.pop("seen_options")
    found.pop("sys")
    assert found == wanted
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in wanted.items()}


@given(number=st.integers(-(10**12), 10**12), other=st.floats(allow_nan=False))
def test_numbers_arrive_as_they_were_written(number, other, tmp_path_factory):
    text = f"{GRAPH}def build(a=0, b=0.0, **rest):\n    return graph, lambda device: rest | dict(a=a, b=b)\n"
    path = tmp_path_factory.getbasetemp() / "numbers.py"
    path.write_text(text)
    model = build_model(path, [f"a={number}", f"b={other!r}", f"c={number}"])
    assert model.weights_on(here("cpu")) == {"a": number, "b": other, "c": number}


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", [], "no function build"),
        ("build = 3", [], "no function build"),
        ("def build(:", [], "line 1: the file raised SyntaxError"),
        ("import no_such_module_here", [], "line 1: the file raised ModuleNotFoundError"),
        ("\n1 / 0", [], "line 2: the file raised ZeroDivisionError"),
        ("raise SystemExit('not today')", [], "the file raised SystemExit: not today"),
        (
            "def build():\n    raise ValueError('first line\\nsecond')",
            [],
            "line 2: build raised ValueError: first line",
        ),
        ("def build():\n    raise SystemExit(3)", [], "build raised SystemExit: 3"),
        ("def build():\n    assert False", [], "line 2: build raised AssertionError"),
        ("def build():\n    return 3", [], "build returned int. A model has build(**options)"),
        ("def build():\n    return ()", [], "build returned an empty tuple"),
        (f"{GRAPH}def build():\n    return graph, 3", [], "weights are a mapping"),
        (f"{GRAPH}def build():\n    return graph, {{}}, 'x'", [], "inputs are a tuple"),
        (f"{GRAPH}def build():\n    return graph, {{}}, (), 1", [], "build returned Graph, dict, tuple, int"),
        (SMALL, ["bach=3"], "build has no option 'bach'. It takes batch=2, depth=2"),
        (SMALL, ["batch"], "options are KEY=VALUE. Got 'batch'"),
        (SMALL, ["batch=two"], "batch is a whole number, as its default 2. Got 'two'"),
        (SMALL, ["scale=big"], "scale is a number"),
        (SMALL, ["deep=perhaps"], "deep is true or false"),
        (SMALL, ["batch=2", "batch=3"], "an option is given once"),
        ("def build(size):\n    return size", [], "build needs size=VALUE"),
        ("def build():\n    return 1", ["a=1"], "It takes no options"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "price", "run"])
def test_what_is_no_model_is_told_in_one_line(tmp_path, text, options, said, command, capsys):
    assert main([command, write(tmp_path, text), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nbxtensor: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "nowhere.py"], "nowhere.py: no such file"),
        (["plan", "nowhere.json"], "nowhere.json: no such file"),
        (["price", "MODEL", "--device", "h9000"], "--device: no 'h9000' here. Devices of this machine are cpu"),
        (["plan", "MODEL", "--device", "no/such/device"], "--device: no 'no/such/device' here"),
        (["plan", "MODEL", "--device", "cpu:3"], "--device: no 'cpu:3' here"),
        (["plan", "MODEL", "--device", "nowhere.yml"], "nowhere.yml: no such file"),
        (["run", "MODEL", "--device", "h200"], "--device: no 'h200' here. That is a device file"),
        (["run", "nowhere.json"], "a plan has no weights to run with"),
        (["run", "MODEL", "--times", "0"], "--times: 1 or more"),
        (["plan", "MODEL", "--against", "nowhere.json"], "--against: nowhere.json: no such file"),
        (["plan", "MODEL", "--against", ""], "--against: .: a folder"),
        (["plan", "MODEL", "--device", "folder.yml"], "--device: folder.yml: a folder"),
        (["plan", "folder.json"], "MODEL: folder.json: a folder"),
        (["plan", "MODEL", "--device", "/h200"], "--device: no '/h200' here"),
        (["run", "MODEL", "--device", "h9000"], "--device: no 'h9000' here. Devices of this machine are cpu"),
        (["run", "MODEL", "--device", "some.yml"], "That is a device file, which plan and price take. Devices of"),
        (["plan", "MODEL", "--save", "plan.txt"], "--save: a name that ends in .json"),
        (["plan", "MODEL", "--save", "nowhere/plan.json"], "in a folder that is there. Got nowhere/plan.json"),
        (["price", "MODEL", "--svg", "nowhere/plan.svg"], "--svg: a file that can be written"),
        (["plan", "MODEL", "--html", "."], "--html: a file that can be written"),
        (["plan", "MODEL", "--device", ""], "--device: no '' here"),
    ],
)
def test_what_is_not_there_is_told_in_one_line(tmp_path, words, said, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yml").mkdir()
    (tmp_path / "folder.json").mkdir()
    assert main([write(tmp_path) if word == "MODEL" else word for word in words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("nbxtensor: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(("text", "status"), [("- 1\n", 2), ("a: [", 2), ("name: x\n", 2), ("[" * 9999, 2), ("", 2)])
def test_a_device_file_that_is_none(tmp_path, text, status, capsys):
    path = tmp_path / "odd.yml"
    path.write_text(text)
    assert main(["plan", write(tmp_path), "--device", str(path)]) == status
    assert capsys.readouterr().err.count("\n") == 1


def test_a_device_file_is_what_the_device_of_its_name_is(tmp_path):
    from nbxtensor.backend import device_files

    source = device_files._FOLDER / "nvidia" / "h200.yml"
    path = tmp_path / "mine.yml"
    path.write_text(source.read_text())
    assert named(str(path)) == named("h200") == named("nvidia/h200")
    assert named(str(path)).facts == named("h200").facts
    path.write_text(source.read_text().replace("vendor: nvidia", "vendor: nobody"))
    with pytest.raises(UsageError, match="the vendor is one of amd, apple, cpu, nvidia"):
        named(str(path))


def test_words_that_the_command_does_not_have(tmp_path, capsys):
    for words in (["plan", write(tmp_path), "--colour"], ["price"], ["nothing"], ["device", "list", "a=1"]):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_options_may_follow_flags(tmp_path, capsys):
    assert main(["plan", write(tmp_path), "--device", "h200", "batch=4", "--csv", "depth=3"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(",")[1] for row in rows] == ["name", "linear", "linear", "linear", "softmax", "total"]


def test_weights_and_inputs_may_be_functions_of_the_device(tmp_path, capsys):
    text = SMALL.replace("return graph, weights, (", "made = (").replace('"float32"),)\n', '"float32"),)\n') + (
        "    return graph, (lambda device: weights), (lambda device: made)\n"
    )
    assert main(["run", write(tmp_path, text), "--times", "1"]) == 0
    assert "verified    yes" in capsys.readouterr().out
    broken = text.replace("lambda device: weights", "lambda device: weights['nothing']")
    assert main(["run", write(tmp_path, broken, "broken.py")]) == 2
    assert "weights raised KeyError" in capsys.readouterr().err
    lacking = SMALL.replace("return graph, weights, (", "return (graph,) #")
    assert main(["plan", write(tmp_path, lacking, "lacking.py")]) == 0
    capsys.readouterr()
    assert main(["run", write(tmp_path, lacking, "lacking.py")]) == 2
    assert "build returned none" in capsys.readouterr().err


def test_a_model_finds_its_neighbours(tmp_path):
    write(tmp_path, "WIDTH = 3\n", "neighbour_of_a_model.py")
    text = "import neighbour_of_a_model as n\n" + GRAPH.replace("(2, 2)", "(n.WIDTH, 2)")
    model = build_model(tmp_path / write(tmp_path, text + "def build():\n    return graph\n"), [])
    assert model.graph.outputs[0].spec == nbx.Spec((3, 2), "float32")
    assert model.inputs_on(here("cpu")) == ()
    assert np.prod(model.graph.outputs[0].spec.shape) == 6


def test_a_plan_is_compared_with_what_its_file_held_before(tmp_path, capsys):
    path = tmp_path / "plan.json"
    model = write(tmp_path)
    assert main(["plan", model, "--device", "h200", "batch=2", "--save", str(path)]) == 0
    capsys.readouterr()
    assert main(["plan", model, "--device", "h200", "batch=4", "--save", str(path), "--against", str(path)]) == 0
    assert "nothing that is planned differs" not in capsys.readouterr().out
    assert main(["plan", model, "--device", "h200", "batch=4", "--against", str(path)]) == 0
    assert "nothing that is planned differs" in capsys.readouterr().out
