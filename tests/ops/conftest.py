"""The backend that kernels run on."""

import pytest

from nbxtensor.backend import registry


@pytest.fixture(scope="session")
def backend():
    return registry.backend("cpu")
