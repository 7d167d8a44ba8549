"""Building workers in this process for tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlz import envs
from rlz.config import RunConfig, run_config
from rlz.envs.spaces import EnvSpec
from rlz.placement import Place
from rlz.transport.streams import Origin
from rlz.workers.base import WorkerSpec
from rlz.workers.job import Job
from support import fake_envs  # noqa: F401  (registers its environments)

PUBLISHER = 2
SAMPLER = 3


def config(**values: Any) -> RunConfig:
    """A small run on a known environment; evaluation is off."""
    defaults: dict[str, Any] = {
        "env": "Counting-v0",
        "total_timesteps": 100,
        "learning_starts": 10,
        "buffer_size": 1000,
        "hidden": (8,),
        "replay_ratio": "free",
        "eval_every": 0,
    }
    return run_config(**{**defaults, **values})


class Run:
    """Streams of a run, and the workers that a test asks for."""

    def __init__(self, run_config: RunConfig, run_dir: Path) -> None:
        self.config = run_config
        self.run_dir = run_dir
        self.env_spec: EnvSpec = envs.inspect_env(run_config)
        # With an evaluator in the graph, whether the run has evaluations or not: each role has its slot.
        with_evaluator = run_config.model_copy(update={"eval_every": run_config.eval_every or 1})
        self.job = replace(Job.of(with_evaluator, self.env_spec), config=run_config)
        self.streams = self.job.streams(Origin(run_id=1))
        self.limiter = self.streams.limiter
        self.replay = self.streams.replay

    def spec(self, role: str, *, worker_id: int = SAMPLER, incarnation: int = 0, **values: Any) -> WorkerSpec:
        defaults: dict[str, Any] = {"incarnation": incarnation, "parent_pid": 0}
        return self.job.spec(self.place(role), worker_id=worker_id, run_dir=str(self.run_dir), **{**defaults, **values})

    def place(self, role: str) -> Place:
        """That of the first worker of a role; a test's one sampler may have all lanes."""
        found = next(place for place in self.job.places if place.role == role)
        return replace(found, lanes=tuple(range(self.config.num_envs))) if role == "sampler" else found

    def publish(self, *, env_steps: int | None = None, scale: float = 0.0, seed: int = 0) -> int:
        """Publish an actor of random parameters (scale 0: all zero)."""
        if not hasattr(self, "_publisher"):
            self._publisher = self.streams.parameters.publisher(worker=PUBLISHER)
        size = self.streams.parameters.nbytes // 4
        values = scale * np.random.default_rng(seed).standard_normal(size, np.float32)
        steps = self.limiter.env_steps if env_steps is None else env_steps
        return self._publisher.publish(values.view(np.uint8), env_steps=steps, updates=self.limiter.updates)

    def rows(self, lane: int = 0) -> tuple[dict[str, Any], Any]:
        """All rows of a lane as columns, and their meta words."""
        count = self.replay.committed()[lane]
        packed = np.zeros((count, self.replay.stride), np.uint8)
        meta = np.zeros(count, np.uint64)
        assert self.replay.read_rows(lane, 1, packed, meta) == count
        columns = {}
        for name, dtype, shape, offset in self.replay.fields:
            kind = np.dtype({"f32": "f4", "f64": "f8", "u8": "u1"}[dtype])
            size = int(np.prod(shape)) * kind.itemsize
            columns[name] = packed[:, offset : offset + size].copy().view(kind).reshape(count, *shape)
        return columns, meta

    def stat(self, role: str, stat: int) -> float:
        return float(self.streams.stats.read()[self.place(role).slot][stat])
