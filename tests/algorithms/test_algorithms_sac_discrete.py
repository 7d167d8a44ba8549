"""SAC for one choice among several against a plain float64 implementation that sums over the choices one by one."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlz.algorithms.base import Batch
from rlz.algorithms.sac import SacState
from rlz.algorithms.sac_discrete import SacDiscrete
from rlz.errors import EnvError
from support.algorithms import made
from support.updates import FLOAT, HIDDEN, OBS, RATE, SIZE, Plain, farthest, flatten, generator, make_batch, noises

CHOICES = 4


def make(kind: type[SacDiscrete] = SacDiscrete, **values: Any) -> SacDiscrete:
    settings = {"hidden": HIDDEN, "activation": "tanh", "tau": 0.1, "ent_coef": "auto_0.5", "choices": (CHOICES,)}
    return made(kind, OBS, 1, **{**settings, **values})


class PlainSac(Plain):
    """With modules, backward and torch.optim; each expectation is a sum over the choices."""

    def __init__(self, sac: SacDiscrete, state: SacState) -> None:
        super().__init__(sac, state)
        self.sac = sac
        self.log_alpha = state.log_alpha.clone().requires_grad_()
        self.alpha_optimiser = torch.optim.Adam([self.log_alpha], lr=float(RATE))

    def expected(self, obs: Tensor, value: Any) -> Tensor:
        """Of value(choice, log pi(choice)), for each row."""
        rows = []
        for row in range(SIZE):
            drawn = torch.distributions.Categorical(logits=self.actor(obs[row]))
            parts = [(drawn.probs[a], value(row, a, drawn.logits[a])) for a in range(CHOICES)]
            rows.append(sum(prob * found for prob, found in parts))
        return torch.stack(rows)

    def train(self, batch: Batch, noise: Tensor) -> dict[str, float]:
        drawn = noise[0, SIZE:].flatten().tolist()
        learned = self.sac.settings.learns_ent_coef
        alpha = self.log_alpha.detach().exp() if learned else torch.tensor(self.sac.settings.ent_coef, dtype=FLOAT)
        with torch.no_grad():
            following = [critic(batch.next_obs) for critic in self.target_critics]
            if drawn:  # REDQ
                best = sorted(range(len(following)), key=lambda k: -drawn[k])[: self.sac.target_critics]
                following = [following[k] for k in best]
            soft = self.expected(batch.next_obs, lambda row, a, lp: min(q[row, a] for q in following) - alpha * lp)
            y = batch.reward + batch.discount * soft
            entropy = -self.expected(batch.obs, lambda row, a, lp: lp)
        chosen = [q(batch.obs)[torch.arange(SIZE), batch.action[:, 0]] for q in self.critics]
        weight = torch.ones(SIZE, dtype=FLOAT) if batch.weight is None else batch.weight
        critic_loss = 0.5 * sum((weight * (q - y) ** 2).mean() for q in chosen)
        self.step(self.critic_optimiser, critic_loss)
        with torch.no_grad():
            present = torch.stack([critic(batch.obs) for critic in self.critics])
        q = present.mean(0) if drawn else present.min(0).values
        actor_loss = self.expected(batch.obs, lambda row, a, lp: alpha * lp - q[row, a]).mean()
        self.step(self.actor_optimiser, actor_loss)
        alpha_loss = -(self.log_alpha * (self.sac.target_entropy - entropy)).mean()
        if learned:
            self.step(self.alpha_optimiser, alpha_loss)
        for critic, target in zip(self.critics, self.target_critics, strict=True):
            self.follow(target, critic, self.sac.settings.tau)
        return {
            "critic_loss": critic_loss.item(), "actor_loss": actor_loss.item(), "ent_coef": alpha.item(),
            "entropy": entropy.mean().item(),
        }  # fmt: skip


def distance_to_plain(sac: SacDiscrete, reference: SacDiscrete, *, weights: bool = False) -> float:
    """Largest difference of any parameter after some updates."""
    state = sac.init(generator(3), FLOAT)
    plain = PlainSac(reference, state)
    for index, noise in enumerate(noises(sac, 4)):
        batch = make_batch(seed=index, weights=weights, choices=CHOICES)
        with torch.no_grad():
            state, metrics, *_ = sac.update(state, batch, noise, RATE)
        expected = plain.train(batch, noise)
        if type(sac) is SacDiscrete:
            found = dict(zip(sac.metrics, metrics.tolist(), strict=True))
            assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    return farthest(
        [
            (state.actor, flatten(plain.actor)),
            (state.critic, flatten(*plain.critics)),
            (state.target_critic, flatten(*plain.target_critics)),
            (state.log_alpha, plain.log_alpha.detach()),
        ]
    )


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("options", [{}, {"ent_coef": 0.3}, {"n_critics": 3, "target_critics": 2}, {"n_critics": 1}])
def test_updates_equal_sums_over_the_choices(options: dict[str, Any], weights: bool) -> None:
    sac = make(**options)
    assert distance_to_plain(sac, sac, weights=weights) < 1e-10


class NoEntropyInTarget(SacDiscrete):
    def td_target(self, actor: Tensor, target_critic: Tensor, alpha: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        return super().td_target(actor, target_critic, 0.0 * alpha, batch, noise)


class BestInsteadOfMean(SacDiscrete):
    def td_target(self, actor: Tensor, target_critic: Tensor, alpha: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        q = self.least(self.critic(target_critic, batch.next_obs), noise)
        return batch.reward + batch.discount * q.amax(1)


@pytest.mark.parametrize("kind", [NoEntropyInTarget, BestInsteadOfMean])
def test_mistakes_show(kind: type[SacDiscrete]) -> None:
    assert distance_to_plain(make(kind), make()) > 1e-6


def test_the_temperature_aims_below_the_entropy_of_a_uniform_choice() -> None:
    assert make().target_entropy == pytest.approx(0.98 * math.log(CHOICES))
    assert make(target_entropy=0.3).target_entropy == 0.3


def test_other_actions_are_refused() -> None:
    with pytest.raises(EnvError, match="sac-discrete needs one choice"):
        make(choices=(3, 2))
    with pytest.raises(EnvError, match="sac-discrete needs one choice"):
        make(choices=())
