"""What every property test of the suite is run with."""

from hypothesis import settings

settings.register_profile("gates", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("gates")
