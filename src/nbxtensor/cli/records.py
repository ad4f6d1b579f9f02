"""Plans and their figures as data for other programs: JSON objects and comma-separated rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from nbxtensor.cli.figures import Figures, Level, Row
from nbxtensor.planning.difference import Difference
from nbxtensor.planning.peak import owners, peak
from nbxtensor.planning.plan import Plan

__all__ = ["changes_csv", "csv_text", "json_text", "plan_record"]

_COLUMNS: tuple[str, ...] = (
    "level", "name", "family", "node", "kernel", "calls", "launches", "flops", "read", "written", "bytes", "seconds",
    "share", "limit", "measured",
)  # fmt: skip


def plan_record(plan: Plan, figures: Figures) -> dict[str, Any]:
    """Return a plan and its figures as plain data: sizes in bytes, times in seconds, shares of 1."""
    top = peak(plan)
    largest = plan.largest_op
    named = owners(plan)
    return {
        "graph": plan.graph.name,
        "device": {"backend": plan.target.backend, "arch": plan.target.arch, "name": plan.target.facts.get("name", "")},
        "dims": {} if plan.bounds is None else plan.bounds.ranges,
        "memory": {
            "arena": plan.arena_nbytes,
            "weights": plan.weights_nbytes,
            "state": plan.state_nbytes,
            "total": plan.nbytes,
            "lower_bound": plan.lower_bound,
            "ratio": plan.ratio,
            "alignment": plan.alignment,
            "algorithm": plan.algorithm,
        },
        "largest_op": None if largest is None else {"node": largest[0], "bytes": largest[1]},
        "peak": None if top is None else _bytes_named(asdict(top)),
        "families": [_row(row, figures.total) for row in figures.families],
        "ops": [_row(row, figures.total) for row in figures.ops],
        "nodes": [_row(row, figures.total) for row in figures.nodes],
        "total": _row(figures.total, figures.total),
        "facts": dict(figures.facts),
        "not_priced": figures.lacking,
        "buffers": [
            {
                "id": x.id, "name": named[x.id][0], "family": named[x.id][1], "bytes": x.size,
                "offset": plan.offsets[x.id], "lower": x.lower, "upper": x.upper,
            }
            for x in plan.lifetimes
        ],
    }  # fmt: skip


def json_text(record: Mapping[str, Any]) -> str:
    """Return a record as JSON text."""
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


def csv_text(figures: Figures, levels: Iterable[Level]) -> str:
    """Return the rows of the levels and the total as comma-separated values, the first line naming the columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for level in levels:
        writer.writerows({"level": level, **_row(row, figures.total)} for row in figures.of(level))
    writer.writerow({"level": "total", **_row(figures.total, figures.total)})
    return text.getvalue()


def changes_csv(found: Difference) -> str:
    """Return the changes between two plans as comma-separated values, the first line naming the columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("subject", "name", "what", "before", "after", "growth", "at_peak"))
    for x in found.changes:
        writer.writerow((x.subject, x.name, x.what, x.before, x.after, x.growth, x.at_peak))
    return text.getvalue()


def _row(row: Row, total: Row) -> dict[str, Any]:
    share = row.seconds / total.seconds if row.seconds is not None and total.seconds else None
    return {
        "name": row.name, "family": row.family, "node": row.node, "kernel": row.kernel, "calls": row.calls,
        "launches": row.launches, "flops": row.flops, "read": row.read, "written": row.written, "bytes": row.nbytes,
        "seconds": row.seconds, "share": share, "limit": row.limit, "measured": row.measured,
    }  # fmt: skip


def _bytes_named(given: dict[str, Any]) -> dict[str, Any]:
    """Return a dataclass as data, its ``nbytes`` called "bytes"."""
    found = {"bytes" if key == "nbytes" else key: value for key, value in given.items()}
    if "live" in found:
        found["live"] = [_bytes_named(one) for one in found["live"]]
    return found
