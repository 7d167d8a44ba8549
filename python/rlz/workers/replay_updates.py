"""Updates on batches of a replay buffer, as often as the replay ratio allows."""

from __future__ import annotations

import time

import numpy as np
import torch

from rlz._native import RUNNING, PrioritizedSampler, ReplaySampler
from rlz.algorithms.base import Batch
from rlz.answers import Replay
from rlz.config.seeds import Role, stream
from rlz.errors import CheckpointError, WaitTimeoutError
from rlz.learning.adaptation import batch_sizes
from rlz.learning.batches import Batches, Decoder
from rlz.learning.compiled import Layout, layouts
from rlz.learning.device_replay import DeviceReplay, choose
from rlz.learning.engine import Engine
from rlz.learning.graphs import orders
from rlz.learning.memory import HELPER_BYTES, engine_bytes, largest_batch
from rlz.learning.seen_rows import SeenRows
from rlz.learning.step_allowance import StepAllowance
from rlz.learning.trainer import Trainer
from rlz.records.priorities import Priorities, restore_priorities
from rlz.records.replay_files import check_rows
from rlz.records.salvage import with_salvaged_rows
from rlz.system.memory import limits
from rlz.system.notices import notice
from rlz.transport.stats import Stat, StatsRow, Waiting
from rlz.workers.throughput import Throughput
from rlz.workers.updates import Parts, Saved

SLICE_S = 0.5
"""Longest single wait for a batch."""

OPEN_WINDOWS_S = 1.0
"""Longest wait for the samplers' last rows; one that was killed leaves its own for good."""

HELD_S = 0.05
"""Seconds from one look to the next while a resumed run waits for rows."""


