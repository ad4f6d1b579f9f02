"""What an object does when the process forks, for as long as the object lives."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

__all__ = ["in_child"]


def in_child(method: Callable[[], None]) -> None:
    """Have a bound method called in every child process, right after the fork, while its object lives."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        found = reference()
        if found is not None:
            found()

    os.register_at_fork(after_in_child=call)
