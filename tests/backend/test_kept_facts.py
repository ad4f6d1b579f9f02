"""What was measured and kept: read where it is of use, and passed over where it is not."""

from __future__ import annotations

import pytest

from nbxtensor.backend.kept_facts import keep_facts, kept_facts, kept_path
from nbxtensor.settings import set_cache_directory

ABOUT = {"level": "x86-64-v4"}


@pytest.fixture(autouse=True)
def _cache(tmp_path):
    set_cache_directory(tmp_path)
    yield
    set_cache_directory(None)


def test_what_was_kept_is_read_for_what_it_was_measured_on():
    keep_facts("some device", ABOUT, {"launch.round_ns": 4.0})
    assert kept_facts("some device", ABOUT) == {"launch.round_ns": 4.0}
    assert kept_facts("some device", {"level": "x86-64-v3"}) == {}
    assert kept_facts("another", ABOUT) == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"{",
        b"- 1",
        b"[" * 100_000,
        b"format: 1\nlevel: x86-64-v4",
        b"format: 1\nlevel: x86-64-v4\nfacts: 3",
    ],
)
def test_a_file_of_no_use_is_as_good_as_none(text):
    keep_facts("some device", ABOUT, {"launch.round_ns": 4.0})
    kept_path("some device").write_bytes(text)
    assert kept_facts("some device", ABOUT) == {}
