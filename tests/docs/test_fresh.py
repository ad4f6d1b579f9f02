"""The generated documents are what the source says now, and the check that says so can fail."""

import importlib.util
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parent.parent.parent / "tools"


@pytest.fixture(params=["api_docs", "ops_table"])
def tool(request):
    spec = importlib.util.spec_from_file_location(request.param, TOOLS / f"{request.param}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(tool, monkeypatch):
    monkeypatch.setattr(sys, "argv", [tool.__file__, "--check"])
    return tool.main()


def test_the_document_is_fresh_and_complete(tool, monkeypatch, capsys):
    status = check(tool, monkeypatch)
    assert status == 0, capsys.readouterr().out


def test_a_document_of_yesterday_is_noticed(tool, monkeypatch, tmp_path, capsys):
    stale = tmp_path / "page.md"
    stale.write_text(tool.TARGET.read_text().replace("softmax", "softmin"))
    monkeypatch.setattr(tool, "TARGET", stale)
    assert check(tool, monkeypatch) == 1
    assert "out of date" in capsys.readouterr().out
    stale.unlink()
    assert check(tool, monkeypatch) == 1


def test_a_name_without_a_docstring_is_noticed(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("api_docs", TOOLS / "api_docs.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    said = tool.summary
    monkeypatch.setattr(tool, "summary", lambda member: "" if member.name in ("softmax", "errors") else said(member))
    _, missing = tool.page()
    assert missing == ["nbxtensor.errors", "nbxtensor.ops.softmax", "nbxtensor.ops.softmax.op.softmax"]
