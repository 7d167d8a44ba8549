"""A report as one HTML page that needs nothing else: bars of every figure, curves of runs to a score, tables."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlz.bench.report import (
    definition_words,
    figure,
    headings,
    headline,
    load_lines,
    machine_line,
    ratio_lines,
    rows,
    version_lines,
)
from rlz.bench.result import OURS

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; } h3 { margin-bottom: .3rem; }
table { border-collapse: collapse; font-size: .85rem; } td, th { padding: .1rem .6rem; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { color: #666; font-weight: 600; }
pre { background: #f4f4f4; padding: .6rem; overflow-x: auto; } .dim { color: #666; } .warn { color: #a50; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; } details { margin: .3rem 0 1rem; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #ddd; } pre { background: #22252b; } }
"""
COLOURS = ("#3b7dd8", "#e07b39", "#4a9e5c", "#b452a0", "#8a6d3b", "#5aa5b5", "#c2453d", "#7a7a7a")
OTHER = "#9aa3ad"

WIDTH, NAME, ROW = 760, 200, 22


def to_html(report: Mapping[str, Any]) -> str:
    """The page."""
    parts = [f"<h1>rlz bench, {_text(report['date'][:10])}</h1>", f"<pre>{_text(report['command'])}</pre>"]
    parts.append(f"<p>{_text(machine_line(report))}</p>")
    parts += ["<ul class=dim>", *(f"<li>{_text(line[2:])}" for line in version_lines(dict(report))), "</ul>"]
    for one in report["workloads"]:
        parts += _workload(report, one)
    data = json.dumps(report).replace("<", "\\u003c")
    parts.append(f'<script type="application/json" id="report">{data}</script>')
    head = "<meta charset=utf-8><meta name=viewport content='width=device-width'>"
    return f"<!doctype html><html lang=en><head>{head}<title>rlz bench</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"  # noqa: E501


def _workload(report: Mapping[str, Any], one: Mapping[str, Any]) -> list[str]:
    parts = [f"<h2>{_text(headline(report, one))}</h2>"]
    parts.append(f"<p class=dim>{_text(definition_words(one))}</p>")
    for metric, about in one["metrics"].items():
        parts.append(f"<h3>{_text(metric)} <small class=dim>{about['kind']}, {about['better']} is better</small></h3>")
        parts.append(bars(one, metric))
        cells = "".join(f"<th>{_text(heading)}" for heading in headings(one, metric))
        body = "".join("<tr>" + "".join(f"<td>{_text(cell)}" for cell in row) for row in rows(one, metric))
        parts.append(f"<details><summary>table</summary><table><tr>{cells}{body}</table></details>")
    curves = [name for name in one["facts"] if name.startswith("curves ")]
    if curves:
        for axis in ("env_steps", "seconds"):
            parts.append(f"<h3>score over {axis.replace('_', ' ')}</h3>{lines(_series(one, axis))}")
    parts += ["<ul>", *(f"<li>{_text(line)}" for line in ratio_lines(one))]
    parts += [f"<li class=warn>{_text(line)}" for line in load_lines(one)]
    parts += [f"<li class=warn>{_text(f'{name}: {why}')}" for name, why in one.get("missing", {}).items()]
    return [*parts, *(f"<li class=warn>failed: {_text(error)}" for error in one["errors"]), "</ul>"]


def bars(one: Mapping[str, Any], metric: str) -> str:
    """Medians of all contenders as bars from zero, with a line from the least to the greatest value."""
    spreads = {name: found[metric] for name, found in one["contenders"].items() if metric in found}
    if min(spread["low"] for spread in spreads.values()) < 0:
        return ""  # returns: the table has them
    most = max(spread["high"] for spread in spreads.values()) or 1.0
    scale = (WIDTH - NAME - 70) / most
    parts = []
    for number, (name, spread) in enumerate(spreads.items()):
        y = number * ROW
        colour = COLOURS[0] if name == OURS else OTHER
        fill = "none" if name == one["metrics"][metric]["limit"] else colour
        low, high = NAME + scale * spread["low"], NAME + scale * spread["high"]
        parts.append(
            f'<text x="{NAME - 8}" y="{y + 15}" text-anchor="end">{_text(name)}</text>'
            f'<rect x="{NAME}" y="{y + 4}" width="{max(1.0, scale * spread["median"]):.1f}" height="{ROW - 8}" '
            f'fill="{fill}" stroke="{colour}"/>'
            f'<path d="M{low:.1f} {y + ROW / 2}H{high:.1f}" stroke="currentColor"/>'
            f'<text x="{high + 6:.1f}" y="{y + 15}">{figure(spread["median"])}</text>'
        )
    return f'<svg viewBox="0 0 {WIDTH} {len(spreads) * ROW}" width="100%" role="img">{"".join(parts)}</svg>'


def _series(one: Mapping[str, Any], axis: str) -> dict[str, list[list[tuple[float, float]]]]:
    return {
        name.removeprefix("curves "): [[(point[axis], point["mean"]) for point in curve] for curve in curves]
        for name, curves in one["facts"].items()
        if name.startswith("curves ")
    }


def lines(series: Mapping[str, Sequence[Sequence[tuple[float, float]]]], height: int = 300) -> str:
    """Curves by name, several of one name in one colour."""
    points = [point for curves in series.values() for curve in curves for point in curve]
    if not points:
        return ""
    right = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    high = high if high > low else low + 1.0
    left, bottom = 60, height - 24

    def at(x: float, y: float) -> str:
        return f"{left + (WIDTH - left - 10) * x / right:.1f},{bottom - (bottom - 8) * (y - low) / (high - low):.1f}"

    parts = []
    for tick in _ticks(low, high):
        y = at(0, tick).split(",")[1]
        parts.append(f'<path d="M{left} {y}H{WIDTH}" stroke="#8884"/>')
        parts.append(f'<text x="{left - 6}" y="{y}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(0.0, right):
        x = at(tick, low).split(",")[0]
        parts.append(f'<text x="{x}" y="{height - 6}" text-anchor="middle">{tick:g}</text>')
    for number, (name, curves) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        for curve in curves:
            way = " ".join(at(x, y) for x, y in curve)
            parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        down = bottom - 14 * (len(series) - number)
        parts.append(f'<text x="{WIDTH - 8}" y="{down}" text-anchor="end" style="fill:{colour}">{_text(name)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="100%" role="img">{"".join(parts)}</svg>'


def _ticks(low: float, high: float) -> list[float]:
    step = 10 ** math.floor(math.log10((high - low) / 2))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= 6)
    first = math.ceil(low / step)
    return [round(number * step, 10) for number in range(first, math.floor(high / step) + 1)]


def _text(text: object) -> str:
    return html.escape(str(text))
