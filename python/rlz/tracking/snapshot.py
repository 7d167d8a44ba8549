"""What a run looks like at one instant (`Reading`), and over the time between two instants (`Snapshot`).

A reading holds absolute numbers only, so any two of them give rates: the log uses the last line's reading, the display
one some seconds old. Nothing here waits for a worker; a worker that is gone keeps its last numbers.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlz.placement import Place
from rlz.tracking.process import ProcessUsage, read_usage
from rlz.transport.stats import EPISODE_WINDOW, EVENT_WIDTH, LaneCounts, Stat, Waiting, at_end_names, metric

WAITS: Mapping[str, tuple[Stat, Waiting]] = {
    "limiter": (Stat.WAIT_LIMITER_S, Waiting.LIMITER),
    "parameters": (Stat.WAIT_PARAMETERS_S, Waiting.PARAMETERS),
    "batch": (Stat.WAIT_BATCH_S, Waiting.BATCH),
}
"""What a worker can wait for: the counter of ended waits, and the code of the one that is open."""

LEARNER_VALUES: Mapping[str, Stat] = {
    "train/actor_staleness": Stat.ACTOR_STALENESS,
    "train/learning_rate": Stat.LEARNING_RATE,
    "train/batch_size": Stat.BATCH_SIZE,
    "train/row_uses": Stat.ROW_USES,
    "train/trying": Stat.TRYING,
    "train/threads": Stat.THREADS,
    "train/compiled": Stat.COMPILED,
}
"""Gauges of the learner that are passed on as they are, by tag."""


@dataclass(frozen=True)
class WorkerInfo:
    """What the controller knows of one worker.

    Attributes
    ----------
    name, role : of the worker and of its node.
    slot : row of the worker in the stats board.
    pid : process id of the present incarnation; 0 while there is none. In serial mode all share the controller's.
    restarts : how often it was restarted, over the run.
    lanes : environment slots that it steps.
    progress : what it does, as its node says.
    """

    name: str
    role: str
    slot: int
    pid: int
    restarts: int = 0
    lanes: tuple[int, ...] = ()
    progress: str = "rows_written"

    @staticmethod
    def of(place: Place, pid: int, restarts: int = 0) -> "WorkerInfo":
        """Describe the worker at a place."""
        return WorkerInfo(place.name, place.role, place.slot, pid, restarts, place.lanes, progress=place.node.progress)


@dataclass(frozen=True)
class WorkerReading:
    """One worker at one instant.

    Attributes
    ----------
    stats : its row of the stats board [len(Stat) and the metrics].
    usage : its process (None: gone).
    rows, rows_lost : rows of its lanes over the run, and env steps without one.
    """

    info: WorkerInfo
    stats: NDArray[np.float64]
    usage: ProcessUsage | None
    rows: int = 0
    rows_lost: int = 0

    def waited(self, reason: str, at: float) -> float:
        """Seconds spent waiting for a reason so far, the wait that is open at `at` included."""
        ended, code = WAITS[reason]
        total = float(self.stats[ended])
        if self.stats[Stat.WAITING_FOR] == code:
            total += max(0.0, at - float(self.stats[Stat.WAITING_SINCE]))
        return total


@dataclass(frozen=True)
class Reading:
    """Absolute numbers of a run at one instant (`at`: `time.monotonic()`). `metrics`: names of the algorithm's."""

    at: float
    env_steps: int
    updates: int
    rows: int
    rows_lost: int
    return_mean: float | None
    length_mean: float | None
    workers: tuple[WorkerReading, ...] = ()
    metrics: tuple[str, ...] = ()
    at_end: Mapping[str, float] = field(default_factory=dict)

    def total(self, stat: Stat, progress: str | None = None) -> float:
        """Sum of a stat over the workers (that do one thing)."""
        return float(sum(w.stats[stat] for w in self.workers if progress in (None, w.info.progress)))

    def learner(self) -> WorkerReading | None:
        """The worker that makes updates, once it has been started."""
        return next((w for w in self.workers if w.info.progress == "updates"), None)

    def ready_at(self, progress: str) -> float | None:
        """When the first worker that does something did it first (`time.monotonic()`); None before."""
        times = [float(w.stats[Stat.READY_S]) for w in self.workers if w.info.progress == progress]
        return min((t for t in times if t > 0), default=None)


