"""A plan as one HTML page that needs nothing else: its picture, its roofline and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from nbxtensor.cli.figures import Figures, Row
from nbxtensor.cli.text import count_text
from nbxtensor.planning.peak import peak
from nbxtensor.planning.plan import Plan
from nbxtensor.planning.price import duration
from nbxtensor.planning.report import size_text
from nbxtensor.planning.roofline import Point, draw_roofline

__all__ = ["page"]

_STYLE = """
:root{color-scheme:light dark;--ink:#24313f;--dim:#52606d;--grid:#dfe5eb;--back:#fff;--card:#f5f7f9}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9ef;--dim:#a9b4c0;--grid:#2c3640;--back:#14191f;--card:#1b222a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1360px;padding:24px 32px 64px;background:var(--back);color:var(--ink);
font:14px/1.5 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}
h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:36px 0 10px}p{color:var(--dim);margin:0 0 12px}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(125px,1fr));gap:12px;margin:18px 0 8px}
.facts div{background:var(--card);border:1px solid var(--grid);border-radius:8px;padding:10px 14px}
.facts b{display:block;font-size:18px;font-weight:600}.facts span{color:var(--dim)}
.scroll{overflow-x:auto}.scroll svg{min-width:960px}table{border-collapse:collapse;min-width:60%}
th,td{padding:4px 14px 4px 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid);
font-variant-numeric:tabular-nums}
th{color:var(--dim);font-weight:500}th.t,td.t{text-align:left}tr.sum td{font-weight:600;border-bottom:0}
svg{display:block;width:100%;height:auto;border:1px solid var(--grid);border-radius:8px}
details summary{cursor:pointer;color:var(--dim);margin:36px 0 10px;font-size:16px}
#tip{position:fixed;z-index:1;pointer-events:none;white-space:pre-line;max-width:420px;padding:8px 12px;
border-radius:6px;background:var(--ink);color:var(--back);font-size:13px;line-height:1.4;visibility:hidden}
"""
# A tooltip that comes at once: the words are those of each shape's title, which stay where scripts do not run.
_SCRIPT = """
const tip=document.getElementById('tip');
for(const shape of document.querySelectorAll('svg .b')){
 const title=shape.querySelector('title');shape.dataset.tip=title.textContent;title.remove();
 shape.setAttribute('aria-label',shape.dataset.tip);}
addEventListener('mousemove',event=>{
 const text=event.target.dataset&&event.target.dataset.tip;
 tip.style.visibility=text?'visible':'hidden';if(!text)return;tip.textContent=text;
 const x=event.clientX+16,y=event.clientY+16;
 tip.style.left=Math.max(Math.min(x,innerWidth-tip.offsetWidth-8),8)+'px';
 tip.style.top=(y+tip.offsetHeight>innerHeight?event.clientY-tip.offsetHeight-12:y)+'px';});
