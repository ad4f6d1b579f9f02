"""The commands in docs/COMMAND.md print what stands there, and the check that says so can fail."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("command_doc", ROOT / "tools" / "command_doc.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(tool, monkeypatch):
    monkeypatch.setattr(sys, "argv", [tool.__file__, "--check"])
    return tool.main()


def test_the_commands_print_what_stands_there(tool):
    # In a process of its own: limits, settings and devices that other tests left behind would show.
    done = subprocess.run([sys.executable, tool.__file__, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_document_of_yesterday_is_noticed(tool, monkeypatch, tmp_path, capsys):
    stale = tmp_path / "page.md"
    stale.write_text("```console\n$ nbxtensor plan nowhere.py\nnbxtensor: nowhere.py: not a file\n```\n")
    monkeypatch.setattr(tool, "TARGET", stale)
    assert check(tool, monkeypatch) == 1
    assert "no such file" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [tool.__file__])
    assert tool.main() == 0
    assert check(tool, monkeypatch) == 0


def test_numbers_units_and_order_are_not_compared(tool):
    assert tool.words("linear  12 us, 3.5 KiB\n----\nadd 1 ns\n") == tool.words("add 2 ms\nlinear 4 ns, 2 B\n\n")
    assert tool.words("linear 12 us") != tool.words("matmul 12 us")
