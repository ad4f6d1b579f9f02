import numpy as np
import pytest

from nbxtensor import memory
from nbxtensor.errors import SettingError


@pytest.fixture(autouse=True)
def unlimited():
    yield
    memory.set_limit(None)


def test_a_limit_is_set_and_taken_back():
    assert memory.limit() is None
    memory.set_limit(8 << 30)
    assert memory.limit() == 8 << 30
    memory.set_limit(np.int64(4096))
    assert memory.limit() == 4096
    assert type(memory.limit()) is int
    memory.set_limit(None)
    assert memory.limit() is None


@pytest.mark.parametrize("nbytes", [0, -1, 1.5, "8G", True])
def test_what_is_no_size_is_refused_and_changes_nothing(nbytes):
    memory.set_limit(64)
    with pytest.raises(SettingError, match="memory limit"):
        memory.set_limit(nbytes)
    assert memory.limit() == 64
