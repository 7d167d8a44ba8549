"""A benchmark's result as JSON, as Rich tables, and as Markdown for the tree."""

import time
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlz.bench.result import Result, Spread, is_time

FORMAT = 1


def to_json(
    result: Result, *, workload: str, settings: dict[str, Any], metrics: tuple[str, ...], machine: dict[str, Any],
    command: str, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Everything about a benchmark as JSON values: how it was made, all values, spread, ratios."""
    return {
        "format": FORMAT,
        "workload": workload,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command,
        "took_s": round(seconds, 1),
        "settings": settings,
        "metrics": list(metrics),
        "machine": machine,
        "versions": {"rlz": machine["versions"], **result.versions},
        "contenders": {
            name: {
                metric: asdict(spread) | {"values": result.values[name][metric]} for metric, spread in spreads.items()
            }
            for name, spreads in result.spreads().items()
        },
        "ratios": [asdict(ratio) for ratio in result.ratios(metrics)],
        "facts": result.facts,
        "errors": result.errors,
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print a report as tables."""
    console.print(_tables(report))


def _tables(report: dict[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [Text(_headline(report), style="bold"), Text(_machine_line(report), style="dim")]
    for metric in report["metrics"]:
        rows = _rows(report, metric)
        if not rows:
            continue
        table = Table(title=metric, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("contender")
        for heading in _HEADINGS[1:]:
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(*row)
        parts.append(table)
    parts += [Text(line) for line in _ratio_lines(report)]
    parts += [Text(f"failed: {error}", style="red") for error in report["errors"]]
    return Group(*parts)


def to_markdown(report: dict[str, Any]) -> str:
    """The report as Markdown: command, machine, versions, one table per metric, ratios."""
    lines = [f"## {_headline(report)}", "", f"    {report['command']}", "", _machine_line(report), ""]
    for library, versions in report["versions"].items():
        lines.append(f"- {library}: " + ", ".join(f"{name} {found}" for name, found in versions.items()))
    for metric in report["metrics"]:
        rows = _rows(report, metric)
        if not rows:
            continue
        lines += ["", f"### {metric}", "", "| " + " | ".join(_HEADINGS) + " |", "| --- " + "| ---: " * 6 + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
    lines += ["", *(f"- {line}" for line in _ratio_lines(report)), *(f"- failed: {e}" for e in report["errors"])]
    return "\n".join(lines).rstrip() + "\n"


_HEADINGS = ("contender", "median", "min", "quartile 1", "quartile 3", "max", "rounds")


def _rows(report: dict[str, Any], metric: str) -> list[list[str]]:
    rows = []
    for name, metrics in report["contenders"].items():
        if metric in metrics:
            spread = Spread(**{key: value for key, value in metrics[metric].items() if key != "values"})
            values = (spread.median, spread.low, spread.first_quartile, spread.third_quartile, spread.high)
            rows.append([name, *(figure(value) for value in values), str(spread.count)])
    return rows


def _ratio_lines(report: dict[str, Any]) -> list[str]:
    return [
        f"{ratio['metric']}: rlz {'takes' if is_time(ratio['metric']) else 'is at'} {ratio['ratio']:.2f} times"
        f" {ratio['best']} (by round {ratio['rounds']['low']:.2f} to {ratio['rounds']['high']:.2f})"
        for ratio in report["ratios"]
    ]


def _headline(report: dict[str, Any]) -> str:
    settings = report["settings"]
    return f"{report['workload']} on {settings['env']}, {settings['rounds']} rounds, {report['date'][:10]}"


def _machine_line(report: dict[str, Any]) -> str:
    machine = report["machine"]
    simd = machine["simd"][-1] if machine["simd"] else "no SIMD"
    parts = [machine["cpu"], f"{machine['cores']} usable cores", simd, f"{machine['memory'] / 2**30:.0f} GiB"]
    parts += [gpu["name"] for gpu in machine["gpus"]]
    return ", ".join([*parts, f"Linux {machine['kernel'].partition('-')[0]}", f"Python {machine['python']}"])


def figure(value: float) -> str:
    """A metric for people: three significant digits, large ones in k and M."""
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e6 if unit == 'M' else 1e3):.3g} {unit}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
