"""Seeded random streams whose bits are the same on every machine and backend."""

from nbxtensor.random.philox import philox4x32
from nbxtensor.random.stream import Stream

__all__ = ["Stream", "philox4x32"]
