"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["count_text"]


def count_text(number: int) -> str:
    """Return a count with the prefix that reads best.

    >>> count_text(0), count_text(1500), count_text(15_010_000_000)
    ('0', '1.5 k', '15.01 G')
    """
    for power, unit in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if number >= 10**power:
            return f"{number / 10**power:.4g} {unit}"
    return str(number)
