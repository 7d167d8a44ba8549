"""The sampler: steps its environments and writes their transitions to the replay buffer.

Its parts are environments (`environment.py`), what acts (`rlz.acting`) and a recorder (`recorder.py`). Each environment
has its own lane of the buffer and of the limiter. The loop steps environments one by one without a vector wrapper, so
that truncation, the true final observation and resets are plain code.
"""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz._native import RUNNING
from rlz.acting import Policy, make_policy, ranks
from rlz.answers import Replay, Rollout
from rlz.config.seeds import Role, stream
from rlz.envs import make
from rlz.errors import WaitTimeoutError
from rlz.transport.stats import Stat, Waiting, at_end_keys
from rlz.workers.base import FLUSH_EVERY_S, POLL_S, WorkerSpec, waiting
from rlz.workers.environment import Environment, training_seed
from rlz.workers.global_random import seed_globals
from rlz.workers.recorder import make_recorder

if TYPE_CHECKING:
    from rlz.answers import PolicySpec
    from rlz.transport import Streams

_ACT, _ENVIRONMENT, _COPY, _OTHER = map(int, (Stat.ACT_S, Stat.ENVIRONMENT_S, Stat.COPY_S, Stat.OTHER_S))
"""Phases of each step."""


class Sampler:
    """Samples transitions with the newest policy.

    A step index (ticket) of the limiter belongs to each transition: below `learning_starts` the action is uniform,
    from there on the policy's. A ticket is given back as done only after its row is in the buffer.

    Parameters
    ----------
    spec : lanes to write, seeds and names.
    streams : the run's streams.
    """

    def __init__(self, spec: WorkerSpec, streams: "Streams") -> None:
        self._spec = spec
        self._streams = streams
        config = self._config = spec.run_config()
        env_spec = spec.environment()
        self._lanes = list(spec.lanes)
        self._stats = streams.row(spec.slot)
        self._enter = self._stats.enter
        own = stream(config.seed, Role.GLOBALS, worker=spec.index, incarnation=spec.incarnation)
        seed_globals(own)  # a constructor may draw already
        self._envs = [Environment(make(config, index=lane), env_spec, spec.name) for lane in self._lanes]
        seed = stream(config.seed, Role.POLICY, worker=spec.index, incarnation=spec.incarnation)
        answers = spec.answers()
        data = answers.data
        self._policy = self._make_policy(answers.policy, seed)
        self._subscriber = streams.parameters.subscriber(worker=spec.worker_id)
        count = len(self._lanes)
        self._recorder, steps = make_recorder(
            answers=answers,
            streams=streams,
            env_spec=env_spec,
            lanes=self._lanes,
            worker=spec.worker_id,
            parameters=self._subscriber,
            groups=self._groups(spec),
        )
        self._segments = isinstance(data, Rollout)
        self._folds = not isinstance(data, Replay) or data.n_step > 1
        self._open = 0  # steps that are recorded and not in the stream yet: of n-step windows, of segments
        self._tickets = np.full(count, -1, np.int64)
        self._obs, self._actions, self._extras = steps.obs, steps.actions, steps.extras or None
        self._views = [(steps.obs[i], steps.actions[i], steps.next_obs[i]) for i in range(count)]  # of one lane each
        self._learning_starts = data.starts
        self._total = config.total_timesteps
        self._ranks = ranks(self._lanes, config.num_envs)
        self._latest = self._subscriber.version
        self._record = self._recorder.record
        self._complete = streams.limiter.complete_step
        self._returns = [0.0] * count
        self._lengths = [0] * count
        self._at_end = at_end_keys(config.log_info)
        self._warming_up = True
        self._started = False
        self._pending_steps = 0
        self._pending_rows = 0  # rows beyond one per step (below 0: steps whose rows are still open)
        self._pending_lag = 0
        self._pending_lag_count = 0
        self._flushed_at = 0.0

    def start(self) -> None:
        """Reset every environment; the only seeded resets of this incarnation."""
        spec = self._spec
        for i, lane in enumerate(self._lanes):
            seed = stream(self._config.seed, Role.ENV, worker=spec.index, env=lane, incarnation=spec.incarnation)
            self._envs[i].reset(self._obs[i], training_seed(seed))
        self._stats.set(Stat.ROWS_PENDING, 0.0)  # what a predecessor had open is lost
        self._flushed_at = time.monotonic()

    def step(self, timeout: float | None) -> bool:
        """Make one transition in every environment that the replay ratio allows one; False at the end of the run."""
        tickets = self._tickets
        limiter = self._streams.limiter
        if self._segments and not self._wait_for_room(timeout):
            return limiter.state == RUNNING
        granted = self._acquire(self._lanes, tickets, 0.0)
        if granted is None:
            self._flush()
            if timeout == 0.0:
                return True
            with waiting(self._stats, Waiting.LIMITER, Stat.WAIT_LIMITER_S):
                granted = self._acquire(self._lanes, tickets, timeout)
            if granted is None:
                return True
        if granted == 0:
            self._flush()
            return False
        self._enter(_ACT)
        if self._warming_up:
            version = self._choose_warming_up(timeout)
            if version is None:
                return True
        elif granted == len(tickets):
            version = self._policy.refresh(self._subscriber)
            progress = tickets.item(0) / self._total
            self._policy.act(self._obs, self._actions, progress=progress, ranks=self._ranks, extras=self._extras)
        else:
            version = self._policy.refresh(self._subscriber)
            self._act_for(np.flatnonzero(tickets >= 0))
        for i, ticket in enumerate(tickets.tolist()):
            if ticket >= 0:
                self._transition(i, ticket, version)
        self._enter(_OTHER)
        return True

    def close(self) -> None:
        """Hand on what is open (n-step windows as truncated rows), give the stream back, close the environments.

        Not already at the end of `step`: a checkpoint of serial mode, taken in between, goes on with open windows.
        """
        self._recorder.flush()
        if self._folds:
            self._note_open()
        self._flush()
        self._recorder.close()
        for env in self._envs:
            env.close()

    def state(self) -> dict[str, Any]:
        """Everything between two steps, as JSON values; an environment whose state cannot be had is None."""
        return {
            "policy": self._policy.state.hex(),
            "environments": [env.state() for env in self._envs],
            "obs": [obs.tobytes().hex() for obs in self._obs],
            "returns": [value.hex() for value in self._returns],
            "lengths": list(self._lengths),
            **self._recorder.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of a sampler with the same environments; after `start`."""
        self._policy.state = bytes.fromhex(state["policy"])
        self._recorder.restore(state)
        for i, environment in enumerate(state["environments"]):
            if environment is None:
                self._recorder.cut(i)
            else:
                self._envs[i].restore(environment)
                self._obs[i] = np.frombuffer(bytes.fromhex(state["obs"][i]), self._obs.dtype)
                self._returns[i] = float.fromhex(state["returns"][i])
                self._lengths[i] = state["lengths"][i]
        self._open = self._recorder.open
        self._stats.set(Stat.ROWS_PENDING, float(self._open))

    def _acquire(self, lanes: list[int], tickets: NDArray[np.int64], timeout: float | None) -> int | None:
        """Take step indices for lanes; how many, 0 at the end of the run, None when there are none in time."""
        worker = self._spec.worker_id
        try:
            return self._streams.limiter.acquire_steps(lanes, tickets, worker=worker, timeout=timeout)
        except WaitTimeoutError:
            return None

    def _transition(self, i: int, ticket: int, version: int) -> None:
        obs, action, next_obs = self._views[i]
        if ticket < self._learning_starts:
            version = 0  # uniform: no parameters were used
        else:
            self._pending_lag += self._latest() - version
            self._pending_lag_count += 1
        self._enter(_ENVIRONMENT)
        reward, terminated, truncated = self._envs[i].step(action, next_obs)
        self._enter(_COPY)
        self._record(i, reward, terminated, truncated, version)
        if self._folds:
            self._note_open()  # before the step is counted, so that its row is not missing
        self._complete(self._lanes[i])
        self._returns[i] += reward
        self._lengths[i] += 1
        self._pending_steps += 1
        now = time.monotonic()
        if terminated or truncated:
            self._end_episode(i, ticket, now)
        else:
            obs[:] = next_obs
        if now - self._flushed_at >= FLUSH_EVERY_S or not self._started:
            self._flush(now)

    def _end_episode(self, i: int, ticket: int, now: float) -> None:
        stats = self._stats
        stats.add(Stat.EPISODES, 1.0)
        stats.add(Stat.RETURN_SUM, self._returns[i])
        stats.add(Stat.LENGTH_SUM, float(self._lengths[i]))
        episode = (self._returns[i], float(self._lengths[i]), float(ticket + 1), float(self._lanes[i]), now)
        stats.push_event(episode, self._envs[i].at_end(self._at_end))
        self._returns[i] = 0.0
        self._lengths[i] = 0
        self._enter(Stat.RESET_S)
        self._envs[i].reset(self._obs[i])
        self._enter(_COPY)

    def _choose_warming_up(self, timeout: float | None) -> int | None:
        """Choose actions while some tickets are below `learning_starts`; None when the first parameters are missing."""
        granted = np.flatnonzero(self._tickets >= 0)
        trained = np.flatnonzero(self._tickets >= self._learning_starts)
        version = 0
        if len(trained):
            if not self._wait_for_parameters(timeout):
                return None
            version = self._policy.refresh(self._subscriber)
            self._act_for(trained)
        for i in granted[self._tickets[granted] < self._learning_starts]:
            self._policy.uniform(self._actions[i : i + 1])
        # An open ticket of a predecessor comes with the first grant, a new one is larger than all before it. So once
        # every ticket of a grant is past the warm-up, all that follow are, those of lanes without one now as well.
        self._warming_up = len(trained) < len(granted)
        return version

    def _make_policy(self, policy: "PolicySpec", seed: np.random.SeedSequence) -> Policy:
        return make_policy(policy, seed)

    def _groups(self, spec: WorkerSpec) -> tuple[slice, ...]:
        """Environments that step together."""
        return (slice(0, len(spec.lanes)),)

    def _act_for(self, which: NDArray[np.intp]) -> None:
        actions = np.empty((len(which), self._actions.shape[1]), self._actions.dtype)
        extras = {name: np.empty((len(which), *all.shape[1:]), all.dtype) for name, all in (self._extras or {}).items()}
        progress = self._tickets.item(which[0]) / self._total
        ranks = self._ranks[which]
        self._policy.act(self._obs[which], actions, progress=progress, ranks=ranks, extras=extras or None)
        self._actions[which] = actions
        for name, values in extras.items():
            self._extras[name][which] = values  # type: ignore[index]

    def _wait_for_room(self, timeout: float | None) -> bool:
        """Whether segments that are full found room in the queue; waits for it as for the learner's leave."""
        if self._recorder.room(0.0):
            return True
        self._flush()
        left = self._slices(timeout)
        with waiting(self._stats, Waiting.LIMITER, Stat.WAIT_LIMITER_S):
            while self._streams.limiter.state == RUNNING and (seconds := left()) >= 0.0:
                if self._recorder.room(seconds):
                    return True
        return False

    def _wait_for_parameters(self, timeout: float | None) -> bool:
        if self._subscriber.version() > 0:
            return True
        left = self._slices(timeout)
        self._flush()
        with waiting(self._stats, Waiting.PARAMETERS, Stat.WAIT_PARAMETERS_S):
            while self._streams.limiter.state == RUNNING and (seconds := left()) >= 0.0:
                try:
                    return self._subscriber.wait_newer(0, timeout=seconds) > 0
                except WaitTimeoutError:
                    continue
        return False

    @staticmethod
    def _slices(timeout: float | None) -> Callable[[], float]:
        """Gives the seconds of the next part of a wait, between looks at the run's state; below 0 when it is over."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        return lambda: min(POLL_S, deadline - time.monotonic())

    def _note_open(self) -> None:
        """Keep the stats board's count of steps without a row up to date."""
        now_open = self._recorder.open
        if now_open != self._open:
            self._stats.set(Stat.ROWS_PENDING, float(now_open))
            self._pending_rows += self._open - now_open
            self._open = now_open

    def _flush(self, now: float | None = None) -> None:
        now = time.monotonic() if now is None else now
        stats = self._stats
        written = self._pending_steps + self._pending_rows
        if self._pending_steps:
            if not self._started:
                self._started = True
                stats.set(Stat.READY_S, now)
            stats.add(Stat.ENV_STEPS, float(self._pending_steps))
            stats.add(Stat.POLICY_LAG_SUM, float(self._pending_lag))
            stats.add(Stat.POLICY_LAG_COUNT, float(self._pending_lag_count))
            self._pending_steps = self._pending_lag = self._pending_lag_count = 0
        if written:
            stats.add(Stat.ROWS_WRITTEN, float(written))
        self._pending_rows = 0
        stats.set(Stat.POLICY_VERSION, float(self._policy.version))
        stats.set(Stat.HEARTBEAT, now)
        self._flushed_at = now
