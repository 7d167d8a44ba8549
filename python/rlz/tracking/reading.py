"""What a run looks like at one instant: absolute numbers, so that any two readings give rates.

Nothing here waits for a worker; a worker that is gone keeps its last numbers.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlz.placement import Place
from rlz.tracking.process import ProcessUsage, read_usage
from rlz.transport.stats import EPISODE_WINDOW, EVENT_WIDTH, LaneCounts, Stat, Waiting, at_end_names

WAITS: Mapping[str, tuple[Stat, Waiting]] = {
    "limiter": (Stat.WAIT_LIMITER_S, Waiting.LIMITER),
    "parameters": (Stat.WAIT_PARAMETERS_S, Waiting.PARAMETERS),
    "batch": (Stat.WAIT_BATCH_S, Waiting.BATCH),
    "answer": (Stat.WAIT_ANSWER_S, Waiting.ANSWER),
}
"""What a worker can wait for: the counter of ended waits, and the code of the one that is open."""


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
    phase, since : what it is doing at this instant, a `Stat` (-1: not known), and since when.
    """

    info: WorkerInfo
    stats: NDArray[np.float64]
    usage: ProcessUsage | None
    rows: int = 0
    rows_lost: int = 0
    phase: int = -1
    since: float = 0.0

    def spent(self, phase: Stat, at: float) -> float:
        """Seconds in a phase so far, the open one included."""
        return float(self.stats[phase]) + (max(0.0, at - self.since) if self.phase == phase else 0.0)

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
        trace = self.streams.trace.read()
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
                WorkerReading(
                    info=info,
                    stats=board[info.slot],
                    usage=usage,
                    rows=rows[info.name],
                    rows_lost=lost[info.name],
                    # Nobody has entered a phase before the first one, and a process that is gone is in none.
                    phase=int(trace[info.slot][0]) if info.pid and trace[info.slot][1] > 0 else -1,
                    since=float(trace[info.slot][1]),
                )
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
