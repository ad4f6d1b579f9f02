"""What every property test of the suite is run with, and what tests that count memory or need a GPU go by."""

import gc
import os

import pytest
from hypothesis import settings

from nbxtensor.backend import registry

settings.register_profile("gates", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("gates")


def pytest_collection_modifyitems(items):
    """Skip what this machine lacks a device for, by the marks that say so."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if wanting and not registry.backend("cuda").count():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU: the CUDA driver is missing or finds none"))
    if "PYTEST_XDIST_WORKER" in os.environ:
        for item in items:
            if item.get_closest_marker("alone"):
                item.add_marker(pytest.mark.skip(reason="other processes are on the device: run with -n0 -m alone"))


@pytest.fixture
def collection_waits():
    """Let no collection run by itself meanwhile: it would free what earlier tests left, and bytes are counted."""
    gc.disable()
    yield
    gc.enable()
