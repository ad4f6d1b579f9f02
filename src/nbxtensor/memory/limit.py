"""The memory limit that a process holds to."""

from __future__ import annotations

from nbxtensor.errors import SettingError
from nbxtensor.settings import replace, settings
from nbxtensor.shape import integer

__all__ = ["limit", "set_limit"]


def set_limit(nbytes: int | None) -> None:
    """Behave, on every device, as a card of ``nbytes`` bytes: allocators refuse what such a card refuses.

    What is allocated already stays. None: the physical card is the limit again.

    Raises:
        SettingError: ``nbytes`` is not a whole number above 0.

    >>> set_limit(8 << 30)
    >>> limit()
    8589934592
    >>> set_limit(None)
    """
    if nbytes is None:
        replace(memory_limit=None)
        return
    try:
        found = integer(nbytes)
    except TypeError:
        found = 0
    if found <= 0:
        raise SettingError(
            f"memory limit: a whole number of bytes is needed. Got {nbytes!r}. "
            "An int above 0, or None for the physical card."
        )
    replace(memory_limit=found)


def limit() -> int | None:
    """Return the bytes that every device behaves as having, or None where its own memory is the limit."""
    return settings().memory_limit
