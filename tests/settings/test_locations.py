from pathlib import Path

import pytest

from nbxtensor.errors import SettingError
from nbxtensor.settings import cache_directory, set_cache_directory


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("NBX_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    set_cache_directory(None)


def test_the_order_of_precedence(monkeypatch, tmp_path):
    assert cache_directory() == tmp_path / ".cache" / "nbxtensor"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_directory() == tmp_path / ".cache" / "nbxtensor"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/xdg")
    assert cache_directory() == Path("/var/xdg/nbxtensor")
    monkeypatch.setenv("NBX_CACHE_DIR", "~/own")
    assert cache_directory() == tmp_path / "own"
    set_cache_directory("/srv/set")
    assert cache_directory() == Path("/srv/set")
    set_cache_directory(None)
    assert cache_directory() == tmp_path / "own"


@pytest.mark.parametrize("path", ["", 3, b"bytes"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(SettingError, match="cache directory"):
        set_cache_directory(path)


def test_nothing_is_created_by_asking(tmp_path):
    cache_directory()
    assert not (tmp_path / ".cache").exists()
