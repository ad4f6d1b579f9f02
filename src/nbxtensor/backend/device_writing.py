"""Device files as text: a description with numbers that were measured, each with its source."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import yaml

from nbxtensor.backend.device_schema import FIELDS, check, field_of, leaves, sources_of

__all__ = ["dumped", "measured_fields", "with_measured"]

_WIDTH = 100
_DIGITS = 4
_GROUPED = 10_000  # from here on digits are written in groups of three


def measured_fields(facts: Mapping[str, Any]) -> dict[str, int]:
    """Return those of ``facts`` that a device file may state, as whole numbers.

    >>> measured_fields({"memory.copy_bandwidth": 4.1e12, "workers": 2, "launch.seconds": 2e-6})
    {'memory.copy_bandwidth': 4100000000000, 'launch.recorded_ns': 2000}
    """
    found: dict[str, int] = {}
    for path, value in facts.items():
        if path == "launch.seconds":
            found["launch.recorded_ns"] = max(round(1e9 * value), 1)
        elif field_of(path) is not None:
            found[path] = round(value) if path.endswith("nbytes") else _significant(value)
    return found


def with_measured(description: Mapping[str, Any], measured: Mapping[str, int], source: str) -> dict[str, Any]:
    """Return a description that states ``measured`` numbers, by path, in place of what it stated.

    Args:
        description: As `device_files.read` returns one.
        measured: Numbers by path.
        source: Where they come from.

    Raises:
        FormatError: The result breaks the schema.
    """
    made: dict[str, Any] = copy.deepcopy(dict(description))
    old = sources_of(made, where="device file")
    for path, value in measured.items():
        *groups, last = path.split(".")
        place = made
        for group in groups:
            place = cast("dict[str, Any]", place.setdefault(group, {}))
        place[last] = value
    numbers = [path for path, value in leaves({k: v for k, v in made.items() if k != "sources"}) if _numeric(value)]
    stated: dict[str, list[str]] = {}
    for path in numbers:
        given = source if path in measured else next(old[p] for p in old if path == p or path.startswith(p + "."))
        stated.setdefault(given, []).append(path)
    made["sources"] = [{"from": text, "states": _merged(paths, numbers)} for text, paths in stated.items()]
    order = [*dict.fromkeys(path.partition(".")[0] for path in FIELDS), "sources"]
    made = {name: made[name] for name in order if name in made}
    check(made, where="device file")
    return made


def dumped(description: Mapping[str, Any]) -> str:
    """Return a description as the text of a device file."""
    text = yaml.dump(
        dict(description), Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True, default_flow_style=False
    )
    return f"# {description['name']}: device_schema.py says what each field means\n{text}"


def _significant(value: float) -> int:
    """Return a number as a whole one of four digits that count."""
    whole = max(round(value), 1)
    return whole if whole < 10**_DIGITS else round(float(f"{whole:.{_DIGITS}g}"))


def _merged(paths: list[str], numbers: list[str]) -> list[str]:
    """Return ``paths`` with each group that is named whole in place of its members."""
    left = list(paths)
    for group in dict.fromkeys(p.rsplit(".", n)[0] for p in paths for n in range(p.count("."), 0, -1)):
        members = [number for number in numbers if number.startswith(group + ".")]
        if len(members) > 1 and set(members) <= set(left):
            first = left.index(members[0])
            left = [group if place == first else path for place, path in enumerate(left) if path not in members[1:]]
    return left


def _numeric(value: Any) -> bool:
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    return any(isinstance(item, int) and not isinstance(item, bool) for item in items)


class _Dumper(yaml.SafeDumper):
    """Lists in one line, long texts folded, long numbers in groups of digits."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().increase_indent(flow, False)


def _number(dumper: yaml.SafeDumper, value: int) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:int", f"{value:_}" if value >= _GROUPED else f"{value}")


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=not isinstance(value[0], dict))


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = ">" if len(value) > _WIDTH else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(int, _number)
_Dumper.add_representer(list, _list)
_Dumper.add_representer(str, _text)
