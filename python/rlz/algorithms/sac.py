"""Soft Actor-Critic with automatic temperature (Haarnoja et al. 2018, arXiv 1812.05905, algorithm 1).

Defaults and order of work are those of Stable-Baselines3: critic, actor, temperature, target networks, all in every
update; the actor's loss sees the new critic; both losses see the temperature from before its own step. The tanh
correction is the numerically stable form. With n-step rows no entropy bonus is added for the intermediate steps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from pydantic import BeforeValidator

from rlz.algorithms.actor_critic import ActorCritic, ActorCriticSettings, mean_square, trained
from rlz.algorithms.base import ACTOR, CRITIC_TARGET, WHOLE, Batch, Outcome, Side
from rlz.algorithms.optim import gradient, polyak
from rlz.lazy import Lazy
from rlz.networks.distributions import squashed_gaussian
from rlz.networks.spec import SQUASHED_GAUSSIAN
from rlz.options import Panel, option, values

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlz.envs.spaces import EnvSpec
else:
    torch = Lazy("torch")


class SacSettings(ActorCriticSettings):
    """Defaults are those of Stable-Baselines3."""

    ent_coef: Annotated[float | str, BeforeValidator(values.ent_coef)] = option(
        "auto",
        panel=Panel.LEARNING,
        help="Temperature: learned (auto; auto_0.1 starts at 0.1) or fixed.",
        metavar="auto|X",
        expects="auto, auto_0.1 (start value above 0), or a number of at least 0",
    )
    target_entropy: Annotated[float | str, BeforeValidator(values.target_entropy)] = option(
        "auto",
        panel=Panel.LEARNING,
        help="Entropy that the learned temperature aims at; auto is minus the number of action dimensions.",
        metavar="auto|X",
        expects="auto or a finite number",
    )

    @property
    def learns_ent_coef(self) -> bool:
        """The temperature is learned."""
        return isinstance(self.ent_coef, str)

    @property
    def first_ent_coef(self) -> float:
        """Fixed temperature, or the one that learning starts from (1 for plain auto, as in SB3)."""
        return float(str(self.ent_coef).removeprefix("auto").removeprefix("_") or 1.0)


class SacState(NamedTuple):
    """Everything an update reads and writes: flat networks, Adam moments, and the counts of updates."""

    actor: Tensor  # [actor.numel]
    critic: Tensor  # [critic.numel], all critics
    target_critic: Tensor  # [critic.numel], slow copy of the critics
    log_alpha: Tensor  # [], log of the temperature
    actor_mean: Tensor  # Adam's first moments ...
    actor_square: Tensor  # ... and second ones
    critic_mean: Tensor
    critic_square: Tensor
    log_alpha_mean: Tensor
    log_alpha_square: Tensor
    updates: Tensor  # [], int64, of the critics
    actor_updates: Tensor  # [], int64, of actor and temperature


class Sac(ActorCritic[SacSettings]):
    """SAC for Box actions in [-1, 1].

    Attributes
    ----------
    target_entropy
        Entropy that the temperature is steered to (nats); -dim(A) in the paper.
    """

    Settings = SacSettings
    head = SQUASHED_GAUSSIAN
    metrics: ClassVar[tuple[str, ...]] = (
        "critic_loss",  # 0.5 * sum over critics of the mean squared TD error
        "actor_loss",  # mean of alpha * log_prob - min Q
        "ent_coef_loss",  # 0 with a fixed temperature
        "ent_coef",  # temperature used by this update
        "entropy",  # -mean log_prob of the actor's actions (nats)
        "q_value",  # mean over batch and critics of Q(obs, action)
    )
    checks: ClassVar[tuple[str, ...]] = (
        "critic_loss",
        "critic gradient",
        "actor_loss",
        "actor gradient",
        "ent_coef_loss",
    )

    def __init__(self, settings: SacSettings, spaces: EnvSpec) -> None:
        super().__init__(settings, spaces)
        wanted = settings.target_entropy
        self.target_entropy = -float(spaces.action_dim) if isinstance(wanted, str) else wanted

    # -- the losses ------------------------------------------------------------------------------------------------

    def sample(self, actor: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised actions [batch, action_dim] and their log-probabilities [batch]."""
        return squashed_gaussian(self.actor(actor, obs), noise)

    def td_target(self, actor: Tensor, target_critic: Tensor, alpha: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        """Soft Bellman target r + discount * (min Q'(s', a') - alpha * log pi(a'|s')) (equations 2, 3): [batch]."""
        next_action, next_log_prob = self.sample(actor, batch.next_obs, noise[: len(batch.next_obs)])
        next_q = self.target_q(target_critic, batch.next_obs, next_action, noise)
        return batch.reward + batch.discount * (next_q - alpha * next_log_prob)

    def critic_loss(self, critic: Tensor, td_target: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Squared TD error (equation 5), summed over critics; the target is a constant. Also gives Q of each."""
        q = self.q_values(critic, batch.obs, batch.action)
        return 0.5 * mean_square(q - td_target, batch.weight), q

    def actor_loss(
        self, actor: Tensor, critic: Tensor, alpha: Tensor, obs: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Alpha * log pi(a|s) - min Q(s, a) for reparameterised a (equation 7). Also gives log_prob [batch].

        With `target_critics` the mean of all Q instead of their minimum, as in REDQ (algorithm 1).
        """
        action, log_prob = self.sample(actor, obs, noise[: len(obs)])
        q = self.q_values(critic, obs, action)
        q = q.mean(0) if self.target_critics else q.amin(0)
        return (alpha * log_prob - q).mean(), log_prob

    def ent_coef_loss(self, log_alpha: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        """-log(alpha) * (log_prob + target entropy) (equation 18, with log alpha for alpha as in SB3); the entropy."""
        return -log_alpha * (log_prob + self.target_entropy).mean(), -log_prob.mean()

    # -- one update ------------------------------------------------------------------------------------------------

    @property
    def sides(self) -> tuple[Side, Side]:
        """Every update has both halves."""
        actor = "actor", "log_alpha"
        moments = "actor_mean", "actor_square", "log_alpha_mean", "log_alpha_square", "actor_updates"
        return (
            Side(
                "critic",
                (CRITIC_TARGET,),
                ("critic", "target_critic", "critic_mean", "critic_square", "updates"),
                ("critic",),
            ),
            Side("actor", (ACTOR,), (*actor, *moments), actor),
        )

    def update(self, state: SacState, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str = WHOLE) -> Outcome:
        """Critics and target networks, then actor and temperature, once. `noise` is as `noise_shape` says."""
        s = new = state
        learned = self.settings.learns_ent_coef
        alpha = s.log_alpha.exp() if learned else torch.full_like(s.log_alpha, self.settings.first_ent_coef)
        metrics: dict[str, Tensor] = {}
        checks: dict[str, Tensor] = {}  # a sum of squares overflows exactly where Adam's second moment would
        td_errors = None

        # Gradients are taken with respect to the first argument alone: the target of the critics, and the critics and
        # the temperature inside the actor's loss, are constants.
        if kind != ACTOR:
            td_target = self.td_target(s.actor, s.target_critic, alpha, batch, noise[0])
            grad, loss, q = gradient(self.critic_loss, s.critic, td_target, batch)
            step = s.updates + 1
            new = trained(new, "critic", grad, step, learning_rate)._replace(updates=step)
            new = new._replace(target_critic=polyak(s.target_critic, new.critic, self.settings.tau))
            metrics |= {"critic_loss": loss, "q_value": q.mean()}
            checks |= {"critic_loss": loss, "critic gradient": grad.square().sum()}
            td_errors = None if batch.weight is None else (q - td_target).abs().mean(0)

        if kind != CRITIC_TARGET:
            grad, loss, log_prob = gradient(self.actor_loss, s.actor, new.critic, alpha, batch.obs, noise[1])
            step = s.actor_updates + 1
            new = trained(new, "actor", grad, step, learning_rate)._replace(actor_updates=step)
            ent_coef_loss = torch.zeros_like(alpha)
            if learned:
                alpha_grad, ent_coef_loss, _ = gradient(self.ent_coef_loss, s.log_alpha, log_prob)
                new = trained(new, "log_alpha", alpha_grad, step, learning_rate)
            metrics |= {"actor_loss": loss, "ent_coef_loss": ent_coef_loss, "ent_coef": alpha}
            metrics |= {"entropy": -log_prob.mean()}
            checks |= {"actor_loss": loss, "actor gradient": grad.square().sum(), "ent_coef_loss": ent_coef_loss}

        return self.outcome(new, metrics, checks, td_errors)

    # -- state -----------------------------------------------------------------------------------------------------

    def init(self, generator: torch.Generator, dtype: torch.dtype | None = None) -> SacState:
        """Fresh state on the CPU; targets equal the critics."""
        actor, critic = self.actor.init(generator, dtype), self.critic.init(generator, dtype)
        log_alpha = torch.tensor(math.log(max(self.settings.first_ent_coef, 1e-30)), dtype=dtype or torch.float32)
        return SacState(
            actor=actor,
            critic=critic,
            target_critic=critic.clone(),
            log_alpha=log_alpha,
            actor_mean=torch.zeros_like(actor),
            actor_square=torch.zeros_like(actor),
            critic_mean=torch.zeros_like(critic),
            critic_square=torch.zeros_like(critic),
            log_alpha_mean=torch.zeros_like(log_alpha),
            log_alpha_square=torch.zeros_like(log_alpha),
            updates=torch.zeros((), dtype=torch.int64),
            actor_updates=torch.zeros((), dtype=torch.int64),
        )

    def noise_shape(self, batch_size: int) -> tuple[int, ...]:
        """[2, batch (and the rows that choose target critics), action_dim]: for the target's actions, the actor's."""
        return (2, self.noise_rows(batch_size), self.spaces.action_dim)
