"""One measured figure as a line: shown as it comes, kept in bench/results/<device>.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TextIO

from bench import machine
from bench.race import Timing

RESULTS = machine.ROOT / "bench" / "results"
_SHOWN = 5  # significant digits kept
# A floor is measured as a copy and then a read: a kernel that reads two streams while it writes one is up to 1.16 times
# as fast (add). Past this, what the kernel declares is more than it does.
_MOST_SHARE = 1.25


class Lines:
    """Where figures go.

    Args:
        keep: Whether to append them to the file of this device, or only to show them.

    Attributes:
        impossible: What was faster than the machine was measured to allow: a cost that is declared wrongly.
    """

    def __init__(self, *, keep: bool) -> None:
        self.impossible: list[str] = []
        self._about = machine.about()
        self._file: TextIO | None = None
        if keep:
            RESULTS.mkdir(parents=True, exist_ok=True)
            self._file = (RESULTS / f"{machine.slug()}.jsonl").open("a", encoding="utf-8")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def add(
        self,
        group: str,
        case: str,
        *,
        unit: str,
        ours: float,
        peers: Mapping[str, float] | None = None,
        threads: int = 1,
        floor: float | None = None,
        goal: str = "",
        against: str = "",
        **more: Any,
    ) -> None:
        """Keep one figure.

        Args:
            group: The group of measurements it belongs to.
            case: What was measured.
            unit: What ``ours``, ``peers`` and ``floor`` are in. Ending in "/s" more is better, else less.
            ours: Our figure.
            peers: The figure of each peer.
            threads: Threads used.
            floor: What the machine allows at best.
            goal: What is asked for, in words.
            against: The peer that the goal names, by the start of its name; left out, all peers.
            more: Whatever else belongs to the figure.
        """
        rate = unit.endswith("/s")
        line: dict[str, Any] = {"group": group, "case": case, "threads": threads, "unit": unit, "ours": _short(ours)}
        if peers:
            best = (max if rate else min)(peers, key=lambda name: peers[name])
            line["peers"] = {name: _short(value) for name, value in peers.items()}
            line["best_peer"] = best
            line["ratio"] = _ratio(ours, peers[best], rate=rate)
            named = [value for name, value in peers.items() if against and name.startswith(against)]
            if named:
                line["against"] = against
                line["against_ratio"] = _ratio(ours, max(named) if rate else min(named), rate=rate)
        if floor:
            line["floor"] = _short(floor)
            line["share"] = round(ours / floor if rate else floor / ours, 3)
            if line["share"] > _MOST_SHARE:
                self.impossible.append(f"{group} {case}, {threads} threads: {line['share']:.0%} of what is possible")
        if goal:
            line["goal"] = goal
        line |= {name: value for name, value in more.items() if value is not None}
        line["load"] = machine.load()
        print(_shown(line), flush=True)
        if self._file is not None:
            self._file.write(json.dumps(line | self._about) + "\n")
            self._file.flush()


def scaled(timings: Mapping[str, Timing], scale: float) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figure of each contender times ``scale``, and the medians and least values to keep beside them."""
    more = {
        "median": {name: _short(timing.median * scale) for name, timing in timings.items()},
        "least": {name: _short(timing.least * scale) for name, timing in timings.items()},
    }
    return {name: timing.figure * scale for name, timing in timings.items()}, more


def _ratio(ours: float, peer: float, *, rate: bool) -> float:
    return round(ours / peer if rate else peer / ours, 3)


def _short(value: float) -> float:
    return float(f"{value:.{_SHOWN}g}")


def _shown(line: Mapping[str, Any]) -> str:
    parts = [f"{line['group']:8} {line['case']:44} {line['threads']}t  {line['ours']:>9.5g} {line['unit']}"]
    if "ratio" in line:
        named = "  ".join(f"{name} {value:.5g}" for name, value in line["peers"].items())
        parts.append(f"x{line['ratio']:<6} [{named}]")
    if "against" in line:
        parts.append(f"x{line['against_ratio']} of {line['against']}")
    if "share" in line:
        parts.append(f"{line['share']:.0%} of the floor {line['floor']:.5g}")
    if "eager" in line:
        parts.append(f"eager {line['eager']:.5g}")
    if "goal" in line:
        parts.append(f"(goal {line['goal']})")
    return "  ".join(parts)
