"""What the pictures share: one look in light and dark, a colour per op family, axes."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Iterator
from html import escape

__all__ = ["LOOK", "family_colours", "frame", "keys", "text_width"]

_INPUT = "#9aa5b1"
LOOK = (
    ".nbx{--ink:#24313f;--dim:#52606d;--grid:#e3e8ee;--back:#fff;--bound:#c0392b}"
    "@media(prefers-color-scheme:dark){.nbx{--ink:#e4e9ef;--dim:#a9b4c0;--grid:#2c3640;--back:#14191f;--bound:#ff7b6b}}"
    ".nbx text{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:var(--ink)}"
    ".nbx .h{font-size:18px;font-weight:600}.nbx .n{fill:var(--dim)}.nbx .g{stroke:var(--grid)}"
    ".nbx .back{fill:var(--back)}.nbx .b{stroke:var(--back);stroke-width:.6}"
    ".nbx .b:hover{stroke:var(--ink);stroke-width:1.8}.nbx .w{fill-opacity:.5}"
    ".nbx .l{fill:none;stroke:var(--ink);stroke-width:1.4;stroke-opacity:.6}"
    ".nbx .o{paint-order:stroke;stroke:var(--back);stroke-width:4px;stroke-linejoin:round}"
    ".nbx .p{stroke:var(--bound);stroke-width:1.4;stroke-dasharray:6 4;fill:none}"
)
"""Style of every picture: colours of the page by the scheme that the reader prefers."""


def frame(title: str, head: str, facts: str, width: int, height: int, left: int) -> list[str]:
    """Return how a picture begins: its name, its style, its background, its heading and a line of facts."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="nbx" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{LOOK}</style>",
        f'<rect class="back" width="{width}" height="{height}"/>',
        f'<text class="h" x="{left}" y="28">{escape(head)}</text>',
        f'<text class="n" x="{left}" y="48">{escape(facts)}</text>',
    ]


def family_colours(families: Iterable[str]) -> dict[str, str]:
    """Return a colour per family, as far apart in hue as their number allows; inputs are grey.

    >>> family_colours(["input"])
    {'input': '#9aa5b1'}
    """
    kept = sorted({*families} - {"input"})
    colours = {"input": _INPUT}
    for number, name in enumerate(kept):
        red, green, blue = colorsys.hls_to_rgb((0.58 + number / len(kept)) % 1, (0.55, 0.66)[number % 2], 0.55)
        colours[name] = f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
    return colours


def text_width(text: str) -> float:
    """Return about how wide a text of 12 pixels is, rather too wide than too narrow."""
    return 6.8 * len(text)


def keys(entries: Iterable[tuple[str, str]], left: int, right: int, y: int) -> Iterator[str]:
    """Yield the entries (mark as SVG about the origin, text) of a legend in one line, as many as there is room for."""
    x = float(left)
    given = list(entries)
    for number, (mark, text) in enumerate(given):
        rest = f"and {len(given) - number} more"
        room = right - (text_width(rest) if number + 1 < len(given) else 0)
        if x + 17 + text_width(text) > room:
            yield f'<text class="n" x="{x:.0f}" y="{y}">{rest}</text>'
            return
        yield f'<g transform="translate({x:.0f} {y - 10})">{mark}</g>'
        yield f'<text x="{x + 17:.0f}" y="{y}">{escape(text)}</text>'
        x += 34 + text_width(text)
