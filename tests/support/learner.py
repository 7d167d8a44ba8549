"""Streams, rows and a learner in this process."""

from pathlib import Path
from typing import Any

import numpy as np

from rlz._native import Replay
from rlz.config import RunConfig, run_config
from rlz.envs.spaces import EnvSpec
from rlz.errors import WaitTimeoutError
from rlz.transport.streams import Origin
from rlz.workers.job import Job
from rlz.workers.learner import Learner

OBS, ACTION = 3, 2


def env_spec(obs_dtype: str = "float32") -> EnvSpec:
    return EnvSpec(
        env_id="Test-v0",
        obs_shape=(OBS,),
        obs_dtype=obs_dtype,
        action_shape=(ACTION,),
        action_dtype="float32",
        action_low=(-1.0,) * ACTION,
        action_high=(1.0,) * ACTION,
        max_episode_steps=None,
    )


def config(**values: Any) -> RunConfig:
    defaults: dict[str, Any] = {
        "env": "Test-v0",
        "total_timesteps": 40,
        "learning_starts": 10,
        "buffer_size": 1000,
        "batch_size": 8,
        "hidden": (8,),
        "device": "cpu",
        "compile": False,
        "eval_every": 0,
        "checkpoint_every": 0.0,
        "ratio_slack": 100.0,
    }
    return run_config(**{**defaults, **values})


class Run:
    """A run whose samplers are the test."""

    def __init__(self, run_dir: Path, run_config: RunConfig, obs_dtype: str = "float32") -> None:
        self.config = run_config
        self.run_dir = run_dir
        (run_dir / "checkpoints").mkdir(exist_ok=True)
        self.env_spec = env_spec(obs_dtype)
        self.job = Job.of(run_config, self.env_spec)
        self.streams = self.job.streams(Origin(run_id=7))
        self.writer = self.streams.replay.writer([0], worker=9)
        self.tickets = np.zeros(1, np.int64)
        self.rng = np.random.default_rng(5)

    def learner(self, **values: Any) -> Learner:
        place = self.job.places[0]
        defaults: dict[str, Any] = {"worker_id": 2, "run_dir": str(self.run_dir), "parent_pid": 0}
        return Learner(self.job.spec(place, **{**defaults, **values}), self.streams)

    def sample(self, steps: int, reward: float | None = None) -> None:
        """Make transitions, as far as the limiter allows."""
        kind = self.env_spec.obs_dtype
        for _ in range(steps):
            try:
                if not self.streams.limiter.acquire_steps([0], self.tickets, worker=9, timeout=0.0):
                    return
            except WaitTimeoutError:
                return
            obs, next_obs = (self.rng.uniform(0, 5, OBS).astype(kind) for _ in range(2))
            action = self.rng.uniform(-1, 1, ACTION).astype(np.float32)
            value = float(self.rng.standard_normal()) if reward is None else reward
            self.writer.append(0, [obs, action, next_obs, value, 0.99], version=0)
            self.streams.limiter.complete_step(0)


def make(buffer_size: int, lanes: int, obs: int = OBS) -> Replay:
    fields: list[Any] = [("obs", "f32", (obs,)), ("action", "f32", (ACTION,)), ("next_obs", "f32", (obs,))]
    fields += [("reward", "f32", ()), ("discount", "f32", ())]
    return Replay.create(fields, buffer_size=buffer_size, lanes=lanes, run_id=1)
