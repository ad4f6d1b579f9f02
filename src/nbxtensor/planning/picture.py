"""A plan as a picture: time across, address up, one colour per op family."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from nbxtensor.planning.drawing import family_colours, frame, keys
from nbxtensor.planning.peak import in_use, owners
from nbxtensor.planning.report import size_text
from nbxtensor.planning.steps import family

if TYPE_CHECKING:
    from nbxtensor.planning.lifetimes import Lifetime
    from nbxtensor.planning.plan import Plan

__all__ = ["draw"]

_WIDTH, _HEIGHT = 1280, 720
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 24, 84, 56  # margins round the drawing
_TICKS = 8  # wanted along an axis
_SWATCH = '<rect width="12" height="12" rx="2" fill="{}"/>'
_LINES = (
    ('<line class="p" x1="-5" x2="12" y1="6" y2="6"/>', "lower bound"),
    ('<line class="l" x1="-5" x2="12" y1="6" y2="6"/>', "in use"),
)


def draw(plan: Plan) -> str:
    """Return the arena of ``plan`` as SVG, in light or dark as the reader prefers.

    Each rectangle is a buffer: as wide as its life in launches, as high as its bytes; workspace is paler. Its tooltip
    names it, its op, its bytes, its life and its place. The line is the bytes in use, the dashed line the lower bound.
    """
    end = max((x.upper for x in plan.lifetimes), default=1)
    top = max(plan.arena_nbytes, 1)
    wide, high = (_WIDTH - _LEFT - _RIGHT) / end, (_HEIGHT - _TOP - _BOTTOM) / top
    floor = _HEIGHT - _BOTTOM
    named = owners(plan)
    colours = family_colours(family(node) for node in plan.graph.nodes)
    head = f"{plan.graph.name} on {plan.target.backend} {plan.target.arch}"
    facts = (
        f"arena {size_text(plan.arena_nbytes)}, lower bound {size_text(plan.lower_bound)} (ratio {plan.ratio:.4f}), "
        f"weights {size_text(plan.weights_nbytes)}, state {size_text(plan.state_nbytes)}; "
        f"{len(plan.graph.nodes)} nodes, {len(plan.lifetimes)} buffers"
    )
    out = [
        *frame(f"Memory plan of {head}", head, facts, _WIDTH, _HEIGHT, _LEFT),
        *keys([*_LINES, *((_SWATCH.format(c), n) for n, c in colours.items())], _LEFT, _WIDTH - _RIGHT, 70),
        *_axes(end, plan.arena_nbytes, wide, high),
    ]
    for x in plan.lifetimes:
        label, of = named[x.id]
        offset = plan.offsets[x.id]
        tip = (
            f"{x.id}: {label}\n{size_text(x.size)} ({x.size:,} bytes) at {offset:,}\n"
            f"in use in launches {x.lower} to {x.upper - 1}"
        )
        kind = "b w" if "." in x.id else "b"
        out.append(
            f'<rect class="{kind}" x="{_LEFT + x.lower * wide:.2f}" y="{floor - (offset + x.size) * high:.2f}" '
            f'width="{(x.upper - x.lower) * wide:.2f}" height="{max(x.size * high, 0.4):.2f}" '
            f'fill="{colours[of]}"><title>{escape(tip)}</title></rect>'
        )
    bound = floor - plan.lower_bound * high
    out += [
        f'<path class="l" d="{_live_path(plan.lifetimes, wide, high, floor)}"/>',
        f'<line class="p" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bound:.2f}" y2="{bound:.2f}"/>',
        "</svg>",
    ]
    return "\n".join(out) + "\n"


def _axes(end: int, nbytes: int, wide: float, high: float) -> list[str]:
    floor = _HEIGHT - _BOTTOM
    out: list[str] = []
    for at in range(0, nbytes + 1, 1 << (nbytes // _TICKS).bit_length()):
        y = floor - at * high
        out.append(f'<line class="g" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.2f}" y2="{y:.2f}"/>')
        out.append(f'<text class="n" x="{_LEFT - 8}" y="{y + 4:.2f}" text-anchor="end">{size_text(at)}</text>')
    for moment in range(0, end + 1, _round_step(end)):
        x = _LEFT + moment * wide
        out.append(f'<line class="g" x1="{x:.2f}" x2="{x:.2f}" y1="{floor}" y2="{floor + 6}"/>')
        out.append(f'<text class="n" x="{x:.2f}" y="{floor + 20}" text-anchor="middle">{moment}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    out.append(f'<text class="n" x="{middle:.0f}" y="{_HEIGHT - 14}" text-anchor="middle">launch</text>')
    return out


def _round_step(end: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20 ... that gives at most twice as many ticks as wanted."""
    steps = (factor * 10**power for power in range(20) for factor in (1, 2, 5))
    return next(step for step in steps if end <= 2 * _TICKS * step)


def _live_path(lifetimes: tuple[Lifetime, ...], wide: float, high: float, floor: float) -> str:
    """Return the bytes in use over time as a path of steps."""
    path = [f"M{_LEFT} {floor}"]
    for moment, live in in_use(lifetimes).items():
        path.append(f"H{_LEFT + moment * wide:.2f}V{floor - live * high:.2f}")
    return "".join(path)
