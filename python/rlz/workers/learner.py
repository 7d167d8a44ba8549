"""The learner: draws batches, updates the networks, publishes the actor, writes checkpoints.

Version 1 of the actor is published right after initialisation, before anything is compiled: samplers wait for it. A
first checkpoint follows at once, so that a run can be resumed whenever it dies.
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

from rlz._native import RUNNING, PrioritizedSampler, ReplaySampler
from rlz.algorithms.base import Batch
from rlz.algorithms.settings import ReplaySettings
from rlz.algorithms.source import make_algorithm
from rlz.answers import Replay
from rlz.config.seeds import Role, stream
from rlz.errors import CheckpointError, NonFiniteError, WaitTimeoutError, in_one_line
from rlz.learning.adaptation import Adaptation, Operation, Seen, batch_sizes, use_counts
from rlz.learning.batches import Batches, Decoder
from rlz.learning.compiled import Layout, layouts
from rlz.learning.device_choice import fastest_device, find_device
from rlz.learning.device_replay import DeviceReplay, choose
from rlz.learning.engine import Engine, EnginePlan
from rlz.learning.graphs import orders
from rlz.learning.memory import HELPER_BYTES, engine_bytes, largest_batch, out_of_memory
from rlz.learning.precision import check_resumed, use_precision
from rlz.learning.publication import Interval, Publication
from rlz.learning.saving import Background
from rlz.learning.step_allowance import StepAllowance
from rlz.learning.trainer import Place, Trainer, learned
from rlz.learning.two_devices import Exchange
from rlz.records.checkpoint import Checkpoint, Checkpointer, read_checkpoint
from rlz.records.priorities import Priorities, restore_priorities
from rlz.records.replay_files import check_rows
from rlz.records.salvage import with_salvaged_rows
from rlz.system.files import replace_file
from rlz.system.memory import limits
from rlz.system.notices import notice
from rlz.transport.stats import Stat, Waiting, metric
from rlz.workers.base import OpenWait, WorkerSpec

if TYPE_CHECKING:
    from rlz.transport import Streams

METRICS_UPDATES = 100
METRICS_S = 1.0
"""Metrics go to the stats board after so many updates, or so many seconds, whichever is first: their means."""

SLICE_S = 0.5
"""Longest single wait, so that checkpoints and metrics stay on time while the samplers are slow."""

ADAPT_S = 0.02
"""Seconds between looks at the counts in throughput mode."""

OPEN_WINDOWS_S = 1.0
"""Longest wait for the samplers' last rows; one that was killed leaves its own for good."""

HELD_S = 0.05
"""Seconds from one look to the next while a resumed run waits for rows."""

NONFINITE_FILE = "nonfinite.safetensors"


