"""A run without processes: a stats board, limiter and replay buffer that a test sets by hand."""

import json
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlz.config import resolve
from rlz.tracking import Tracker, WorkerInfo
from rlz.transport.stats import EVENT_WIDTH, STAT_NAMES, Stat

METRICS = "critic_loss", "ent_coef"


class FakeBoard:
    nbytes = 4096

    def __init__(self, slots: int = 4) -> None:
        self.names = [*STAT_NAMES, *METRICS]
        self.values = np.zeros((slots, len(self.names)))
        self.rings: dict[int, list[list[float]]] = {slot: [] for slot in range(slots)}

    def read(self) -> np.ndarray:
        return self.values.copy()

    def events(self, slot: int, since: int) -> tuple[int, np.ndarray]:
        ring = self.rings[slot]
        events = np.array(ring[since:], np.float64).reshape(-1, EVENT_WIDTH)
        return len(ring), np.pad(events, ((0, 0), (0, 1)), constant_values=np.nan)  # no success was told

    def push(self, slot: int, *values: float) -> None:
        self.rings[slot].append([*values, *[0.0] * (EVENT_WIDTH - len(values))])


class FakeTrace:
    nbytes = 4096

    def __init__(self, slots: int = 4) -> None:
        self.values = np.zeros((slots, 2))

    def read(self) -> np.ndarray:
        return self.values.copy()


@dataclass
class FakeLimiter:
    env_steps: int = 0
    updates: int = 0
    nbytes: int = 4096
    lanes: list[int] = field(default_factory=lambda: [0])

    def lane_steps(self) -> list[int]:
        return list(self.lanes)


@dataclass
class FakeReplay:
    rows: list[int] = field(default_factory=lambda: [0])
    nbytes: int = 1 << 20

    def committed(self) -> list[int]:
        return list(self.rows)


@dataclass
class FakeParameters:
    nbytes: int = 1000


@dataclass
class FakeStreams:
    stats: FakeBoard = field(default_factory=FakeBoard)
    trace: FakeTrace = field(default_factory=FakeTrace)
    limiter: FakeLimiter = field(default_factory=FakeLimiter)
    replay: FakeReplay = field(default_factory=FakeReplay)
    parameters: FakeParameters = field(default_factory=FakeParameters)

    def committed(self) -> list[int]:
        return self.replay.committed()

    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.stats, self.trace, self.limiter, self.replay, self.parameters))

    def step(self, env_steps: int, updates: int) -> None:
        """Let the run go on: one sampler in slot 2, the learner in slot 0."""
        self.limiter.env_steps += env_steps
        self.limiter.lanes[0] += env_steps
        self.limiter.updates += updates
        self.replay.rows[0] += env_steps
        self.stats.values[2][Stat.ENV_STEPS] += env_steps
        self.stats.values[0][Stat.UPDATES] += updates
        self.stats.values[0][Stat.FRAMES] += 256 * updates


def workers(pid: int | None = None) -> list[WorkerInfo]:
    own = os.getpid() if pid is None else pid
    return [
        WorkerInfo("learner", "learner", 0, own, progress="updates"),
        WorkerInfo("evaluator", "evaluator", 1, 0, progress="episodes"),
        WorkerInfo("sampler-0", "sampler", 2, own, lanes=(0,), progress="env_steps"),
    ]


EVALUATION: tuple[Any, ...] = (7, 1000, 900, -150.0, 20.0, -180.0, -120.0, 200.0, 0.0, 10, 1.5, 1, 12.5)


def config(**overrides):
    return resolve(
        "sac", "Pendulum-v1", {"total_timesteps": 1000, "log_every": 5.0, "learning_starts": 100} | overrides
    )


def make(tmp_path, streams, cut=None, **overrides):
    return Tracker(tmp_path, config(**overrides), streams, workers, cut=cut, quiet=True)


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def scalars_of(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}, events
