"""A policy and a value function whose parameters lie in one flat vector: for algorithms that follow one gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

from rlz.lazy import Lazy
from rlz.networks.mlp import Mlp
from rlz.networks.own import Network

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazy("torch")

HIDDEN_GAIN = math.sqrt(2.0)


class Outputs(NamedTuple):
    """For a batch of observations."""

    policy: Tensor  # [batch, outputs of the policy]
    log_std: Tensor  # [components], or [0] for policies without
    value: Tensor  # [batch]


@dataclass(frozen=True)
class PolicyValue:
    """Layout; the parameters live elsewhere, in a flat vector of `numel` floats: log_std, actor, critic.

    What a sampler needs, `policy` of them, comes first.

    Attributes
    ----------
    actor : its outputs are those of the policy, and the value behind them where there is no critic.
    critic : a network for the value alone; None: it shares the actor's.
    log_std : components of a Gaussian, whose log standard deviations do not depend on the observation; else 0.
    """

    name: str
    actor: Network
    critic: Network | None
    log_std: int = 0

    @cached_property
    def sizes(self) -> list[int]:
        """Floats of log_std, actor and critic."""
        return [self.log_std, self.actor.numel, 0 if self.critic is None else self.critic.numel]

    @property
    def numel(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)

    @property
    def policy(self) -> int:
        """Floats that a sampler needs."""
        return self.sizes[0] + self.sizes[1]

    def in_precision(self, precision: str) -> Self:
        """The same layout with products in "fp32" or "bf16"."""
        critic = None if self.critic is None else self.critic.in_precision(precision)
        return replace(self, actor=self.actor.in_precision(precision), critic=critic)

    def __call__(self, flat: Tensor, obs: Tensor) -> Outputs:
        """Policy and value of obs [batch, inputs]."""
        log_std, actor, critic = torch.split(flat, self.sizes)
        outputs = self.actor(actor, obs)
        if self.critic is None:
            return Outputs(outputs[:, :-1], log_std, outputs[:, -1])
        return Outputs(outputs, log_std, self.critic(critic, obs).squeeze(-1))

    def value(self, flat: Tensor, obs: Tensor) -> Tensor:
        """Value of obs [batch, inputs]: [batch]."""
        _, actor, critic = torch.split(flat, self.sizes)
        return self.actor(actor, obs)[:, -1] if self.critic is None else self.critic(critic, obs).squeeze(-1)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of the flat vector by name."""
        log_std, actor, critic = torch.split(flat, self.sizes)
        found = {"actor.log_std": log_std} if self.log_std else {}
        found |= self.actor.named(actor)
        return found | ({} if self.critic is None else self.critic.named(critic))

    def init(
        self,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        *,
        orthogonal: bool,
        log_std: float = 0.0,
    ) -> Tensor:
        """Fresh flat parameters [numel] on the CPU.

        Parameters
        ----------
        orthogonal : weights of hidden layers are orthogonal with gain sqrt(2), those of the policy's outputs with gain
            0.01 and of the value with gain 1, all biases 0 (Huang et al. 2022, detail 2). Else as torch.nn.Linear; a
            user's own network begins as its class makes it.
        log_std : the policy's first log standard deviations.
        """
        networks = [network for network in (self.actor, self.critic) if network is not None]
        plain = [network.init(generator, dtype) for network in networks]
        flat = torch.cat([torch.full((self.log_std,), log_std, dtype=plain[0].dtype), *plain])
        if orthogonal and isinstance(self.actor, Mlp):
            for name, tensor in self.named(flat).items():
                if name.endswith("bias") and "norm" not in name:
                    tensor.zero_()
                elif name == "critic.head.weight":
                    _orthogonal(tensor, 1.0, generator)
                elif name == "actor.head.weight":
                    policy = tensor.shape[1] - (self.critic is None)
                    _orthogonal(tensor[:, :policy], 0.01, generator)
                    if self.critic is None:
                        _orthogonal(tensor[:, policy:], 1.0, generator)
                elif name.endswith("weight") and "norm" not in name:
                    _orthogonal(tensor, HIDDEN_GAIN, generator)
        return flat


def _orthogonal(weight: Tensor, gain: float, generator: torch.Generator | None) -> None:
    """Fill weight [in, out] as torch does for its own [out, in]."""
    other = torch.empty(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    weight.copy_(torch.nn.init.orthogonal_(other, gain, generator=generator).T)
