import os
import sys

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nbxtensor.backend.contract import Compiled
from nbxtensor.backend.kernel_cache import KernelCache
from nbxtensor.settings import set_cache_directory

KEY = "ab" * 32
KEPT = Compiled("name", bytes(range(256)) * 3, (("x", "*fp32"), ("n", "i32")), {"scratch_nbytes": 64, "arch": "x"})


@pytest.fixture
def directory(tmp_path):
    set_cache_directory(tmp_path)
    yield tmp_path
    set_cache_directory(None)


def only_file(directory):
    (path,) = (p for p in (directory / "kernels").rglob("*") if p.is_file())
    return path


def test_what_is_written_is_read(directory):
    cache = KernelCache()
    assert cache.read(KEY) is None
    cache.write(KEY, KEPT)
    found = cache.read(KEY)
    assert found == KEPT
    assert found is not None
    assert found.parameters == KEPT.parameters
    assert cache.read("cd" * 32) is None


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_as_good_as_absent(directory, data):
    cache = KernelCache()
    cache.write(KEY, KEPT)
    path = only_file(directory)
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        place = data.draw(st.integers(0, len(whole) - 1))
        damaged = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    path.write_bytes(damaged)
    assert cache.read(KEY) is None
    cache.write(KEY, KEPT)
    assert cache.read(KEY) == KEPT


def test_a_file_appears_whole(directory, monkeypatch):
    """The bytes are in place under another name before the file has its own."""
    seen = []
    replace = type(directory).replace

    def watched(self, target):
        seen.append((self.read_bytes(), target.exists()))
        return replace(self, target)

    monkeypatch.setattr(type(directory), "replace", watched)
    KernelCache().write(KEY, KEPT)
    assert seen == [(only_file(directory).read_bytes(), False)]


@pytest.mark.parametrize("place", ["file", "missing"])
def test_a_directory_that_cannot_be_is_warned_of_once(tmp_path, place):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a directory should be")
    set_cache_directory(blocked if place == "file" else blocked / "deeper")
    try:
        cache = KernelCache()
        assert cache.read(KEY) is None
        with pytest.warns(RuntimeWarning, match="compiled kernels are not kept.*set_cache_directory"):
            cache.write(KEY, KEPT)
        cache.write(KEY, KEPT)  # a second warning would be an error here
    finally:
        set_cache_directory(None)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="a superuser may write everywhere")
def test_a_read_only_directory_is_warned_of(directory):
    directory.chmod(0o500)
    try:
        with pytest.warns(RuntimeWarning, match="compiled kernels are not kept"):
            KernelCache().write(KEY, KEPT)
    finally:
        directory.chmod(0o700)


def test_a_failed_write_leaves_nothing_behind(directory, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(directory), "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        KernelCache().write(KEY, KEPT)
    assert [p for p in directory.rglob("*") if p.is_file()] == []
