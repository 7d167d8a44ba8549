"""A report beside an older one: what has become slower or quicker."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlz.bench.report import FORMAT, figure, machine_line
from rlz.bench.result import OURS, is_cost
from rlz.curves.intervals import ratio_interval
from rlz.errors import ConfigError

TOLERANCE = 0.05
"""A change counts when its whole interval lies beyond so much; of less than two rounds, when the ratio does."""


@dataclass(frozen=True)
class Change:
    """A figure of rlz now and before: new / old, its interval, and what it means."""

    workload: str
    metric: str
    old: float
    new: float
    interval: tuple[float, float] | None
    verdict: str

    @property
    def line(self) -> str:
        """It in words."""
        low, high = self.interval or (None, None)
        sure = f" (95 % interval {low:.2f} to {high:.2f})" if low is not None else ""
        return (
            f"{self.workload}, {self.metric}: {figure(self.old)} -> {figure(self.new)}, "
            f"{self.new / self.old:.2f} times{sure}: {self.verdict}"
        )


def read_report(path: Path) -> dict[str, Any]:
    """A report that was written before.

    Raises
    ------
    ConfigError
        It cannot be read, or is of another format.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--compare {path} cannot be read: {error}") from error
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        found = report.get("format") if isinstance(report, dict) else None
        raise ConfigError(f"--compare {path}: expected a report of format {FORMAT}, got {found}: measure again")
    return report


def changes(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    """Every figure of rlz that both reports have; rounds of different runs are no pairs."""
    before = {one["workload"]: one for one in old["workloads"]}
    for one in new["workloads"]:
        theirs = before.get(one["workload"], {"contenders": {}, "definition": None})
        if theirs["definition"] != one["definition"]:
            continue  # another environment, another batch size: no comparison
        for metric in one["metrics"]:
            mine = one["contenders"].get(OURS, {}).get(metric)
            other = theirs["contenders"].get(OURS, {}).get(metric)
            if mine and other:
                interval = ratio_interval(mine["values"], other["values"], paired=False)
                ratio = mine["median"] / other["median"]
                low, high = interval or (ratio, ratio)
                slower, quicker = high < 1 - TOLERANCE, low > 1 + TOLERANCE
                if is_cost(metric):
                    slower, quicker = quicker, slower
                verdict = "SLOWER" if slower else "quicker" if quicker else "no change that shows"
                yield Change(one["workload"], metric, other["median"], mine["median"], interval, verdict)


def lines(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """The comparison in words."""
    yield f"beside {old['date'][:10]} ({old['command']})"
    if machine_line(old) != machine_line(new):
        yield f"another machine: {machine_line(old)}; only ratios beside limits and peers mean something"
    found = list(changes(old, new))
    yield from (change.line for change in found)
    if not found:
        yield "no workload of the same definition is in both"
