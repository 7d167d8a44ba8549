"""What an off-policy algorithm is to the learner and its executors: a pure update on a tuple of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from rlz.errors import CheckpointError


class Batch(NamedTuple):
    """Transitions, one per row. All floating point, on the learner's device.

    `discount` is gamma (gamma^k for a k-step reward), and 0 where the episode terminated: the only place where
    termination enters a target. A truncated transition bootstraps from its true final `next_obs`.

    With a `weight` (prioritised replay) the critic's loss is a weighted mean, and the update gives TD errors back.
    """

    obs: Tensor  # [batch, obs_dim]
    action: Tensor  # [batch, action_dim] in [-1, 1]
    next_obs: Tensor  # [batch, obs_dim]
    reward: Tensor  # [batch]
    discount: Tensor  # [batch]
    weight: Tensor | None = None  # [batch], importance weights

    def tensors(self) -> tuple[Tensor, ...]:
        """Every field that is there."""
        return tuple(tensor for tensor in self if tensor is not None)


State = TypeVar("State", bound=tuple[Any, ...])
"""A NamedTuple of tensors: everything an update reads and writes."""


class Outcome(NamedTuple):
    """What one update gives."""

    state: Any  # the new state, same type and shapes as the old
    metrics: Tensor  # [len(metric_names)]
    checks: Tensor  # [len(check_names)]: finite as long as the update is sound
    td_errors: Tensor | None = None  # [batch], |TD error| as a mean over the critics; only for a batch with weights


class OffPolicy(Protocol):
    """An algorithm that learns from single transitions of a replay buffer.

    `update` is pure and has no data-dependent control flow, so that an executor may run it eagerly, compile it whole,
    or capture it in a CUDA graph.
    """

    metric_names: ClassVar[tuple[str, ...]]
    check_names: ClassVar[tuple[str, ...]]

    def init(self, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Any:
        """Fresh state on the CPU."""
        ...

    def noise_shape(self, batch_size: int) -> tuple[int, ...]:
        """Shape of the standard normal noise that one update consumes."""
        ...

    def update(self, state: Any, batch: Batch, noise: Tensor, learning_rate: Tensor) -> Outcome:
        """One update of everything the algorithm learns. `learning_rate` is a 0-d tensor."""
        ...

    def actor_parameters(self, state: Any) -> Tensor:
        """Flat actor, in the order of `rlz.networks.spec.actor_manifest`."""
        ...

    def state_dict(self, state: Any) -> dict[str, Tensor]:
        """Views of the state by name, every network tensor apart."""
        ...

    def load_state_dict(self, state: Any, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors of `state_dict` into the state. Raises CheckpointError naming what does not fit."""
        ...


def load_tensors(into: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors by name. Raises CheckpointError, before anything is copied, where names, shapes or dtypes differ."""
    if missing := sorted(into.keys() - tensors.keys()):
        raise CheckpointError(f"the checkpoint lacks {', '.join(missing[:3])}; was it made with other networks?")
    if surplus := sorted(tensors.keys() - into.keys()):
        raise CheckpointError(f"the checkpoint has unknown {', '.join(surplus[:3])}; was it made with other networks?")
    for name, tensor in into.items():
        given = tensors[name]
        if given.shape != tensor.shape or given.dtype != tensor.dtype:
            raise CheckpointError(
                f"{name}: the checkpoint has {tuple(given.shape)} {given.dtype}, "
                f"this run {tuple(tensor.shape)} {tensor.dtype}; resume with the networks of the checkpoint"
            )
    for name, tensor in into.items():
        tensor.copy_(tensors[name])
