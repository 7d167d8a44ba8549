"""Batches to learn from without a run."""

import numpy as np
import torch

from rlz._native import Replay
from rlz.algorithms.base import Batch
from rlz.envs.spaces import EnvSpec
from rlz.learning.batches import Decoder

ROWS = 4096


class Draw:
    """Draws batches from a small buffer of random rows (values in [-1, 1]), as the learner does."""

    def __init__(self, env_spec: EnvSpec, batch_size: int) -> None:
        self.batch_size = batch_size
        replay = Replay.create(env_spec.fields(), buffer_size=ROWS, lanes=1, run_id=1)
        rows = np.zeros((ROWS, replay.stride), np.uint8)
        rng = np.random.default_rng(1)
        for name, dtype, shape, offset in replay.fields:
            if dtype == "f32":
                size = int(np.prod(shape, dtype=int))
                values = np.full((ROWS, size), 0.99) if name == "discount" else rng.uniform(-1, 1, (ROWS, size))
                rows[:, offset : offset + 4 * size] = values.astype(np.float32).view(np.uint8)
        replay.restore_rows(0, rows, np.zeros(ROWS, np.uint64), worker=1)
        self.replay = replay
        self.sampler = replay.sampler(seed=[1, 2, 3, 4])
        self.decoder = Decoder(replay.fields)
        self._rows = torch.empty(batch_size, replay.stride, dtype=torch.uint8)

    def __call__(self) -> Batch:
        """A batch on the CPU."""
        self.sampler.sample(self._rows.numpy())
        return self.decoder(self._rows)