class Learner:
    """Updates the networks as often as the replay ratio allows.

    Parameters
    ----------
    spec : seeds, names, run folder, checkpoint to resume from.
    streams : the run's streams.
    """

    def __init__(self, spec: WorkerSpec, streams: Streams) -> None:
        self._spec = spec
        self._streams = streams
        config = self._config = spec.run_config()
        env_spec = self._env_spec = spec.environment()
        serial = config.mode == "serial"
        torch.set_num_threads(1)
        if not serial:
            # Adam's second moments decay into denormals, which are a hundred times slower. Not in serial mode, whose
            # process runs environments too: the setting changes their arithmetic.
            torch.set_flush_denormal(True)
        self._stats = streams.row(spec.slot)
        self._wait = OpenWait(self._stats)  # over several slices, with chores between them
        data = config.data()
        assert isinstance(data, Replay)
        self._data = data
        algorithm = make_algorithm(config.algo, config.model_dump(), env_spec)
        assert isinstance(algorithm.settings, ReplaySettings)
        self._settings = algorithm.settings
        self._algorithm = algorithm.in_precision(config.precision)
        self._metrics = tuple(streams.stats.names[len(Stat) :])
        decoder = Decoder(streams.replay.fields)
        devices = [find_device(name, notice) for name in config.learner_devices()]
        if config.learner_devices() == ("auto",) and devices[0].type == "cuda" and not serial:
            devices = [self._measure_devices(decoder)]
        self._device = devices[0]
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # events and streams without a device are those of the current one
        self._precision = use_precision(config.precision, devices, serial=serial)
        self._learned = learned(self._algorithm, self._device, self._seed(Role.NETWORK), self._metrics)
        saved = None if spec.resume is None else read_checkpoint(Path(spec.resume))
        if saved is not None:
            check_resumed(self._precision, saved.extra.get("precision"))
            self.load_state_dict({name: torch.from_numpy(array) for name, array in saved.learner.items()})
        self._decoder = decoder
        self._rows = self._make_sampler()
        self._mirror = self._make_mirror(decoder)
        self._adaptation = self._make_adaptation(saved) if self._data.adapts else None
        self._batch_size = self._data.batch if self._adaptation is None else self._adaptation.chosen.batch_size
        self._chosen = self._batch_size
        self._batches = self._make_batches(self._batch_size)
        self._engine = self._make_engine(self._batch_size)
        self._engines = {self._batch_size: self._engine}
        if saved is not None:
            self._restore_draws(saved)
            self._restore_priorities(saved)
            self._engine.noise_state = bytes.fromhex(saved.rng["learner"])
        self._publisher = streams.parameters.publisher(worker=spec.worker_id)
        every = config.publish_every
        on_card = self._device.type == "cuda" and not serial
        self._interval = Interval(every if isinstance(every, int) else None, timed=on_card)
        self._publication = Publication(self._publisher, self._engine.actor_parameters())
        self._checkpointer = Checkpointer(Path(spec.run_dir), streams, config, env_spec, spec.answers().policy)
        self._saving = Background("checkpoint")
        self._saved = False
        self._staleness = 0
        self._pending = 0
        self._granted = 0
        self._beta = 0.0 if data.priority is None else data.priority.beta
        self._stale = 0
        self._learning_rate = self._rate_at(streams.limiter.env_steps)
        self._updates = streams.limiter.updates
        self._frames = 0
        self._held_until = self._first_update_at()
        self._allowance = self._make_allowance()
        self._adapt_at = 0.0
        self._ready = False
        self._version = 0
        self._flushed_at = self._saved_at = time.monotonic()

    def start(self) -> None:
        """Publish the first version, then begin to compile and to write a fresh run's first checkpoint."""
        if self._allowance is not None:
            self._allowance.used(0, self._batch_size)  # before samplers can pass the warm-up
        self._publish()
        if self._precision != "fp32":
            slow = self._precision == "bf16" and self._device.type == "cpu"
            warning = " (far slower than fp32 on CPUs without bf16 instructions)" if slow else ""
            notice(f"precision: {self._precision} on {self._device}{warning}")
        if self._settings.scale_learning_rate is not None or self._adaptation is not None:
            self._announce_learning_rate()
        self._engine.start()
        for index in range(len(self._metrics)):
            self._stats.set(metric(index), math.nan)
        self._flushed_at = self._saved_at = time.monotonic()
        self._stats.set(Stat.THREADS, float(self._engine.threads))
        if self._spec.resume is None:
            self._save()

    def step(self, timeout: float | None) -> bool:
        """Make one update as soon as the replay ratio allows it; False at the end of the run."""
        if self._granted == 0:
            granted = self._acquire(timeout)
            if granted is None:
                self._keep_up()
                return True
            if granted == 0:
                self._finish()
                return False
            self._granted = granted
        if self._data.priority is not None:
            first = self._data.priority.beta
            self._beta = first + (1.0 - first) * self._config.done(self._streams.limiter.env_steps)
            self._batches.set_beta(self._beta)
        if self._mirror is not None:
            self._launch(self._mirror, self._granted)
        else:
            try:
                batch = self._next_batch(timeout)
            except (RuntimeError, MemoryError) as error:
                self._refuse(error)
                batch = None
            if batch is not None:
                self._update(batch)
        self._keep_up()
        return True

    def close(self) -> None:
        """End the threads and the helper processes, give back the publisher's place."""
        for engine in self._engines.values():
            engine.close()
        self._batches.close()
        self._saving.wait()
        self._publisher.close()

    @property
    def precision(self) -> str:
        """What `--precision` stands for here."""
        return self._precision

    @property
    def settled(self) -> bool:
        """Executor and number of threads will stay as they are for a while."""
        return self._engine.settled

    def state_dict(self) -> dict[str, Tensor]:
        """Networks, optimisers and counters by name: views, valid until the next update."""
        return self._engine.state_dict()

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` gave. Raises CheckpointError naming what does not fit."""
        self._learned.load_state_dict(tensors)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _acquire(self, timeout: float | None) -> int | None:
        """Leave for updates, up to a launch of them; None when there is none yet, 0 when there will be none."""
        limiter, worker, most = self._streams.limiter, self._spec.worker_id, self._config.launch()
        if self._held_until > 0:
            if limiter.state == RUNNING and limiter.env_steps < min(self._held_until, limiter.total_timesteps):
                if timeout != 0.0:
                    self._wait.begin(Waiting.LIMITER, Stat.WAIT_LIMITER_S)
                    time.sleep(min(_slice(timeout), HELD_S))
                return None
            self._held_until = 0
        try:
            granted = limiter.acquire_updates(most, worker=worker, timeout=0.0)
        except WaitTimeoutError:
            if timeout == 0.0:
                return None
            self._published(self._publication.finish(wait=True))  # samplers that are waited for should have it
            self._wait.begin(Waiting.LIMITER, Stat.WAIT_LIMITER_S)
            try:
                granted = limiter.acquire_updates(most, worker=worker, timeout=_slice(timeout))
            except WaitTimeoutError:
                return None
        self._wait.end()
        return granted

    def _first_update_at(self) -> int:
        """Env steps before which a resumed run makes no update: the line of the ratio tells where this one lies on it.

        The slack must not let the learner begin on the few rows of a buffer that was not restored.
        """
        ratio = self._data.ratio
        done = 0 if ratio is None else self._updates * ratio[1] // ratio[0]
        return 0 if self._spec.resume is None else self._streams.limiter.learning_starts + done

    def _next_batch(self, timeout: float | None) -> Batch | None:
        self._stats.enter(Stat.DRAW_S)
        batch = self._batches.next()
        if batch is None:
            # Updates have been granted, so in lock step (timeout 0) the batch is worth waiting for as well.
            self._wait.begin(Waiting.BATCH, Stat.WAIT_BATCH_S)
            batch = self._batches.next(_slice(timeout) if timeout != 0.0 else SLICE_S)
        if batch is not None:
            self._wait.end()
        return batch

    def _update(self, batch: Batch) -> None:
        """One update, of rows from the host."""
        rate = self._rate()
        self._stats.enter(Stat.UPDATE_S)
        try:
            td_errors = self._engine.update(batch, rate)
        except NonFiniteError as error:
            raise self._dump(error, batch) from None
        except (RuntimeError, MemoryError) as error:
            self._refuse(error)
            return
        if td_errors is not None:
            self._stale += self._batches.update_priorities(td_errors)
        self._staleness += self._engine.staleness
        self._account(1)

    def _launch(self, mirror: DeviceReplay, count: int) -> None:
        """All updates that are granted, of rows on the device."""
        assert isinstance(self._engine, Engine)
        self._stats.enter(Stat.DRAW_S)
        mirror.follow()
        rate = self._rate()
        self._stats.enter(Stat.UPDATE_S)
        try:
            self._engine.launch(count, rate)
        except NonFiniteError as error:
            raise self._dump(error, None) from None
        except (RuntimeError, MemoryError) as error:
            self._refuse(error)
            return
        self._account(count)

    def _rate(self) -> float:
        self._learning_rate = self._rate_at(self._streams.limiter.env_steps)
        return self._learning_rate

    def _rate_at(self, env_steps: int) -> float:
        return self._settings.learning_rate_at(self._config.done(env_steps), self._batch_size)

    def _account(self, count: int) -> None:
        """Count updates that are done, and publish."""
        self._stats.enter(Stat.OTHER_S)
        self._pending += count
        self._updates += count
        self._frames += count * self._batch_size
        self._stats.add(Stat.FRAMES, float(count * self._batch_size))
        self._granted -= count
        if self._allowance is not None:
            self._allowance.used(count * self._batch_size, self._batch_size)
        self._interval.since += count
        if self._interval.due(time.monotonic()):
            self._publish()
        else:
            self._published(self._publication.finish())
        self._streams.limiter.complete_updates(count)
        if not self._ready:
            self._ready = True
            self._stats.set(Stat.READY_S, time.monotonic())

    def _keep_up(self) -> None:
        """Metrics, checkpoints and, in throughput mode, a look at the rates that are due."""
        now = time.monotonic()
        if self._adaptation is not None and now >= self._adapt_at:
            self._adapt_at = now + ADAPT_S
            self._adapt(self._adaptation, now)
        if self._pending >= METRICS_UPDATES or now - self._flushed_at >= METRICS_S:
            self._flush(now)
            self._saving.check()
        every = self._config.checkpoint_every
        if every > 0.0 and now - self._saved_at >= every and self._granted == 0:
            self._save()
            self._saved_at = now

    def _finish(self) -> None:
        if self._interval.since:
            self._publish()
        self._published(self._publication.finish(wait=True))
        self._flush(time.monotonic())
        self._wait_for_open_windows()
        self._save()
        self._saving.wait()
        if not self._saved:
            raise CheckpointError(
                f"the last checkpoint of the run could not be written (the reason is above, and in "
                f"{Path(self._spec.run_dir) / 'logs'}); what was learned since the one before is lost"
            )
        self._streams.limiter.finish()

    def _wait_for_open_windows(self) -> None:
        """Let samplers that end write the rows of their open n-step windows, so that the last checkpoint has them."""
        if self._data.n_step == 1 or self._config.mode == "serial":
            return  # serial mode keeps open windows in the checkpoint
        until = time.monotonic() + OPEN_WINDOWS_S
        while self._streams.stats.read()[:, Stat.ROWS_PENDING].any() and time.monotonic() < until:
            time.sleep(0.005)

    # -- throughput mode -------------------------------------------------------------------------------------------

    def _adapt(self, adaptation: Adaptation, now: float) -> None:
        """Tell the rates, and work with what is chosen from now on."""
        limiter = self._streams.limiter
        ready = adaptation.wanted is None or self._prepare(adaptation.wanted)
        counts = (limiter.env_steps, self._updates, self._frames)
        seen = Seen(now, *counts, settled=self._engine.settled, ready=ready)
        try:
            self._follow(adaptation, adaptation.look(seen))
        except (RuntimeError, MemoryError) as error:
            self._refuse(error)

    def _follow(self, adaptation: Adaptation, lines: list[str]) -> None:
        for line in lines:
            notice(line)
        operation = adaptation.operation
        if operation.batch_size != self._batch_size:
            self._use_batch_size(operation.batch_size)
        if self._allowance is not None:
            self._allowance.uses = operation.row_uses
        if adaptation.chosen.batch_size != self._chosen:
            self._chosen = adaptation.chosen.batch_size
            self._announce_learning_rate()

    def _prepare(self, batch_size: int) -> bool:
        """Whether a batch size can be used now. One that never can is refused."""
        if batch_size == self._batch_size:
            return True
        try:
            if batch_size not in self._engines:
                self._engines[batch_size] = self._make_engine(batch_size)
                self._engines[batch_size].start()
            engine = self._engines[batch_size]
            assert isinstance(engine, Engine)
            return engine.prepare(lambda: self._batches.draw(batch_size))
        except (RuntimeError, MemoryError) as error:
            self._refuse(error)
            return False

    def _refuse(self, error: RuntimeError | MemoryError) -> None:
        """Give up the batch size that is being tried, whose memory is not there. Any other error ends the run."""
        adaptation = self._adaptation
        if adaptation is None or not adaptation.trying or not out_of_memory(error):
            raise error
        tried = {adaptation.wanted, adaptation.operation.batch_size}
        self._follow(adaptation, adaptation.refuse(in_one_line(error)))
        for size in self._engines.keys() & (tried - {adaptation.chosen.batch_size, self._batch_size}):
            self._engines.pop(size).close()

    def _use_batch_size(self, batch_size: int) -> None:
        batches = self._make_batches(batch_size)  # where there is no memory for them, nothing has changed
        self._flush(time.monotonic())
        self._batches.close()
        self._batch_size, self._batches = batch_size, batches
        engine = self._engines[batch_size]
        assert isinstance(engine, Engine)
        engine.take_up()
        self._engine = engine

    def _announce_learning_rate(self) -> None:
        rate = self._rate_at(self._streams.limiter.env_steps)
        notice(f"learning rate: {rate:.3g}, scaled for batches of {self._batch_size}")

    def _make_adaptation(self, saved: Checkpoint | None) -> Adaptation:
        uses, extra = use_counts(self._data.row_uses), {} if saved is None else saved.extra
        start = Operation(
            int(extra.get("batch_size", self._data.batch)), max(uses[0], float(extra.get("row_uses", uses[-1])))
        )
        return Adaptation(start, batches=batch_sizes(self._largest_batch()), uses=uses)

    def _make_allowance(self) -> StepAllowance | None:
        if self._data.ratio is not None:
            return None
        uses = self._data.row_uses if self._adaptation is None else self._adaptation.chosen.row_uses
        return StepAllowance(self._streams.limiter, uses, envs=self._config.num_envs)

    def _largest_batch(self) -> int:
        """Rows of a batch that the memory of the device, and the replay buffer, have room for."""
        if self._device.type == "cuda":
            free = torch.cuda.mem_get_info(self._device)[0]
        else:
            free = min((limit.available for limit in limits()), default=2**40)
        sizes = len(batch_sizes(self._data.capacity))
        card = self._device.type == "cuda"
        found = largest_batch(free, self._row_work(), card=card, graphs=self._graphs(), sizes=sizes)
        return min(found, self._data.capacity)

    def _row_work(self) -> int:
        """Bytes for each row of a batch: what is kept for the way back, and what the products make of it beside."""
        return self._streams.replay.stride + 4 * (self._algorithm.memory(1) - self._algorithm.memory(0))

    def _graphs(self) -> int:
        """Graphs of each engine on a card."""
        cycle = self._algorithm.cycle
        return len(orders(cycle, 1) | orders(cycle, self._config.launch()))

    # -- publication, metrics, checkpoints -------------------------------------------------------------------------

    def _publish(self) -> None:
        self._stats.enter(Stat.PUBLISH_S)
        now = time.monotonic()
        counts = {"env_steps": self._streams.limiter.env_steps, "updates": self._updates}
        self._published(self._publication.take(self._engine.actor_parameters(), **counts))
        self._published(self._publication.finish(wait=self._version == 0 or self._config.mode == "serial"))
        self._interval.begin(now)
        self._stats.enter(Stat.OTHER_S)

    def _published(self, version: int | None) -> None:
        if version is not None:
            self._version = version
            self._stats.set(Stat.POLICY_VERSION, float(version))

    def _actor_bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return self._engine.actor_parameters().cpu().numpy().view(np.uint8)

    def _flush(self, now: float) -> None:
        stats = self._stats
        if self._pending:
            means = self._engine.take_metrics().tolist()
            for index, value in enumerate(means):
                if not math.isnan(value):  # measured since the last time
                    stats.set(metric(index), value)
            stats.add(Stat.UPDATES, float(self._pending))
            stats.set(Stat.ACTOR_STALENESS, self._staleness / self._pending)
            self._staleness = 0
            self._pending = 0
        if self._data.priority is not None:
            stats.set(Stat.PRIORITY_BETA, self._beta)
            stats.add(Stat.PRIORITIES_STALE, float(self._stale))
            self._stale = 0
        stats.set(Stat.LEARNING_RATE, self._learning_rate)
        stats.set(Stat.BATCH_SIZE, float(self._batch_size))
        if self._allowance is not None:
            stats.set(Stat.ROW_USES, self._allowance.uses)
        stats.set(Stat.TRYING, float(self._adaptation is not None and self._adaptation.trying))
        stats.set(Stat.THREADS, float(self._engine.threads))
        stats.set(Stat.COMPILED, float(self._engine.executor == "compiled"))
        stats.set(Stat.HEARTBEAT, now)
        self._flushed_at = now

    def _save(self) -> None:
        """Take a snapshot of this moment and write it in the background."""
        self._saving.wait()
        cut = self._checkpointer.cut()
        tensors = {name: view.detach().to("cpu", copy=True) for name, view in self.state_dict().items()}
        policy = self._actor_bytes().copy()
        counters = {"updates": self._updates, "version": self._version}
        rng = {"replay": self._batches.sampler_state().hex(), "learner": self._engine.noise_state.hex()}
        extra: dict[str, Any] = {"precision": self._precision}
        if self._adaptation is not None:
            chosen = self._adaptation.chosen
            extra |= {"batch_size": chosen.batch_size, "row_uses": chosen.row_uses}
        priorities = None
        if isinstance(self._rows, PrioritizedSampler):
            priorities = Priorities.of(self._rows, self._streams.replay.lanes).tensors()

        def write() -> None:
            path = self._checkpointer.save(tensors, policy, counters, rng, extra, cut=cut, priorities=priorities)
            self._saved = path is not None
            if self._saved:
                self._stats.add(Stat.CHECKPOINTS, 1.0)

        self._saving.run(write)

    def _dump(self, error: NonFiniteError, batch: Batch | None) -> NonFiniteError:
        from safetensors.torch import save

        path = Path(self._spec.run_dir) / NONFINITE_FILE
        tensors = {name: t.detach().to("cpu", copy=True) for name, t in self._engine.failure(batch).items()}
        try:
            replace_file(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}))
            where = f"the batch and the state are in {path}"
        except OSError as problem:
            where = f"the batch could not be written to {path}: {problem.strerror}"
        return NonFiniteError(f"update {self._engine.done + 1}: {error}; {where}")

    def _make_batches(self, batch_size: int) -> Batches:
        return Batches(
            self._rows,
            self._decoder,
            batch_size=batch_size,
            stride=self._streams.replay.stride,
            device=self._device,
            # A draw takes microseconds. A thread of its own for it would take a core from the update's threads.
            ahead=self._device.type == "cuda" and self._config.mode != "serial",
        )

    def _layout(self, batch_size: int) -> tuple[Layout, ...]:
        blank = torch.zeros(batch_size, self._streams.replay.stride, dtype=torch.uint8, device=self._device)
        weight = torch.zeros(batch_size, device=self._device) if self._data.priority is not None else None
        return layouts(self._decoder(blank, weight).tensors())

    def _make_engine(self, batch_size: int) -> Trainer:
        config, layout = self._config, self._layout(batch_size)
        plan = EnginePlan(
            config.compile,
            config.threads,
            fixed=config.mode == "serial",
            launch=config.launch(),
            # Samplers that never wait leave it no core. What is to be compared only can wait, and should not disturb.
            urgent=self._data.ratio is None and batch_size == self._chosen,
        )
        # The engines of one run must not repeat each other's noise.
        seed = self._seed(Role.LEARNER) ^ (0 if batch_size == self._data.batch else batch_size)

        def log(line: str) -> None:
            notice(f"batch size {batch_size}: {line}" if self._data.adapts else line)

        devices = (self._device, *(find_device(name) for name in (config.devices or ())[1:]))
        exchange = Exchange(config.exchange_every, config.staleness())
        return self._learned.trainer(Place(layout, devices, exchange, seed, plan, log, self._mirror))

    def _measure_devices(self, decoder: Decoder) -> torch.device:
        config = self._config
        batch = decoder(torch.zeros(self._data.batch, self._streams.replay.stride, dtype=torch.uint8))
        return fastest_device(self._algorithm, batch, precision=config.precision, launch=config.launch(), log=notice)

    def _make_mirror(self, decoder: Decoder) -> DeviceReplay | None:
        """The replay buffer on the device, where `--replay-device` and the device's memory say so."""
        config, replay = self._config, self._streams.replay
        reserved = engine_bytes(self._data.batch, self._row_work(), self._graphs())
        reserved += HELPER_BYTES if config.compile else 0
        wanted, line = choose(
            config.replay_device, replay, self._device, refused=config.replay_refusal(), reserved=reserved
        )
        if self._device.type == "cuda" or config.replay_device != "auto":
            notice(line)
        return DeviceReplay(replay, decoder, self._device) if wanted else None

    def _make_sampler(self) -> ReplaySampler | PrioritizedSampler:
        config, replay = self._config, self._streams.replay
        rows = stream(config.seed, Role.REPLAY, worker=self._spec.index, incarnation=self._spec.incarnation)
        seed = rows.generate_state(4, np.uint64).tolist()
        priority = self._data.priority
        if priority is None:
            return replay.sampler(seed=seed)
        return replay.prioritized_sampler(seed=seed, alpha=priority.alpha, beta=priority.beta, epsilon=priority.epsilon)

    def _restore_draws(self, saved: Checkpoint) -> None:
        try:
            self._batches.restore_sampler(bytes.fromhex(saved.rng["replay"]))
        except ValueError as error:
            raise CheckpointError(f"checkpoint {saved.path} is broken: random stream of the draws: {error}") from error

    def _restore_priorities(self, saved: Checkpoint) -> None:
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

    def _seed(self, role: Role) -> int:
        sequence = stream(self._config.seed, role, worker=self._spec.index, incarnation=self._spec.incarnation)
        return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def _slice(timeout: float | None) -> float:
    return SLICE_S if timeout is None else min(timeout, SLICE_S)
