"""`rlz bench` without a workload: a few figures of each one in a few minutes, beside the peers that are installed.

One round of short measurements: enough to see where this machine stands, not to compare releases.
"""

import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlz.bench import replay, sampling, train, transport
from rlz.bench.environments import PEERS, installed_peers
from rlz.bench.report import figure
from rlz.bench.result import Job, Result, is_time, run_rounds
from rlz.system.descendants import ended_afterwards
from rlz.system.detect import detect

if TYPE_CHECKING:
    from rich.console import Console

SHORT_S, TRAIN_S = 2.0, 6.0
"""Seconds that the measurements of a contender share; seconds of a window of training."""

ROWS = 200_000
"""Of the replay buffers."""

NO_CONTENDERS = ("core", "memcpy")
"""The first needs cargo, the second is a limit and no library."""

LEFT_OUT = re.compile(r"core|memcpy|rlz in place|.*, versions|.*f64|.*capacities|.*2 threads")
"""Jobs whose figures are not in the table; for peers the variants with one thread have to do."""


@dataclass(frozen=True)
class Row:
    """A figure of rlz, and of the best of the others that have it (`name` "": there is none)."""

    workload: str
    metric: str
    ours: float
    name: str = ""
    theirs: float = 0.0


def workloads(env: str, peers: Sequence[str], cores: int) -> dict[str, tuple[list[Job], tuple[str, ...]]]:
    """Jobs of each workload, and the metrics of it that are shown."""

    def of(workload: str) -> list[str]:
        return [peer for peer in peers if workload in PEERS[peer].workloads]

    settings = train.TrainSettings(env=env, seconds=TRAIN_S)
    sizes = transport.METRICS[:2]
    return {
        "transport": (transport.jobs(SHORT_S, of("transport")), (*sizes, "latency_sleep_us")),
        "replay": (
            replay.jobs(env, SHORT_S, of("replay"), ROWS),
            ("sample_256", "sample_8192", "prioritized_256", "append_us"),
        ),
        "sampling": (sampling.jobs(settings, of("sampling"), cores), sampling.METRICS),
        "train": (train.jobs(settings, of("train"), cores), train.METRICS),
    }


def rows_of(workload: str, result: Result, metrics: Sequence[str]) -> list[Row]:
    """The figures of a workload: rlz beside the best of the others."""
    rows = []
    for metric in metrics:
        medians = {
            name: statistics.median(values[metric]) for name, values in result.values.items() if metric in values
        }
        ours = medians.pop("rlz", None)
        others = {name: value for name, value in medians.items() if not name.startswith(("rlz", *NO_CONTENDERS))}
        if ours is None:
            continue
        best = (min if is_time(metric) else max)(others, key=lambda name: others[name], default="")
        rows.append(Row(workload, metric, ours, best, others.get(best, 0.0)))
    return rows


@ended_afterwards()
def overview(env: str, *, rounds: int = 1, console: "Console | None" = None) -> list[Row]:
    """Measure a little of every workload and print one table.

    Parameters
    ----------
    env : environment of sampling and training; its rows are those of the replay buffers.
    rounds : every contender is measured once per round.
    console : where the table goes; default stdout. What is being measured is said on stderr.
    """
    from rich.console import Console

    progress = Console(stderr=True, highlight=False)
    say: Callable[[str], None] = lambda text: progress.print(text, style="dim", markup=False)  # noqa: E731
    machine, peers, begin = detect(), installed_peers(), time.monotonic()
    rows: list[Row] = []
    errors: list[str] = []
    for name, (jobs, metrics) in workloads(env, peers, machine.cores).items():
        wanted = [job for job in jobs if not LEFT_OUT.match(job.name)]
        try:
            result = run_rounds(wanted, rounds, lambda text, name=name: say(f"{name}, {text}"))  # type: ignore[misc]
        except Exception as error:  # one workload that cannot be measured is no reason to leave out the others
            errors.append(f"{name}: {error}")
            continue
        rows += rows_of(name, result, metrics)
        errors += [f"{name}: {error}" for error in result.errors]
    missing = [peer for peer in PEERS if peer not in peers]
    _show(rows, errors, missing, env, time.monotonic() - begin, console or Console(highlight=False))
    return rows


def _show(
    rows: Sequence[Row], errors: Sequence[str], missing: Sequence[str], env: str, seconds: float, console: "Console"
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("workload", "figure"):
        table.add_column(title)
    table.add_column("rlz", justify="right")
    table.add_column("best of the others", justify="right")
    table.add_column("which")
    table.add_column("rlz / other", justify="right")
    for row in rows:
        other = (figure(row.theirs), row.name, f"{row.ours / row.theirs:.2f}") if row.theirs else ("-", "", "")
        table.add_row(row.workload, row.metric, figure(row.ours), *other)
    console.print(Text(f"{env}, one short round of each, {seconds:.0f} s in all", style="bold"))
    console.print(table, markup=False)
    console.print(
        "Per second, more is better; _us: microseconds, less is better. Medians and spread of one workload: "
        "rlz bench train, sampling, replay or transport",
        markup=False,
    )
    if missing:
        console.print(
            f"Not installed: {', '.join(missing)}. To have them: rlz bench WORKLOAD --peers NAME", markup=False
        )
    for error in errors:
        console.print(Text(f"failed: {error}", style="red"))
