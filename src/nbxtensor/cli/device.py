"""`nbxtensor device`: what devices there are, what is known of them, and measuring them."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from nbxtensor.backend import device_files, registry
from nbxtensor.backend.device_names import recognise
from nbxtensor.backend.device_writing import dumped, measured_fields, with_measured
from nbxtensor.cli.targets import HELP, described, is_file, opened_here, read
from nbxtensor.cli.usage import check_writable
from nbxtensor.errors import MissingFactError, UnsupportedError
from nbxtensor.op import Target
from nbxtensor.run.device import Device

__all__ = ["add"]

_VENDORS = {"cpu": "cpu", "cuda": "nvidia"}  # backend -> vendor of its devices
_REPORTED = ("compute.units", "memory.l2_nbytes")  # what a driver says and its vendor may not


def add(groups: Any) -> None:
    """Add the subcommands to a parser's groups."""
    group = groups.add_parser("device", help="devices: what there is, what is known of it, measure it")
    parts = group.add_subparsers(metavar="WHAT", required=True)
    listing = parts.add_parser("list", help="the devices of this machine, and those that are described")
    listing.set_defaults(run=_list)
    showing = parts.add_parser("show", help="every number known of a device, and where it comes from")
    showing.add_argument("name", help=HELP)
    showing.set_defaults(run=_show)
    measuring = parts.add_parser("measure", help="measure a device of this machine and keep what plans are priced by")
    measuring.add_argument("--device", default="cuda", help='the device ("cuda", "cuda:1", "cpu"; left out: "cuda")')
    measuring.add_argument("--out", type=Path, help="write the device file with these numbers to this path")
    measuring.set_defaults(run=_measure)


def _list(_: argparse.Namespace) -> None:
    rows = [("device", "code for", "what it is", "file")]
    for kind in registry.installed():
        backend = registry.backend(kind)
        for index in range(backend.count()):
            target = backend.target(index)
            found = _described(target, kind)
            name = kind if backend.count() == 1 else f"{kind}:{index}"
            rows.append((name, target.arch, str(target.facts.get("name", "")), "/".join(found) if found else "-"))
    _table(rows)
    sys.stdout.write("\ndescribed, there or not:\n")
    for vendor in device_files.vendors():
        sys.stdout.write(f"  {vendor}: {', '.join(device_files.names(vendor))}\n")


def _show(asked: argparse.Namespace) -> None:
    vendor_and_name = described(asked.name)
    if vendor_and_name is None and is_file(asked.name):
        facts = read(Path(asked.name), "NAME").facts
        _table([("fact", "value", "from"), *((p, _value(facts[p]), asked.name) for p in sorted(facts))])
        return
    if vendor_and_name is None:
        opened = opened_here(asked.name, "NAME", or_described=True)
        facts, vendor_and_name = opened.target.facts, _described(opened.target, opened.backend.name)
    else:
        facts = device_files.facts(*vendor_and_name)
    stated = device_files.facts(*vendor_and_name) if vendor_and_name else {}
    rows = ((p, _value(facts[p]), _origin(p, facts[p], stated, vendor_and_name)) for p in sorted(facts))
    _table([("fact", "value", "from"), *rows])


def _measure(asked: argparse.Namespace) -> None:
    check_writable("--out", asked.out)
    opened = opened_here(asked.device)
    target = opened.measure(anew=True)
    measured = measured_fields(_measured(opened))
    source = f"measured {datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()} on {_on(opened)}"
    _table([("fact", "value"), *((path, _value(measured[path])) for path in sorted(measured))])
    sys.stdout.write(f"{source}\n")
    if asked.out is None:
        return
    description = _description(opened)
    reported = {name: int(target.facts[name]) for name in _REPORTED if name in target.facts and name not in measured}
    description = with_measured(description, reported, f"{opened.backend.name}: what the driver reports")
    asked.out.write_text(dumped(with_measured(description, measured, source)), encoding="utf-8")
    sys.stdout.write(f"written to {asked.out}\n")


def _measured(opened: Device) -> Mapping[str, Any]:
    """Return what was measured, and nothing that a device file states."""
    found = getattr(opened.backend, "measured_facts", None)
    if found is None:
        raise UnsupportedError(f"measure: {opened} cannot be measured. Its facts are those of its device file.")
    return found(opened.index)


def _on(opened: Device) -> str:
    """Return what a measurement was made on and with, for its source."""
    target = opened.target
    driver = getattr(opened.backend, "driver_version", None)
    words = [f"one {target.facts.get('name', target.arch)}"]
    if driver is not None:
        words.append(f"driver {driver()}")
    words += [f"{name} {importlib.metadata.version(package)}" for name, package in _PACKAGES]
    return ", ".join(words) + ": nbxtensor device measure"


_PACKAGES = (("Triton", "triton"), ("nbxtensor", "nbxtensor"))


def _description(opened: Device) -> dict[str, Any]:
    """Return the description of an opened device: its file, or what its driver says where it has none."""
    target = opened.target
    found = _described(target, opened.backend.name)
    if found is not None:
        return device_files.read(*found)
    name = str(target.fact("name"))
    dtypes = sorted(target.features)
    numbers = {
        p: int(target.facts[p]) for p in ("memory.bytes", "memory.max_shared_memory_per_block") if p in target.facts
    }
    plain: dict[str, Any] = {
        "name": name,
        "vendor": _VENDORS[opened.backend.name],
        "architecture": target.arch,
        "compute_capability": target.arch,
        "recognised_as": [name],
        "shares_host_memory": bool(target.facts.get("shares_host_memory", False)),
        "dtypes": {"stored": dtypes, "computed": dtypes},
    }
    return with_measured(plain, numbers, f"{opened.backend.name}: what the driver reports")


def _described(target: Target, kind: str) -> tuple[str, str] | None:
    """Return (vendor, name) of a device's file; None where it has none."""
    if kind not in _VENDORS:
        return None
    try:
        return recognise(target.arch if kind == "cpu" else str(target.fact("name")))
    except MissingFactError:
        return None


def _origin(path: str, value: Any, stated: Mapping[str, Any], file: tuple[str, str] | None) -> str:
    if file is not None and path in stated and stated[path] == value:
        try:
            return device_files.source(*file, path)
        except MissingFactError:  # words have no source
            return ""
    return "reported by the driver or measured on this machine"


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(each) for each in cast("Sequence[object]", value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
