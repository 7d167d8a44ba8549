"""What algorithms with one actor and a stack of critics Q(obs, action) share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rlz.algorithms.base import WHOLE, Outcome, load_tensors
from rlz.algorithms.optim import adam
from rlz.algorithms.registry import ALGORITHMS
from rlz.networks import mlp
from rlz.networks.mlp import Mlp

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.envs.spaces import EnvSpec


@dataclass(frozen=True)
class ActorCritic:
    """The networks, and what is done with them alike everywhere.

    The fields of a state follow one rule: `actor` and `critic` are flat networks, `target_critic` is the slow copy of
    `critic`, `critic_mean` and `critic_square` are Adam's moments of it, everything else is a plain tensor.

    Attributes
    ----------
    actor, critic
        Layouts; `critic` is a stack of any number of critics.
    target_critics
        The target is the minimum of so many of them, drawn anew for each update (REDQ, arXiv 2101.05982); 0: of all.
    """

    metric_names: ClassVar[tuple[str, ...]]
    check_names: ClassVar[tuple[str, ...]]

    actor: Mlp
    critic: Mlp
    _: KW_ONLY
    target_critics: int = 0

    @staticmethod
    def networks(config: RunConfig, env_spec: EnvSpec) -> tuple[Mlp, Mlp]:
        """Actor and critics of a run."""
        sizes = env_spec.obs_dim, env_spec.action_dim, config.hidden, config.activation
        head = ALGORITHMS[config.algo].head
        norm, bf16 = config.layer_norm, config.precision == "bf16"
        return (
            mlp.actor(*sizes, layer_norm=norm, head=head, bf16=bf16),
            mlp.critics(*sizes, layer_norm=norm, members=config.n_critics, bf16=bf16),
        )

    @property
    def cycle(self) -> tuple[str, ...]:
        """Every update is of everything."""
        return (WHOLE,)

    def q_values(self, critic: Tensor, obs: Tensor, action: Tensor, *, first: int | None = None) -> Tensor:
        """Q of every critic, or of the `first` so many alone: [critics, batch]."""
        return self.critic(critic, torch.cat([obs, action], dim=-1), first=first).squeeze(-1)

    def target_q(self, critic: Tensor, obs: Tensor, action: Tensor, noise: Tensor) -> Tensor:
        """Minimum of the target's critics: [batch]. `noise` as `noise_rows` says."""
        q = self.q_values(critic, obs, action)
        if self.target_critics:
            # Independent numbers of one distribution: each subset is as likely as any other to have the largest.
            drawn = noise[len(obs) :].flatten()[: self.critic.members].topk(self.target_critics).indices
            q = q[drawn]
        return q.amin(0)

    def noise_rows(self, batch_size: int, action_dim: int) -> int:
        """Rows of noise [rows, action_dim] that a target takes: one per action, then those that draw its critics."""
        return batch_size + (-(-(self.critic.members or 1) // action_dim) if self.target_critics else 0)

    def outcome(
        self, state: Any, metrics: Mapping[str, Tensor], checks: Mapping[str, Tensor], td_errors: Tensor | None
    ) -> Outcome:
        """What an update gives, from the metrics and checks that its kind has, by name."""
        return Outcome(
            state, _stacked(metrics, self.metric_names, math.nan), _stacked(checks, self.check_names, 0.0), td_errors
        )

    def actor_parameters(self, state: Any) -> Tensor:
        """Flat actor, in the order of `rlz.networks.spec.actor_manifest`."""
        flat: Tensor = state.actor
        return flat

    def state_dict(self, state: Any) -> dict[str, Tensor]:
        """Views by name, for instance `actor.0.weight`, `target.critic.head.bias`, `adam.square.actor.0.weight`."""
        networks = {"actor": self.actor, "critic": self.critic}
        named: dict[str, Tensor] = {}
        for field, tensor in state._asdict().items():
            prefix, of = _place(field)
            views = networks[of].named(tensor) if of in networks else {of: tensor}
            named |= {prefix + name: view for name, view in views.items()}
        return named

    def load_state_dict(self, state: Any, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors into the state, in place. Raises CheckpointError where names, shapes or dtypes differ."""
        load_tensors(self.state_dict(state), tensors)


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


def _stacked(values: Mapping[str, Tensor], names: tuple[str, ...], missing: float) -> Tensor:
    """0-d tensors in the order of `names`, `missing` where there is none: [len(names)]."""
    blank = torch.full_like(next(iter(values.values())), missing)
    return torch.stack([values.get(name, blank) for name in names])


def _place(field: str) -> tuple[str, str]:
    """Field of a state -> (prefix of its names, what it is or belongs to)."""
    for kind in ("mean", "square"):
        if field.endswith(f"_{kind}"):
            return f"adam.{kind}.", field.removesuffix(f"_{kind}")
    if field.startswith("target_"):
        return "target.", field.removeprefix("target_")
    return "", field
