"""SAC against a plain float64 implementation in the manner of Stable-Baselines3, and controls that must fail."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from rlz.algorithms.base import WHOLE, Batch
from rlz.algorithms.optim import adam, gradient, polyak
from rlz.algorithms.sac import Sac, SacSettings, SacState
from support.algorithms import made
from support.updates import (
    ACTION,
    FLOAT,
    HIDDEN,
    OBS,
    RATE,
    SIZE,
    Plain,
    farthest,
    flatten,
    generator,
    make_batch,
    noises,
)


def make_sac(
    kind: type[Sac] = Sac, *, members: int = 2, learn: bool = True, ent_coef: float = 0.5, drawn: int | None = None
) -> Sac:
    temperature: Any = f"auto_{ent_coef}" if learn else ent_coef
    settings = {"hidden": HIDDEN, "activation": "tanh", "n_critics": members, "tau": 0.1, "ent_coef": temperature}
    settings["target_critics"] = drawn
    return made(kind, OBS, ACTION, **settings)


class PlainSac(Plain):
    """SAC with modules, backward and torch.optim, as SB3's `train` does it."""

    def __init__(self, sac: Sac, state: SacState) -> None:
        super().__init__(sac, state)
        self.sac = sac
        self.log_alpha = state.log_alpha.clone().requires_grad_()
        self.alpha_optimiser = torch.optim.Adam([self.log_alpha], lr=float(RATE))

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        u = mean + normal.stddev * noise
        action = torch.tanh(u)
        return action, (normal.log_prob(u) - torch.log(1 - action.square())).sum(-1)

    def train(self, batch: Batch, noise: Tensor) -> dict[str, float]:
        rest, noise = noise[0, len(batch.obs) :].flatten().tolist(), noise[:, : len(batch.obs)]
        action, log_prob = self.act(batch.obs, noise[1])
        alpha = (
            self.log_alpha.detach().exp()
            if self.sac.settings.learns_ent_coef
            else torch.tensor(self.sac.settings.ent_coef)
        )
        alpha_loss = -(self.log_alpha * (log_prob + self.sac.target_entropy).detach()).mean()
        with torch.no_grad():
            next_action, next_log_prob = self.act(batch.next_obs, noise[0])
            next_q = torch.stack([self.q(target, batch.next_obs, next_action) for target in self.target_critics])
            if rest:  # REDQ
                numbers = range(len(self.critics))
                next_q = next_q[sorted(numbers, key=lambda number: -rest[number])[: self.sac.target_critics]]
            y = batch.reward + batch.discount * (next_q.min(0).values - alpha * next_log_prob)
        critic_loss = 0.5 * sum(
            nn.functional.mse_loss(self.q(critic, batch.obs, batch.action), y) for critic in self.critics
        )
        self.step(self.critic_optimiser, critic_loss)
        q = torch.stack([self.q(critic, batch.obs, action) for critic in self.critics])
        q = q.mean(0) if rest else q.min(0).values
        actor_loss = (alpha * log_prob - q).mean()
        self.step(self.actor_optimiser, actor_loss)
        if self.sac.settings.learns_ent_coef:
            self.step(self.alpha_optimiser, alpha_loss)
        for critic, target in zip(self.critics, self.target_critics, strict=True):
            self.follow(target, critic, self.sac.settings.tau)
        return {"critic_loss": critic_loss.item(), "actor_loss": actor_loss.item(), "ent_coef": alpha.item()}


def distance_to_plain(sac: Sac, plain_sac: Sac, updates: int = 4) -> float:
    """Largest difference of any parameter after some updates."""
    state = sac.init(generator(3), FLOAT)
    plain = PlainSac(plain_sac, state)
    for index, noise in enumerate(noises(sac, updates)):
        batch = make_batch(seed=index)
        with torch.no_grad():
            state, metrics, *_ = sac.update(state, batch, noise, RATE)
        expected = plain.train(batch, noise)
        found = dict(zip(sac.metrics, metrics.tolist(), strict=True))
        if type(sac) is Sac:
            assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    return farthest(
        [
            (state.actor, flatten(plain.actor)),
            (state.critic, flatten(*plain.critics)),
            (state.target_critic, flatten(*plain.target_critics)),
            (state.log_alpha, plain.log_alpha.detach()),
        ]
    )


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("learn", [True, False])
def test_updates_equal_a_plain_implementation(members: int, learn: bool) -> None:
    sac = make_sac(members=members, learn=learn)
    assert distance_to_plain(sac, sac) < 1e-10


