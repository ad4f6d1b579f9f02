"""What tells one argument of a call from another, as something to look prepared calls up by."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

__all__ = ["argument_key", "typed"]

_PLAIN = frozenset({int, bool, str, type(None)})


def argument_key(value: Any) -> Hashable | None:
    """Return what a call with ``value`` among its arguments can be looked up by; None where it cannot be.

    Two arguments with one key lead to the same launches, but for addresses: 1, 1.0, True and -0.0 are kept apart, and
    operands answer for themselves (``__keyed__``).

    >>> argument_key(1) == argument_key(True)
    False
    >>> argument_key(object()) is None
    True
    """
    kind = type(value)
    if kind in _PLAIN:
        return (kind, value)
    if kind is float:
        return (kind, value.hex())
    if kind is tuple or kind is list:
        members = tuple([getattr(m, "__key__", None) or argument_key(m) for m in value])
        return None if None in members else (kind, members)
    keyed = getattr(value, "__keyed__", None)
    return None if keyed is None else cast("Hashable | None", keyed())


def typed(value: Any) -> Hashable:
    """Return a hashable value as one that equals no value of another type, -0.0 kept from 0.0."""
    if isinstance(value, tuple):
        return tuple(typed(v) for v in cast("tuple[Any, ...]", value))
    return (type(value), value.hex() if isinstance(value, float) else value)
