"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) with a clipped objective.

The implementation details that matter are those of Huang et al. 2022 ("The 37 implementation details of proximal policy
optimization"), numbered (13 for all, 9 for continuous actions); defaults and formulas are those of Stable-Baselines3:

- 1 vectorised environments: a rollout has `n_steps` of each;  2 orthogonal initialisation, biases 0 (`PolicyValue`);
- 3 Adam with epsilon 1e-5;  4 the learning rate may fall linearly (lin_3e-4), as may the clip range;
- 5 generalised advantage estimates, with the value of the true final observation where an episode was truncated;
- 6 minibatches of a shuffled rollout, another order in each epoch;  7 advantages are normalised in each;
- 8 the clipped objective;  9 the value's loss may be clipped (off, as it brings nothing);
- 10 one loss: objective, entropy bonus, value;  11 the norm of all gradients together is clipped at 0.5;
- 12 approximate KL divergence ((r - 1) - log r) and clip fraction are measured, and a target ends a rollout's updates;
- 13 policy and value have networks of their own, or share one;
- continuous: 1 a Gaussian whose mean depends on the observation;  2 log_std does not;  3 components are independent;
  4 as 13 above;  5 the environment gets the action clipped to its bounds, the rollout keeps it as it was drawn;
  6-9 observations and rewards are normalised and clipped by --normalize-obs and --normalize-reward
  (`rlz.learning.normalizer`). Deviations are in units of half of an action's range.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import BeforeValidator

from rlz.algorithms.base import WHOLE, Algorithm, Outcome, Segments
from rlz.algorithms.optim import adam, clipped, gradient
from rlz.algorithms.returns import gae
from rlz.algorithms.settings import NetworkSettings, RolloutSettings, Widths, scheduled
from rlz.answers import Field, PolicySpec
from rlz.lazy import Lazy
from rlz.networks.distributions import categorical, gaussian
from rlz.networks.policy_value import PolicyValue
from rlz.networks.spec import CATEGORICAL, GAUSSIAN, Values, head_outputs
from rlz.options import Number, Panel, changed, option, values

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlz.envs.spaces import EnvSpec
else:
    torch = Lazy("torch")

ADAM_EPS = 1e-5


class PpoSettings(RolloutSettings, NetworkSettings):
    """Defaults are those of Stable-Baselines3."""

    gae_lambda: Number = option(
        0.95, help="Of the advantages: 0 trusts the values, 1 the rewards of the rollout.", metavar="L", ge=0, le=1
    )
    clip_range: Annotated[float | str, BeforeValidator(values.learning_rate)] = option(
        0.2,
        help="Of the probability ratio; lin_0.2 falls linearly to 0 over the run.",
        metavar="R|lin_R",
        expects="a number above 0 and at most 1, or lin_ before such a number (linear to 0 over the run)",
    )
    clip_range_vf: Number | None = option(
        None, help="Values move so far from those of the rollout at most.", metavar="R", shown="any", gt=0, le=1e9
    )
    normalize_advantage: bool = option(True, help="Advantages of each update have mean 0 and deviation 1.")
    ent_coef: Number = option(0.0, help="Weight of the entropy bonus.", metavar="X", ge=0, le=1e6)
    vf_coef: Number = option(0.5, help="Weight of the value's loss.", metavar="X", ge=0, le=1e6)
    max_grad_norm: Number = option(0.5, help="Gradients are scaled down to this norm.", metavar="X", gt=0, le=1e9)
    target_kl: Number | None = option(
        None,
        help="A rollout makes no more updates once its policy is 1.5 times as far from the one that acted.",
        metavar="KL",
        shown="none",
        gt=0,
        le=1e6,
    )
    hidden: Widths = changed(
        NetworkSettings, "hidden", (64, 64), help="Widths of the hidden layers of policy and value.", shown="64,64"
    )
    activation: Literal["relu", "tanh", "silu", "elu"] = changed(NetworkSettings, "activation", "tanh")
    shared_network: bool = option(False, panel=Panel.NETWORK, help="Policy and value have all hidden layers in common.")
    ortho_init: bool = option(
        True, panel=Panel.NETWORK, help="Orthogonal first weights; else those of torch.nn.Linear."
    )
    log_std_init: Number = option(
        0.0,
        panel=Panel.NETWORK,
        help="First log standard deviations of a Box's actions, in units of half of their range.",
        metavar="X",
        ge=-20,
        le=2,
    )


class PpoRows(NamedTuple):
    """Steps of a rollout, one per row."""

    obs: Tensor  # [rows, obs_dim]
    action: Tensor  # [rows, action_dim], as it was drawn; choices are int64
    log_prob: Tensor  # [rows], of the policy that the update moves away from
    advantage: Tensor  # [rows]
    target: Tensor  # [rows], of the value
    value: Tensor  # [rows], before the first update
    clip_range: Tensor  # [rows], all alike
    rollout: Tensor  # [rows], int64, all alike: updates before this rollout, which tell it from others

    def tensors(self) -> tuple[Tensor, ...]:
        """Every field."""
        return tuple(self)


class PpoState(NamedTuple):
    """Everything that an update reads and writes."""

    net: Tensor
    net_mean: Tensor
    net_square: Tensor
    updates: Tensor  # [], int64
    steps: Tensor  # [], int64: updates that were not left out for the target KL
    stopped: Tensor  # [], int64: the rollout whose updates were, as in `PpoRows.rollout`; -1: none yet


S = TypeVar("S", bound=PpoSettings)


class Ppo(Algorithm[S]):
    """See the module's text.

    Attributes
    ----------
    net : layout of policy and value.
    choices : of each component of an action; none: a Gaussian.
    """

    Settings: ClassVar[type[PpoSettings]] = PpoSettings
    batch_type = PpoRows
    metrics = "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance"
    checks = "loss", "gradient"
    normalizes_batches: ClassVar[bool] = True
    """Advantages are normalised in each update; else in `prepare`."""

    def __init__(self, settings: S, spaces: EnvSpec) -> None:
        super().__init__(settings, spaces)
        self.choices = spaces.action_choices
        self.head = CATEGORICAL if self.choices else GAUSSIAN
        outputs = head_outputs(self.head, spaces.action_dim, self.choices)
        shared, make = settings.shared_network, settings.make_network
        self.net = PolicyValue(
            "net",
            make("actor", spaces.obs_dim, outputs + shared),
            None if shared else make("critic", spaces.obs_dim, 1),
            0 if self.choices else spaces.action_dim,
        )

    def policy(self) -> PolicySpec:
        """The policy. Values are the learner's own business: it has the newest network."""
        from rlz.acting.rules import policy_of  # numpy: no part of what prints options

        value: Values = "shared" if self.settings.shared_network else "none"
        kept: tuple[Field, ...] = (("log_prob", "f32", ()),)
        return policy_of(self.net.actor, self.spaces, self.head, value=value, extras=kept)

    def published(self, state: PpoState) -> Tensor:
        """The part that samplers need."""
        return state.net[: self.net.policy]

    def memory(self, rows: int) -> int:
        """Bytes of parameters, moments and gradients, and of the hidden values of an update."""
        return 4 * (4 * self.net.numel + rows * 2 * sum(self.settings.hidden))

    def in_precision(self, precision: str) -> Self:
        """The same algorithm with its matrix products in "fp32" or "bf16"."""
        other = copy.copy(self)
        other.net = self.net.in_precision(precision)
        return other

    # -- once per rollout ------------------------------------------------------------------------------------------

    def prepare(self, state: PpoState, segments: Segments, done: float) -> PpoRows:
        """Rows with generalised advantage estimates; the values are those of the network that the updates begin with.

        Where learning is synchronous it is the one that acted, so these are the values that it would have given then.
        """
        s = segments
        value, next_value = self.values(state.net, s)
        ends = s.terminated | s.truncated
        advantage = gae(s.reward, value, next_value, ends, self.settings.gamma, self.settings.gae_lambda)
        return self.rows(state, s, s.extras["log_prob"], advantage, advantage + value, value, done)

    def values(self, net: Tensor, s: Segments) -> tuple[Tensor, Tensor]:
        """Values of the observations and of the true next ones, 0 after a termination: [segments, length] each."""
        value = self.net.value(net, s.obs.flatten(0, 1)).view_as(s.reward)
        next_value = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], 1).masked_fill(s.terminated, 0.0)
        unknown = s.truncated.clone()
        unknown[:, -1] = True
        unknown &= ~s.terminated
        next_value[unknown] = self.net.value(net, s.next_obs[unknown])
        return value, next_value

    def rows(
        self,
        state: PpoState,
        s: Segments,
        log_prob: Tensor,
        advantage: Tensor,
        target: Tensor,
        value: Tensor,
        done: float,
    ) -> PpoRows:
        """One row of every step."""
        clip_range = torch.full_like(s.reward, scheduled(self.settings.clip_range, done))
        rollout = state.updates.expand_as(s.reward)
        columns = (s.obs, s.action, log_prob, advantage, target, value, clip_range, rollout)
        return PpoRows(*(column.flatten(0, 1) for column in columns))

    def log_prob(self, policy: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of actions [batch, action_dim], and the entropy of their distributions: [batch] each."""
        return categorical(policy, self.choices, action) if self.choices else gaussian(policy, log_std, action)

    # -- one update ------------------------------------------------------------------------------------------------

    def loss(self, net: Tensor, b: PpoRows) -> tuple[Tensor, Tensor]:
        """Objective (equation 9, to be minimised) of the flat parameters; the metrics in their order."""
        s = self.settings
        policy, log_std, value = self.net(net, b.obs)
        log_prob, entropy = self.log_prob(policy, log_std, b.action)
        advantage = b.advantage
        if s.normalize_advantage and self.normalizes_batches and len(advantage) > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_ratio = log_prob - b.log_prob
        ratio = log_ratio.exp()
        within = torch.clamp(ratio, 1.0 - b.clip_range, 1.0 + b.clip_range)
        policy_loss = -torch.minimum(advantage * ratio, advantage * within).mean()
        if s.clip_range_vf is not None:
            value = b.value + (value - b.value).clamp(-s.clip_range_vf, s.clip_range_vf)
        value_loss, entropy = (value - b.target).square().mean(), entropy.mean()
        measured = (
            policy_loss,
            value_loss,
            entropy,
            ((ratio - 1.0) - log_ratio).mean(),
            ((ratio - 1.0).abs() > b.clip_range).to(ratio.dtype).mean(),
            1.0 - (b.target - b.value).var() / b.target.var(),
        )
        return policy_loss - s.ent_coef * entropy + s.vf_coef * value_loss, torch.stack(measured).detach()

    def update(
        self, state: PpoState, batch: PpoRows, noise: Tensor, learning_rate: Tensor, kind: str = WHOLE
    ) -> Outcome:
        """One step of Adam on one minibatch."""
        grad, loss, measured = gradient(self.loss, state.net, batch)
        checks = {"loss": loss, "gradient": grad.square().sum()}
        step = state.steps + 1
        moved = adam(
            p=state.net,
            mean=state.net_mean,
            square=state.net_square,
            gradient=clipped(grad, self.settings.max_grad_norm),
            step=step,
            learning_rate=learning_rate,
            eps=ADAM_EPS,
        )
        new = PpoState(*moved, state.updates + 1, step, state.stopped)
        if self.settings.target_kl is not None:
            kl, rollout = measured[self.metrics.index("approx_kl")], batch.rollout[0]
            stopped = torch.where(kl > 1.5 * self.settings.target_kl, rollout, state.stopped)
            old, new = state._replace(updates=new.updates, stopped=stopped), new._replace(stopped=stopped)
            over = stopped == rollout
            new = PpoState(*(torch.where(over, before, after) for before, after in zip(old, new, strict=True)))
        return self.outcome(new, dict(zip(self.metrics, measured.unbind(), strict=True)), checks)

    # -- state -----------------------------------------------------------------------------------------------------

    def init(self, generator: torch.Generator, dtype: torch.dtype | None = None) -> PpoState:
        """Fresh state on the CPU."""
        s = self.settings
        net = self.net.init(generator, dtype, orthogonal=s.ortho_init, log_std=s.log_std_init)
        count = torch.zeros((), dtype=torch.int64)
        return PpoState(net, torch.zeros_like(net), torch.zeros_like(net), count, count.clone(), count - 1)

    def noise_shape(self, batch_size: int) -> tuple[int, ...]:
        """None is used; an update takes one number all the same."""
        return (1,)
