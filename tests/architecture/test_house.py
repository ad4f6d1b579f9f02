"""The rules of the house that no linter states."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nbxtensor as nbx
from nbxtensor import ops
from nbxtensor.errors import ArgumentError, ShapeError
from nbxtensor.op import Case, Kernel, Op

ROOT = Path(__file__).parent.parent.parent
SRC = ROOT / "src" / "nbxtensor"
FILES = sorted(SRC.rglob("*.py"))
NAMES = {p.relative_to(SRC).as_posix() for p in FILES}


def declared() -> dict[str, Op]:
    found: dict[str, Op] = {}
    for module in pkgutil.walk_packages(ops.__path__, "nbxtensor.ops."):
        if not module.name.endswith(".kernel"):
            loaded = importlib.import_module(module.name)
            for name in getattr(loaded, "__all__", ()):
                op = getattr(getattr(loaded, name), "op", None)
                if isinstance(op, Op):
                    found[name] = op
    return found


def test_every_op_is_exported_with_cases_kernels_and_a_docstring():
    for name, op in declared().items():
        assert name in nbx.__all__, f"{name} is not exported"
        assert getattr(nbx, name).op is op
        assert op.name == name
        assert op.cases, f"{name} declares no case"
        assert op.kernels, f"{name} declares no kernel"
        assert len(op.doc) > 10, f"{name} has no docstring"


def test_an_op_that_may_have_no_kernel_says_what_its_kernels_accept():
    unnamed = Kernel("", None, None).accepted
    for op in declared().values():
        if all(kernel.accepts for kernel in op.kernels):
            assert all(kernel.accepted != unnamed for kernel in op.kernels), op.name


class Given:
    """Stands for an operand while a call is sorted."""

    def __run__(self, op, operands, params):
        raise AssertionError


def bound(op: Op, case: Case, **params):
    """Return the call of a case with other parameters, as one of the public function is sorted and checked."""
    given = {}
    for name in case.operands:
        base, _, member = name.rpartition(".")
        given[base or name] = [*given.get(base, ()), Given()] if member and base else Given()
    return op.call(case.operands, op.bind((), {**given, **case.params, **params})[1])


def test_no_op_takes_a_bool_for_a_whole_number():
    def whole(value):
        return isinstance(value, int) and not isinstance(value, bool)

    tried = set()
    for op in declared().values():
        for case, name, value in ((each, *item) for each in op.cases for item in each.params.items()):
            if "float" in str(op.signature.parameters[name].annotation):
                continue  # a number, and bools are numbers
            several = isinstance(value, tuple) and value and all(map(whole, value))
            if not whole(value) and not several:
                continue
            bound(op, case)
            for odd in (True, np.True_):
                with pytest.raises((ArgumentError, ShapeError)):
                    bound(op, case, **{name: (odd, *value[1:]) if several else odd})
            tried.add((op.name, name))
    assert len(tried) > 20


def test_the_namespace_agrees_with_itself():
    tree = ast.parse((SRC / "__init__.py").read_text())
    guard = next(n for n in tree.body if isinstance(n, ast.If))
    imported = {(a.name, n.module) for n in guard.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert {(name, module) for name, module in nbx._PLACES.items()} == imported
    assert set(nbx.__all__) == set(nbx._PLACES)
    for name in nbx.__all__:
        assert getattr(nbx, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = nbx.no_such_name


def test_no_public_name_hides_a_folder():
    folders = {p.name for p in SRC.iterdir() if p.is_dir()}
    assert not folders & set(nbx.__all__)


def test_importing_the_library_loads_neither_triton_nor_torch():
    code = "import sys, nbxtensor; sys.exit(any(m in sys.modules for m in ('triton', 'torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_settings_reads_the_environment():
    pattern = re.compile(r"\bos\.(environ|getenv)|\benviron\b")
    readers = [p.relative_to(SRC).as_posix() for p in FILES if pattern.search(p.read_text())]
    assert [p for p in readers if not p.startswith("settings/")] == []


def test_backends_are_named_only_in_their_folders_and_in_tables():
    """No branch on a backend's name outside its folder: a capability is a row."""
    pattern = re.compile(r"""(==|!=)\s*["'](cuda|hip|metal|null)["']""")
    assert [p.relative_to(SRC).as_posix() for p in FILES if pattern.search(p.read_text())] == []


def test_modules_are_named_by_the_fact_they_hold():
    assert not {n for n in NAMES if Path(n).stem in ("utils", "util", "common", "helpers", "misc")}


def test_every_module_says_what_it_holds():
    for path in FILES:
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert len(said) > 10, f"{path} does not say what it holds"


def test_no_module_is_long():
    long = {p.relative_to(SRC).as_posix(): n for p in FILES if (n := len(p.read_text().splitlines())) > 500}
    kernels = {p for p in long if p.endswith("kernel.py") or p.startswith("lang/")}
    assert set(long) - kernels == {"__init__.py"} & set(long)
