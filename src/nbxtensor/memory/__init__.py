"""Device memory: a limit to hold to, and the allocators that hold to it."""

from nbxtensor.memory.limit import limit, set_limit

__all__ = ["limit", "set_limit"]