"""


def page(plan: Plan, figures: Figures) -> str:
    """Return the page: it asks the network for nothing, and is light or dark as the reader prefers."""
    where = str(plan.target.facts.get("name", f"{plan.target.backend} {plan.target.arch}"))
    head = f"{plan.graph.name} on {where}"
    total = figures.total
    facts = [
        ("arena", size_text(plan.arena_nbytes)),
        ("lower bound", size_text(plan.lower_bound)),
        ("weights", size_text(plan.weights_nbytes)),
        ("state", size_text(plan.state_nbytes)),
        ("in all", size_text(plan.nbytes)),
        ("launches", str(total.launches)),
        ("predicted", "-" if total.seconds is None else duration(total.seconds)),
    ]
    said = (
        f"{plan.target.backend} {plan.target.arch}, {len(plan.graph.nodes)} nodes, {len(plan.lifetimes)} buffers in "
        f"the arena; placement: {plan.algorithm}"
    )
    said += "" if plan.bounds is None else f"; planned at the bound of {plan.bounds}"
    facts += [("measured", duration(total.measured))] if total.measured is not None else []
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(head)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(head)}</h1>",
        f"<p>{escape(said)}</p>",
        '<div class="facts">',
        *(f"<div><span>{name}</span><b>{escape(text)}</b></div>" for name, text in facts),
        "</div>",
        "<h2>Memory</h2>",
        f'<div class="scroll">{plan.svg()}</div>',
        *_peak(plan),
        "<h2>Time</h2>",
        *_roofline(head, figures),
        *_table("By op family", "op family", figures.families, total),
        *_table("By op", "op", figures.ops, total),
        "<details><summary>By node</summary>",
        *_table("", "node", figures.nodes, total),
        "</details>",
        f'<div id="tip"></div><script>{_SCRIPT}</script>',
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _roofline(head: str, figures: Figures) -> Iterator[str]:
    """Yield the roofline, or why there is none."""
    if figures.lacking:
        yield f"<p>{escape(figures.lacking)}</p>"
        return
    points = [
        Point(f"node {x.node} {x.name} ({x.kernel})", x.family, x.flops, x.nbytes, x.seconds, x.measured)
        for x in figures.nodes
        if x.seconds is not None
    ]
    yield f'<div class="scroll">{draw_roofline(head, points, figures.facts)}</div>'


def _peak(plan: Plan) -> Iterator[str]:
    """Yield who is in use at the peak."""
    top = peak(plan)
    if top is None:
        return
    at = "" if top.node is None else f" (node {top.node} {top.op})"
    yield f"<h2>At the peak: launch {top.moment}{escape(at)}, {size_text(top.nbytes)} in use</h2>"
    head = [("buffer", True), ("what it is", True), ("family", True), ("bytes", False), ("offset", False)]
    head += [("in use in launches", False), ("share", False)]
    rows = [
        [x.id, x.name, x.family, f"{x.nbytes:,}", f"{x.offset:,}", f"{x.lower} to {x.upper - 1}",
         f"{x.nbytes / top.nbytes:.1%}"]
        for x in top.live
    ]  # fmt: skip
    yield from _rows(head, rows)


def _table(title: str, first: str, rows: Sequence[Row], total: Row) -> Iterator[str]:
    if title:
        yield f"<h2>{title}</h2>"
    ran = total.measured is not None
    head = [(first, True), *((name, False) for name in ("calls", "launches", "bytes", "flops", "predicted", "share"))]
    head += [("limited by", True)]
    head += [("measured", False), ("predicted / measured", False)] if ran else []
    lines: list[list[str]] = []
    for row in (*rows, total):
        name = f"{row.node} {row.name} ({row.kernel})" if row.node is not None else row.name
        share = f"{row.seconds / total.seconds:.1%}" if row.seconds is not None and total.seconds else "-"
        line = [name, str(row.calls), str(row.launches), size_text(row.nbytes), count_text(row.flops)]
        line += ["-" if row.seconds is None else duration(row.seconds), share, row.limit or "-"]
        if ran:
            line += [duration(row.measured or 0.0)]
            line += [f"{row.seconds / row.measured:.2f}" if row.seconds is not None and row.measured else "-"]
        lines.append(line)
    yield from _rows(head, lines, total=True)


def _rows(head: Sequence[tuple[str, bool]], lines: Sequence[Sequence[str]], *, total: bool = False) -> Iterator[str]:
    """Yield a table: (heading, whether it holds words) of each column, and its lines, the last one a sum or not."""
    words = [' class="t"' if text else "" for _, text in head]
    yield '<div class="scroll"><table><thead><tr>'
    yield "".join(f"<th{kind}>{escape(name)}</th>" for (name, _), kind in zip(head, words, strict=True))
    yield "</tr></thead><tbody>"
    for number, line in enumerate(lines):
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(line, words, strict=True))
        kind = ' class="sum"' if total and number + 1 == len(lines) else ""
        yield f"<tr{kind}>{cells}</tr>"
    yield "</tbody></table></div>"
