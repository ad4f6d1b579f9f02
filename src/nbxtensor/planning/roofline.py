"""A roofline: arithmetic per byte across, arithmetic per second up, under the rates a device reaches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from nbxtensor.planning.drawing import family_colours, frame, keys, text_width

__all__ = ["Point", "draw_roofline"]

_WIDTH, _HEIGHT = 1280, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 24, 84, 56  # margins round the drawing
_BANDWIDTHS = {  # of two of the same words, the first counts
    "memory.copy_bandwidth": "memory",
    "memory.read_bandwidth": "memory",
    "memory.bandwidth": "memory, as stated",
    "memory.l2_bandwidth": "cache",
}
_UNITS = {"rates": "", "compute": ", as stated"}
_LINE = 16  # of text, in pixels
_Box = tuple[float, float, float, float]  # left, top, right, bottom
_DOT = '<circle cx="6" cy="6" r="5" fill="{}"/>'
_RING = '<circle class="l" cx="6" cy="6" r="5"/>'


@dataclass(frozen=True, slots=True)
class Point:
    """Work drawn as one point.

    Attributes:
        name: What it is, for a reader.
        family: Op family.
        flops: Arithmetic operations.
        nbytes: Bytes moved.
        seconds: Predicted time.
        measured: Measured time in seconds; None where nothing ran.
    """

    name: str
    family: str
    flops: int
    nbytes: int
    seconds: float
    measured: float | None = None


def draw_roofline(name: str, points: Sequence[Point], facts: Mapping[str, float]) -> str:
    """Return a roofline as SVG, in light or dark as the reader prefers.

    Each point is what a prediction says of some work, its area the share of time; where it was measured, a ring says
    what came of it. Its tooltip names it, its rates, bytes, operations and time. Work without arithmetic, or that moves
    no byte, has no place in it and is counted in the heading.

    Args:
        name: What was priced, and where.
        points: The work.
        facts: Numbers of the device by name (`Price.facts`): bandwidths in bytes and rates in operations per second.
    """
    kept = [p for p in points if p.flops and p.nbytes and p.seconds]
    total = sum(p.seconds for p in points)
    left_out = sum(p.seconds for p in points) - sum(p.seconds for p in kept)
    said = "rates of the device as measured; " if any(key.startswith("rates.") for key in facts) else ""
    said += f"{len(kept)} of {len(points)} calls drawn"
    if len(kept) < len(points):
        said += f", the others do no arithmetic ({left_out / total if total else 0.0:.1%} of the time)"
    slopes = {text: facts[key] for key, text in reversed(_BANDWIDTHS.items()) if key in facts}
    roofs = dict(_roofs(facts))
    out = frame(f"Roofline of {name}", f"Roofline: {name}", said, _WIDTH, _HEIGHT, _LEFT)
    if not kept or not slopes or not roofs:
        return "\n".join([*out, "</svg>"]) + "\n"
    scale = _Scale(kept, slopes, roofs)
    colours = family_colours(p.family for p in points)
    marks = [(_DOT.format(colours[name]), name) for name in sorted({p.family for p in kept})]
    marks += [(_RING, "measured")] if any(p.measured for p in kept) else []
    out += keys(marks, _LEFT, _WIDTH - _RIGHT, 70)
    out += [*scale.axes(), *scale.lines(slopes, roofs)]
    boxes: list[_Box] = []
    for p in sorted(kept, key=lambda p: -p.seconds):
        x, y = scale.x(p.flops / p.nbytes), scale.y(p.flops / p.seconds)
        radius = 4 + 22 * math.sqrt(p.seconds / total)
        out.append(
            f'<circle class="b" cx="{x:.2f}" cy="{y:.2f}" r="{radius:.2f}" fill="{colours[p.family]}" '
            f'fill-opacity=".85"><title>{escape(_tip(p))}</title></circle>'
        )
        boxes.append((x - radius, y - radius, x + radius, y + radius))
        if p.measured:
            at = scale.y(p.flops / p.measured)
            out.append(f'<line class="l" x1="{x:.2f}" x2="{x:.2f}" y1="{y:.2f}" y2="{at:.2f}"/>')
            out.append(f'<circle class="l" cx="{x:.2f}" cy="{at:.2f}" r="{radius:.2f}"/>')
            boxes.append((x - radius, at - radius, x + radius, at + radius))
    return "\n".join([*out, *scale.words(slopes, roofs, boxes), "</svg>"]) + "\n"


def _roofs(facts: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Yield (words, operations per second) of each rate of a unit."""
    for key, rate in facts.items():
        parts = key.split(".")
        unit = parts[1].partition("_")[0] if len(parts) == 3 else ""
        if parts[0] in _UNITS and unit in ("matrix", "vector"):
            yield f"{unit} {parts[2]}{_UNITS[parts[0]]}", rate


def _tip(p: Point) -> str:
    lines = [
        p.name,
        f"{p.flops:,} operations, {p.nbytes:,} bytes: {p.flops / p.nbytes:.4g} per byte",
        f"predicted {p.seconds * 1e6:,.4g} us: {_rate(p.flops / p.seconds)}",
    ]
    if p.measured:
        lines.append(f"measured {p.measured * 1e6:,.4g} us: {_rate(p.flops / p.measured)}")
    return "\n".join(lines)


def _rate(rate: float) -> str:
    """Return operations per second in the unit that reads best.

    >>> _rate(1.5e12)
    '1.5 Tflop/s'
    """
    for power, unit in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if rate >= 10.0**power:
            return f"{rate / 10.0**power:.4g} {unit}flop/s"
    return f"{rate:.4g} flop/s"


