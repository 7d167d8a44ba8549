"""TQC (Kuznetsov et al. 2020, arXiv 2005.04269): SAC whose critics give quantiles, the largest of which are dropped.

rlz train examples/tqc.py:Tqc --env Pendulum-v1 --n-quantiles 25 --drop 2
"""

from dataclasses import replace

import torch
from torch import Tensor

import rlz
from rlz.algorithms.sac import Sac, SacSettings


class Settings(SacSettings):
    n_quantiles: int = rlz.option(25, ge=1, le=256, help="Quantiles of each critic.")
    drop: int = rlz.option(2, ge=0, le=255, help="Quantiles of each critic that the target leaves out: the largest.")


class Tqc(Sac):
    Settings = Settings

    def __init__(self, settings: Settings, spaces):
        super().__init__(settings, spaces)
        self.critic = replace(self.critic, outputs=settings.n_quantiles)

    def quantiles(self, critic: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """[critics, batch, n_quantiles]"""
        return self.critic(critic, torch.cat([obs, action], dim=-1))

    def td_target(self, actor, target_critic, alpha, batch, noise) -> Tensor:
        """Soft Bellman target of the quantiles that are kept (equation 10): [kept, batch]."""
        action, log_prob = self.sample(actor, batch.next_obs, noise)
        pooled = self.quantiles(target_critic, batch.next_obs, action).permute(1, 0, 2).flatten(1).sort(1).values
        kept = pooled[:, : pooled.shape[1] - self.settings.drop * self.settings.n_critics].T
        return batch.reward + batch.discount * (kept - alpha * log_prob)

    def critic_loss(self, critic, td_target, batch) -> tuple[Tensor, Tensor]:
        """Quantile Huber loss (equation 12), summed over critics. Also gives the mean of each critic."""
        quantiles = self.quantiles(critic, batch.obs, batch.action)
        errors = td_target.T[None, :, None, :] - quantiles[..., None]  # [critics, batch, quantile, kept]
        huber = torch.where(errors.abs() > 1.0, errors.abs() - 0.5, 0.5 * errors.square())
        middle = (torch.arange(self.settings.n_quantiles, device=errors.device) + 0.5) / self.settings.n_quantiles
        loss = (middle[:, None] - (errors < 0).to(errors.dtype)).abs() * huber
        return loss.mean((1, 2, 3)).sum(), quantiles.mean(-1)

    def actor_loss(self, actor, critic, alpha, obs, noise) -> tuple[Tensor, Tensor]:
        """Alpha * log pi(a|s) - mean of all quantiles (equation 14). Also gives log_prob."""
        action, log_prob = self.sample(actor, obs, noise)
        return (alpha * log_prob - self.quantiles(critic, obs, action).mean((0, 2))).mean(), log_prob

    def update(self, state, batch, noise, learning_rate, kind="whole"):
        if batch.weight is not None:
            raise rlz.ConfigError("TQC draws rows uniformly: leave out --prioritized")
        return super().update(state, batch, noise, learning_rate, kind)
