"""Every case of every op on a GPU, against its reference: the same test as on the CPU."""

import pytest
from tests.ops.test_cases import test_case  # noqa: F401 - collected here, on this module's backend

from nbxtensor.backend import registry

pytestmark = [
    pytest.mark.gpu,
]


@pytest.fixture(scope="session")
def backend():
    return registry.backend("cuda")