class ReplayUpdates:
    """See `Updates`.

    Parameters
    ----------
    parts : of the learner.
    data : what its algorithm learns from.
    """

    waits_for = Waiting.LIMITER, Stat.WAIT_LIMITER_S
    whole = True

    def __init__(self, parts: Parts, data: Replay) -> None:
        self._parts = parts
        self._data = data
        self._streams = streams = parts.streams
        self._device = parts.devices[0]
        self._decoder = Decoder(streams.replay.fields, parts.normalizer)
        self._seen = None if parts.normalizer is None else SeenRows(streams.replay, parts.normalizer, data.n_step)
        self._rows = self._make_sampler()
        self._mirror = self._make_mirror()
        self.batch: Batch | None = None
        self._batch_size = data.batch
        self._throughput = Throughput(self, parts, data, self._largest_batch) if data.adapts else None
        if self._throughput is not None:
            self._batch_size = self._throughput.adaptation.chosen.batch_size
        self._batches = self.make_batches(self._batch_size)
        self._trainer = self.make_trainer(self._batch_size)
        self.trainers = {self._batch_size: self._trainer}
        self._beta = 0.0 if data.priority is None else data.priority.beta
        self._stale = 0
        self.frames = 0
        self._held_until = self._first_update_at()
        self.allowance = self._make_allowance()
        if parts.saved is not None:
            self._restore_draws()
            self._restore_priorities()

    @property
    def trainer(self) -> Trainer:
        """See `Updates`."""
        return self._trainer

    @property
    def batch_size(self) -> int:
        """See `Updates`."""
        return self._batch_size

    @property
    def batches(self) -> Batches:
        """Where batches of the present size come from."""
        return self._batches

    @property
    def rows(self) -> ReplaySampler | PrioritizedSampler:
        """What draws from the buffer."""
        return self._rows

    def start(self) -> None:
        """See `Updates`."""
        scaled = getattr(self._parts.settings, "scale_learning_rate", None) is not None
        if scaled or self._throughput is not None:
            self.announce_learning_rate()
        self._trainer.start()

    def announce_learning_rate(self) -> None:
        """Say what it is for the present batch size."""
        rate = self._parts.rate(self._batch_size)
        notice(f"learning rate: {rate:.3g}, scaled for batches of {self._batch_size}")

    def grant(self, timeout: float) -> int | None:
        """See `Updates`: as many as the limiter grants, up to a launch of them."""
        limiter = self._streams.limiter
        if self._held_until > 0:
            if limiter.state == RUNNING and limiter.env_steps < min(self._held_until, limiter.total_timesteps):
                time.sleep(min(timeout, HELD_S))
                return None
            self._held_until = 0
        try:
            most, worker = self._parts.config.launch(), self._parts.spec.worker_id
            return limiter.acquire_updates(most, worker=worker, timeout=timeout)
        except WaitTimeoutError:
            return None

    def make(self, most: int, learning_rate: float, timeout: float | None) -> int:
        """See `Updates`: one on a batch from the host, all on rows on the device."""
        if self._seen is not None:
            self._seen.follow()
        if self._data.priority is not None:
            first = self._data.priority.beta
            self._beta = first + (1.0 - first) * self._parts.config.done(self._streams.limiter.env_steps)
            self._batches.set_beta(self._beta)
        try:
            made = (
                self._launch(most, learning_rate) if self._mirror is not None else self._update(learning_rate, timeout)
            )
        except (RuntimeError, MemoryError) as error:
            if self._throughput is None:
                raise
            self._throughput.refuse(error)
            return 0
        rows = made * self._batch_size
        self.frames += rows
        if made and self.allowance is not None:
            self.allowance.used(rows, self._batch_size)
        return made

    def keep_up(self, now: float) -> None:
        """See `Updates`: in throughput mode, a look at the rates that are due."""
        if self._throughput is not None:
            self._throughput.look(now)

    def report(self, stats: StatsRow) -> None:
        """See `Updates`."""
        if self._data.priority is not None:
            stats.set(Stat.PRIORITY_BETA, self._beta)
            stats.add(Stat.PRIORITIES_STALE, float(self._stale))
            self._stale = 0
        if self.allowance is not None:
            stats.set(Stat.ROW_USES, self.allowance.uses)
        stats.set(Stat.TRYING, float(self._throughput is not None and self._throughput.adaptation.trying))

    def finish(self) -> None:
        """Let samplers that end write the rows of their open n-step windows, so that the last checkpoint has them."""
        if self._data.n_step == 1 or self._parts.serial:
            return  # serial mode keeps open windows in the checkpoint
        until = time.monotonic() + OPEN_WINDOWS_S
        while self._streams.stats.read()[:, Stat.ROWS_PENDING].any() and time.monotonic() < until:
            time.sleep(0.005)

    def saved(self) -> Saved:
        """See `Updates`."""
        priorities = None
        if isinstance(self._rows, PrioritizedSampler):
            priorities = Priorities.of(self._rows, self._streams.replay.lanes).tensors()
        if self._seen is not None:
            self._seen.follow()  # a resumed run begins after the rows that it finds
        extra = {} if self._throughput is None else self._throughput.saved()
        return Saved(self._batches.sampler_state(), extra, priorities=priorities)

    def close(self) -> None:
        """See `Updates`."""
        for trainer in self.trainers.values():
            trainer.close()
        self._batches.close()
        if self._seen is not None:
            self._seen.close()

    def use(self, batch_size: int) -> None:
        """Go on with batches of another size, which has a trainer."""
        batches = self.make_batches(batch_size)  # where there is no memory for them, nothing has changed
        self._parts.flush()
        self._batches.close()
        self._batch_size, self._batches = batch_size, batches
        trainer = self.trainers[batch_size]
        assert isinstance(trainer, Engine)
        trainer.take_up()
        self._trainer = trainer

    def make_batches(self, batch_size: int) -> Batches:
        """Batches of a size."""
        return Batches(
            self._rows,
            self._decoder,
            batch_size=batch_size,
            stride=self._streams.replay.stride,
            device=self._device,
            # A draw takes microseconds. A thread of its own for it would take a core from the update's threads.
            ahead=self._device.type == "cuda" and not self._parts.serial,
        )

    def make_trainer(self, batch_size: int) -> Trainer:
        """A trainer for batches of a size."""
        chosen = self._data.batch if self._throughput is None else self._throughput.chosen

        def log(line: str) -> None:
            notice(f"batch size {batch_size}: {line}" if self._data.adapts else line)

        return self._parts.trainer(
            self._layout(batch_size),
            # The trainers of one run must not repeat each other's noise.
            seed=self._parts.seed(Role.LEARNER) ^ (0 if batch_size == self._data.batch else batch_size),
            launch=self._parts.config.launch(),
            # Samplers that never wait leave it no core. What is to be compared only can wait, and should not disturb.
            urgent=self._data.ratio is None and batch_size == chosen,
            rows=self._mirror,
            log=log,
        )

    # -- updates ---------------------------------------------------------------------------------------------------

    def _update(self, learning_rate: float, timeout: float | None) -> int:
        """One update, of rows from the host."""
        stats, wait = self._parts.stats, self._parts.wait
        stats.enter(Stat.DRAW_S)
        batch = self._batches.next()
        if batch is None:
            # Updates have been granted, so in lock step (timeout 0) the batch is worth waiting for as well.
            wait.begin(Waiting.BATCH, Stat.WAIT_BATCH_S)
            batch = self._batches.next(SLICE_S if not timeout else min(timeout, SLICE_S))
        self.batch = batch
        if batch is None:
            return 0
        wait.end()
        stats.enter(Stat.UPDATE_S)
        td_errors = self._trainer.update(batch, learning_rate)
        if td_errors is not None:
            self._stale += self._batches.update_priorities(td_errors)
        return 1

    def _launch(self, count: int, learning_rate: float) -> int:
        """All updates that are granted, of rows on the device."""
        assert self._mirror is not None
        assert isinstance(self._trainer, Engine)
        self._parts.stats.enter(Stat.DRAW_S)
        self._mirror.follow()
        self._parts.stats.enter(Stat.UPDATE_S)
        self._trainer.launch(count, learning_rate)
        return count

    # -- beginning -------------------------------------------------------------------------------------------------

    def _first_update_at(self) -> int:
        """Env steps before which a resumed run makes no update: the line of the ratio tells where this one lies on it.

        The slack must not let the learner begin on the few rows of a buffer that was not restored.
        """
        ratio, limiter = self._data.ratio, self._streams.limiter
        done = 0 if ratio is None else limiter.updates * ratio[1] // ratio[0]
        return 0 if self._parts.saved is None else limiter.learning_starts + done

    def _make_allowance(self) -> StepAllowance | None:
        if self._data.ratio is not None:
            return None
        uses = self._data.row_uses if self._throughput is None else self._throughput.adaptation.chosen.row_uses
        found = StepAllowance(self._streams.limiter, uses, envs=self._parts.config.num_envs)
        found.used(0, self._batch_size)  # before samplers can pass the warm-up
        return found

    def _layout(self, batch_size: int) -> tuple[Layout, ...]:
        blank = torch.zeros(batch_size, self._streams.replay.stride, dtype=torch.uint8, device=self._device)
        weight = torch.zeros(batch_size, device=self._device) if self._data.priority is not None else None
        return layouts(self._decoder(blank, weight).tensors())

    def _largest_batch(self) -> int:
        """Rows of a batch that the memory of the device, and the replay buffer, have room for."""
        card = self._device.type == "cuda"
        if card:
            free = torch.cuda.mem_get_info(self._device)[0]
        else:
            free = min((limit.available for limit in limits()), default=2**40)
        sizes = len(batch_sizes(self._data.capacity))
        found = largest_batch(free, self._row_work(), card=card, graphs=self._graphs(), sizes=sizes)
        return min(found, self._data.capacity)

    def _row_work(self) -> int:
        """Bytes for each row of a batch: what is kept for the way back, and what the products make of it beside."""
        algorithm = self._parts.algorithm
        return self._streams.replay.stride + 4 * (algorithm.memory(1) - algorithm.memory(0))

    def _graphs(self) -> int:
        """Graphs of each trainer on a card."""
        cycle = self._parts.algorithm.cycle
        return len(orders(cycle, 1) | orders(cycle, self._parts.config.launch()))

    def _make_mirror(self) -> DeviceReplay | None:
        """The replay buffer on the device, where `--replay-device` and the device's memory say so."""
        config, replay = self._parts.config, self._streams.replay
        reserved = engine_bytes(self._data.batch, self._row_work(), self._graphs())
        reserved += HELPER_BYTES if config.compile else 0
        wanted, line = choose(
            config.replay_device, replay, self._device, refused=config.replay_refusal(), reserved=reserved
        )
        if self._device.type == "cuda" or config.replay_device != "auto":
            notice(line)
        return DeviceReplay(replay, self._decoder, self._device) if wanted else None

    def _make_sampler(self) -> ReplaySampler | PrioritizedSampler:
        spec, replay = self._parts.spec, self._streams.replay
        rows = stream(self._parts.config.seed, Role.REPLAY, worker=spec.index, incarnation=spec.incarnation)
        seed = rows.generate_state(4, np.uint64).tolist()
        priority = self._data.priority
        if priority is None:
            return replay.sampler(seed=seed)
        return replay.prioritized_sampler(seed=seed, alpha=priority.alpha, beta=priority.beta, epsilon=priority.epsilon)

    def _restore_draws(self) -> None:
        saved = self._parts.saved
        assert saved is not None
        try:
            self._batches.restore_sampler(bytes.fromhex(saved.rng["replay"]))
        except ValueError as error:
            raise CheckpointError(f"checkpoint {saved.path} is broken: random stream of the draws: {error}") from error

    def _restore_priorities(self) -> None:
        saved = self._parts.saved
        assert saved is not None
        if not isinstance(self._rows, PrioritizedSampler) or saved.replay is None:
            return
        try:
            check_rows(saved.run_dir, saved.replay)
        except CheckpointError:
            return  # the run goes on without them
        if with_salvaged_rows(saved).replay is not saved.replay:
            # The controller saved the rows when a learner had died; their priorities died with it.
            notice("not restored: the priorities of the rows. All count as new")
            return
        assert self._data.priority is not None
        alpha = self._data.priority.alpha
        if restore_priorities(self._rows, saved, self._streams.replay, alpha=alpha) is None:
            notice("the checkpoint has no priorities: all rows count as new")
