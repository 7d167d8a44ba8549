"""Curves from what a run has written down: a run folder of rlz, CSV files of others, TensorBoard event files.

Columns are told by their names: env steps, seconds, and everything else a metric. The names that Stable-Baselines3 and
CleanRL have for a metric of rlz lead to that (docs/metrics.md).
"""

import csv
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlz.errors import CheckpointError
from rlz.records.runs import find_run, read_run
from rlz.references import label as short

STEPS = ("env_steps", "global_step", "time/total_timesteps", "total_timesteps", "timesteps", "step", "Step", "_step")
SECONDS = ("published_s", "wall_s", "time/time_elapsed", "time_elapsed", "t", "_runtime", "Wall time", "time")

TRAINING, EVALUATION = "rollout/return_mean", "eval/return_mean"
NAMES = {
    "rollout/ep_rew_mean": TRAINING,
    "rollout/ep_len_mean": "rollout/length_mean",
    "eval/mean_reward": EVALUATION,
    "eval/mean_ep_length": "eval/length_mean",
    "return_mean": EVALUATION,
    "return_std": "eval/return_std",
    "length_mean": "eval/length_mean",
    "success_rate": "eval/success_rate",
    "mean": EVALUATION,
}
"""Metrics of rlz by what a column is called elsewhere."""

EPISODES = {
    "r": TRAINING,
    "l": "rollout/length_mean",
    "charts/episodic_return": TRAINING,
    "charts/episodic_length": "rollout/length_mean",
}
"""The same, where a row is one episode: rlz's metric is the mean of the last `WINDOW`."""
WINDOW = 100

ONLY = "Value"
"""Column of the one metric of a file that does not say which it is (as TensorBoard's page exports)."""

EVENTS = "events.out.tfevents"


@dataclass(frozen=True)
class Series:
    """One metric: arrays of one length, in order of env steps. `seconds` are NaN where nobody wrote them down."""

    steps: NDArray[np.float64]
    seconds: NDArray[np.float64]
    values: NDArray[np.float64]

    def over(self, axis: str) -> NDArray[np.float64]:
        """Env steps, or seconds since the run began for "time"."""
        return self.seconds if axis == "time" else self.steps


@dataclass(frozen=True)
class Source:
    """What one run has written down.

    Attributes
    ----------
    label : of its library, or as it was given.
    settings : configuration of a run of rlz, with `run`, the name of its folder.
    """

    label: str
    path: Path
    series: Mapping[str, Series]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def get(self, metric: str) -> Series | None:
        """A metric; None where it has no such one."""
        return self.series.get(metric) or self.series.get(ONLY)


def read_sources(names: Iterable[str], runs_dir: Path) -> list[Source]:
    """What the runs of a command line have written down, in that order.

    Parameters
    ----------
    names : runs as `find_run` takes them; files and folders of others; either with LABEL= in front.

    Raises
    ------
    CheckpointError
        There is no such run or file, or it holds no curve.
    """
    return [source for name in names for source in _sources(name, runs_dir)]


def _sources(name: str, runs_dir: Path) -> Iterator[Source]:
    label, _, rest = name.partition("=")
    if not rest or Path(name).expanduser().exists():
        label, rest = "", name
    path = Path(rest).expanduser()
    files = [path]
    if path.is_dir():
        files = [path] if list(path.glob(f"{EVENTS}*")) else sorted([*path.glob("progress.csv"), *path.glob("*.csv")])
    if (path / "config.toml").is_file() or not path.exists() or not files:
        yield _run(find_run(rest, runs_dir), label)
        return
    for file in dict.fromkeys(files):
        found = _events(file, label) if file.is_dir() or EVENTS in file.name else _table(file, label)
        if not found.series:
            raise CheckpointError(f"{file} holds no curve: no column of env steps ({', '.join(STEPS)}) beside a metric")
        yield found
        if file.name == "progress.csv":
            return  # the monitors beside it are of the same run


