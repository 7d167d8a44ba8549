"""A benchmark's result as JSON (docs/bench/format.md), as Rich tables, and as Markdown for the tree."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlz.bench.load import MOST, Load
from rlz.bench.result import OURS, Result, Spread, Workload, is_cost, kind_of

FORMAT = 2


def to_json(
    results: Sequence[tuple[Workload, Result]],
    *,
    settings: dict[str, Any],
    machine: dict[str, Any],
    command: str,
    seconds: float,
    before: Load | None = None,
) -> dict[str, Any]:
    """Everything about a benchmark as JSON values: how it was made, all values, spread, limits, ratios."""
    versions = {library: found for _, result in results for library, found in result.versions.items()}
    return {
        "format": FORMAT,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command,
        "took_s": round(seconds, 1),
        "settings": settings,
        "machine": machine,
        "versions": {OURS: machine["versions"], **versions},
        "load": {"disturbs_cores": MOST, "before": None if before is None else asdict(before)},
        "workloads": [_workload(workload, result) for workload, result in results],
    }


def _workload(workload: Workload, result: Result) -> dict[str, Any]:
    spreads = result.spreads()
    shown = [name for name in workload.metrics if any(name in metrics for metrics in result.values.values())]
    return {
        "workload": workload.name,
        "definition": dict(workload.definition),
        "metrics": {
            name: {
                "kind": kind_of(name),
                "better": "less" if is_cost(name) else "more",
                "limit": limit if (limit := workload.limits.get(name)) and name in spreads.get(limit, {}) else None,
            }
            for name in shown
        },
        "contenders": {
            name: {metric: asdict(spread) | {"values": result.values[name][metric]} for metric, spread in found.items()}
            for name, found in spreads.items()
        },
        "ratios": [
            asdict(ratio) | {"interval": None if ratio.interval is None else list(ratio.interval)}
            for ratio in result.ratios(shown)
        ],
        "loads": result.loads,
        "facts": result.facts,
        "errors": result.errors,
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print a report as tables."""
    console.print(_tables(report))


def _tables(report: dict[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [Text(machine_line(report), style="dim")]
    for one in report["workloads"]:
        parts.append(Text(headline(report, one), style="bold"))
        for metric in one["metrics"]:
            table = Table(title=metric, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
            table.add_column("contender")
            for heading in headings(one, metric)[1:]:
                table.add_column(heading, justify="right")
            for row in rows(one, metric):
                table.add_row(*row)
            parts.append(table)
        parts += [Text(line) for line in ratio_lines(one)]
        parts += [Text(line, style="yellow") for line in load_lines(one)]
        parts += [Text(f"failed: {error}", style="red") for error in one["errors"]]
    return Group(*parts)


def to_markdown(report: dict[str, Any]) -> str:
    """The report as Markdown: command, machine, versions, one table per metric, ratios."""
    lines: list[str] = []
    for one in report["workloads"]:
        lines += [f"## {headline(report, one)}", ""]
        if one is report["workloads"][0]:
            lines += [f"    {report['command']}", "", machine_line(report), "", *version_lines(report)]
        if words := definition_words(one):
            lines += ["", f"{words}."]
        for metric, about in one["metrics"].items():
            heading = headings(one, metric)
            lines += ["", f"### {metric} ({about['kind']})", "", "| " + " | ".join(heading) + " |"]
            lines += ["| --- " + "| ---: " * (len(heading) - 1) + "|"]
            lines += ["| " + " | ".join(row) + " |" for row in rows(one, metric)]
        lines += ["", *(f"- {line}" for line in (*ratio_lines(one), *load_lines(one)))]
        lines += [*(f"- failed: {error}" for error in one["errors"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def version_lines(report: dict[str, Any]) -> list[str]:
    """Versions of each library's packages, as a list in Markdown."""
    return [
        f"- {library}: " + ", ".join(f"{name} {found}" for name, found in versions.items())
        for library, versions in report["versions"].items()
    ]


_HEADINGS = ("contender", "median", "min", "quartile 1", "quartile 3", "max", "rounds")


def headings(one: Mapping[str, Any], metric: str) -> list[str]:
    """Of the table of a metric; with how near to the limit a contender is, where there is one."""
    limit = one["metrics"][metric]["limit"]
    return [*_HEADINGS, *([f"of {limit}"] if limit else [])]


def rows(one: Mapping[str, Any], metric: str) -> list[list[str]]:
    """Cells of the table of a metric."""
    found = []
    for name, metrics in one["contenders"].items():
        if metric in metrics:
            spread = Spread(**{key: value for key, value in metrics[metric].items() if key != "values"})
            values = (spread.median, spread.low, spread.first_quartile, spread.third_quartile, spread.high)
            row = [name, *(figure(value) for value in values), str(spread.count)]
            if one["metrics"][metric]["limit"]:
                row.append(f"{100 * share(one, metric, name):.0f} %")
            found.append(row)
    return found


def share(one: Mapping[str, Any], metric: str, contender: str) -> float:
    """Part of the limit that a contender reaches."""
    about = one["metrics"][metric]
    mine, limit = (float(one["contenders"][name][metric]["median"]) for name in (contender, about["limit"]))
    return limit / mine if about["better"] == "less" else mine / limit


def ratio_lines(one: Mapping[str, Any]) -> Iterator[str]:
    """How rlz compares with each other contender, in words."""
    for ratio in one["ratios"]:
        if ratio["best"] == one["metrics"][ratio["metric"]]["limit"]:
            continue
        interval = ratio["interval"]
        sure = f"95 % interval {interval[0]:.2f} to {interval[1]:.2f}, " if interval else ""
        yield (
            f"{ratio['metric']}: {OURS} {'takes' if is_cost(ratio['metric']) else 'is at'} {ratio['ratio']:.2f} times"
            f" {ratio['best']} ({sure}by round {ratio['rounds']['low']:.2f} to {ratio['rounds']['high']:.2f})"
        )


def load_lines(one: Mapping[str, Any]) -> Iterator[str]:
    """Measurements that stand although they were disturbed, in words."""
    for load in one["loads"]:
        if load["disturbed"]:
            others = load["others_cores"] + load["stolen_cores"]
            yield f"disturbed: round {load['round']} of {load['job']}, others took {others:.2f} cores"


def definition_words(one: Mapping[str, Any]) -> str:
    """What all contenders have in common, but for the environment, which the headline names."""
    return ", ".join(f"{name} {value}" for name, value in one["definition"].items() if name != "env")


def headline(report: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    """Workload, environment, rounds and date."""
    settings = report["settings"]
    env, count = one["definition"].get("env", settings.get("env")), settings["rounds"]
    on, rounds = f" on {env}" if env else "", f"{count} round{'' if count == 1 else 's'}"
    return f"{one['workload']}{on}, {rounds}, {report['date'][:10]}"


def machine_line(report: Mapping[str, Any]) -> str:
    """The machine in a line."""
    machine = report["machine"]
    simd = machine["simd"][-1] if machine["simd"] else "no SIMD"
    parts = [machine["cpu"], f"{machine['cores']} usable cores", simd, f"{machine['memory'] / 2**30:.0f} GiB"]
    parts += [gpu["name"] for gpu in machine["gpus"]]
    return ", ".join([*parts, f"Linux {machine['kernel'].partition('-')[0]}", f"Python {machine['python']}"])


def figure(value: float) -> str:
    """A metric for people: three significant digits, large ones in k and M."""
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e6 if unit == 'M' else 1e3):.3g} {unit}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