@dataclass
class Reader:
    """Takes readings of a run's streams.

    Parameters
    ----------
    streams : `rlz.transport.Streams`; only read.
    workers : gives every worker that has been started.
    log_info : keys of numbers in the last info of an episode, as the run logs them.
    """

    streams: Any
    workers: Callable[[], Sequence[WorkerInfo]]
    log_info: Sequence[str] = ()
    _episodes: deque[NDArray[np.float64]] = field(default_factory=lambda: deque(maxlen=EPISODE_WINDOW))
    _cursors: dict[int, int] = field(default_factory=dict)

    def read(self, now: float | None = None) -> Reading:
        """Take a reading; some tens of microseconds per worker."""
        at = time.monotonic() if now is None else now
        infos = list(self.workers())
        board = self.streams.stats.read()
        usages: list[ProcessUsage | None] = []
        seen = {0}
        for info in infos:
            # In serial mode all workers are one process: it counts once, for the first of them.
            usages.append(read_usage(info.pid) if info.pid not in seen else None)
            seen.add(info.pid)
            if info.progress == "env_steps":
                for event in self.events(info.slot):
                    self._episodes.append(event)
        env_steps = int(self.streams.limiter.env_steps)
        steps = self.streams.limiter.lane_steps()
        # Read after the steps: a row is committed before its step is counted, so what is missing is lost for good.
        committed = self.streams.committed()
        # The steps lie between the two looks at what is pending, which goes up before a step is counted.
        pending_after = self.streams.stats.read()[:, Stat.ROWS_PENDING]
        rows, lost = {}, {}
        for info in infos:
            counts = LaneCounts.of(board[info.slot], info.lanes, steps, committed)
            pending = max(board[info.slot][Stat.ROWS_PENDING], pending_after[info.slot])
            rows[info.name] = counts.rows
            lost[info.name] = max(0, counts.env_steps - counts.rows - int(pending))
        episodes = np.array(self._episodes)
        return Reading(
            at=at,
            env_steps=env_steps,
            updates=int(self.streams.limiter.updates),
            rows=sum(rows.values()),
            rows_lost=sum(lost.values()),
            return_mean=float(np.mean(episodes[:, 0])) if len(episodes) else None,
            length_mean=float(np.mean(episodes[:, 1])) if len(episodes) else None,
            at_end=self._at_end(episodes),
            workers=tuple(
                WorkerReading(info, board[info.slot], usage, rows[info.name], lost[info.name])
                for info, usage in zip(infos, usages, strict=True)
            ),
            metrics=tuple(self.streams.stats.names[len(Stat) :]),
        )

    def _at_end(self, episodes: NDArray[np.float64]) -> dict[str, float]:
        """Means of the numbers of the last infos, each over the episodes that have it."""
        means = {}
        for index, name in enumerate(at_end_names(self.log_info) if len(episodes) else (), start=EVENT_WIDTH):
            column = episodes[:, index]
            if not np.isnan(column).all():
                means[name] = float(np.nanmean(column))
        return means

    def events(self, slot: int) -> NDArray[np.float64]:
        """Events that a worker pushed since the last call, oldest first: [n, event_width]."""
        cursor, events = self.streams.stats.events(slot, self._cursors.get(slot, 0))
        self._cursors[slot] = cursor
        return events  # type: ignore[no-any-return]


@dataclass(frozen=True)
class WorkerSnapshot:
    """One worker over the time between two readings.

    `cpu_percent`: 100 is one core. `waits`: share of the time (0 to 1) by reason. `waiting_for` and `waiting_s`: the
    wait that is open now, "" and 0 when it works. `quiet_s`: time since its last sign of life, None before the first.
    `policy_lag`: of its actions in this time, None without any. Memory in bytes, None when the process is gone.
    `resets`: share of the time (0 to 1) in resets of its environments.
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
        return {tag: value for tag, value in found.items() if value is not None}


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
    trained_on = new.env_steps - config.learning_starts
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
        if config.prioritized:
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
    )
