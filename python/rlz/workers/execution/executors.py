"""Executors run an algorithm's pure update in place on a state.

All of them run the same `InPlaceUpdate`, so that a state keeps its tensors (a checkpoint, a publication and, later, a
CUDA graph may hold on to their addresses). `EagerExecutor` runs it as it is, `CompiledExecutor` (`compiled.py`) runs
the machine code that the compiler made of the whole of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rlz.algorithms.base import Batch, OffPolicy


class Report(NamedTuple):
    """What an executor gives back for one update."""

    metrics: Tensor  # [len(metric_names)]
    failed: Tensor  # [], int64: 0, or 1 + index into check_names of the first check that is not finite


class Executor(Protocol):
    """Runs one update on the state, in place."""

    name: str

    def __call__(self, state: Any, batch: Batch, noise: Tensor, learning_rate: Tensor) -> Report:
        """Update every tensor of the state, or none of them when a check is not finite."""
        ...


class InPlaceUpdate:
    """An algorithm's update that writes the state back, unless a loss or gradient is not finite.

    The choice is made on the device, without a synchronisation: a bad update leaves every tensor as it was.
    """

    def __init__(self, algorithm: OffPolicy) -> None:
        self.algorithm = algorithm

    def __call__(self, state: Any, batch: Batch, noise: Tensor, learning_rate: Tensor) -> Report:
        new, metrics, checks = self.algorithm.update(state, batch, noise, learning_rate)
        bad = ~torch.isfinite(checks)
        broken = bad.any()
        for old, fresh in zip(state, new, strict=True):
            old.copy_(torch.where(broken, old, fresh))
        return Report(metrics, torch.where(broken, bad.to(torch.int64).argmax() + 1, 0))


class EagerExecutor:
    """Runs the update operation by operation."""

    name = "eager"

    def __init__(self, algorithm: OffPolicy) -> None:
        self._update = InPlaceUpdate(algorithm)

    def __call__(self, state: Any, batch: Batch, noise: Tensor, learning_rate: Tensor) -> Report:
        with torch.no_grad():
            return self._update(state, batch, noise, learning_rate)


UPDATE_TOLERANCE = 1e-2
"""Allowed difference of two executors' updates, relative to the size of the update (a mistake is a difference near 1)."""

ROUNDING = 1e-6
"""Relative rounding of float32 parameters, larger than the update itself where a learning rate is tiny."""


def disagreement(
    reference: Executor, candidate: Executor, state: Any, batch: Batch, noise: Tensor, learning_rate: Tensor
) -> str | None:
    """Run one update with both executors on copies of a state and say where they differ; None where they agree.

    Compares what each tensor moved by, in the L2 norm: Adam's first steps have the size of the learning rate whatever
    the gradient, so single parameters with a gradient near 0 may differ in sign by mere rounding.
    """
    expected, found = (type(state)(*(tensor.clone() for tensor in state)) for _ in range(2))
    first, second = (
        run(copy, batch, noise, learning_rate) for run, copy in ((reference, expected), (candidate, found))
    )
    if int(first.failed) != int(second.failed):
        return f"the non-finite flag is {int(second.failed)} instead of {int(first.failed)}"
    for name, old, want, got in zip(type(state)._fields, state, expected, found, strict=True):
        if not old.is_floating_point():
            if not torch.equal(want, got):
                return f"{name} is {got.tolist()} instead of {want.tolist()}"
            continue
        moved = float((want.double() - old.double()).norm())
        allowed = UPDATE_TOLERANCE * moved + ROUNDING * float(want.double().norm())
        difference = float((got.double() - want.double()).norm())
        if not difference <= allowed:
            return f"{name} differs by {difference:.2e} where it moved by {moved:.2e}"
    return None
