"""Deep Q-learning (Mnih et al. 2015, Nature 518), with the parts of Rainbow that pay on vectors as options.

Defaults and order of work are those of Stable-Baselines3: Huber loss, gradients clipped to a norm, one update in four
env steps, the network copied to the target network at an interval. Options: double Q-learning (van Hasselt et al.
2016), a dueling network (Wang et al. 2016), n-step rows, prioritised replay (Schaul et al. 2016), a soft target (tau),
and an epsilon for each environment as in Ape-X (Horgan et al. 2018).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from rlz.algorithms.actor_critic import trained
from rlz.algorithms.base import WHOLE, Algorithm, Batch, Outcome
from rlz.algorithms.optim import clipped, gradient, polyak
from rlz.algorithms.settings import NetworkSettings, ReplaySettings, Widths
from rlz.answers import PolicySpec
from rlz.lazy import Lazy
from rlz.networks.q_network import QNetwork
from rlz.networks.spec import EPSILON_GREEDY
from rlz.options import Integer, Number, Panel, changed, option

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from rlz.envs.spaces import EnvSpec
else:
    torch, F = Lazy("torch"), Lazy("torch.nn.functional")


class DqnSettings(ReplaySettings, NetworkSettings):
    """Defaults are those of Stable-Baselines3."""

    batch_size: int | str = changed(ReplaySettings, "batch_size", 32)
    learning_rate: float | str = changed(
        ReplaySettings,
        "learning_rate",
        1e-4,
        help="Of the network; lin_1e-4 falls linearly to 0 over the run.",
        shown="1e-4",
    )
    replay_ratio: float | str = changed(ReplaySettings, "replay_ratio", 0.25)
    double: bool = option(False, help="The network chooses the next action of a target, the target network values it.")
    target_every: Integer = option(
        2500, help="Updates between two moves of the target network.", metavar="UPDATES", ge=1, le=2**40
    )
    tau: Number = option(
        1.0, shown="1", help="Step of the target network towards the network; 1 copies it.", metavar="T", gt=0, le=1
    )
    max_grad_norm: Number = option(
        10.0, shown="10", help="Gradients are scaled down to this norm.", metavar="NORM", gt=0, le=1e9
    )
    exploration_initial_eps: Number = option(
        1.0, shown="1", help="Probability of a uniform choice at first.", metavar="P", ge=0, le=1
    )
    exploration_final_eps: Number = option(0.05, help="The same when it has fallen.", metavar="P", ge=0, le=1)
    exploration_fraction: Number = option(
        0.1, help="Part of the run's env steps during which it falls, linearly.", metavar="PART", ge=0, le=1
    )
    exploration_spread: Number = option(
        0.0,
        shown="0",
        help="Environment i of n uses it to the power 1 + SPREAD i / (n - 1). Ape-X: 7, with both probabilities 0.4.",
        metavar="SPREAD",
        ge=0,
        le=1000,
    )
    hidden: Widths = changed(NetworkSettings, "hidden", (64, 64), help="Widths of the hidden layers.", shown="64,64")
    dueling: bool = option(
        False, panel=Panel.NETWORK, help="A network for the advantages of the choices, another for the state's value."
    )


class DqnState(NamedTuple):
    """Everything an update reads and writes."""

    q: Tensor  # [q.numel]
    target_q: Tensor  # [q.numel], earlier or slow copy of the network
    q_mean: Tensor  # Adam's first moments ...
    q_square: Tensor  # ... and second ones
    updates: Tensor  # [], int64


class Dqn(Algorithm[DqnSettings]):
    """DQN for one choice among several (Discrete)."""

    Settings = DqnSettings
    metrics: ClassVar[tuple[str, ...]] = (
        "loss",  # mean Huber loss of the TD error
        "q_value",  # mean over the batch of Q(obs, action)
    )
    checks: ClassVar[tuple[str, ...]] = ("loss", "gradient")

    def __init__(self, settings: DqnSettings, spaces: EnvSpec) -> None:
        super().__init__(settings, spaces)
        spaces.require_one_choice(type(self).__name__.lower())
        name = "advantage" if settings.dueling else "q"
        network = settings.make_network(name, spaces.obs_dim, spaces.action_choices[0])
        self.q = QNetwork("q", network, replace(network, name="value", outputs=1) if settings.dueling else None)

    def policy(self) -> PolicySpec:
        """What ranks the choices: the network, or that of the advantages."""
        from rlz.acting.rules import policy_of  # numpy: no part of what prints options

        s = self.settings
        epsilon = {"start": s.exploration_initial_eps, "end": s.exploration_final_eps}
        epsilon |= {"over": s.exploration_fraction, "spread": s.exploration_spread}
        return policy_of(self.q.advantage, self.spaces, EPSILON_GREEDY, epsilon)

    def memory(self, rows: int) -> int:
        """Bytes of the state and of an update of so many rows: gradient, two moments, target; every hidden value."""
        streams = 2 if self.settings.dueling else 1
        return 4 * (5 * self.q.numel + rows * streams * sum(self.settings.hidden))

    def in_precision(self, precision: str) -> Self:
        """The same algorithm with its matrix products in "fp32" or "bf16"."""
        other = type(self)(self.settings, self.spaces)
        other.q = self.q.in_precision(precision)
        return other

    # -- the loss --------------------------------------------------------------------------------------------------

    def td_target(self, q: Tensor, target_q: Tensor, batch: Batch) -> Tensor:
        """R + discount * Q'(s', a'): [batch]; a' is the best by Q', with `double` by Q."""
        next_q = self.q(target_q, batch.next_obs)
        if not self.settings.double:
            return batch.reward + batch.discount * next_q.amax(1)
        best = self.q(q, batch.next_obs).argmax(1, keepdim=True)
        return batch.reward + batch.discount * next_q.gather(1, best).squeeze(1)

    def loss(self, q: Tensor, td_target: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Huber loss of the TD error; the target is a constant. Also gives Q [batch].

        With importance weights the weighted mean (arXiv 1511.05952, section 3.4).
        """
        values = self.q(q, batch.obs).gather(1, batch.action.long()).squeeze(1)
        losses = F.smooth_l1_loss(values, td_target, reduction="none")
        return (losses if batch.weight is None else batch.weight * losses).mean(), values

    # -- one update ------------------------------------------------------------------------------------------------

    def update(self, state: DqnState, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str = WHOLE) -> Outcome:
        """The network; in every `target_every`-th update then the target network. `noise` is not used."""
        s = state
        td_target = self.td_target(s.q, s.target_q, batch)
        grad, loss, q = gradient(self.loss, s.q, td_target, batch)
        step = s.updates + 1
        new = trained(s, "q", clipped(grad, self.settings.max_grad_norm), step, learning_rate)._replace(updates=step)
        # A kind of its own for the updates that move the target would need a cycle of thousands.
        target = new.q if self.settings.tau == 1.0 else polyak(s.target_q, new.q, self.settings.tau)
        new = new._replace(target_q=torch.where(step % self.settings.target_every == 0, target, s.target_q))
        checks = {"loss": loss, "gradient": grad.square().sum()}
        td_errors = None if batch.weight is None else (q - td_target).abs()
        return self.outcome(new, {"loss": loss, "q_value": q.mean()}, checks, td_errors)

    # -- state -----------------------------------------------------------------------------------------------------

    def init(self, generator: torch.Generator, dtype: torch.dtype | None = None) -> DqnState:
        """Fresh state on the CPU; the target network equals the network."""
        q = self.q.init(generator, dtype)
        moments = torch.zeros_like(q), torch.zeros_like(q)
        return DqnState(q, q.clone(), *moments, torch.zeros((), dtype=torch.int64))

    def noise_shape(self, batch_size: int) -> tuple[int, ...]:
        """None: an update draws nothing."""
        return (0,)

    def published(self, state: DqnState) -> Tensor:
        """Flat network of the policy."""
        return state.q[: self.q.advantage.numel]
