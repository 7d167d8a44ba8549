"""Updates on rollouts: segments of the newest policies, learned from for some epochs and forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlz._native import RUNNING
from rlz.algorithms.base import Algorithm, Segments
from rlz.algorithms.torch_algorithm import TorchAlgorithm
from rlz.answers import Rollout
from rlz.config.seeds import Role
from rlz.dtypes import numpy_dtype
from rlz.errors import CheckpointError, WaitTimeoutError
from rlz.learning.batches import KEPT
from rlz.learning.engine import Engine
from rlz.learning.modules import Modules
from rlz.learning.rollout_rows import RolloutRows
from rlz.learning.trainer import Trainer
from rlz.system.notices import notice
from rlz.transport.stats import Stat, StatsRow, Waiting
from rlz.workers.recorder import LANE_BITS
from rlz.workers.updates import Parts, Saved

SLICE_S = 0.1
"""Longest single wait for segments: how late the end of the run may be noticed."""

OPEN = "rollout."
"""Prefix of the tensors of a checkpoint that hold the segments of a rollout which is not whole yet."""

NOTES = "notes"

Fields = Sequence[tuple[str, str, tuple[int, ...], int]]


class RolloutUpdates:
    """See `Updates`. An epoch is a launch; between two rollouts the policy is published.

    Parameters
    ----------
    parts : of the learner.
    data : what its algorithm learns from.
    """

    waits_for = Waiting.BATCH, Stat.WAIT_BATCH_S
    batch: Any = None

    def __init__(self, parts: Parts, data: Rollout) -> None:
        self._parts = parts
        self._data = data
        self._segments = parts.config.num_envs
        queue = parts.streams.queue
        self._consumer = queue.consumer(worker=parts.spec.worker_id)
        self._fields: dict[str, NDArray[Any]] = {
            name: np.zeros((self._segments, *shape), numpy_dtype(dtype)) for name, dtype, shape, _ in queue.fields
        }
        self._notes = np.zeros(self._segments, np.uint64)
        self._count = 0  # segments of the next rollout
        self._epochs_left = 0
        self._lag = 0.0
        self._dropped = 0
        self._updates = data.updates(self._segments)
        device = parts.devices[0]
        like = zero_rows(parts.algorithm, queue.fields, 1)
        self._rows = RolloutRows(like, self._segments * data.length, device)
        self._trainer = parts.trainer(
            self._rows.layout(data.batch),
            seed=parts.seed(Role.LEARNER),
            launch=self._updates,
            rows=self._rows,
            log=notice,
            urgent=True,  # uncompiled updates of small batches take ten times as long: everybody waits for them
        )
        self._restore()

    @property
    def trainer(self) -> Trainer:
        """See `Updates`."""
        return self._trainer

    @property
    def batch_size(self) -> int:
        """See `Updates`."""
        return self._data.batch

    @property
    def whole(self) -> bool:
        """See `Updates`."""
        return self._epochs_left == 0

    def start(self) -> None:
        """See `Updates`."""
        self._trainer.start()

    def grant(self, timeout: float) -> int | None:
        """See `Updates`: those of an epoch, once there is a rollout."""
        limiter = self._parts.streams.limiter
        if limiter.state != RUNNING:
            return 0
        if self._epochs_left == 0:
            over = limiter.env_steps >= limiter.total_timesteps  # before the look: then all segments are in the queue
            self._collect(0.0 if over else min(timeout, SLICE_S))
            if self._count < self._segments:
                return 0 if over else None
            self._begin()
        return self._updates

    def make(self, most: int, learning_rate: float, timeout: float | None) -> int:
        """See `Updates`: one epoch."""
        assert isinstance(self._trainer, Engine | Modules)
        self._parts.stats.enter(Stat.UPDATE_S)
        self._trainer.launch(most, learning_rate)
        self._epochs_left -= 1
        return most

    def keep_up(self, now: float) -> None:
        """Nothing."""

    def report(self, stats: StatsRow) -> None:
        """See `Updates`."""
        stats.set(Stat.SEGMENT_LAG, self._lag)
        stats.add(Stat.SEGMENTS_DROPPED, float(self._dropped))
        self._dropped = 0

    def finish(self) -> None:
        """Nothing is on its way: the last segments that are not whole are dropped."""

    def saved(self) -> Saved:
        """See `Updates`: the segments that wait for the others of their rollout."""
        if self._count == 0:
            return Saved()
        tensors = {name: torch.from_numpy(values[: self._count].copy()) for name, values in self._fields.items()}
        notes = torch.from_numpy(self._notes[: self._count].astype(np.int64))
        return Saved(tensors={OPEN + name: tensor for name, tensor in {**tensors, NOTES: notes}.items()})

    def close(self) -> None:
        """See `Updates`."""
        self._trainer.close()
        self._consumer.close()

    def _collect(self, timeout: float) -> None:
        """Take segments until the rollout is whole, and leave out those whose policy is too old."""
        while self._count < self._segments:
            into = {name: values[self._count :] for name, values in self._fields.items()}
            notes = self._notes[self._count :]
            try:
                found = self._consumer.pop_batch(into, timeout=timeout, notes=notes)
            except WaitTimeoutError:
                return
            if self._data.max_lag is not None:
                fresh = np.flatnonzero(self._lags(notes[:found]) <= self._data.max_lag)
                if len(fresh) < found:
                    for values in (*into.values(), notes):
                        values[: len(fresh)] = values[fresh]
                    self._dropped += found - len(fresh)
                    found = len(fresh)
            self._count += found
            timeout = 0.0

    def _begin(self) -> None:
        """Prepare the rows of the rollout."""
        self._parts.stats.enter(Stat.DRAW_S)
        # The order in which segments came must not matter.
        lanes = self._notes & np.uint64((1 << LANE_BITS) - 1)
        order = np.argsort(lanes, kind="stable")
        if (np.diff(order) < 0).any():
            for values in (*self._fields.values(), self._notes):
                values[:] = values[order]
        self._lag = float(self._lags(self._notes).mean())
        limiter, trainer = self._parts.streams.limiter, self._trainer
        assert isinstance(trainer, Engine | Modules)
        segments = segments_of(self._fields, self._parts.devices[0])
        if self._parts.normalizer is not None:
            # By the statistics that these steps were acted with; the policy that learns from them gets the next ones.
            segments = self._parts.normalizer.segments(segments)
            for index, lane in enumerate(lanes[order].tolist()):
                steps = {name: values[index] for name, values in self._fields.items()}
                self._parts.normalizer.see(lane, steps)
            self._parts.normalizer.refresh()
        with torch.no_grad():
            done = self._parts.config.done(limiter.env_steps)
            self._rows.take(self._parts.algorithm.prepare(trainer.settle(), segments, done))
        self._count = 0
        self._epochs_left = self._data.epochs

    def _lags(self, notes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Versions by which segments are behind what they would be learned into."""
        return self._parts.streams.parameters.version() - (notes >> np.uint64(LANE_BITS)).astype(np.int64)

    def _restore(self) -> None:
        saved = self._parts.saved
        if saved is None or OPEN + NOTES not in saved.learner:
            return
        notes = saved.learner[OPEN + NOTES]
        kept = min(len(notes), self._segments)
        try:
            for name, values in self._fields.items():
                values[:kept] = saved.learner[OPEN + name][:kept]
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"checkpoint {saved.path} has segments of another shape: {error}") from error
        self._notes[:kept] = notes[:kept].astype(np.uint64)
        self._count = kept


