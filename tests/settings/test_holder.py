import dataclasses
import inspect
import threading

import pytest

from nbxtensor.errors import SettingError
from nbxtensor.settings import Settings, replace, settings


@pytest.fixture(autouse=True)
def kept():
    before = settings()
    yield
    replace(**{f.name: getattr(before, f.name) for f in dataclasses.fields(before)})


def test_replace_returns_what_was_in_force_and_leaves_the_rest():
    before = replace(poison=True, threads=3)
    assert settings() == dataclasses.replace(before, poison=True, threads=3)
    assert settings() is not before


def test_settings_are_plain_immutable_data():
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings().poison = True


def test_an_unknown_setting_is_refused_by_name_and_changes_nothing():
    before = settings()
    with pytest.raises(SettingError, match="poisoned"):
        replace(poisoned=True, threads=2)
    assert settings() is before


def test_changes_of_two_threads_do_not_undo_each_other():
    def change(name, count):
        for value in range(count):
            replace(**{name: value})

    threads = [threading.Thread(target=change, args=(name, 2000)) for name in ("threads", "memory_limit")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (settings().threads, settings().memory_limit) == (1999, 1999)


def test_every_field_is_documented():
    for field in dataclasses.fields(Settings):
        assert f"    {field.name}: " in inspect.getdoc(Settings)
