"""Child process of `rlz profile`: samplers without a learner, the environment, and rlz's streams, each alone. No torch.

Jobs come as JSON lines on stdin and are answered on stdout, so that several of these processes can sample at once:
that is how scaling is measured. A sampler here is rlz's own, with a replay buffer of its own.
"""

import json
import sys
import tempfile
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlz import envs
from rlz.acting import Policy, make_policy
from rlz.bench.buffers import appends, filled, rate, uniform
from rlz.bench.sampling import publish_random_actor, sampler_spec
from rlz.config import RunConfig, run_config
from rlz.envs import actions_of
from rlz.planning.bandwidth import memory_copies
from rlz.transport import Streams
from rlz.transport.streams import Origin
from rlz.workers.job import Job
from rlz.workers.sampler import Sampler

ROWS = 100_000
"""Rows of the replay buffers: larger than most caches, and a small part of most memories."""

SEED = np.random.SeedSequence(1)
LOOK = 16
"""Steps between two looks at the clock."""


class Bench:
    """What one process can be asked to measure, by the name of the method."""

    def __init__(self, config: RunConfig) -> None:
        free = {"total_timesteps": 10**12, "buffer_size": ROWS, "learning_starts": 0, "replay_ratio": "free"}
        self._config = config.model_copy(update={**free, "samplers": 1, "mode": "async"})
        self._env_spec = envs.inspect_env(config, on_note=lambda _: None)
        self._samplers: dict[int, Sampler] = {}
        self._streams: dict[int, Streams] = {}

    def sample(self, num_envs: int, seconds: float) -> dict[str, float]:
        """Env steps per second of a sampler."""
        sampler = self._sampler(num_envs)
        for _ in range(4):
            sampler.step(None)
        limiter = self._streams[num_envs].limiter
        before, begin = limiter.env_steps, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for _ in range(max(1, LOOK // num_envs)):
                sampler.step(None)
        return {"env_steps_per_s": (limiter.env_steps - before) / (time.perf_counter() - begin)}

    def costs(self, num_envs: list[int], seconds: float) -> dict[str, Any]:
        """Microseconds of a step, a reset, and the actor; the environment is bare, its actions are the actor's."""
        policy = self._policy()
        env, to_env = envs.make(self._config), actions_of(self._env_spec).to_env
        obs = np.zeros((1, self._env_spec.obs_dim), self._env_spec.obs_dtype)
        action = np.zeros((1, self._env_spec.action_dim), self._env_spec.row_action_dtype)
        steps: list[float] = []
        resets: list[float] = []
        until, ended = time.perf_counter() + seconds, True
        while time.perf_counter() < until:
            if ended:
                begin = time.perf_counter()
                first, _ = env.reset(seed=1 if not resets else None)
                resets.append(1e6 * (time.perf_counter() - begin))
                obs[0] = np.asarray(first).reshape(-1)
            policy.act(obs, action)
            given = to_env(action[0])
            begin = time.perf_counter()
            next_obs, _, terminated, truncated, _ = env.step(given)
            steps.append(1e6 * (time.perf_counter() - begin))
            obs[0] = np.asarray(next_obs).reshape(-1)
            ended = terminated or truncated
        env.close()
        actor = []
        for count in num_envs:
            many, actions = np.repeat(obs, count, 0), np.repeat(action, count, 0)
            calls = rate(lambda many=many, actions=actions: _calls(policy, many, actions), 0.05)  # type: ignore[misc]
            actor.append({"envs": count, "us": 1e6 / calls})
        # The first reset is not like the others: simulators load their models in it.
        later = resets[1:]
        mean = float(np.mean(steps)) + sum(later) / len(steps)
        return {
            "step_us": _spread(steps),
            "reset_us": _spread(later) if later else None,
            "episode_length": len(steps) / len(later) if later else None,
            "actor": actor,
            "bare_env_steps_per_s": 1e6 / mean,
        }

    def transport(self, seconds: float) -> dict[str, Any]:
        """Rates of the replay buffer and the parameter store; `seconds` for each of five."""
        fields = self._env_spec.fields()
        replay = filled(fields, ROWS, settle_s=2.0)
        streams = Job.of(self._config, self._env_spec).streams(Origin(run_id=1))
        publish_random_actor(streams, self._config.seed)
        into = np.zeros(streams.parameters.nbytes, np.uint8)
        subscriber = streams.parameters.subscriber(worker=9)
        publisher = streams.parameters.publisher(worker=3)
        subscriber.read(into)

        def publish() -> int:
            publisher.publish(into, env_steps=0, updates=0)
            return 1

        def copy() -> int:
            subscriber.read(into)
            return 1

        try:
            return {
                "row_bytes": replay.stride,
                "append_rows_per_s": rate(appends(_float32(fields), 10_000)["rlz"]["append_us"], seconds),
                "sample_256_rows_per_s": rate(uniform(replay, 256), seconds),
                "sample_8192_rows_per_s": rate(uniform(replay, 8192), seconds),
                "parameter_bytes": streams.parameters.nbytes,
                "publish_us": 1e6 / rate(publish, seconds),
                "copy_us": 1e6 / rate(copy, seconds),
            }
        finally:
            replay.close()
            streams.close()

    def memory(self, threads: list[int], seconds: float) -> dict[str, Any]:
        """Copies in memory by threads, `seconds` for each number."""
        return {"memory": [memory_copies(count, seconds) for count in threads]}

    def _sampler(self, num_envs: int) -> Sampler:
        if num_envs not in self._samplers:
            config = self._config.model_copy(update={"num_envs": num_envs})
            job = Job.of(config, self._env_spec)
            streams = job.streams(Origin(run_id=1))
            publish_random_actor(streams, config.seed)
            sampler = Sampler(sampler_spec(job, tempfile.gettempdir()), streams)
            sampler.start()
            self._samplers[num_envs], self._streams[num_envs] = sampler, streams
        return self._samplers[num_envs]

    def _policy(self) -> Policy:
        job = Job.of(self._config, self._env_spec)
        streams = job.streams(Origin(run_id=1))
        publish_random_actor(streams, self._config.seed)
        policy = make_policy(job.answers.policy, SEED)
        policy.refresh(streams.parameters.subscriber(worker=9))
        streams.close()
        return policy


def _calls(policy: Policy, obs: NDArray[Any], actions: NDArray[Any]) -> int:
    for _ in range(LOOK):
        policy.act(obs, actions)
    return LOOK


def _float32(fields: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    """The fields as float32, as `appends` writes them."""
    return [(name, "f32", tuple(shape)) for name, _, shape in fields]


def _spread(values: list[float]) -> dict[str, float]:
    found = np.asarray(values)
    median, p95 = np.percentile(found, [50, 95])
    return {"mean": float(found.mean()), "median": float(median), "p95": float(p95), "worst": float(found.max())}


def serve(config: dict[str, Any]) -> None:
    """Answer jobs until stdin ends: {"do": name, ...arguments}."""
    bench = Bench(run_config(config))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(getattr(bench, job.pop("do"))(**job)), flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
