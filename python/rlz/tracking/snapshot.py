"""A run over the time between two readings (`Snapshot`), and as one line of its log.

The log uses the last line's reading, the display one some seconds old.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlz.answers import Rollout
from rlz.tracking.reading import WAITS, Reading, WorkerReading
from rlz.transport.stats import PHASES, Stat, metric

LEARNER_VALUES: Mapping[str, Stat] = {
    "train/actor_staleness": Stat.ACTOR_STALENESS,
    "train/learning_rate": Stat.LEARNING_RATE,
    "train/batch_size": Stat.BATCH_SIZE,
    "train/policy_lag": Stat.SEGMENT_LAG,
    "train/row_uses": Stat.ROW_USES,
    "train/trying": Stat.TRYING,
    "train/threads": Stat.THREADS,
    "train/compiled": Stat.COMPILED,
}
"""Gauges of the learner that are passed on as they are, by tag."""


@dataclass(frozen=True)
class WorkerSnapshot:
    """One worker over the time between two readings.

    `cpu_percent`: 100 is one core. `waits`: share of the time (0 to 1) by reason. `waiting_for` and `waiting_s`: the
    wait that is open now, "" and 0 when it works. `quiet_s`: time since its last sign of life, None before the first.
    `policy_lag`: of its actions in this time, None without any. Memory in bytes, None when the process is gone.
    `phases`: share of the time (0 to 1) by what it did, as in `PHASES`; `resets`: that of resets.
    """

    name: str
    role: str
    progress: str
    pid: int
    restarts: int
    private: int | None
    shared: int | None
    threads: int | None
    cpu_percent: float | None
    env_steps_per_s: float
    updates_per_s: float
    episodes_per_s: float
    policy_lag: float | None
    rows_lost: int
    waits: dict[str, float]
    waiting_for: str
    waiting_s: float
    quiet_s: float | None
    resets: float = 0.0
    rows_per_s: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """A run over the time between two readings: totals at the end of it, rates and means over it."""

    wall_s: float
    env_steps: int
    updates: int
    frames: int
    total_timesteps: int
    env_steps_per_s: float
    updates_per_s: float
    frames_per_s: float
    replay_ratio: float | None
    replay_ratio_now: float | None
    policy_lag: float | None
    policy_lag_mean: float | None
    policy_version: int
    episodes: int
    return_mean: float | None
    length_mean: float | None
    rows: int
    rows_lost: int
    checkpoints: int
    evaluations: int
    evaluations_skipped: int
    restarts: int
    values: dict[str, float]
    workers: tuple[WorkerSnapshot, ...]
    at_end: Mapping[str, float] = field(default_factory=dict)

    @property
    def eta_s(self) -> float | None:
        """Seconds to the end at the present rate; None while it stands still."""
        if self.env_steps_per_s <= 0:
            return None
        return max(0, self.total_timesteps - self.env_steps) / self.env_steps_per_s

    def with_usage_of(self, earlier: "Snapshot") -> "Snapshot":
        """Show memory and CPU of an earlier snapshot for workers whose process is gone (the last view of a run)."""
        known = {worker.name: worker for worker in earlier.workers}
        workers = tuple(
            replace(worker, private=old.private, shared=old.shared, threads=old.threads, cpu_percent=old.cpu_percent)
            if worker.private is None and (old := known.get(worker.name)) is not None
            else worker
            for worker in self.workers
        )
        return replace(self, workers=workers)

    def scalars(self) -> dict[str, float | int]:
        """Every number by its tag (docs/metrics.md); a number that does not exist yet has no entry."""
        found: dict[str, float | int | None] = {
            "rollout/return_mean": self.return_mean,
            "rollout/length_mean": self.length_mean,
            "rollout/episodes": self.episodes,
            **{f"rollout/{name}": value for name, value in self.at_end.items()},
            "time/env_steps_per_s": self.env_steps_per_s,
            "time/updates_per_s": self.updates_per_s,
            "time/frames_per_s": self.frames_per_s,
            "replay/ratio": self.replay_ratio,
            "replay/ratio_now": self.replay_ratio_now,
            "replay/policy_lag": self.policy_lag,
            "replay/rows": self.rows,
            "replay/rows_lost": self.rows_lost,
            "train/policy_version": self.policy_version,
            **self.values,
            "run/checkpoints": self.checkpoints,
            "run/evaluations_skipped": self.evaluations_skipped,
            "run/restarts": self.restarts,
        }
        for worker in self.workers:
            prefix = f"workers/{worker.name}"
            found[f"{prefix}/cpu_percent"] = worker.cpu_percent
            found[f"{prefix}/private_bytes"] = worker.private
            found[f"{prefix}/shared_bytes"] = worker.shared
            found[f"{prefix}/threads"] = worker.threads
            found[f"{prefix}/restarts"] = worker.restarts
            found[f"{prefix}/quiet_s"] = worker.quiet_s
            if worker.progress == "env_steps":
                found[f"{prefix}/env_steps_per_s"] = worker.env_steps_per_s
                found[f"{prefix}/policy_lag"] = worker.policy_lag
                found[f"{prefix}/rows_lost"] = worker.rows_lost
                found[f"{prefix}/resets"] = worker.resets
            if worker.progress == "updates":
                found[f"{prefix}/updates_per_s"] = worker.updates_per_s
            elif worker.progress == "rows_written":
                found[f"{prefix}/rows_per_s"] = worker.rows_per_s
            else:
                found[f"{prefix}/episodes_per_s"] = worker.episodes_per_s
            for reason, share in worker.waits.items():
                found[f"{prefix}/wait_{reason}"] = share
            for phase, share in worker.phases.items():
                found[f"{prefix}/phase_{phase}"] = share
        return {tag: value for tag, value in found.items() if value is not None}

    @staticmethod
    def of_line(line: Mapping[str, Any], total_timesteps: int) -> "Snapshot":
        """From a line of the log: what `scalars` gave; what no tag tells is 0, or unknown."""
        at_end = {tag.removeprefix("rollout/"): line[tag] for tag in line if tag.startswith(_AT_END)}
        named: dict[str, dict[str, Any]] = {}
        for tag, value in line.items():
            if tag.startswith("workers/"):
                _, name, what = tag.split("/", 2)
                named.setdefault(name, {})[what] = value
        return Snapshot(
            wall_s=line.get("wall_s") or 0.0,
            env_steps=line.get("env_steps") or 0,
            updates=line.get("updates") or 0,
            frames=0,
            total_timesteps=total_timesteps,
            env_steps_per_s=line.get("time/env_steps_per_s") or 0.0,
            updates_per_s=line.get("time/updates_per_s") or 0.0,
            frames_per_s=line.get("time/frames_per_s") or 0.0,
            replay_ratio=line.get("replay/ratio"),
            replay_ratio_now=line.get("replay/ratio_now"),
            policy_lag=line.get("replay/policy_lag"),
            policy_lag_mean=None,
            policy_version=line.get("train/policy_version") or 0,
            return_mean=line.get("rollout/return_mean"),
            length_mean=line.get("rollout/length_mean"),
            at_end=at_end,
            episodes=line.get("rollout/episodes") or 0,
            rows=line.get("replay/rows") or 0,
            rows_lost=line.get("replay/rows_lost") or 0,
            evaluations=0,
            evaluations_skipped=line.get("run/evaluations_skipped") or 0,
            checkpoints=line.get("run/checkpoints") or 0,
            restarts=line.get("run/restarts") or 0,
            values={tag: value for tag, value in line.items() if tag.startswith("train/") and value is not None},
            workers=tuple(_worker_of(name, values) for name, values in named.items()),
        )


def between(old: Reading, new: Reading, *, config: Any, started: float) -> Snapshot:
    """Join two readings of one run into a snapshot.

    Parameters
    ----------
    old, new : readings, `old` first; the same one twice gives rates of 0.
    config : `RunConfig`; learning starts and total steps are used.
    started : `time.monotonic()` of the run's start.
    """
    seconds = max(new.at - old.at, 1e-9)
    env_steps, updates = new.env_steps - old.env_steps, new.updates - old.updates
    data = config.data()
    trained_on = new.env_steps - data.starts
    lags = new.total(Stat.POLICY_LAG_COUNT)
    lags_now = lags - old.total(Stat.POLICY_LAG_COUNT)
    lag_sum = new.total(Stat.POLICY_LAG_SUM)
    learner = new.learner()
    values = {}
    if learner is not None and learner.stats[Stat.UPDATES] > 0:
        values = {f"train/{name}": float(learner.stats[metric(index)]) for index, name in enumerate(new.metrics)}
        values |= {tag: float(learner.stats[stat]) for tag, stat in LEARNER_VALUES.items()}
        values = {tag: value for tag, value in values.items() if not math.isnan(value)}
        published_s = new.total(Stat.PUBLISH_S) - old.total(Stat.PUBLISH_S)
        if isinstance(data, Rollout):
            values["replay/segments_dropped"] = float(learner.stats[Stat.SEGMENTS_DROPPED])
        elif data.priority is not None:
            values["replay/priority_beta"] = float(learner.stats[Stat.PRIORITY_BETA])
            values["replay/priorities_stale"] = float(learner.stats[Stat.PRIORITIES_STALE])
        values["train/publish_share"] = max(0.0, published_s) / seconds
    before = {worker.info.name: worker for worker in old.workers}
    return Snapshot(
        wall_s=new.at - started,
        env_steps=new.env_steps,
        updates=new.updates,
        frames=int(new.total(Stat.FRAMES)),
        total_timesteps=config.total_timesteps,
        env_steps_per_s=env_steps / seconds,
        updates_per_s=updates / seconds,
        frames_per_s=(new.total(Stat.FRAMES) - old.total(Stat.FRAMES)) / seconds,
        replay_ratio=new.updates / trained_on if trained_on > 0 else None,
        replay_ratio_now=updates / env_steps if env_steps > 0 and trained_on >= env_steps else None,
        policy_lag=(lag_sum - old.total(Stat.POLICY_LAG_SUM)) / lags_now if lags_now > 0 else None,
        policy_lag_mean=lag_sum / lags if lags > 0 else None,
        policy_version=0 if learner is None else int(learner.stats[Stat.POLICY_VERSION]),
        episodes=int(new.total(Stat.EPISODES, "env_steps")),
        return_mean=new.return_mean,
        length_mean=new.length_mean,
        at_end=new.at_end,
        rows=new.rows,
        rows_lost=new.rows_lost,
        checkpoints=int(new.total(Stat.CHECKPOINTS)),
        evaluations=int(new.total(Stat.EVALUATIONS)),
        evaluations_skipped=int(new.total(Stat.EVALUATIONS_SKIPPED)),
        restarts=sum(worker.info.restarts for worker in new.workers),
        values=values,
        workers=tuple(_worker_between(before.get(w.info.name), w, old.at, new.at, seconds) for w in new.workers),
    )


_AT_END = ("rollout/success_rate", "rollout/info/")


def _worker_of(name: str, values: Mapping[str, Any]) -> WorkerSnapshot:
    """A worker from its numbers in a line of the log; its process is not known."""
    rates = {what: values.get(what) or 0.0 for what in ("env_steps_per_s", "updates_per_s", "episodes_per_s")}
    progress = next((what for what in ("env_steps", "updates", "rows") if f"{what}_per_s" in values), "episodes")
    return WorkerSnapshot(
        name=name,
        role=name.rpartition("-")[0] or name,
        progress="rows_written" if progress == "rows" else progress,
        pid=0,
        restarts=int(values.get("restarts") or 0),
        private=values.get("private_bytes"),
        shared=values.get("shared_bytes"),
        threads=values.get("threads"),
        cpu_percent=values.get("cpu_percent"),
        **rates,
        policy_lag=values.get("policy_lag"),
        rows_lost=int(values.get("rows_lost") or 0),
        waits={reason: values[f"wait_{reason}"] or 0.0 for reason in WAITS if f"wait_{reason}" in values},
        waiting_for="",
        waiting_s=0.0,
        quiet_s=values.get("quiet_s"),
        resets=values.get("resets") or 0.0,
        rows_per_s=values.get("rows_per_s") or 0.0,
        phases={phase: values[f"phase_{phase}"] or 0.0 for phase in PHASES if f"phase_{phase}" in values},
    )


def _worker_between(
    old: WorkerReading | None, new: WorkerReading, old_at: float, new_at: float, seconds: float
) -> WorkerSnapshot:
    usage = new.usage
    cpu_percent = None
    if usage is not None:
        same = old is not None and old.usage is not None and old.info.pid == new.info.pid
        spent = usage.cpu_s - (old.usage.cpu_s if same and old is not None and old.usage is not None else 0.0)
        cpu_percent = 100.0 * spent / seconds if same else None
    waits = {}
    for reason in WAITS:
        waited = new.waited(reason, new_at) - (old.waited(reason, old_at) if old is not None else 0.0)
        if new.waited(reason, new_at) > 0:
            waits[reason] = min(1.0, max(0.0, waited / seconds))
    code = int(new.stats[Stat.WAITING_FOR])
    waiting_for = next((reason for reason, (_, open_code) in WAITS.items() if open_code == code), "")

    def grown(stat: Stat) -> float:
        return max(0.0, float(new.stats[stat]) - (float(old.stats[stat]) if old is not None else 0.0))

    phases = {}
    for name, phase in PHASES.items():
        if (spent := new.spent(phase, new_at)) > 0:
            before = old.spent(phase, old_at) if old is not None else 0.0
            phases[name] = min(1.0, max(0.0, spent - before) / seconds)
    lags = grown(Stat.POLICY_LAG_COUNT)
    heartbeat = float(new.stats[Stat.HEARTBEAT])
    return WorkerSnapshot(
        name=new.info.name,
        role=new.info.role,
        progress=new.info.progress,
        pid=new.info.pid,
        restarts=new.info.restarts,
        private=None if usage is None else usage.private,
        shared=None if usage is None else usage.shared,
        threads=None if usage is None else usage.threads,
        cpu_percent=cpu_percent,
        env_steps_per_s=grown(Stat.ENV_STEPS) / seconds,
        updates_per_s=grown(Stat.UPDATES) / seconds,
        episodes_per_s=grown(Stat.EPISODES) / seconds,
        policy_lag=grown(Stat.POLICY_LAG_SUM) / lags if lags > 0 else None,
        rows_lost=new.rows_lost,
        waits=waits,
        waiting_for=waiting_for,
        waiting_s=max(0.0, new_at - float(new.stats[Stat.WAITING_SINCE])) if waiting_for else 0.0,
        quiet_s=max(0.0, new_at - heartbeat) if heartbeat > 0 else None,
        resets=min(1.0, grown(Stat.RESET_S) / seconds),
        rows_per_s=grown(Stat.ROWS_WRITTEN) / seconds,
        phases=phases,
    )
