"""The learner: updates the networks, publishes the actor, writes checkpoints.

What its updates are made of, and when, is the affair of `ReplayUpdates` or `RolloutUpdates`. Version 1 of the actor is
published right after initialisation, before anything is compiled: samplers wait for it. A first checkpoint follows at
once, so that a run can be resumed whenever it dies.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlz._native import dense_bf16
from rlz.algorithms.registry import make_algorithm
from rlz.answers import Replay, Rollout
from rlz.config.seeds import Role
from rlz.errors import CheckpointError, NonFiniteError
from rlz.learning.batches import Decoder
from rlz.learning.device_choice import fastest_device, find_device
from rlz.learning.normalizer import PREFIX, Normalizer
from rlz.learning.precision import check_resumed, use_precision
from rlz.learning.publication import Interval, Publication
from rlz.learning.saving import Background
from rlz.learning.trainer import learned
from rlz.records.checkpoint import Checkpoint, read_checkpoint
from rlz.records.checkpointer import Checkpointer
from rlz.system.files import replace_file
from rlz.system.notices import notice
from rlz.transport.stats import LEARNERS_OWN, Stat, metric
from rlz.workers.base import OpenWait, WorkerSpec
from rlz.workers.replay_updates import ReplayUpdates
from rlz.workers.rollout_updates import OPEN, RolloutUpdates, zero_rows
from rlz.workers.updates import Parts, Updates, devices_of, seed_of

if TYPE_CHECKING:
    from rlz.transport import Streams

METRICS_UPDATES = 100
METRICS_S = 1.0
"""Metrics go to the stats board after so many updates, or so many seconds, whichever is first: their means."""

SLICE_S = 0.5
"""Longest single wait, so that checkpoints and metrics stay on time while the samplers are slow."""

NONFINITE_FILE = "nonfinite.safetensors"


class Learner:
    """Updates the networks as often as there is something to learn from.

    Parameters
    ----------
    spec : seeds, names, run folder, checkpoint to resume from.
    streams : the run's streams.
    """

    def __init__(self, spec: WorkerSpec, streams: Streams) -> None:
        self._spec = spec
        self._streams = streams
        config = self._config = spec.run_config()
        env_spec = spec.environment()
        serial = config.mode == "serial"
        torch.set_num_threads(1)
        if not serial:
            # Adam's second moments decay into denormals, which are a hundred times slower. Not in serial mode, whose
            # process runs environments too: the setting changes their arithmetic.
            torch.set_flush_denormal(True)
        self._stats = streams.row(spec.slot)
        self._wait = OpenWait(self._stats)  # over several slices, with chores between them
        answers = spec.answers()
        data = answers.data
        algorithm = make_algorithm(config.algo, config.model_dump(), env_spec)
        self._algorithm = algorithm.in_precision(config.precision)
        self._metrics = tuple(streams.stats.names[len(Stat) :])
        devices = [find_device(name, notice) for name in config.learner_devices()]
        if config.learner_devices() == ("auto",) and devices[0].type == "cuda" and not serial:
            devices = [self._measure_devices(data)]
        device = devices[0]
        if device.type == "cuda":
            torch.cuda.set_device(device)  # events and streams without a device are those of the current one
        self._precision = use_precision(config.precision, devices, serial=serial)
        seed = seed_of(spec, config, Role.NETWORK)
        self._learned = learned(self._algorithm, device, seed, self._metrics)
        saved = None if spec.resume is None else read_checkpoint(Path(spec.resume))
        if saved is not None:
            check_resumed(self._precision, saved.extra.get("precision"))
            kept = {name: array for name, array in saved.learner.items() if not name.startswith((OPEN, PREFIX))}
            self.load_state_dict({name: torch.from_numpy(array) for name, array in kept.items()})
        self._normalizer = self._make_normalizer(data, saved, device)
        parts = Parts(
            spec=spec,
            streams=streams,
            config=config,
            algorithm=self._algorithm,
            precision=self._precision,
            learned=self._learned,
            devices=devices_of(config, device),
            saved=saved,
            normalizer=self._normalizer,
            stats=self._stats,
            wait=self._wait,
            flush=lambda: self._flush(time.monotonic()),
        )
        self._parts = parts
        self._updates: Updates
        self._updates = ReplayUpdates(parts, data) if isinstance(data, Replay) else RolloutUpdates(parts, data)
        if saved is not None:
            self._updates.trainer.noise_state = bytes.fromhex(saved.rng["learner"])
        self._publisher = streams.parameters.publisher(worker=spec.worker_id)
        every = config.publish_every
        on_card = device.type == "cuda" and not serial and isinstance(data, Replay)
        self._interval = Interval(every if isinstance(every, int) else None, timed=on_card)
        self._publication = Publication(self._publisher, self._actor())
        self._checkpointer = Checkpointer(Path(spec.run_dir), streams, config, env_spec, answers.policy)
        self._saving = Background("checkpoint")
        self._saved = False
        self._save_due, self._asked = False, 0.0
        self._staleness = 0
        self._pending = 0
        self._granted = 0
        self._learning_rate = parts.rate(self._updates.batch_size)
        self._done = streams.limiter.updates
        self._ready = False
        self._version = 0
        self._flushed_at = self._saved_at = time.monotonic()

    def start(self) -> None:
        """Publish the first version, then begin to compile and to write a fresh run's first checkpoint."""
        self._publish()
        if self._precision != "fp32":
            device = self._parts.devices[0]
            slow = self._precision == "bf16" and device.type == "cpu" and not dense_bf16()
            warning = " (far slower than fp32 on CPUs without bf16 instructions)" if slow else ""
            notice(f"precision: {self._precision} on {device}{warning}")
        self._updates.start()
        for column in (*(metric(index) for index in range(len(self._metrics))), *LEARNERS_OWN):
            self._stats.set(column, math.nan)
        self._flushed_at = self._saved_at = time.monotonic()
        self._stats.set(Stat.THREADS, float(self._updates.trainer.threads))
        if self._spec.resume is None:
            self._save()

    def step(self, timeout: float | None) -> bool:
        """Make updates as soon as there is leave for some; False at the end of the run."""
        if self._granted == 0:
            granted = self._leave(timeout)
            if granted is None:
                self._keep_up()
                return True
            if granted == 0:
                self._finish()
                return False
            self._granted = granted
        self._learning_rate = self._parts.rate(self._updates.batch_size)
        try:
            made = self._updates.make(self._granted, self._learning_rate, timeout)
        except NonFiniteError as error:
            raise self._dump(error) from None
        if made:
            self._account(made)
        self._keep_up()
        return True

    def close(self) -> None:
        """End the threads and the helper processes, give back the publisher's place."""
        self._updates.close()
        self._saving.wait()
        self._publisher.close()

    @property
    def precision(self) -> str:
        """What `--precision` stands for here."""
        return self._precision

    @property
    def settled(self) -> bool:
        """Executor and number of threads will stay as they are for a while."""
        return self._updates.trainer.settled

    def state_dict(self) -> dict[str, Tensor]:
        """Networks, optimisers and counters by name: views, valid until the next update."""
        return self._updates.trainer.state_dict()

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` gave. Raises CheckpointError naming what does not fit."""
        self._learned.load_state_dict(tensors)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _leave(self, timeout: float | None) -> int | None:
        """Leave for updates; None when there is none yet, 0 when there will be none."""
        granted = self._updates.grant(0.0)
        if granted is None and timeout != 0.0:
            self._published(self._publication.finish(wait=True))  # samplers that are waited for should have it
            self._wait.begin(*self._updates.waits_for)
            granted = self._updates.grant(SLICE_S if timeout is None else min(timeout, SLICE_S))
        if granted is not None:
            self._wait.end()
        return granted

    def _account(self, count: int) -> None:
        """Count updates that are done, and publish."""
        self._stats.enter(Stat.OTHER_S)
        self._pending += count
        self._done += count
        self._staleness += self._updates.trainer.staleness
        self._stats.add(Stat.FRAMES, float(count * self._updates.batch_size))
        self._granted -= count
        self._interval.since += count
        if self._updates.whole and self._interval.due(time.monotonic()):
            self._publish()
        else:
            self._published(self._publication.finish())
        self._streams.limiter.complete_updates(count)
        if not self._ready:
            self._ready = True
            self._stats.set(Stat.READY_S, time.monotonic())

    def _keep_up(self) -> None:
        """Metrics, checkpoints, and what the updates look after."""
        now = time.monotonic()
        self._updates.keep_up(now)
        if self._pending >= METRICS_UPDATES or now - self._flushed_at >= METRICS_S:
            self._flush(now)
            self._saving.check()
            asked = float(self._streams.stats.read()[self._spec.slot][Stat.CHECKPOINTS_ASKED])
            self._save_due, self._asked = self._save_due or asked > self._asked, asked
        every = self._config.checkpoint_every
        due = self._save_due or (every > 0.0 and now - self._saved_at >= every)
        if due and self._granted == 0 and self._updates.whole:
            self._save()
            self._saved_at, self._save_due = now, False

    def _finish(self) -> None:
        if self._interval.since:
            self._publish()
        self._published(self._publication.finish(wait=True))
        self._flush(time.monotonic())
        self._updates.finish()
        self._save()
        self._saving.wait()
        if not self._saved:
            raise CheckpointError(
                f"the last checkpoint of the run could not be written (the reason is above, and in "
                f"{Path(self._spec.run_dir) / 'logs'}); what was learned since the one before is lost"
            )
        self._streams.limiter.finish()

    # -- publication, metrics, checkpoints -------------------------------------------------------------------------

    def _publish(self) -> None:
        self._stats.enter(Stat.PUBLISH_S)
        now = time.monotonic()
        counts = {"env_steps": self._streams.limiter.env_steps, "updates": self._done}
        self._published(self._publication.take(self._actor(), **counts))
        self._published(self._publication.finish(wait=self._version == 0 or self._config.mode == "serial"))
        self._interval.begin(now)
        self._stats.enter(Stat.OTHER_S)

    def _actor(self) -> Tensor:
        """Flat parameters of what acts, with the statistics that it normalises by; valid until the next update."""
        actor = self._updates.trainer.actor_parameters()
        return actor if self._normalizer is None else self._normalizer.published(actor)

    def _published(self, version: int | None) -> None:
        if version is not None:
            self._version = version
            self._stats.set(Stat.POLICY_VERSION, float(version))

    def _flush(self, now: float) -> None:
        stats, trainer = self._stats, self._updates.trainer
        if self._pending:
            means = trainer.take_metrics().tolist()
            for index, value in enumerate(means):
                if not math.isnan(value):  # measured since the last time
                    stats.set(metric(index), value)
            stats.add(Stat.UPDATES, float(self._pending))
            stats.set(Stat.ACTOR_STALENESS, self._staleness / self._pending)
            self._staleness = 0
            self._pending = 0
        self._updates.report(stats)
        stats.set(Stat.LEARNING_RATE, self._learning_rate)
        stats.set(Stat.BATCH_SIZE, float(self._updates.batch_size))
        stats.set(Stat.THREADS, float(trainer.threads))
        stats.set(Stat.COMPILED, float(trainer.executor == "compiled"))
        stats.set(Stat.HEARTBEAT, now)
        self._flushed_at = now

    def _save(self) -> None:
        """Take a snapshot of this moment and write it in the background."""
        self._saving.wait()
        cut = self._checkpointer.cut()
        updates, trainer = self._updates.saved(), self._updates.trainer
        tensors = {name: view.detach().to("cpu", copy=True) for name, view in self.state_dict().items()}
        tensors |= updates.tensors
        if self._normalizer is not None:
            tensors |= self._normalizer.tensors()
        policy = self._actor().cpu().numpy().view(np.uint8).copy()
        counters = {"updates": self._done, "version": self._version}
        rng = {"replay": updates.draws.hex(), "learner": trainer.noise_state.hex()}
        extra: dict[str, Any] = {"precision": self._precision, **updates.extra}

        def write() -> None:
            path = self._checkpointer.save(
                tensors, policy, counters, rng, extra, cut=cut, priorities=updates.priorities
            )
            self._saved = path is not None
            if self._saved:
                self._stats.add(Stat.CHECKPOINTS, 1.0)

        self._saving.run(write)

    def _dump(self, error: NonFiniteError) -> NonFiniteError:
        from safetensors.torch import save

        path, trainer = Path(self._spec.run_dir) / NONFINITE_FILE, self._updates.trainer
        failure = trainer.failure(self._updates.batch)
        tensors = {name: t.detach().to("cpu", copy=True) for name, t in failure.items()}
        try:
            replace_file(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}))
            where = f"the batch and the state are in {path}"
        except OSError as problem:
            where = f"the batch could not be written to {path}: {problem.strerror}"
        return NonFiniteError(f"update {trainer.done + 1}: {error}; {where}")

    def _make_normalizer(
        self, data: Replay | Rollout, saved: Checkpoint | None, device: torch.device
    ) -> Normalizer | None:
        config = self._config
        if not (config.normalize_obs or config.normalize_reward):
            return None
        found = Normalizer(
            obs=config.normalize_obs,
            reward=config.normalize_reward,
            obs_dim=self._spec.environment().obs_dim,
            lanes=config.num_envs,
            gamma=data.gamma,
            device=device,
            one_by_one=config.mode == "serial",
        )
        if saved is not None:
            try:
                found.load(saved.learner)
            except (KeyError, ValueError) as error:
                raise CheckpointError(f"checkpoint {saved.path} has no statistics that fit: {error}") from error
        return found

    def _measure_devices(self, data: Replay | Rollout) -> torch.device:
        config = self._config
        if isinstance(data, Replay):
            decoder = Decoder(self._streams.replay.fields)
            batch = decoder(torch.zeros(data.batch, self._streams.replay.stride, dtype=torch.uint8))
        else:
            batch = zero_rows(self._algorithm, self._streams.queue.fields, data.batch)
        return fastest_device(self._algorithm, batch, precision=config.precision, launch=config.launch(), log=notice)
