"""What every property test of the suite is run with, and what tests that count memory need."""

import gc

import pytest
from hypothesis import settings

settings.register_profile("gates", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("gates")


@pytest.fixture
def collection_waits():
    """Let no collection run by itself meanwhile: it would free what earlier tests left, and bytes are counted."""
    gc.disable()
    yield
    gc.enable()
