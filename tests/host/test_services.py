import importlib

import pytest

from nbxtensor import host


@pytest.mark.parametrize("name", host.SERVICES.values())
def test_what_took_the_place_of_a_service_is_there(name):
    module, _, attribute = name.rpartition(".")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_no_service_is_left_to_pass():
    assert host.__all__ == ["SERVICES"]
    with pytest.raises(TypeError):
        host.SERVICES["x"] = "y"