def _run(path: Path, label: str) -> Source:
    info = read_run(path)
    if info.problem:
        raise CheckpointError(f"{path} is broken: {info.problem}")
    settings = tomllib.loads((path / "config.toml").read_text(encoding="utf-8")) | {"run": path.name}
    log = list(_json_lines(path / "metrics.jsonl"))
    series = columns(log)
    evaluations = path / "evaluations.csv"
    if evaluations.is_file():
        rows = list(_rows(evaluations))
        clock = series.get("wall_s")
        for row in rows:
            row.pop("time", None)
            if "published_s" not in row:  # of an older rlz, whose `wall_s` was the evaluation's own
                row.pop("wall_s", None)
                if clock is not None:
                    row["published_s"] = float(np.interp(float(row["env_steps"]), clock.steps, clock.values))
        series |= {tag: one for tag, one in columns(rows).items() if tag.startswith("eval/")}
    return Source(label or short(info.algo), path, series, settings)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                value = json.loads(line)
            except ValueError:  # cut short by a kill
                continue
            if isinstance(value, dict):
                yield value


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        for row in csv.DictReader(lines):
            yield {(name or "").rpartition(" - ")[2]: value for name, value in row.items() if isinstance(value, str)}


def _table(path: Path, label: str) -> Source:
    try:
        rows = list(_rows(path))
    except (OSError, csv.Error) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    names = set(rows[0]) if rows else set()
    if names >= {"r", "l", "t"}:  # a monitor of Stable-Baselines3
        done = 0.0
        for row in rows:
            done += float(row["l"] or 0)
            row["step"] = done
    library = "CleanRL" if "charts/episodic_return" in names else path.stem
    if names >= {"r", "l", "t"} or path.name == "progress.csv":
        library = "Stable-Baselines3"
    return Source(label or library, path, columns(rows))


def _events(path: Path, label: str) -> Source:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    tags = {
        tag: [(one.step, one.wall_time, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]
    }
    for tag in found.Tags()["tensors"]:
        numbers = [(one.step, one.wall_time, make_ndarray(one.tensor_proto)) for one in found.Tensors(tag)]
        if all(value.dtype.kind in "fiu" and value.size == 1 for _, _, value in numbers):
            tags[tag] = [(step, at, float(value.reshape(()))) for step, at, value in numbers]
    began = found.FirstEventTimestamp() if tags else 0.0
    series: dict[str, Series] = {}
    for tag, rows in tags.items():
        series |= columns([{"step": step, "t": at - began, tag: value} for step, at, value in rows])
    library = "CleanRL" if "charts/episodic_return" in tags else "TensorBoard"
    return Source(label or ("Stable-Baselines3" if "rollout/ep_rew_mean" in tags else library), path, series)


def columns(rows: list[dict[str, Any]]) -> dict[str, Series]:
    """Series of a table by metric, under its own name and that of rlz; cells that are no number are left out."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    steps = next((name for name in STEPS if name in names), None)
    seconds = next((name for name in SECONDS if name in names), None)
    if steps is None:
        return {}
    at, clock = _column(rows, steps), _column(rows, seconds)
    if np.isfinite(clock).any() and np.nanmin(clock) > 1e9:  # of the calendar
        clock = clock - np.nanmin(clock)
    found: dict[str, Series] = {}
    for name in names:
        values = _column(rows, name)
        there = np.isfinite(values) & np.isfinite(at)
        if name == steps or not there.any():
            continue
        order = np.argsort(at[there], kind="stable")
        one = Series(at[there][order], clock[there][order], values[there][order])
        found[name] = one
        if name in EPISODES:
            found[EPISODES[name]] = Series(one.steps, one.seconds, _running_mean(one.values))
        elif name in NAMES:
            found.setdefault(NAMES[name], one)
    return found


def _column(rows: list[dict[str, Any]], name: str | None) -> NDArray[np.float64]:
    return np.array([_number(row.get(name)) if name else math.nan for row in rows], np.float64)


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError):
        return math.nan


def _running_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - WINDOW)
    means: NDArray[np.float64] = (sums[ends] - sums[begins]) / (ends - begins)
    return means
