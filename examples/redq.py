"""REDQ (Chen et al. 2021, arXiv 2101.05982) as a pure update: compiled, and on a GPU captured, without a further line.

    rlz train examples/redq.py:Redq --env Pendulum-v1 --replay-ratio 20

Ten critics; the target of each update is the minimum of two of them, drawn anew; the actor follows the mean of all.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

import rlz
from rlz.acting import policy_of
from rlz.algorithms.base import Batch, Outcome
from rlz.algorithms.optim import adam, gradient, polyak
from rlz.networks.distributions import squashed_gaussian
from rlz.networks.spec import SQUASHED_GAUSSIAN


class Settings(rlz.ReplaySettings, rlz.NetworkSettings):
    replay_ratio: float = rlz.option(20.0, gt=0, le=1024, help="Updates per env step.")
    n_critics: int = rlz.option(10, ge=1, le=64, help="Critics.")
    subset: int = rlz.option(2, ge=1, le=64, help="Critics of a target, drawn anew for each update.")
    tau: float = rlz.option(0.005, gt=0, le=1, help="Step of the target networks towards the critics.")


class State(NamedTuple):
    actor: Tensor
    critic: Tensor  # all critics
    target_critic: Tensor
    log_alpha: Tensor
    actor_mean: Tensor  # Adam's moments
    actor_square: Tensor
    critic_mean: Tensor
    critic_square: Tensor
    log_alpha_mean: Tensor
    log_alpha_square: Tensor
    updates: Tensor


class Redq(rlz.Algorithm):
    Settings = Settings
    metrics = "critic_loss", "actor_loss", "q_value", "ent_coef"
    checks = "critic_loss", "actor_loss"

    def __init__(self, settings: Settings, spaces):
        super().__init__(settings, spaces)
        spaces.require_box_actions("redq")
        obs, action = spaces.obs_dim, spaces.action_dim
        self.actor = settings.make_network("actor", obs, 2 * action)
        self.critic = settings.make_network("critic", obs + action, 1, settings.n_critics)

    def policy(self):
        return policy_of(self.actor, self.spaces, SQUASHED_GAUSSIAN)

    def init(self, generator, dtype=None):
        actor, critic = self.actor.init(generator, dtype), self.critic.init(generator, dtype)
        zeros, log_alpha = torch.zeros_like, torch.zeros((), dtype=actor.dtype)
        moments = [zeros(actor), zeros(actor), zeros(critic), zeros(critic), zeros(log_alpha), zeros(log_alpha)]
        return State(actor, critic, critic.clone(), log_alpha, *moments, torch.zeros((), dtype=torch.int64))

    def noise_shape(self, batch_size: int):
        """Of the target's actions and of the actor's; the rows after them draw the critics."""
        return 2, batch_size + math.ceil(self.settings.n_critics / self.spaces.action_dim), self.spaces.action_dim

    def q_values(self, critic, obs, action):
        """[critics, batch]"""
        return self.critic(critic, torch.cat([obs, action], 1)).squeeze(-1)

    def td_target(self, actor, target_critic, alpha, batch: Batch, noise):
        rows = len(batch.obs)
        action, log_prob = squashed_gaussian(self.actor(actor, batch.next_obs), noise[:rows])
        drawn = noise[rows:].flatten()[: self.settings.n_critics].topk(self.settings.subset).indices
        q = self.q_values(target_critic, batch.next_obs, action)[drawn].amin(0)
        return batch.reward + batch.discount * (q - alpha * log_prob)

    def critic_loss(self, critic, target, batch: Batch):
        q = self.q_values(critic, batch.obs, batch.action)
        return (q - target).square().mean(1).sum(), q

    def actor_loss(self, actor, critic, alpha, obs, noise):
        action, log_prob = squashed_gaussian(self.actor(actor, obs), noise[: len(obs)])
        return (alpha * log_prob - self.q_values(critic, obs, action).mean(0)).mean(), log_prob

    def alpha_loss(self, log_alpha, log_prob):
        return -log_alpha * (log_prob - self.spaces.action_dim).mean(), log_prob

    def update(self, s: State, batch: Batch, noise, learning_rate, kind="whole") -> Outcome:
        step, alpha = s.updates + 1, s.log_alpha.exp()
        target = self.td_target(s.actor, s.target_critic, alpha, batch, noise[0])
        slope, critic_loss, q = gradient(self.critic_loss, s.critic, target, batch)
        critic = adam(s.critic, s.critic_mean, s.critic_square, slope, step, learning_rate)
        slope, actor_loss, log_prob = gradient(self.actor_loss, s.actor, critic.parameters, alpha, batch.obs, noise[1])
        actor = adam(s.actor, s.actor_mean, s.actor_square, slope, step, learning_rate)
        slope, _, _ = gradient(self.alpha_loss, s.log_alpha, log_prob)
        log_alpha = adam(s.log_alpha, s.log_alpha_mean, s.log_alpha_square, slope, step, learning_rate)
        followed = polyak(s.target_critic, critic.parameters, self.settings.tau)
        parameters = actor.parameters, critic.parameters, followed, log_alpha.parameters
        new = State(*parameters, *actor[1:], *critic[1:], *log_alpha[1:], step)
        losses = {"critic_loss": critic_loss, "actor_loss": actor_loss}
        return self.outcome(new, losses | {"q_value": q.mean(), "ent_coef": alpha}, losses)

    def published(self, state: State):
        return state.actor
