"""What a learner makes its updates of: the contract that its loop keeps to, and what every kind of it is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlz.algorithms.base import Algorithm
from rlz.algorithms.settings import LearningSettings
from rlz.config.seeds import Role, stream
from rlz.learning.compiled import Layout
from rlz.learning.device_choice import find_device
from rlz.learning.engine import EnginePlan
from rlz.learning.launches import Rows
from rlz.learning.normalizer import Normalizer
from rlz.learning.trainer import Learned, Trainer, TrainerSite
from rlz.learning.two_devices import Exchange
from rlz.records.checkpoint import Checkpoint
from rlz.transport.stats import Stat, StatsRow, Waiting
from rlz.workers.base import OpenWait, WorkerSpec

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.transport import Streams


@dataclass(frozen=True)
class Saved:
    """What a checkpoint keeps of them.

    Attributes
    ----------
    draws : state of the random stream of the draws.
    extra : JSON values.
    tensors : beside those of what is learned, by names of their own.
    priorities : of the rows of a replay buffer.
    """

    draws: bytes = b""
    extra: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    priorities: Mapping[str, Any] | None = None


class Updates(Protocol):
    """Rows on their way to a trainer, and the trainer."""

    waits_for: tuple[Waiting, Stat]
    """Why no update can be made, and the counter of the seconds."""

    batch: Any
    """The newest batch, where it came from the host."""

    @property
    def trainer(self) -> Trainer:
        """What makes the updates now."""

    @property
    def batch_size(self) -> int:
        """Rows of one update."""

    @property
    def whole(self) -> bool:
        """Between two updates a newer policy may be published, and a checkpoint is a moment to go on from."""

    def start(self) -> None:
        """After the first publication: begin what goes on beside the updates."""

    def grant(self, timeout: float) -> int | None:
        """Updates that may be made now; None when there are none yet, 0 when there will be none."""

    def make(self, most: int, learning_rate: float, timeout: float | None) -> int:
        """Make updates, at most so many; how many, 0 when their rows were not there in time. Raises NonFiniteError."""

    def keep_up(self, now: float) -> None:
        """Between updates."""

    def report(self, stats: StatsRow) -> None:
        """Put what is known of them alone on the stats board."""

    def finish(self) -> None:
        """Before the last checkpoint."""

    def saved(self) -> Saved:
        """What a checkpoint keeps."""

    def close(self) -> None:
        """Give everything back."""


@dataclass
class Parts:
    """What updates are made from.

    Attributes
    ----------
    spec, streams : of the learner.
    config : of the run.
    algorithm : in its precision.
    precision : of the products, fp32, tf32 or bf16.
    learned : what the run learns.
    devices : one, or those of critics and actor.
    saved : to go on from.
    normalizer : of what is learned from, where the run normalises.
    stats, wait : of the learner.
    flush : puts what was measured so far on the stats board.
    """

    spec: WorkerSpec
    streams: Streams
    config: RunConfig
    algorithm: Algorithm[Any]
    precision: str
    learned: Learned
    devices: tuple[torch.device, ...]
    saved: Checkpoint | None
    normalizer: Normalizer | None
    stats: StatsRow
    wait: OpenWait
    flush: Callable[[], None]

    @property
    def settings(self) -> LearningSettings:
        """Of the algorithm."""
        settings = self.algorithm.settings
        assert isinstance(settings, LearningSettings)
        return settings

    @property
    def serial(self) -> bool:
        """The run takes place in one process, with the same bits each time."""
        return self.config.mode == "serial"

    def rate(self, batch_size: int) -> float:
        """Learning rate at the present env step."""
        done = self.config.done(self.streams.limiter.env_steps)
        return self.settings.learning_rate_at(done, batch_size)

    def seed(self, role: Role) -> int:
        """Of a random stream of this incarnation."""
        return seed_of(self.spec, self.config, role)

    def trainer(
        self,
        layout: tuple[Layout, ...],
        *,
        seed: int,
        launch: int,
        log: Callable[[str], None],
        urgent: bool = False,
        rows: Rows | None = None,
    ) -> Trainer:
        """A trainer for batches of a layout; the other parameters are those of `EnginePlan` and `TrainerSite`."""
        config = self.config
        plan = EnginePlan(
            config.compile,
            config.threads,
            fixed=self.serial,
            launch=launch,
            urgent=urgent,
            precision=self.precision,
        )
        exchange = Exchange(config.exchange_every, config.staleness())
        return self.learned.trainer(TrainerSite(layout, self.devices, exchange, seed, plan, log, rows))


def seed_of(spec: WorkerSpec, config: RunConfig, role: Role) -> int:
    """Seed of a random stream of a worker, below 2**63."""
    sequence = stream(config.seed, role, worker=spec.index, incarnation=spec.incarnation)
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def devices_of(config: RunConfig, first: torch.device) -> tuple[torch.device, ...]:
    """All devices of a learner whose first one is known."""
    return (first, *(find_device(name) for name in (config.devices or ())[1:]))
