"""Executors run an algorithm's pure update in place on a state.

All of them run the same `InPlaceUpdate`, so that a state keeps its tensors (a checkpoint, a publication and a CUDA
graph may hold on to their addresses). `EagerExecutor` runs it as it is, `CompiledExecutor` (`compiled.py`) runs
the machine code that the compiler made of the whole of it. `graphs.py` captures either of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rlz.algorithms.base import Algorithm, Batch


class Updated(NamedTuple):
    """What an executor gives back."""

    metrics: Tensor  # [len(metrics)]
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
            in `checks`; from then on no update changes the state any more.
        kind
            One of the algorithm's `cycle`.
        """
        ...


class InPlaceUpdate:
    """An algorithm's update that writes the state back, unless a loss or gradient is or was not finite.

    The choice is made on the device, without a synchronisation.

    Parameters
    ----------
    later
        Fields of the state that the caller writes when the flag is 0, by their new values, which `unwritten` has
        after a call; said for the tensors before and after. None is written later if not given.
    """

    def __init__(self, algorithm: Algorithm[Any], later: Callable[[Tensor, Tensor], bool] | None = None) -> None:
        self.algorithm = algorithm
        self._later = later
        self.unwritten: dict[int, Tensor] = {}

    def __call__(
        self, state: Any, failed: Tensor, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str
    ) -> Updated:
        """As in `Executor`."""
        new, metrics, checks, td_errors = self.algorithm.update(state, batch, noise, learning_rate, kind)
        frozen = _first_failure(failed, checks)
        self.unwritten = {}
        for index, (old, fresh) in enumerate(zip(state, new, strict=True)):
            if old is fresh:
                continue
            if self._later is not None and self._later(old, fresh):
                self.unwritten[index] = fresh
            else:
                old.copy_(torch.where(frozen != 0, old, fresh))
        failed.copy_(frozen)
        return Updated(metrics, td_errors)


def changed(old: Any, new: Any) -> list[tuple[Tensor, Tensor]]:
    """Pairs of the tensors of two states that are not the same tensor."""
    return [pair for pair in zip(old, new, strict=True) if pair[0] is not pair[1]]


class EagerExecutor:
    """Runs the update operation by operation."""

    name = "eager"

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self._algorithm = algorithm

    def __call__(
        self, state: Any, failed: Tensor, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str
    ) -> Updated:
        """As in `Executor`."""
        with torch.no_grad():
            new, metrics, checks, td_errors = self._algorithm.update(state, batch, noise, learning_rate, kind)
            if noise.device.type == "cpu":
                self._write_at_once(state, failed, new, checks)
            else:
                write_unless_failed(state, failed, new, checks)
            return Updated(metrics, td_errors)

    @staticmethod
    def _write_at_once(state: Any, failed: Tensor, new: Any, checks: Tensor) -> None:
        """On the CPU a look at the checks costs nothing, and saves a pass over the whole state."""
        if failed:
            return
        bad = ~torch.isfinite(checks)
        if bad.any():
            failed.copy_(bad.to(torch.int64).argmax() + 1)
        else:
            pairs = changed(state, new)
            torch._foreach_copy_([old for old, _ in pairs], [fresh for _, fresh in pairs])


def write_unless_failed(state: Any, failed: Tensor, new: Any, checks: Tensor) -> None:
    """As `InPlaceUpdate` does, without a synchronisation: one condition for all tensors of a dtype.

    One for each tensor would be three more operations each, which an uncompiled graph launches one by one.
    """
    failed.copy_(_first_failure(failed, checks))
    frozen = failed != 0
    pairs = changed(state, new)
    for dtype in dict.fromkeys(old.dtype for old, _ in pairs):
        group = [pair for pair in pairs if pair[0].dtype == dtype]
        before, after = (torch.cat([tensor.reshape(-1) for tensor in side]) for side in zip(*group, strict=True))
        kept = torch.split(torch.where(frozen, before, after), [old.numel() for old, _ in group])
        olds = [old for old, _ in group]
        torch._foreach_copy_(olds, [part.view_as(old) for part, old in zip(kept, olds, strict=True)])


def _first_failure(failed: Tensor, checks: Tensor) -> Tensor:
    """The flag after an update with these checks: what it was, else 1 + the index of the first that is not finite."""
    bad = ~torch.isfinite(checks)
    first = torch.where(bad.any(), bad.to(torch.int64).argmax() + 1, 0)
    return torch.where(failed != 0, failed, first)


class Limit(NamedTuple):
    """Allowed difference of two executors' updates, relative to the size of the update; a mistake makes one near 1."""

    step: float
    """Of what the optimiser moved. Adam's first steps have the size of the learning rate whatever the gradient, so
    rounding turns the sign of those with a gradient near 0."""
    gradient: float
    """Of the moments, which move in proportion to the gradient."""


LIMITS = {"fp32": Limit(0.01, 0.01), "tf32": Limit(0.2, 0.05), "bf16": Limit(0.4, 0.1)}
"""By precision. Measured with products rounded to tf32 and bf16 on a CPU, against float32, at the updates 1, 11, 101
and 301 and over 1, 8 and 16 of them (an actor and two critics, 27 observations, 256x256): steps up to 0.053 and 0.14,
moments up to 0.022 and 0.040. Two forms in one precision differ by less, their largest was 0.0072."""

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
    precision: str = "fp32",
) -> str | None:
    """Run one update with both executors on copies of a state and say where they differ; None where they agree."""
    expected, found = (type(state)(*(tensor.clone() for tensor in state)) for _ in range(2))
    flags = [torch.zeros((), dtype=torch.int64, device=noise.device) for _ in range(2)]
    wanted = reference(expected, flags[0], batch, noise, learning_rate, kind).td_errors
    given = candidate(found, flags[1], batch, noise, learning_rate, kind).td_errors
    if int(flags[0]) != int(flags[1]):
        return f"the non-finite flag is {int(flags[1])} instead of {int(flags[0])}"
    if wanted is not None:
        allowed = 0.1 * LIMITS[precision].gradient * float(wanted.norm()) + ROUNDING
        if given is None or not float((given - wanted).norm()) <= allowed:
            return "the TD errors differ"
    return difference(state, expected, found, precision)


def difference(before: Any, expected: Any, found: Any, precision: str = "fp32") -> str | None:
    """Where two states after the same updates differ, given the one before them; None where they agree.

    Compares what each tensor moved by, in the L2 norm.
    """
    for name, old, want, got in zip(type(before)._fields, before, expected, found, strict=True):
        if not old.is_floating_point():
            if not torch.equal(want, got):
                return f"{name} is {got.tolist()} instead of {want.tolist()}"
            continue
        limit = LIMITS[precision]
        part = limit.gradient if name.endswith(("_mean", "_square")) else limit.step
        moved = float((want.double() - old.double()).norm())
        allowed = part * moved + ROUNDING * float(want.double().norm())
        difference = float((got.double() - want.double()).norm())
        if not difference <= allowed:
            return f"{name} differs by {difference:.2e} where it moved by {moved:.2e}"
    return None
