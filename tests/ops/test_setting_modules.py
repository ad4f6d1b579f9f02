"""The three setting modules of ops: split sizes, the store of proven settings, the launch observer."""

from pathlib import Path

import pytest

from nbxtensor.errors import MissingFactError, SettingError
from nbxtensor.ops import autotune_settings, launch_observer, tiling_policy
from nbxtensor.settings import set_cache_directory


@pytest.fixture(autouse=True)
def defaults_again():
    yield
    tiling_policy.set_tiling(None)
    autotune_settings.set_store(None)
    launch_observer.set_launch_observer(None)
    set_cache_directory(None)


def test_the_tiling_table_is_a_copy():
    table = tiling_policy.tiling_table()
    table["reduce"]["workspace_nbytes"] = 1
    assert tiling_policy.tiling_table() != table
    tiling_policy.set_tiling(table)
    table["reduce"]["workspace_nbytes"] = 2
    assert tiling_policy.split_size("reduce", "workspace_nbytes") == 1
    tiling_policy.set_tiling(None)
    assert tiling_policy.split_size("reduce", "workspace_nbytes") == 16 << 20


def broken_tables():
    def change(edit):
        table = tiling_policy.tiling_table()
        edit(table)
        return table

    yield "whole", {}
    yield "whole", {"reduce": {"workspace_nbytes": 1}}
    yield "whole", [1]
    yield "extra", change(lambda t: t.update(extra={"workspace_nbytes": 1}))
    yield "reduce", change(lambda t: t["reduce"].update(other=1))
    yield "reduce", change(lambda t: t.update(reduce=7))
    for size in (0, -4, 1.5, "1", True, None):
        yield (
            "reduce.workspace_nbytes",
            change(lambda t, size=size: t["reduce"].update(workspace_nbytes=size)),
        )


@pytest.mark.parametrize(("named", "table"), list(broken_tables()))
def test_a_broken_table_is_refused_and_names_the_place(named, table):
    before = tiling_policy.tiling_table()
    with pytest.raises(SettingError, match=named):
        tiling_policy.set_tiling(table)
    assert tiling_policy.tiling_table() == before


def test_an_unknown_split_size_is_a_missing_fact():
    with pytest.raises(MissingFactError, match=r"reduce\.rows"):
        tiling_policy.split_size("reduce", "rows")


def test_the_store_is_a_path_or_what_returns_one():
    set_cache_directory("/srv/cache")
    assert autotune_settings.directory() == Path("/srv/cache/certified")
    autotune_settings.set_store(Path("/srv/store"))
    assert autotune_settings.directory() == Path("/srv/store")
    places = iter(["/a", "/b"])
    autotune_settings.set_store(lambda: next(places))
    assert [autotune_settings.directory(), autotune_settings.directory()] == [Path("/a"), Path("/b")]
    autotune_settings.set_store(lambda: None)
    with pytest.raises(SettingError, match="autotune store"):
        autotune_settings.directory()
    with pytest.raises(SettingError, match="autotune store"):
        autotune_settings.set_store(3)


class Observer:
    def __init__(self):
        self.keys = []

    def active(self):
        return True

    def record(self, tuned, key):
        self.keys.append((tuned, key))

    def shadow_run(self, *launch):
        pass


def test_an_observer_is_installed_and_taken_away():
    assert launch_observer.launch_observer().active() is False
    observer = Observer()
    launch_observer.set_launch_observer(observer)
    assert launch_observer.launch_observer() is observer
    launch_observer.set_launch_observer(None)
    assert launch_observer.launch_observer().active() is False


def test_the_default_observer_takes_every_call_and_keeps_nothing():
    default = launch_observer.launch_observer()
    assert default.record(True, ("k",)) is None
    assert default.shadow_run("kernel", (1, 1, 1)) is None


def test_an_observer_without_its_methods_is_refused_by_name():
    with pytest.raises(SettingError, match="active, record, shadow_run"):
        launch_observer.set_launch_observer(object())
