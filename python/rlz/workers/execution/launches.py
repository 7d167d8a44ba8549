"""Launches: several updates in a row, on rows that are drawn on the device.

Nothing in a launch goes through the host: indices, rows and noise are made on the device, learning rate and number of
rows are read from its memory. So a launch can be captured in a CUDA graph (`graphs.py`); without one the same code runs
operation by operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlz.algorithms.base import Batch, OffPolicy
from rlz.workers.execution.device_replay import DeviceReplay
from rlz.workers.execution.executors import Executor


@dataclass(frozen=True)
class Inputs:
    """What every update of an engine reads and writes: tensors that stay where they are.

    Attributes
    ----------
    state : the algorithm's.
    failed, learning_rate : as in `Executor`.
    generator : of noise and indices, on the state's device.
    """

    state: Any
    failed: Tensor
    learning_rate: Tensor
    generator: torch.Generator


class Launches:
    """Runs up to `most` updates in a row.

    Parameters
    ----------
    algorithm, inputs, cycle
        As of `Engine`; kinds in `cycle` may not be None.
    replay
        Rows are drawn from it.
    batch_size, most
        Rows of an update, updates of a launch.

    Attributes
    ----------
    indices, noise, metrics
        Of the newest launch: [most, batch], [most, ...], [most, len(metric_names)]. They stay where they are.
    """

    def __init__(
        self,
        algorithm: OffPolicy,
        inputs: Inputs,
        replay: DeviceReplay,
        *,
        cycle: Sequence[str],
        batch_size: int,
        most: int,
    ) -> None:
        self.algorithm = algorithm
        self.inputs = inputs
        self.replay = replay
        self.cycle = tuple(cycle)
        self.most = most
        device, dtype = inputs.failed.device, inputs.state[0].dtype
        self.indices = torch.zeros(most, batch_size, dtype=torch.int64, device=device)
        self.noise = torch.zeros(most, *algorithm.noise_shape(batch_size), dtype=dtype, device=device)
        self.metrics = torch.zeros(most, len(algorithm.metric_names), dtype=dtype, device=device)

    def draw(self, count: int) -> None:
        """Draw rows and noise of `count` updates."""
        self.replay.draw(self.indices[:count], self.inputs.generator)
        self.noise[:count].normal_(generator=self.inputs.generator)

    def batch(self, index: int) -> Batch:
        """Rows of one update of the newest launch."""
        return self.replay.gather(self.indices[index])

    def kind(self, update: int) -> str:
        """Kind of the update after `update` others."""
        return self.cycle[update % len(self.cycle)]

    def run(self, executor: Executor, done: int, count: int) -> None:
        """`count` updates after `done` others; their metrics are in `metrics[:count]`."""
        self.draw(count)
        inputs = self.inputs
        for index in range(count):
            updated = executor(
                *(inputs.state, inputs.failed, self.batch(index), self.noise[index], inputs.learning_rate),
                self.kind(done + index),
            )
            self.metrics[index].copy_(updated.metrics)
