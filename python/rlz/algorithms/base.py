"""What an off-policy algorithm is to the learner and its executors: a pure update on a tuple of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from rlz.errors import CheckpointError

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec

WHOLE = "whole"
"""Kind of an update of everything that an algorithm learns."""

CRITIC = "critic"
"""Kind of an update of the critics alone."""

CRITIC_TARGET = "critic_target"
"""Kind of an update of the critics and their target networks."""

ACTOR = "actor"
"""Kind of an update of all that CRITIC_TARGET leaves: after it, on the same batch and noise, it makes it WHOLE."""


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


class Side(NamedTuple):
    """What one of two devices does and owns when critics and actor are updated apart (Spreeze, arXiv 2312.06126)."""

    cycle: tuple[str | None, ...]  # kinds of its updates in their order; None: nothing to do in this one
    fields: tuple[str, ...]  # of the state: what its updates change
    gives: tuple[str, ...]  # of these: what the updates of the other side read


class Outcome(NamedTuple):
    """What one update gives."""

    state: Any  # the new state, same type and shapes as the old; what did not change is the very tensor of the old one
    metrics: Tensor  # [len(metric_names)]; NaN: not measured by this kind of update
    checks: Tensor  # [len(check_names)]: finite as long as the update is sound; 0: not checked by this kind
    td_errors: Tensor | None = None  # [batch], |TD error| as a mean over the critics; only for a batch with weights


class OffPolicy(Protocol):
    """An algorithm that learns from single transitions of a replay buffer.

    `update` is pure and has no data-dependent control flow, so that an executor may run it eagerly, compile it whole,
    or capture it in a CUDA graph. Work that is not done in every update is another *kind* of update: a name that is
    known before the update runs, so each kind is compiled or captured once and costs only what it does.

    A state is a NamedTuple of tensors, everything that an update reads and writes; `updates` among them ([], int64)
    counts the updates of the critics.
    """

    metric_names: ClassVar[tuple[str, ...]]
    check_names: ClassVar[tuple[str, ...]]

    @staticmethod
    def from_config(config: RunConfig, env_spec: EnvSpec) -> OffPolicy:
        """The algorithm with the networks and constants of a run."""
        ...

    @property
    def cycle(self) -> tuple[str, ...]:
        """Kinds of the updates in their order: update n (from 0) is of kind `cycle[n % len(cycle)]`."""
        ...

    @property
    def sides(self) -> tuple[Side, Side]:
        """The critics' and the actor's half of each update; every field of the state is of one of them."""
        ...

    def init(self, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Any:
        """Fresh state on the CPU."""
        ...

    def noise_shape(self, batch_size: int) -> tuple[int, ...]:
        """Shape of the standard normal noise that one update consumes."""
        ...

    def update(self, state: Any, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str = WHOLE) -> Outcome:
        """One update of a kind in `cycle` or in the cycle of a side. `learning_rate` is a 0-d tensor."""
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
