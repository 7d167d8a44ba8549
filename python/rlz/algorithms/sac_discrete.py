"""SAC for one choice among several (Christodoulou 2019, arXiv 1910.07207).

Everything else is SAC's. The networks give one output for each choice: logits of the actor, values of the critics. So
what SAC estimates with a drawn action is an exact mean over the choices, and nothing is drawn.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from rlz.algorithms.base import Algorithm, Batch
from rlz.algorithms.sac import Sac, SacSettings
from rlz.lazy import Lazy
from rlz.networks.spec import CATEGORICAL
from rlz.options import changed

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlz.envs.spaces import EnvSpec
else:
    torch = Lazy("torch")

ENTROPY_SHARE = 0.98
"""Of the entropy of a uniform choice: what the temperature aims at (section 3 of the paper's experiments)."""


class SacDiscreteSettings(SacSettings):
    """Those of SAC."""

    target_entropy: float | str = changed(
        SacSettings,
        "target_entropy",
        "auto",
        help="Entropy that the learned temperature aims at; auto is 0.98 of that of a uniform choice.",
    )


class SacDiscrete(Sac):
    """See the module's text."""

    Settings: ClassVar[type[SacDiscreteSettings]] = SacDiscreteSettings
    head = CATEGORICAL

    def __init__(self, settings: SacDiscreteSettings, spaces: EnvSpec) -> None:
        Algorithm.__init__(self, settings, spaces)
        spaces.require_one_choice("sac-discrete")
        (choices,) = spaces.action_choices
        self.target_critics = settings.target_critics or 0
        self.actor = settings.make_network("actor", spaces.obs_dim, choices)
        self.critic = settings.make_network("critic", spaces.obs_dim, choices, settings.n_critics)
        wanted = settings.target_entropy
        self.target_entropy = ENTROPY_SHARE * math.log(choices) if isinstance(wanted, str) else wanted

    def q_values(self, critic: Tensor, obs: Tensor, action: Tensor, *, first: int | None = None) -> Tensor:
        """Q of the choices that were made, of every critic: [critics, batch]."""
        return self.critic(critic, obs, first=first)[:, torch.arange(len(obs), device=obs.device), action[:, 0]]

    def td_target(self, actor: Tensor, target_critic: Tensor, alpha: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        """R + discount * sum over a' of pi(a'|s') * (min Q'(s', a') - alpha * log pi(a'|s')) (equation 10): [batch]."""
        log_prob = torch.log_softmax(self.actor(actor, batch.next_obs), 1)
        next_q = self.least(self.critic(target_critic, batch.next_obs), noise)
        return batch.reward + batch.discount * (log_prob.exp() * (next_q - alpha * log_prob)).sum(1)

    def actor_loss(
        self, actor: Tensor, critic: Tensor, alpha: Tensor, obs: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum over a of pi(a|s) * (alpha * log pi(a|s) - min Q(s, a)) (equation 12). Also gives the mean log_prob."""
        log_prob = torch.log_softmax(self.actor(actor, obs), 1)
        q = self.critic(critic, obs)
        q = q.mean(0) if self.target_critics else q.amin(0)
        prob = log_prob.exp()
        return (prob * (alpha * log_prob - q)).sum(1).mean(), (prob * log_prob).sum(1)
