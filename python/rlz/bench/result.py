"""Numbers of a benchmark: measurements by contender and round, their spread, and how rlz compares with each peer."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Metrics = Mapping[str, float]
"""Values by name: rates, larger is better; those whose name says so are times (see `is_time`), smaller is better."""


def is_time(metric: str) -> bool:
    """Whether a metric is a time, in microseconds."""
    return metric.endswith("_us")


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
    """rlz against the best variant of a peer: the ratio of medians, and its spread over rounds."""

    metric: str
    peer: str
    best: str
    ratio: float
    rounds: Spread


@dataclass
class Result:
    """All values of a benchmark: `values[contender][metric]`, in order of rounds."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    facts: dict[str, list[Any]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

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

    def ratios(self, metrics: Iterable[str], ours: str = "rlz") -> list[Ratio]:
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
                choose = min if is_time(metric) else max
                best = choose(variants, key=lambda name: statistics.median(variants[name]))
                theirs = variants[best]
                rounds = Spread.of([a / b for a, b in zip(mine, theirs, strict=False)])
                ratio = statistics.median(mine) / statistics.median(theirs)
                found.append(Ratio(metric, library, best, ratio, rounds))
        return found


def run_rounds(jobs: Sequence[Job], rounds: int, progress: Callable[[str], None]) -> Result:
    """Measure every job once per round.

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
                result.add(job.run(number))
            except Exception as error:
                if job.needed:
                    raise
                failed.add(job.name)
                result.errors.append(f"{job.name}: {error}")
                progress(f"{job.name} failed: {error}")
    return result
