"""A run with a sampler and a checkpointer, whose learner is the test."""

from pathlib import Path
from typing import Any

import numpy as np

from rlz.records.checkpointer import Checkpointer
from rlz.workers.sampler import Sampler
from support.harness import Run, config

STATE = {"critic.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "optimiser.step": np.array(7, np.int64)}


class Trained:
    """A run whose sampler makes steps on demand and whose learner is this test."""

    def __init__(self, path: Path, **values: Any) -> None:
        self.run = Run(config(total_timesteps=10_000, buffer_size=50, **values), path)
        self.run.publish()
        self.sampler = Sampler(self.run.spec("sampler"), self.run.streams)
        self.sampler.start()
        self.checkpointer = Checkpointer(path, self.run.streams, self.run.config, self.run.env_spec)

    def steps(self, count: int) -> None:
        for _ in range(count):
            assert self.sampler.step(0.0)

    def save(self, state: dict[str, Any] | None = None) -> Path | None:
        policy = np.zeros(self.run.streams.parameters.nbytes, np.uint8)
        return self.checkpointer.save(
            state or STATE, policy, {"count": 3}, {"replay": "00", "learner": "ff"}, {"note": 1}
        )
