"""A module of ops that is imported at the first use of one of its names."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Deferred"]


class Deferred:
    """What stands for a module until one of its names is asked for; a name is looked up once.

    A process that runs a saved program calls no op: it need not pay for their declarations.

    >>> math = Deferred("math")
    >>> math.floor(2.5)
    2
    """

    def __init__(self, module: str) -> None:
        """Keep the name of the module."""
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """Return what the module calls ``name``."""
        value = getattr(importlib.import_module(self._module), name)
        self.__dict__[name] = value
        return value
