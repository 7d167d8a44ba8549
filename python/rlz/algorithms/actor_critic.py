"""What algorithms with one actor and a stack of critics Q(obs, action) share."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import model_validator

from rlz.algorithms.base import Algorithm
from rlz.algorithms.optim import adam
from rlz.algorithms.settings import NetworkSettings, ReplaySettings
from rlz.answers import PolicySpec
from rlz.lazy import Lazy
from rlz.networks.spec import head_outputs
from rlz.options import Integer, Number, Panel, option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlz.envs.spaces import EnvSpec
else:
    torch = Lazy("torch")


class ActorCriticSettings(ReplaySettings, NetworkSettings):
    """Of an algorithm with one actor and a stack of critics."""

    tau: Number = option(
        0.005, panel=Panel.LEARNING, help="Step of the target networks towards the critics.", metavar="T", gt=0, le=1
    )
    n_critics: Integer = option(
        2,
        panel=Panel.NETWORK,
        help="Critics; the target is the minimum of all, or of --target-critics.",
        metavar="INT",
        ge=1,
        le=64,
    )
    target_critics: Integer | None = option(
        None,
        panel=Panel.NETWORK,
        help="Critics that are drawn anew for the target of each update, which is their minimum; SAC's actor then "
        "follows the mean of all (REDQ: 2 of 10 critics, at a high replay ratio).",
        metavar="INT",
        shown="all",
        ge=1,
        le=64,
        fixed=False,
    )

    @model_validator(mode="after")
    def _critics_suffice(self) -> Self:
        if self.target_critics is not None and self.target_critics > self.n_critics:
            raise ValueError(
                f"--target-critics {self.target_critics} of --n-critics {self.n_critics}: there are not so many. Use "
                f"{self.n_critics} or fewer, or more critics."
            )
        return self


S = TypeVar("S", bound=ActorCriticSettings)


class ActorCritic(Algorithm[S]):
    """The networks, and what is done with them alike everywhere.

    Attributes
    ----------
    actor, critic
        Layouts; `critic` is a stack of any number of critics.
    target_critics
        The target is the minimum of so many of them, drawn anew for each update (REDQ, arXiv 2101.05982); 0: of all.
    head
        What the outputs of the actor mean (`rlz.networks.spec`).
    """

    head: ClassVar[str]

    def __init__(self, settings: S, spaces: EnvSpec) -> None:
        super().__init__(settings, spaces)
        spaces.require_box_actions(type(self).__name__.lower())
        self.target_critics = settings.target_critics or 0
        obs, action = spaces.obs_dim, spaces.action_dim
        self.actor = settings.make_network("actor", obs, head_outputs(self.head, action))
        self.critic = settings.make_network("critic", obs + action, 1, settings.n_critics)

    def policy(self) -> PolicySpec:
        """The actor, with what its head is told."""
        from rlz.acting.rules import policy_of  # numpy: no part of what prints options

        return policy_of(self.actor, self.spaces, self.head, self.exploration)

    @property
    def exploration(self) -> dict[str, float]:
        """What samplers are told beside the network: arguments of the head."""
        return {}

    def memory(self, rows: int) -> int:
        """Bytes of the state and of an update of so many rows.

        Each weight has a gradient and two moments of Adam, a critic's also a target. Every hidden value of actor and
        critics is kept for the way back.
        """
        state = 4 * self.actor.numel + 5 * self.critic.numel
        return 4 * (state + rows * sum(self.settings.hidden) * (1 + self.settings.n_critics))

    def in_precision(self, precision: str) -> Self:
        """The same algorithm with its matrix products in "fp32" or "bf16"."""
        other = copy.copy(self)
        other.actor, other.critic = (network.in_precision(precision) for network in (self.actor, self.critic))
        return other

    def q_values(self, critic: Tensor, obs: Tensor, action: Tensor, *, first: int | None = None) -> Tensor:
        """Q of every critic, or of the `first` so many alone: [critics, batch]."""
        return self.critic(critic, torch.cat([obs, action], dim=-1), first=first).squeeze(-1)

    def target_q(self, critic: Tensor, obs: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        """Minimum of the target's critics: [batch]. `noise` as `noise_rows` says."""
        return self.least(self.q_values(critic, obs, action), noise)

    def least(self, q: Tensor, noise: Tensor) -> Tensor:
        """Minimum over the target's critics of what all of them say, [critics, batch, ...]: [batch, ...]."""
        if self.target_critics:
            # Independent numbers of one distribution: each subset is as likely as any other to have the largest.
            drawn = noise[q.shape[1] :].flatten()[: self.critic.members].topk(self.target_critics).indices
            q = q[drawn]
        return q.amin(0)

    def noise_rows(self, batch_size: int) -> int:
        """Rows of noise [rows, action_dim] that a target takes: one per action, then those that draw its critics."""
        drawn = -(-self.settings.n_critics // self.spaces.action_dim) if self.target_critics else 0
        return batch_size + drawn

    def published(self, state: Any) -> Tensor:
        """Flat actor, in the order of the policy's manifest."""
        flat: Tensor = state.actor
        return flat


def mean_square(errors: Tensor, weight: Tensor | None) -> Tensor:
    """Mean over the batch of errors [critics, batch] squared, summed over the critics.

    With importance weights [batch] the weighted mean (arXiv 1511.05952, section 3.4).
    """
    squares = errors.square()
    if weight is not None:
        squares = weight * squares
    return squares.mean(1).sum()


def trained(state: Any, field: str, gradient: Tensor, step: Tensor, learning_rate: Tensor) -> Any:
    """State after an Adam step, the `step`-th, of one field and the moments that belong to it."""
    mean, square = f"{field}_mean", f"{field}_square"
    old = getattr(state, field), getattr(state, mean), getattr(state, square)
    new = adam(*old, gradient, step, learning_rate)
    return state._replace(**{field: new.parameters, mean: new.mean, square: new.square})
