"""The evaluator: scores versions of the policy beside training, on its own environment.

One evaluation per multiple of `eval_every` env steps, of the first version published at or after it; a multiple that
passes while the evaluator is busy is skipped and counted. In a run at replay ratio `free`, whose env steps pass as fast
as the hardware makes them, it rests after each evaluation as well. The final parameters are always scored, unless the
run is stopped early. The very copy that was scored is written to `checkpoints/evaluated`, and to `best` where it is
the best so far. That one was chosen by its score, which is too high for that reason; at the end of the run it is scored
once more, on starts that chose nothing.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlz._native import CLOSED, FINISHED, RUNNING, STOPPING
from rlz.acting import make_policy
from rlz.answers import Replay
from rlz.config.seeds import Role, stream
from rlz.envs import make
from rlz.envs.instances import evaluator_index
from rlz.envs.limits import cut_note
from rlz.errors import CheckpointError, WaitTimeoutError
from rlz.loaded_policy import read_parameters
from rlz.records.policy_files import PolicyFiles, add_held_out, read_description, write_scored
from rlz.system.notices import notice
from rlz.transport.stats import Stat, Waiting, at_end_keys
from rlz.workers.base import POLL_S, WorkerSpec, waiting
from rlz.workers.environment import Environment
from rlz.workers.evaluation import Episodes, evaluation_seeds, held_out_seeds, own_globals, play

if TYPE_CHECKING:
    from rlz.transport import Streams

FREE_SHARE = 0.1
"""Part of the time that evaluations of a free run take at most: samplers and learner want every core."""

_NEVER = 2**62


class Evaluator:
    """Scores published versions.

    Parameters
    ----------
    spec : names and the stats slot; a successor of a killed evaluator goes on after the last evaluation in its slot.
    streams : the run's streams.
    """

    def __init__(self, spec: WorkerSpec, streams: "Streams") -> None:
        self._spec = spec
        self._streams = streams
        config = self._config = spec.run_config()
        data = config.data()
        self._free = isinstance(data, Replay) and data.ratio is None
        self._env_spec = spec.environment()
        self._stats = streams.row(spec.slot)
        # Deterministic actions draw nothing; the seed only has to exist.
        seed = stream(config.seed, Role.EVALUATION, worker=spec.index, incarnation=spec.incarnation)
        acts = spec.answers().policy
        self._policy, self._manifest = make_policy(acts, seed), acts.manifest
        self._subscriber = streams.parameters.subscriber(worker=spec.worker_id)
        self._parameters = np.zeros(streams.parameters.nbytes, np.uint8)
        with own_globals():
            self._env = Environment(make(config, index=evaluator_index(config)), self._env_spec, spec.name)
        self._seeds = evaluation_seeds(config.eval_episodes)
        self._best_dir = Path(spec.run_dir) / "checkpoints" / "best"
        # A predecessor that was killed left what it had scored on the stats board.
        _, events = streams.stats.events(spec.slot, 0)
        self._scored = int(events[-1][0]) if len(events) else 0
        reached = int(events[-1][1]) if len(events) else streams.limiter.env_steps
        self._due = self._multiple_after(reached)
        self._started = False
        self._said_cut = False
        self._best = self._read_best()

    def start(self) -> None:
        """Nothing: an evaluator waits for its first version."""

    def step(self, timeout: float | None) -> bool:
        """Make at most one evaluation; False after the final one, or when the run is being stopped."""
        limiter = self._streams.limiter
        state = limiter.state
        if state in (STOPPING, CLOSED):
            return False
        if state == FINISHED:
            if limiter.env_steps >= limiter.total_timesteps and self._subscriber.version() != self._scored:
                self._evaluate(final=True)
            if limiter.env_steps >= limiter.total_timesteps:
                self._rescore_best()
            return False
        if self._wait(timeout):
            self._evaluate(final=False)
        return True

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _multiple_after(self, env_steps: int) -> int:
        return (env_steps // self._config.eval_every + 1) * self._config.eval_every

    def _wait(self, timeout: float | None) -> bool:
        """Wait for a version at or after the multiple that is due; False when there is none yet."""
        if self._published(self._due):
            return True
        if timeout == 0.0:
            return False
        # The last multiple is left to the final evaluation, so past it there is only the end of the run to wait for.
        due = self._due if self._due < self._streams.limiter.total_timesteps else _NEVER
        deadline = None if timeout is None else time.monotonic() + timeout
        with waiting(self._stats, Waiting.PARAMETERS, Stat.WAIT_PARAMETERS_S):
            while self._streams.limiter.state == RUNNING:
                left = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
                if left < 0.0:
                    return False
                self._stats.set(Stat.HEARTBEAT, time.monotonic())
                try:
                    return self._subscriber.wait_env_steps(due, timeout=left) > 0
                except WaitTimeoutError:
                    continue
        return False

    def _evaluate(self, *, final: bool) -> None:
        version, env_steps, updates = self._subscriber.read(self._parameters)
        began = float(self._streams.stats.read()[self._spec.slot][Stat.RUN_BEGAN])
        published_s = round(time.monotonic() - began, 3)
        if not final:
            self._skip(env_steps // self._config.eval_every - self._due // self._config.eval_every)
        self._policy.load(self._parameters)
        self._stats.enter(Stat.EVALUATE_S)
        result = play(
            env=self._env,
            policy=self._policy,
            env_spec=self._env_spec,
            seeds=self._seeds,
            at_end=at_end_keys(self._config.log_info),
            go_on=self._may_go_on,
            played=self._played,
        )
        self._stats.enter(Stat.OTHER_S)
        if result is None:
            return
        self._scored = version
        if result.cut and not self._said_cut:
            self._said_cut = True
            notice(cut_note(self._env_spec, result.cut, len(result.returns)))
        best = self._best is None or result.return_mean > self._best
        self._write(result, version, env_steps, updates, best)
        self._report(result, version, env_steps, updates, best, published_s)
        if self._free and not final:
            self._rest(result.wall_s * (1 / FREE_SHARE - 1))
        self._due = self._multiple_after(env_steps)
        while self._published(self._due):  # its first version has gone by while we were busy
            self._skip(1)
            self._due += self._config.eval_every

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with waiting(self._stats, Waiting.PARAMETERS, Stat.WAIT_PARAMETERS_S):
            while self._streams.limiter.state == RUNNING and (left := until - time.monotonic()) > 0.0:
                self._stats.set(Stat.HEARTBEAT, time.monotonic())
                time.sleep(min(POLL_S, left))

    def _published(self, multiple: int) -> bool:
        """Whether a version at or after the multiple is there. The last multiple is left to the final evaluation."""
        if multiple >= self._streams.limiter.total_timesteps:
            return False
        try:
            return self._subscriber.wait_env_steps(multiple, timeout=0.0) > 0
        except WaitTimeoutError:
            return False

    def _skip(self, multiples: int) -> None:
        if multiples > 0:
            self._stats.add(Stat.EVALUATIONS_SKIPPED, float(multiples))

    def _played(self) -> None:
        self._stats.add(Stat.EPISODES, 1.0)

    def _may_go_on(self) -> bool:
        self._stats.set(Stat.HEARTBEAT, time.monotonic())
        return self._streams.limiter.state not in (STOPPING, CLOSED)

    def _write(self, result: Episodes, version: int, env_steps: int, updates: int, best: bool) -> None:
        files = PolicyFiles.of(
            self._config,
            self._env_spec,
            self._parameters,
            version=version,
            env_steps=env_steps,
            updates=updates,
            acts=self._spec.answers().policy,
            evaluation=result.score(),
        )
        try:
            write_scored(self._best_dir.parent, files, best=best)
        except OSError as error:
            what = "best" if best else "evaluated"
            notice(f"{self._spec.name}: checkpoints/{what} could not be written ({error}); the previous one stays")
            return
        if best:
            self._best = result.return_mean

    def _rescore_best(self) -> None:
        description = read_description(self._best_dir)
        if description is None or "held_out" in description:
            return
        try:
            self._policy.load(read_parameters(self._best_dir, description, self._manifest))
            seeds = held_out_seeds(self._config.eval_episodes)
            result = play(self._env, self._policy, self._env_spec, seeds, go_on=self._may_go_on, played=self._played)
            if result is not None:
                add_held_out(self._best_dir, result.score())
        except (OSError, CheckpointError) as error:
            notice(f"{self._spec.name}: checkpoints/best could not be scored on held-out starts ({error})")

    def _read_best(self) -> float | None:
        description = read_description(self._best_dir)
        return None if description is None else float(description["evaluation"]["return_mean"])

    def _report(
        self, result: Episodes, version: int, env_steps: int, updates: int, best: bool, published_s: float
    ) -> None:
        event = (
            *(float(version), float(env_steps), float(updates)),
            *(result.return_mean, result.return_std, min(result.returns), max(result.returns)),
            *(result.length_mean, result.length_std, float(len(result.returns))),
            *(result.wall_s, float(best), published_s),
        )
        self._stats.push_event(event, result.means_at_end)
        self._stats.add(Stat.EVALUATIONS, 1.0)
        self._stats.set(Stat.POLICY_VERSION, float(version))
        if not self._started:
            self._started = True
            self._stats.set(Stat.READY_S, time.monotonic())