@pytest.mark.parametrize(("members", "drawn"), [(5, 2), (3, 1), (3, 3)])
def test_targets_of_drawn_critics_equal_a_plain_implementation(members: int, drawn: int) -> None:
    sac = make_sac(members=members, drawn=drawn)
    assert distance_to_plain(sac, sac) < 1e-10


def test_every_critic_is_drawn_as_often_as_any_other() -> None:
    sac = make_sac(members=5, drawn=2)
    critic = sac.critic.init(generator(1), FLOAT)
    # Critics of constant value 0, 1, ... so that the target's minimum tells which was drawn.
    critic.zero_()
    sac.critic.named(critic)["critic.head.bias"][:, 0] = torch.arange(5.0)
    batch, draw = make_batch(), generator(2)
    counts = [0] * 5
    for _ in range(2000):
        noise = torch.randn(sac.noise_shape(SIZE), generator=draw, dtype=FLOAT)[0]
        counts[int(sac.target_q(critic, batch.obs, batch.action, noise)[0])] += 1
    # The smallest of two of five is k with probability (4 - k) / 10.
    assert [count / 2000 for count in counts] == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0], abs=0.05)


class TargetNotConstant(Sac):
    """The target is differentiated through a shared network: the stop-gradient is missing."""

    def critic_loss(self, critic: Tensor, td_target: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        q = self.q_values(critic, batch.obs, batch.action)
        leaky = td_target + self.q_values(critic, batch.next_obs, batch.action).amin(0)
        leaky = leaky - self.q_values(critic, batch.next_obs, batch.action).amin(0).detach()
        return 0.5 * (q - leaky).square().mean(1).sum(), q.detach()


class WrongEntropySign(Sac):
    def td_target(self, actor: Tensor, target: Tensor, alpha: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        return super().td_target(actor, target, -alpha, batch, noise)


class WrongTemperatureSign(Sac):
    def ent_coef_loss(self, log_alpha: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
        loss, entropy = super().ent_coef_loss(log_alpha, log_prob)
        return -loss, entropy


class IgnoresTermination(Sac):
    def td_target(self, actor: Tensor, target: Tensor, alpha: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        batch = batch._replace(discount=torch.full_like(batch.discount, 0.9))
        return super().td_target(actor, target, alpha, batch, noise)


class ActorBeforeCritic(Sac):
    """The actor's loss sees the critics from before their step."""

    def update(self, state, batch, noise, learning_rate, kind=WHOLE):  # type: ignore[no-untyped-def]
        outcome = super().update(state, batch, noise, learning_rate, kind)
        alpha = state.log_alpha.exp()
        slope, _, _ = gradient(self.actor_loss, state.actor, state.critic, alpha, batch.obs, noise[1])
        step = outcome.state.updates
        actor = adam(state.actor, state.actor_mean, state.actor_square, slope, step, learning_rate)
        new = outcome.state._replace(actor=actor.parameters, actor_mean=actor.mean, actor_square=actor.square)
        return outcome._replace(state=new)


@pytest.mark.parametrize(
    "wrong", [TargetNotConstant, WrongEntropySign, WrongTemperatureSign, IgnoresTermination, ActorBeforeCritic]
)
def test_mistakes_are_seen(wrong: type[Sac]) -> None:
    assert distance_to_plain(make_sac(wrong), make_sac()) > 1e-5


def test_gradients_equal_finite_differences() -> None:
    sac, batch = make_sac(), make_batch()
    (noise,) = noises(sac, 1)
    state = sac.init(generator(4), FLOAT)
    alpha = state.log_alpha.exp()
    target = sac.td_target(state.actor, state.target_critic, alpha, batch, noise[0])
    losses: list[tuple[Callable[..., tuple[Tensor, Tensor]], Tensor, tuple[object, ...]]] = [
        (sac.critic_loss, state.critic, (target, batch)),
        (sac.actor_loss, state.actor, (state.critic, alpha, batch.obs, noise[1])),
    ]
    for loss, parameters, constants in losses:
        slope, _, _ = gradient(loss, parameters, *constants)
        for index in range(0, len(parameters), 17):
            shift = torch.zeros_like(parameters)
            shift[index] = 1e-6
            up, down = loss(parameters + shift, *constants)[0], loss(parameters - shift, *constants)[0]
            assert slope[index].item() == pytest.approx((up - down).item() / 2e-6, rel=1e-5, abs=1e-8)


def test_only_termination_stops_the_bootstrap() -> None:
    sac, batch = make_sac(), make_batch()
    (noise,) = noises(sac, 1)
    state = sac.init(generator(5), FLOAT)
    alpha = state.log_alpha.exp()
    ended = batch._replace(discount=torch.zeros(16, dtype=FLOAT))
    cut = batch._replace(discount=torch.full((16,), 0.9, dtype=FLOAT))
    torch.testing.assert_close(sac.td_target(state.actor, state.target_critic, alpha, ended, noise[0]), batch.reward)
    next_action, log_prob = sac.sample(state.actor, batch.next_obs, noise[0])
    value = sac.q_values(state.target_critic, batch.next_obs, next_action).amin(0) - alpha * log_prob
    torch.testing.assert_close(
        sac.td_target(state.actor, state.target_critic, alpha, cut, noise[0]), batch.reward + 0.9 * value
    )


def test_targets_move_by_tau_every_update() -> None:
    sac = make_sac()
    state = sac.init(generator(6), FLOAT)
    assert torch.equal(state.target_critic, state.critic)
    with torch.no_grad():
        for noise in noises(sac, 3):
            new = sac.update(state, make_batch(), noise, RATE).state
            torch.testing.assert_close(new.target_critic, polyak(state.target_critic, new.critic, 0.1))
            state = new
    assert state.updates.item() == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [("auto", (1.0, True)), ("auto_0.1", (0.1, True)), (0.2, (0.2, False)), ("0", (0.0, False))],
)
def test_ent_coef(text: str | float, expected: tuple[float, bool]) -> None:
    settings = SacSettings(ent_coef=text)
    assert (settings.first_ent_coef, settings.learns_ent_coef) == expected


@pytest.mark.parametrize("text", ["auto_0", "auto_x", "nan", -1.0])
def test_bad_ent_coef(text: str | float) -> None:
    with pytest.raises(ValidationError):
        SacSettings(ent_coef=text)


def test_importance_weights_count_in_the_critics_loss_alone() -> None:
    sac = make_sac()
    state = sac.init(generator(3), FLOAT)
    batch, (noise,) = make_batch(), noises(sac, 1)
    plain = sac.update(state, batch, noise, RATE)
    assert plain.td_errors is None
    ones = sac.update(state, batch._replace(weight=torch.ones_like(batch.reward)), noise, RATE)
    torch.testing.assert_close(tuple(ones.state), tuple(plain.state), rtol=0, atol=0)
    weight = torch.rand(len(batch.reward), generator=generator(4), dtype=FLOAT)
    found = sac.update(state, batch._replace(weight=weight), noise, RATE)

    alpha = state.log_alpha.exp()
    target = sac.td_target(state.actor, state.target_critic, alpha, batch, noise[0])
    errors = sac.q_values(state.critic, batch.obs, batch.action) - target
    names = sac.metrics
    assert float(found.metrics[names.index("critic_loss")]) == pytest.approx(
        sum(float((weight * error.square()).mean()) / 2 for error in errors), rel=1e-9
    )
    assert found.td_errors is not None
    torch.testing.assert_close(found.td_errors, errors.abs().mean(0))
    critic = found.state.critic
    slope, loss, _ = gradient(sac.actor_loss, state.actor, critic, alpha, batch.obs, noise[1])
    assert float(found.metrics[names.index("actor_loss")]) == pytest.approx(float(loss), rel=1e-9)
    torch.testing.assert_close(found.state.actor_mean, 0.1 * slope)
