import importlib.metadata
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbxtensor.backend import registry
from nbxtensor.backend.registry import GROUP, backend, installed, parse_device
from nbxtensor.errors import ArgumentError, MissingFactError


def test_the_library_s_own_backends_are_installed():
    assert {"cpu", "null"} <= set(installed())
    assert list(installed()) == sorted(installed())


@pytest.mark.parametrize("name", ["cpu", "null"])
def test_a_backend_is_one_object_per_process(name):
    assert backend(name).name == name
    assert backend(name) is backend(name)


def test_a_backend_that_is_not_installed_is_refused_with_those_that_are():
    with pytest.raises(
        MissingFactError, match=r"backend 'tpu' is not known. Installed: .*cpu.*null.*nbxtensor.backends"
    ):
        backend("tpu")


@given(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), st.none() | st.integers(0, 99))
def test_device_names_are_a_kind_and_an_index(kind, index):
    assert parse_device(kind if index is None else f"{kind}:{index}") == (kind, index or 0)


@pytest.mark.parametrize(
    "name", ["", "CPU", "cpu:", "cpu:-1", "cpu:01", "cpu:1:2", "cpu 0", ":0", "0", "cpu:x", "cpu\n"]
)
def test_other_device_names_are_refused(name):
    with pytest.raises(ArgumentError, match=r"device: a kind and an index. Got"):
        parse_device(name)


@pytest.fixture
def fresh():
    registry._entry_points.cache_clear()
    registry.backend.cache_clear()
    yield
    registry._entry_points.cache_clear()
    registry.backend.cache_clear()


def distribution(folder, package, *lines):
    info = folder / f"{package}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text("\n".join((f"[{GROUP}]", *lines)))


@pytest.mark.usefixtures("fresh")
def test_another_package_offers_a_backend(tmp_path, monkeypatch):
    (tmp_path / "other_backend.py").write_text("class B:\n    name = 'other'\n\n\ndef backend():\n    return B()\n")
    distribution(tmp_path, "other", "other = other_backend")
    monkeypatch.syspath_prepend(tmp_path)
    assert "other" in installed()
    assert "other_backend" not in sys.modules  # listed without being loaded
    assert backend("other").name == "other"
    del sys.modules["other_backend"]


@pytest.mark.usefixtures("fresh")
def test_two_packages_that_offer_the_same_name_are_refused(tmp_path, monkeypatch):
    distribution(tmp_path, "one", "same = json")
    distribution(tmp_path, "two", "same = csv")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ArgumentError, match=r"one package offers each backend. Got 'same' from (json and csv|csv and json)"
    ):
        installed()


def test_the_entry_points_name_modules_with_a_backend():
    for point in importlib.metadata.entry_points(group=GROUP):
        assert callable(point.load().backend)


def test_listing_backends_loads_none():
    code = (
        "import sys; from nbxtensor.backend import registry; registry.installed(); registry.parse_device('cuda:1')\n"
        "unwanted = ('nbxtensor.backend.cpu', 'nbxtensor.backend.null', 'triton')\n"
        "sys.exit(any(m.startswith(unwanted) for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