def segments_of(fields: dict[str, NDArray[Any]], device: torch.device) -> Segments:
    """Segments as an algorithm gets them, from arrays [segments, length, ...] of their fields."""
    own = {name for name in Segments._fields if name != "extras"}
    found = {name: _tensor(values, device) for name, values in fields.items()}
    for name in ("obs", "next_obs"):
        found[name] = found[name].flatten(2)
    extras = {name: tensor for name, tensor in found.items() if name not in own}
    return Segments(**{name: found[name] for name in own}, extras=extras)


def zero_rows(algorithm: Algorithm[Any], fields: Fields, rows: int) -> Any:
    """So many rows prepared of segments of zeros, for their layout.

    Parameters
    ----------
    fields : of a segment: (name, dtype, (length, *shape), byte offset).
    """
    zeros = {name: np.zeros((rows, 1, *shape[1:]), numpy_dtype(dtype)) for name, dtype, shape, _ in fields}
    with torch.no_grad():
        if isinstance(algorithm, TorchAlgorithm):
            return algorithm.prepare(None, segments_of(zeros, torch.device(algorithm.device)), 0.0)
        state = algorithm.init(torch.Generator().manual_seed(0))
        return algorithm.prepare(state, segments_of(zeros, torch.device("cpu")), 0.0)


def _tensor(values: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(values).to(device)
    return tensor if tensor.dtype in (*KEPT, torch.bool) else tensor.to(torch.float32)