class _Scale:
    """Both axes, by powers of ten, wide enough for every point and every corner of the roofs."""

    def __init__(self, points: Sequence[Point], slopes: Mapping[str, float], roofs: Mapping[str, float]) -> None:
        across = [p.flops / p.nbytes for p in points]
        across += [rate / slope for rate in roofs.values() for slope in slopes.values()]
        up = [p.flops / p.seconds for p in points] + [p.flops / p.measured for p in points if p.measured]
        up += list(roofs.values())
        self._x = _decades(across)
        self._y = _decades(up)

    def x(self, value: float) -> float:
        """Return where an intensity lies."""
        low, high = self._x
        return _LEFT + (math.log10(value) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Return where a rate lies."""
        low, high = self._y
        return _HEIGHT - _BOTTOM - (math.log10(value) - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def axes(self) -> Iterator[str]:
        """Yield the axes."""
        floor = _HEIGHT - _BOTTOM
        for power in range(self._y[0], self._y[1] + 1):
            y = self.y(10.0**power)
            yield f'<line class="g" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.2f}" y2="{y:.2f}"/>'
            yield f'<text class="n" x="{_LEFT - 8}" y="{y + 4:.2f}" text-anchor="end">{_rate(10.0**power)}</text>'
        for power in range(self._x[0], self._x[1] + 1):
            x = self.x(10.0**power)
            yield f'<line class="g" x1="{x:.2f}" x2="{x:.2f}" y1="{_TOP}" y2="{floor + 6}"/>'
            yield f'<text class="n" x="{x:.2f}" y="{floor + 20}" text-anchor="middle">{10.0**power:g}</text>'
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        yield f'<text class="n" x="{middle:.0f}" y="{_HEIGHT - 14}" text-anchor="middle">operations per byte</text>'

    def lines(self, slopes: Mapping[str, float], roofs: Mapping[str, float]) -> Iterator[str]:
        """Yield the roofs: a flat line per rate from where the fastest memory reaches it, a slope per memory."""
        fastest = max(slopes.values())
        for rate in roofs.values():
            start, y = self.x(rate / fastest), self.y(rate)
            yield f'<line class="l" x1="{start:.2f}" x2="{_WIDTH - _RIGHT}" y1="{y:.2f}" y2="{y:.2f}"/>'
        for rate in slopes.values():
            x, y, end, top = self._slope(rate, roofs)
            yield f'<line class="p" x1="{x:.2f}" x2="{end:.2f}" y1="{y:.2f}" y2="{top:.2f}"/>'

    def words(self, slopes: Mapping[str, float], roofs: Mapping[str, float], taken: list[_Box]) -> Iterator[str]:
        """Yield what each roof is, where no point lies if there is such a place, and once where two are as good as one.

        Args:
            slopes: Bytes per second of each memory.
            roofs: Operations per second of each unit.
            taken: Where points lie.
        """
        fastest, heights = max(slopes.values()), list[float]()
        for text, rate in sorted(roofs.items(), key=lambda entry: (" int" in entry[0], -entry[1])):
            start, y = self.x(rate / fastest), self.y(rate)
            if any(abs(y - other) < _LINE for other in heights):
                continue
            heights.append(y)
            words = f"{text}: {_rate(rate)}"
            x, below = _place(text_width(words), start, y, taken)
            place = f'x="{x:.2f}" y="{y + (14 if below else -5):.2f}" text-anchor="end"'
            yield f'<text class="n o" {place}>{escape(words)}</text>'
        for number, (text, rate) in enumerate(sorted(slopes.items(), key=lambda entry: -entry[1])):
            x, y, end, top = self._slope(rate, roofs)
            words = f"{text}: {rate / 1e9:,.4g} GB/s"
            length = math.hypot(end - x, top - y)
            if length < text_width(words) + 24:
                continue
            across, up = (end - x) / length, (top - y) / length
            beside = -6.0 if number == 0 else 15.0  # above the fastest, below the others
            x, y = x + 16 * across - beside * up, y + 16 * up + beside * across
            angle = math.degrees(math.atan2(up, across))
            place = f'transform="translate({x:.2f} {y:.2f}) rotate({angle:.2f})"'
            yield f'<text class="n o" {place}>{escape(words)}</text>'

    def _slope(self, rate: float, roofs: Mapping[str, float]) -> tuple[float, float, float, float]:
        """Return where the line of a memory begins and ends."""
        first, highest = max(10.0 ** self._x[0], 10.0 ** self._y[0] / rate), max(roofs.values())
        return self.x(first), self.y(first * rate), self.x(highest / rate), self.y(highest)


def _place(wide: float, start: float, y: float, taken: list[_Box]) -> tuple[float, bool]:
    """Return where a text along a roof ends, and whether it is below it: where it meets no point, or at the right."""
    last = _WIDTH - _RIGHT - 4
    for below in (False, True):
        top = y + 3 if below else y - _LINE
        for back in range(0, max(int(last - start - wide), 0) + 1, _LINE):
            box = (last - back - wide, top, last - back, top + 13)
            if not any(_meet(box, point) for point in taken):
                return last - back, below
    return last, False


def _meet(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten round the values, with room below and above."""
    low, high = math.floor(math.log10(min(values)) - 0.15), math.ceil(math.log10(max(values)) + 0.15)
    return low, max(high, low + 1)
