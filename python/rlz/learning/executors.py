"""Executors run an algorithm's pure update in place on a state.

All of them run the same `InPlaceUpdate`, so that a state keeps its tensors (a checkpoint, a publication and a CUDA
graph may hold on to their addresses). `EagerExecutor` runs it as it is, `CompiledExecutor` (`compiled.py`) runs
the machine code that the compiler made of the whole of it. `graphs.py` captures either of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rlz.algorithms.base import Batch, OffPolicy


class Updated(NamedTuple):
    """What an executor gives back."""

    metrics: Tensor  # [len(metric_names)]
    td_errors: Tensor | None  # [batch], for a batch with weights


class Executor(Protocol):
    """Runs one update, in place."""

    name: str

    def __call__(
        self, state: Any, failed: Tensor, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str
    ) -> Updated:
        """Update every tensor of the state that this kind of update changes, or none.

        Parameters
        ----------
        state
            The algorithm's NamedTuple of tensors.
        failed
            [], int64, on the device: 0 while every check was finite. The first one that is not sets it to 1 + its index
            in `check_names`; from then on no update changes the state any more.
        kind
            One of the algorithm's `cycle`.
        """
        ...


class InPlaceUpdate:
    """An algorithm's update that writes the state back, unless a loss or gradient is or was not finite.

    The choice is made on the device, without a synchronisation.
    """

    def __init__(self, algorithm: OffPolicy) -> None:
        self.algorithm = algorithm

    def __call__(
        self, state: Any, failed: Tensor, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str
    ) -> Updated:
        """As in `Executor`."""
        new, metrics, checks, td_errors = self.algorithm.update(state, batch, noise, learning_rate, kind)
        bad = ~torch.isfinite(checks)
        first = torch.where(bad.any(), bad.to(torch.int64).argmax() + 1, 0)
        frozen = torch.where(failed != 0, failed, first)
        for old, fresh in changed(state, new):
            old.copy_(torch.where(frozen != 0, old, fresh))
        failed.copy_(frozen)
        return Updated(metrics, td_errors)


def changed(old: Any, new: Any) -> list[tuple[Tensor, Tensor]]:
    """Pairs of the tensors of two states that are not the same tensor."""
    return [pair for pair in zip(old, new, strict=True) if pair[0] is not pair[1]]


class EagerExecutor:
    """Runs the update operation by operation."""

    name = "eager"

    def __init__(self, algorithm: OffPolicy) -> None:
        self._algorithm = algorithm
        self._update = InPlaceUpdate(algorithm)

    def __call__(
        self, state: Any, failed: Tensor, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str
    ) -> Updated:
        """As in `Executor`."""
        with torch.no_grad():
            if noise.device.type != "cpu":
                return self._update(state, failed, batch, noise, learning_rate, kind)
            # On the CPU a look at the checks costs nothing, and saves a pass over the whole state.
            new, metrics, checks, td_errors = self._algorithm.update(state, batch, noise, learning_rate, kind)
            if not failed:
                bad = ~torch.isfinite(checks)
                if bad.any():
                    failed.copy_(bad.to(torch.int64).argmax() + 1)
                else:
                    pairs = changed(state, new)
                    torch._foreach_copy_([old for old, _ in pairs], [fresh for _, fresh in pairs])
            return Updated(metrics, td_errors)


UPDATE_TOLERANCE = 1e-2
"""Allowed difference of two executors' updates, relative to the size of the update; a mistake makes one near 1."""

ROUNDING = 1e-6
"""Relative rounding of float32 parameters, larger than the update itself where a learning rate is tiny."""


def disagreement(
    reference: Executor,
    candidate: Executor,
    state: Any,
    batch: Batch,
    noise: Tensor,
    learning_rate: Tensor,
    kind: str,
) -> str | None:
    """Run one update with both executors on copies of a state and say where they differ; None where they agree."""
    expected, found = (type(state)(*(tensor.clone() for tensor in state)) for _ in range(2))
    flags = [torch.zeros((), dtype=torch.int64, device=noise.device) for _ in range(2)]
    wanted = reference(expected, flags[0], batch, noise, learning_rate, kind).td_errors
    given = candidate(found, flags[1], batch, noise, learning_rate, kind).td_errors
    if int(flags[0]) != int(flags[1]):
        return f"the non-finite flag is {int(flags[1])} instead of {int(flags[0])}"
    if wanted is not None and (given is None or not torch.allclose(given, wanted, rtol=1e-3, atol=1e-4)):
        return "the TD errors differ"
    return difference(state, expected, found)


def difference(before: Any, expected: Any, found: Any) -> str | None:
    """Where two states after one update differ, given the one before it; None where they agree.

    Compares what each tensor moved by, in the L2 norm: Adam's first steps have the size of the learning rate whatever
    the gradient, so single parameters with a gradient near 0 may differ in sign by mere rounding.
    """
    for name, old, want, got in zip(type(before)._fields, before, expected, found, strict=True):
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
