"""The split sizes in force: how much workspace an op family may ask for before it splits its work."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml

from nbxtensor.errors import MissingFactError, SettingError
from nbxtensor.op import forget_prepared
from nbxtensor.settings import replace, settings

__all__ = ["set_tiling", "split_size", "tiling_table"]

Table = dict[str, dict[str, int]]


def set_tiling(table: Mapping[str, Mapping[str, int]] | None) -> None:
    """Put a whole table of split sizes in force, in the form of the library's ``ops/tiling.yml``.

    Plans made and ops run from now on keep to it. None: the library's file again.

    Raises:
        SettingError: A family or a size is missing or unknown, or a size is not a whole number above 0.

    >>> table = tiling_table()
    >>> table["attention"]["workspace_nbytes"] //= 2
    >>> set_tiling(table)
    >>> set_tiling(None)
    """
    replace(tiling=None if table is None else _checked(table))
    forget_prepared()


def tiling_table() -> Table:
    """Return a copy of the split sizes in force: family -> name of the size -> bytes."""
    table = settings().tiling or _own_table()
    return {family: dict(sizes) for family, sizes in table.items()}


def split_size(family: str, name: str) -> int:
    """Return one split size in force, in bytes.

    Raises:
        MissingFactError: The table has no such family or size.

    >>> split_size("reduce", "workspace_nbytes")
    16777216
    """
    table: Mapping[str, Mapping[str, int]] = settings().tiling or _own_table()
    try:
        return table[family][name]
    except KeyError:
        raise MissingFactError(f"the split size {family}.{name}", "Split sizes live in ops/tiling.yml.") from None


@functools.cache
def _own_table() -> Table:
    text = resources.files("nbxtensor.ops").joinpath("tiling.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def _checked(table: Any) -> Table:
    own = _own_table()
    _same_names("the table", table, own)
    for family, sizes in own.items():
        _same_names(family, table[family], sizes)
        for name in sizes:
            size = table[family][name]
            if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
                raise SettingError(f"tiling: a size is a whole number above 0. Got {family}.{name} = {size!r}.")
    return {family: dict(table[family]) for family in own}


def _same_names(what: str, found: Any, own: Mapping[str, Any]) -> None:
    if not isinstance(found, Mapping) or set(found) != set(own):
        names = sorted(map(str, found)) if isinstance(found, Mapping) else repr(found)
        raise SettingError(
            f"tiling: a table is whole, as ops/tiling.yml writes it. Got {names} in {what}. "
            f"Exactly {', '.join(sorted(own))}."
        )
