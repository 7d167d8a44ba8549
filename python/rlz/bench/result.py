"""Numbers of a benchmark: measurements by contender and round, their spread, and how rlz compares with each peer."""

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlz.bench.load import Load, Watch
from rlz.curves.intervals import ratio_interval

Metrics = Mapping[str, float]
"""Values by name: rates, larger is better; those whose name says so are times or costs (see `is_cost`)."""

OURS = "rlz"
COLD, STEADY, WHOLE = "cold start", "steady rate", "end to end"

_COST = re.compile(r"_us$|(?<!_per)_s$|_to_score$")


def is_cost(metric: str) -> bool:
    """Whether less of it is better: microseconds, seconds, env steps to a score."""
    return _COST.search(metric) is not None


def kind_of(metric: str) -> str:
    """What a metric tells: how a program starts, its rate once it is steady, or all of it together."""
    if metric.endswith("_to_score") or metric.startswith(("score", "steps_")):
        return WHOLE
    return COLD if metric.startswith("first_") else STEADY


@dataclass(frozen=True)
class Outcome:
    """What one job gave in one round: metrics per contender, versions per library, and facts worth keeping."""

    metrics: Mapping[str, Metrics]
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """Something to measure once per round; a contender's name is "library" or "library: variant".

    `needed`: its failure ends the benchmark; the failure of another job is only reported.
    """

    name: str
    run: Callable[[int], Outcome]
    needed: bool = False


@dataclass(frozen=True)
class Workload:
    """What is measured.

    Attributes
    ----------
    definition : what all contenders have in common, as it stands in the report.
    metrics : the names that are shown, in order.
    limits : by metric, the contender that nothing can be faster than (a copy, a loop over the bare environment).
    """

    name: str
    jobs: Sequence[Job]
    metrics: tuple[str, ...]
    definition: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """Median and spread of some values."""

    median: float
    low: float
    high: float
    first_quartile: float
    third_quartile: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value; quartiles are inclusive (linear between values)."""
        quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
        return cls(statistics.median(values), min(values), max(values), quartiles[0], quartiles[2], len(values))


@dataclass(frozen=True)
class Ratio:
    """rlz against the best variant of a peer: the ratio of medians, its spread over rounds, its bootstrap interval."""

    metric: str
    peer: str
    best: str
    ratio: float
    rounds: Spread
    interval: tuple[float, float] | None


@dataclass
class Result:
    """All values of a benchmark: `values[contender][metric]`, in order of rounds; `loads`: of each measurement."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    facts: dict[str, list[Any]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    loads: list[dict[str, Any]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Take in what a job gave."""
        for contender, metrics in outcome.metrics.items():
            for metric, value in metrics.items():
                self.values.setdefault(contender, {}).setdefault(metric, []).append(float(value))
        for library, versions in outcome.versions.items():
            self.versions[library] = dict(versions)
        for name, fact in outcome.facts.items():
            self.facts.setdefault(name, []).append(fact)

    def spreads(self) -> dict[str, dict[str, Spread]]:
        """Spread of each contender's metrics."""
        return {
            contender: {metric: Spread.of(values) for metric, values in metrics.items()}
            for contender, metrics in self.values.items()
        }

    def ratios(self, metrics: Iterable[str], ours: str = OURS) -> list[Ratio]:
        """Ours against the best variant of every other library, for each metric that both have."""
        found = []
        libraries = list(dict.fromkeys(name.partition(":")[0] for name in self.values))
        for metric in metrics:
            mine = self.values.get(ours, {}).get(metric)
            for library in libraries:
                variants = {
                    name: values[metric]
                    for name, values in self.values.items()
                    if name.partition(":")[0] == library and metric in values
                }
                if not mine or not variants or library == ours:
                    continue
                if min(*mine, *(value for values in variants.values() for value in values)) <= 0:
                    continue  # returns may be negative: their ratio says nothing
                choose = min if is_cost(metric) else max
                best = choose(variants, key=lambda name: statistics.median(variants[name]))
                theirs = variants[best]
                rounds = Spread.of([a / b for a, b in zip(mine, theirs, strict=False)])
                ratio = statistics.median(mine) / statistics.median(theirs)
                found.append(Ratio(metric, library, best, ratio, rounds, ratio_interval(mine, theirs)))
        return found


REPEATS = 2
"""Times that a disturbed measurement is made again; then the one with the least disturbance stands."""


def run_rounds(
    jobs: Sequence[Job],
    rounds: int,
    progress: Callable[[str], None],
    watch: Callable[[], Watch] = Watch,
    repeats: int = REPEATS,
) -> Result:
    """Measure every job once per round; one during which others took part of the machine is measured again.

    The first job of a round moves on by one each time, so that a machine that gets slower (heat, a neighbour) does not
    meet the same job always.
    """
    result = Result()
    failed: set[str] = set()
    for number in range(rounds):
        first = number % len(jobs)
        for job in [*jobs[first:], *jobs[:first]]:
            if job.name in failed:
                continue
            progress(f"round {number + 1} of {rounds}: {job.name}")
            try:
                outcome, load, tries = _quiet(job, number, progress, watch, repeats)
            except Exception as error:
                if job.needed:
                    raise
                failed.add(job.name)
                result.errors.append(f"{job.name}: {error}")
                progress(f"{job.name} failed: {error}")
                continue
            result.add(outcome)
            result.loads.append({
                "job": job.name, "round": number + 1, "others_cores": round(load.others, 3),
                "stolen_cores": round(load.stolen, 3), "disturbed": load.disturbed, "tries": tries,
            })  # fmt: skip
    return result


def _quiet(
    job: Job, number: int, progress: Callable[[str], None], watch: Callable[[], Watch], repeats: int
) -> tuple[Outcome, Load, int]:
    found: list[tuple[Outcome, Load]] = []
    for count in range(1 + repeats):
        clock = watch()
        outcome = job.run(number)
        load = clock.read()
        found.append((outcome, load))
        if not load.disturbed or count == repeats:
            break
        progress(f"{job.name}: others took {load.others:.2f} cores; once more")
    outcome, load = min(found, key=lambda one: one[1].others + one[1].stolen)
    return outcome, load, len(found)
