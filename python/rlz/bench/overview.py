"""A report as one table: a figure of rlz in a row, beside the best of the others and the limit."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlz.bench.report import figure, load_lines, machine_line, share
from rlz.bench.result import OURS, is_cost

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Row:
    """A figure of rlz, of the best of the others that have it (`name` "": there is none), and its part of the limit."""

    workload: str
    metric: str
    ours: float
    name: str = ""
    theirs: float = 0.0
    interval: tuple[float, float] | None = None
    of_limit: float | None = None


def rows_of(one: dict[str, Any]) -> list[Row]:
    """The figures of a workload of a report."""
    rows = []
    for metric, about in one["metrics"].items():
        mine = one["contenders"].get(OURS, {}).get(metric)
        if mine is None:
            continue
        others = [ratio for ratio in one["ratios"] if ratio["metric"] == metric and _is_library(one, ratio["best"])]
        best = (max if not is_cost(metric) else min)(
            others, key=lambda ratio: one["contenders"][ratio["best"]][metric]["median"], default=None
        )
        limit = share(one, metric, OURS) if about["limit"] else None
        if best is None:
            rows.append(Row(one["workload"], metric, mine["median"], of_limit=limit))
            continue
        theirs = one["contenders"][best["best"]][metric]["median"]
        interval = tuple(best["interval"]) if best["interval"] else None
        rows.append(Row(one["workload"], metric, mine["median"], best["best"], theirs, interval, limit))
    return rows


def _is_library(one: dict[str, Any], name: str) -> bool:
    limits = {about["limit"] for about in one["metrics"].values()}
    return name not in limits and not name.startswith((OURS, "core", "memcpy", "hand-over"))


def show_overview(report: dict[str, Any], console: "Console") -> None:
    """Print a report as one table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("workload", "figure"):
        table.add_column(title)
    for title in (OURS, "best of the others"):
        table.add_column(title, justify="right")
    table.add_column("which")
    for title in (f"{OURS} / other", "of the limit"):
        table.add_column(title, justify="right")
    for one in report["workloads"]:
        for row in rows_of(one):
            other = ("-", "", "")
            if row.theirs:
                sure = f" ({row.interval[0]:.2f}-{row.interval[1]:.2f})" if row.interval else ""
                other = (figure(row.theirs), row.name, f"{row.ours / row.theirs:.2f}{sure}")
            limit = "" if row.of_limit is None else f"{100 * row.of_limit:.0f} %"
            table.add_row(row.workload, row.metric, figure(row.ours), *other, limit)
    console.print(Text(machine_line(report), style="dim"))
    console.print(table, markup=False)
    rounds = report["settings"]["rounds"]
    console.print(
        f"{rounds} round{'s' if rounds > 1 else ''}, {report['took_s']:.0f} s. Rates: more is better; _us, _s: less is "
        "better. Medians, spread and intervals of one workload: rlz bench train (or another one)",
        markup=False,
    )
    lacking: dict[str, list[str]] = {}
    for one in report["workloads"]:
        for name, why in one["missing"].items():
            lacking.setdefault(f"{name}: {why}", []).append(one["workload"])
        for line in load_lines(one):
            console.print(Text(f"{one['workload']}, {line}", style="yellow"))
        for error in one["errors"]:
            console.print(Text(f"failed: {one['workload']}: {error}", style="red"))
    for line, workloads in lacking.items():
        console.print(f"- {line} ({', '.join(workloads)})", markup=False)
