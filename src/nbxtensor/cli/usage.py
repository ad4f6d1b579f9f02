"""What a caller of the command got wrong, told in one line with exit status 2."""

from __future__ import annotations

from nbxtensor.errors import ArgumentError

__all__ = ["UsageError"]


class UsageError(ArgumentError):
    """A word of the command line that names nothing: a file, an option, a device."""
