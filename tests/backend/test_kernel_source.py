import inspect
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.backend import kernel_source
from nbxtensor.backend.contract import KernelRequest
from nbxtensor.backend.cpu.device import GENERATOR
from nbxtensor.backend.kernel_source import constant_values, kernel_function, kernel_key, reached_files
from nbxtensor.errors import CompileError
from nbxtensor.op import Source, Target

TARGET = Target("cpu", "x86-64-v4", frozenset({"avx512bf16"}))
KERNEL = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef copy(x, o, N: tl.constexpr):\n    pass\n"


def request(**changes):
    fields = {
        "module": "",
        "name": "copy",
        "text": KERNEL,
        "signature": {"x": "*fp32", "o": "*fp32"},
        "constants": {"N": 16},
    }
    return KernelRequest(**(fields | changes))


def key(target=TARGET, options=(), **changes):
    return kernel_key(request(**changes), target, GENERATOR, dict(options))


def test_the_same_request_has_the_same_key():
    assert key() == key()


@pytest.mark.parametrize(
    "changes",
    [
        {"text": KERNEL + "\n"},
        {"name": "other"},
        {"signature": {"x": "*fp32", "o": "*fp16"}},
        {"signature": {"o": "*fp32", "x": "*fp32"}},
        {"signature": {"x": "*fp32@16", "o": "*fp32"}},
        {"constants": {"N": 32}},
        {"constants": {"N": 16.0}},
        {"constants": {"N": "16"}},
        {"constants": {"N": Source("f", "one")}},
        {"constants": {"N": None}},
        {"target": Target("cpu", "x86-64-v3", frozenset({"avx512bf16"}))},
        {"target": Target("cpu", "x86-64-v4")},
        {"options": {"num_warps": 4}},
    ],
)
def test_whatever_changes_the_code_changes_the_key(changes):
    assert key(**changes) != key()


values = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text(max_size=3)


@given(values, values)
def test_constants_that_differ_have_different_keys(a, b):
    same = type(a) is type(b) and repr(a) == repr(b)
    assert (key(constants={"N": a}) == key(constants={"N": b})) == same


def test_zeros_of_either_sign_and_true_and_one_differ():
    assert len({key(constants={"N": value}) for value in (0.0, -0.0, 0, False)}) == 4


def test_generated_sources_are_told_apart_by_text():
    one, two = (key(constants={"F": Source("f", f"text {n}")}) for n in (1, 2))
    assert one != two
    assert one == key(constants={"F": Source("f", "text 1")})


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of kernels on the path; returns a function that writes one of its files."""
    root = tmp_path / "kernels_of_a_test"
    root.mkdir()

    def write(name, text):
        (root / name).write_text(textwrap.dedent(text))
        kernel_source._digest.cache_clear()

    write("__init__.py", "")
    write("ops.py", "from kernels_of_a_test.deep import f\nfrom kernels_of_a_test import (\n    wide,\n)\nimport os\n")
    write("deep.py", "def f():\n    import kernels_of_a_test.late as late\n")
    write("wide.py", "")
    write("late.py", "")
    write("apart.py", "")
    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in [name for name in sys.modules if name.startswith("kernels_of_a_test")]:
        del sys.modules[name]
    kernel_source._digest.cache_clear()


@pytest.mark.parametrize("name", ["ops.py", "deep.py", "wide.py", "late.py"])
def test_a_file_that_a_kernel_reaches_is_in_its_key(package, name):
    before = key(module="kernels_of_a_test.ops", text="")
    package(name, "import os  # another text\n")
    assert key(module="kernels_of_a_test.ops", text="") != before
    assert "kernels_of_a_test" not in sys.modules  # found without being imported


def test_a_file_that_it_does_not_reach_is_not(package):
    before = key(module="kernels_of_a_test.ops", text="")
    package("apart.py", "import os  # another text\n")
    assert key(module="kernels_of_a_test.ops", text="") == before


def test_the_module_of_looked_up_functions_is_in_the_key(package):
    changes = {"constants": {"F": "fn:relu"}, "functions": "kernels_of_a_test.apart"}
    before, without = key(**changes), key(functions="kernels_of_a_test.apart")
    package("apart.py", "import os  # another text\n")
    assert key(**changes) != before
    assert key(functions="kernels_of_a_test.apart") == without


def test_what_generated_text_imports_is_in_the_key(monkeypatch, tmp_path):
    text = "from nbxtensor.backend.cpu.levels import LEVELS\n"
    (place,) = (p for p in reached_files(("nbxtensor.backend.cpu.levels",)) if p.name == "levels.py")
    changed = tmp_path / "levels.py"
    changed.write_text(place.read_text() + "\n# another text\n")
    found = kernel_source._file
    before, before_source = key(text=text), key(constants={"F": Source("f", text)})
    kernel_source._digest.cache_clear()
    monkeypatch.setattr(kernel_source, "_file", lambda name: changed if name.endswith("levels") else found(name))
    try:
        assert key(text=text) != before
        assert key(constants={"F": Source("f", text)}) != before_source
    finally:
        kernel_source._digest.cache_clear()


def test_the_code_generator_is_in_the_key():
    names = {path.name for path in reached_files(GENERATOR)}
    assert {"codegen.py", "frontend.py", "lowering.py", "ttir.py", "ir.py"} <= names
    assert "device.py" not in names


def test_versions_are_in_the_key(monkeypatch):
    before = key()
    kernel_source.generator_digest.cache_clear()
    monkeypatch.setattr(kernel_source, "_versions", lambda: ("99.0", "0.0.1"))
    try:
        assert key() != before
    finally:
        kernel_source.generator_digest.cache_clear()


def test_generated_text_becomes_a_function_whose_source_can_be_read():
    text = "def double(x):\n    # twice\n    return x + x\n"
    function = kernel_function(request(name="double", text=text))
    assert function(21) == 42
    assert inspect.getsource(function) == text
    assert kernel_function(request(name="double", text=text)) is function


def test_constants_are_looked_up():
    language = pytest.importorskip("triton.language")
    constants = {
        "A": "tl.float32",
        "F": "fn:fsum",
        "G": Source("twice", "def twice(x):\n    return 2 * x\n"),
        "N": 3,
        "S": "ieee",
        "Z": None,
    }
    found = constant_values(request(constants=constants, functions="math"))
    assert found["A"] is language.float32
    assert found["F"].__name__ == "fsum"
    assert found["G"](4) == 8
    assert (found["N"], found["S"], found["Z"]) == (3, "ieee", None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: kernel_function(request(module="no_such_module", text="")),
            "its module is imported. Got 'no_such_mod",
        ),
        (
            lambda: kernel_function(request(module="math", name="nope", text="")),
            "nope: a function of its module. Got none",
        ),
        (
            lambda: kernel_function(request(name="nope")),
            "nope: a function of its module. Got none in nbxtensor_generated",
        ),
        (
            lambda: constant_values(request(constants={"F": "fn:nope"}, functions="math")),
            "nope: a function of its module",
        ),
        (lambda: key(module="no_such_module", text=""), "no_such_module: the source of a kernel is a file. Got none"),
        (lambda: key(module="math", text=""), "math: the source of a kernel is a file. Got none"),
    ],
)
def test_what_does_not_exist_is_named(make, message):
    pytest.importorskip("triton")
    with pytest.raises(CompileError, match=message):
        make()
