"""Twin Delayed DDPG (Fujimoto et al. 2018, arXiv 1802.09477, algorithm 1).

Defaults and order of work are those of Stable-Baselines3: every update trains the critics; every `policy_delay`-th one
also trains the actor, on the first of the new critics, and then moves both target networks. Actions and noise are in
the [-1, 1] units of rlz, so the paper's clip to the action bounds is a clip to [-1, 1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from rlz.algorithms.actor_critic import ActorCritic, ActorCriticSettings, mean_square, trained
from rlz.algorithms.base import ACTOR, CRITIC, CRITIC_TARGET, WHOLE, Batch, Outcome, Side
from rlz.algorithms.optim import gradient, polyak
from rlz.lazy import Lazy
from rlz.networks.spec import DETERMINISTIC
from rlz.options import Integer, Number, Panel, option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlz.envs.spaces import EnvSpec
else:
    torch = Lazy("torch")


class DeterministicSettings(ActorCriticSettings):
    """Of an algorithm with a deterministic actor, whose samplers add noise to its actions."""

    exploration_noise: Number = option(
        0.1,
        panel=Panel.LEARNING,
        help="Standard deviation of the Gaussian noise on the samplers' actions; the action range is -1 to 1.",
        metavar="STD",
        ge=0,
        le=100,
    )


class Td3Settings(DeterministicSettings):
    """Defaults are those of Stable-Baselines3."""

    policy_delay: Integer = option(
        2,
        panel=Panel.LEARNING,
        help="Updates of the critics for each one of actor and target networks.",
        metavar="UPDATES",
        ge=1,
        le=1000,
    )
    target_policy_noise: Number = option(
        0.2,
        panel=Panel.LEARNING,
        help="Standard deviation of the Gaussian noise on the actions in the critics' target.",
        metavar="STD",
        ge=0,
        le=100,
    )
    target_noise_clip: Number = option(
        0.5,
        panel=Panel.LEARNING,
        help="Largest size of that noise.",
        metavar="SIZE",
        ge=0,
        le=100,
    )


class Td3State(NamedTuple):
    """Everything an update reads and writes: flat networks, Adam moments, and the counts of updates."""

    actor: Tensor  # [actor.numel]
    critic: Tensor  # [critic.numel], all critics
    target_actor: Tensor  # [actor.numel], slow copy of the actor
    target_critic: Tensor  # [critic.numel], slow copy of the critics
    actor_mean: Tensor  # Adam's first moments ...
    actor_square: Tensor  # ... and second ones
    critic_mean: Tensor
    critic_square: Tensor
    updates: Tensor  # [], int64, of the critics
    actor_updates: Tensor  # [], int64


S = TypeVar("S", bound=DeterministicSettings)


class TwinDelayed(ActorCritic[S]):
    """The update of TD3, of which DDPG's is a special case.

    Attributes
    ----------
    policy_delay
        Updates of the critics for each update of the actor and of the target networks.
    target_policy_noise, target_noise_clip
        Standard deviation of the noise on the target's actions, and the size at which it is clipped.
    """

    head = DETERMINISTIC
    metrics: ClassVar[tuple[str, ...]] = (
        "critic_loss",  # sum over critics of the mean squared TD error (that of SAC is half)
        "actor_loss",  # minus the mean of the first critic's Q; not measured by an update of the critics alone
        "q_value",  # mean over batch and critics of Q(obs, action)
    )
    checks: ClassVar[tuple[str, ...]] = ("critic_loss", "critic gradient", "actor_loss", "actor gradient")

    policy_delay = 1
    target_policy_noise = 0.0
    target_noise_clip = 0.0

    @property
    def exploration(self) -> dict[str, float]:
        """Samplers add noise to the actions."""
        return {"exploration_noise": self.settings.exploration_noise}

    # -- the losses ------------------------------------------------------------------------------------------------

    def action(self, actor: Tensor, obs: Tensor) -> Tensor:
        """Actions [batch, action_dim]."""
        return torch.tanh(self.actor(actor, obs))

    def td_target(self, target_actor: Tensor, target_critic: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        """Clipped double Q target r + discount * min Q'(s', a'), with a' smoothed by clipped noise: [batch]."""
        size = self.target_noise_clip
        smoothing = (self.target_policy_noise * noise[: len(batch.next_obs)]).clamp(-size, size)
        next_action = (self.action(target_actor, batch.next_obs) + smoothing).clamp(-1.0, 1.0)
        next_q = self.target_q(target_critic, batch.next_obs, next_action, noise)
        return batch.reward + batch.discount * next_q

    def critic_loss(self, critic: Tensor, td_target: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Squared TD error, summed over critics; the target is a constant. Also gives Q [critics, batch]."""
        q = self.q_values(critic, batch.obs, batch.action)
        return mean_square(q - td_target, batch.weight), q

    def actor_loss(self, actor: Tensor, critic: Tensor, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Minus Q of the first critic for the actor's actions: the deterministic policy gradient. Also gives Q."""
        q = self.q_values(critic, obs, self.action(actor, obs), first=1)
        return -q.mean(), q

    # -- one update ------------------------------------------------------------------------------------------------

    @property
    def cycle(self) -> tuple[str, ...]:
        """The actor's turn comes with the last of `policy_delay` updates."""
        return (*[CRITIC] * (self.policy_delay - 1), WHOLE)

    @property
    def sides(self) -> tuple[Side, Side]:
        """The critics need the actor's target network only, which the actor's side moves."""
        between = self.policy_delay - 1
        critic = "critic", "target_critic", "critic_mean", "critic_square", "updates"
        actor = "actor", "target_actor", "actor_mean", "actor_square", "actor_updates"
        return (
            Side("critic", (*[CRITIC] * between, CRITIC_TARGET), critic, ("critic",)),
            Side("actor", (*[None] * between, ACTOR), actor, ("target_actor",)),
        )

    def update(self, state: Td3State, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str = WHOLE) -> Outcome:
        """Critics; with `kind` WHOLE then also actor and target networks. `noise` is as `noise_shape` says."""
        s = new = state
        metrics: dict[str, Tensor] = {}
        checks: dict[str, Tensor] = {}  # a sum of squares overflows exactly where Adam's second moment would
        td_errors = None

        # Gradients are taken with respect to the first argument alone: the target of the critics, and the critics
        # inside the actor's loss, are constants.
        if kind != ACTOR:
            td_target = self.td_target(s.target_actor, s.target_critic, batch, noise)
            grad, loss, q = gradient(self.critic_loss, s.critic, td_target, batch)
            step = s.updates + 1
            new = trained(new, "critic", grad, step, learning_rate)._replace(updates=step)
            if kind != CRITIC:
                new = new._replace(target_critic=polyak(s.target_critic, new.critic, self.settings.tau))
            metrics |= {"critic_loss": loss, "q_value": q.mean()}
            checks |= {"critic_loss": loss, "critic gradient": grad.square().sum()}
            td_errors = None if batch.weight is None else (q - td_target).abs().mean(0)

        if kind in (ACTOR, WHOLE):
            grad, loss, _ = gradient(self.actor_loss, s.actor, new.critic, batch.obs)
            step = s.actor_updates + 1
            new = trained(new, "actor", grad, step, learning_rate)._replace(actor_updates=step)
            new = new._replace(target_actor=polyak(s.target_actor, new.actor, self.settings.tau))
            metrics |= {"actor_loss": loss}
            checks |= {"actor_loss": loss, "actor gradient": grad.square().sum()}

        return self.outcome(new, metrics, checks, td_errors)

    # -- state -----------------------------------------------------------------------------------------------------

    def init(self, generator: torch.Generator, dtype: torch.dtype | None = None) -> Td3State:
        """Fresh state on the CPU; the target networks equal the others."""
        actor, critic = self.actor.init(generator, dtype), self.critic.init(generator, dtype)
        return Td3State(
            actor=actor,
            critic=critic,
            target_actor=actor.clone(),
            target_critic=critic.clone(),
            actor_mean=torch.zeros_like(actor),
            actor_square=torch.zeros_like(actor),
            critic_mean=torch.zeros_like(critic),
            critic_square=torch.zeros_like(critic),
            updates=torch.zeros((), dtype=torch.int64),
            actor_updates=torch.zeros((), dtype=torch.int64),
        )

    def noise_shape(self, batch_size: int) -> tuple[int, ...]:
        """[batch (and the rows that choose target critics), action_dim]: for the target's actions."""
        return (self.noise_rows(batch_size), self.spaces.action_dim)


class Td3(TwinDelayed[Td3Settings]):
    """TD3 for Box actions in [-1, 1]; the target is the minimum of the critics."""

    Settings = Td3Settings

    def __init__(self, settings: Td3Settings, spaces: EnvSpec) -> None:
        super().__init__(settings, spaces)
        self.policy_delay = settings.policy_delay
        self.target_policy_noise = settings.target_policy_noise
        self.target_noise_clip = settings.target_noise_clip
