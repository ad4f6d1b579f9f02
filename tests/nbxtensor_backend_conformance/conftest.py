import pytest
from tests.nbxtensor_backend_conformance.subjects import subjects

_SUBJECTS = subjects()


@pytest.fixture(params=_SUBJECTS.values(), ids=_SUBJECTS.keys(), scope="session")
def subject(request):
    """One device of each backend in turn."""
    return request.param


@pytest.fixture
def memory(subject):
    return subject.backend.memory(subject.index)
