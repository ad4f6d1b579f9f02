import pytest
from tests.nbxtensor_backend_conformance.subjects import Subject

from nbxtensor.backend.registry import backend
from nbxtensor.errors import MissingFactError


def test_a_backend_is_found_by_its_name(subject: Subject):
    assert backend(subject.backend.name) is subject.backend


def test_a_target_is_the_same_at_every_call(subject: Subject):
    target = subject.backend.target(subject.index)
    assert target == subject.backend.target(subject.index)
    assert target.arch
    assert isinstance(target.features, frozenset)


@pytest.mark.parametrize("method", ["target", "memory", "synchronize"])
def test_a_device_that_is_not_there_is_refused_by_name(subject: Subject, method):
    index = subject.backend.count()
    with pytest.raises(MissingFactError, match=str(index)):
        getattr(subject.backend, method)(index)
