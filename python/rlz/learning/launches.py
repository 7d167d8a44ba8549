"""Launches: one or several updates in a row that need nothing from the host.

Rows are drawn on the device, or lie where the host has put them before; noise is made on the device, learning rate and
number of rows are read from its memory. So a launch can be captured in a CUDA graph (`graphs.py`); without one the same
code runs operation by operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rlz.algorithms.base import Algorithm, Batch
from rlz.learning.compiled import Layout, blank
from rlz.learning.executors import Executor
from rlz.learning.metrics import Means


class Rows(Protocol):
    """Where the rows of a launch come from."""

    def draw(self, indices: Tensor, generator: torch.Generator) -> None:
        """Choose rows, on the device: fill `indices` [updates, batch] (int64)."""
        ...

    def gather(self, indices: Tensor) -> Any:
        """The rows at `indices` [batch]."""
        ...


class FedRows:
    """One batch at a fixed place on the device, which the host feeds: for launches of one update.

    Parameters
    ----------
    layout, batch_type : of every batch: of its fields, and what it is.
    """

    def __init__(self, layout: Sequence[Layout], device: torch.device, batch_type: type[Any] = Batch) -> None:
        self._batch = batch_type(*(blank(field, device) for field in layout))

    def feed(self, batch: Any) -> None:
        """Take the place of the batch before."""
        torch._foreach_copy_(self._batch.tensors(), batch.tensors())

    def draw(self, indices: Tensor, generator: torch.Generator) -> None:
        """Nothing is left to choose."""

    def gather(self, indices: Tensor) -> Any:
        """The batch that was fed."""
        return self._batch


ALIGNED = 16
"""Floats from which the noise of an update begins: compiled code may count on memory that is aligned."""


@dataclass
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

    def renew_generator(self, state: Tensor) -> None:
        """Go on with a random stream in another object, because a capture that failed has left this one unusable."""
        self.generator = torch.Generator(self.failed.device)
        self.generator.set_state(state)


class Launches:
    """Runs up to `most` updates in a row.

    Parameters
    ----------
    algorithm, inputs
        As of `Engine`.
    rows
        Where batches come from.
    batch_size, most
        Rows of an update, updates of a launch.

    Attributes
    ----------
    indices, noise
        Of the newest launch: [most, batch], [most, ...]. They stay where they are, and what they are from the launch on
        in which an update failed.
    means
        Of the metrics of all updates.
    td_errors
        [batch] of the newest update, for batches with weights.
    """

    def __init__(self, algorithm: Algorithm[Any], inputs: Inputs, rows: Rows, *, batch_size: int, most: int) -> None:
        self.algorithm = algorithm
        self.inputs = inputs
        self.rows = rows
        self.most = most
        device, dtype = inputs.failed.device, inputs.state[0].dtype
        self.indices = torch.zeros(most, batch_size, dtype=torch.int64, device=device)
        shape = algorithm.noise_shape(batch_size)
        self._noise = torch.zeros(most, -(-math.prod(shape) // ALIGNED) * ALIGNED, dtype=dtype, device=device)
        self.noise = self._noise[:, : math.prod(shape)].view(most, *shape)
        self.means = Means(torch.zeros(len(algorithm.metrics), dtype=dtype, device=device))
        self.td_errors = torch.zeros(batch_size, dtype=dtype, device=device)

    def draw(self, count: int) -> None:
        """Draw rows and noise of `count` updates."""
        frozen = self.inputs.failed != 0
        indices = torch.empty_like(self.indices[:count])
        self.rows.draw(indices, self.inputs.generator)
        self.indices[:count].copy_(torch.where(frozen, self.indices[:count], indices))
        self.draw_noise(count, frozen)

    def draw_noise(self, count: int, frozen: Tensor | None = None) -> None:
        """Draw the noise alone."""
        noise = torch.empty_like(self._noise[:count]).normal_(generator=self.inputs.generator)
        self._noise[:count].copy_(noise if frozen is None else torch.where(frozen, self._noise[:count], noise))

    def batch(self, index: int) -> Any:
        """Rows of one update of the newest launch."""
        return self.rows.gather(self.indices[index])

    def run(self, executor: Executor, kinds: Sequence[str]) -> None:
        """An update of each kind, in order."""
        self.draw(len(kinds))
        inputs, metrics = self.inputs, []
        for index, kind in enumerate(kinds):
            inputs_of_one = inputs.failed, self.batch(index), self.noise[index], inputs.learning_rate
            updated = executor(inputs.state, *inputs_of_one, kind)
            metrics.append(updated.metrics)
            if updated.td_errors is not None:
                self.td_errors.copy_(updated.td_errors)
        self.means.add(torch.stack(metrics))
