"""DQN against a plain float64 implementation, and mistakes that must show."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlz.algorithms.base import WHOLE, Batch, Outcome
from rlz.algorithms.dqn import Dqn, DqnState
from rlz.algorithms.optim import clipped, gradient
from rlz.envs.spaces import EnvSpec
from rlz.errors import EnvError
from support.algorithms import made
from support.updates import FLOAT, OBS, RATE, SIZE, farthest, flatten, generator, make_batch, module

CHOICES = 4
UPDATES = 7


def make(kind: type[Dqn] = Dqn, **values: Any) -> Dqn:
    options = {"hidden": (8, 8), "activation": "tanh", "target_every": 3, "max_grad_norm": 0.1, **values}
    return made(kind, OBS, 1, choices=(CHOICES,), **options)


class Net(nn.Module):
    """Values by one network, or by two as in the dueling paper."""

    def __init__(self, dqn: Dqn, flat: Tensor) -> None:
        super().__init__()
        parts = flat.split([dqn.q.advantage.numel, 0 if dqn.q.value is None else dqn.q.value.numel])
        self.advantage = module(dqn.q.advantage, parts[0])
        self.value = None if dqn.q.value is None else module(dqn.q.value, parts[1])

    def forward(self, obs: Tensor) -> Tensor:
        advantage: Tensor = self.advantage(obs)
        if self.value is None:
            return advantage
        return torch.stack([self.value(row) + a - sum(a) / CHOICES for row, a in zip(obs, advantage, strict=True)])

    def flat(self) -> Tensor:
        parts = [self.advantage] if self.value is None else [self.advantage, self.value]
        return torch.cat([flatten(part) for part in parts])


def distance_to_plain(dqn: Dqn, reference: Dqn, *, weights: bool = False) -> float:
    """Largest difference of any parameter after some updates; `reference` has the constants of the plain form."""
    state = dqn.init(generator(3), FLOAT)
    state = state._replace(target_q=dqn.q.init(generator(4), FLOAT))  # so that the two rank differently
    net, target = Net(reference, state.q), Net(reference, state.target_q)
    optimiser = torch.optim.Adam(net.parameters(), lr=float(RATE))
    settings = reference.settings
    for index in range(UPDATES):
        batch = make_batch(seed=index, weights=weights, choices=CHOICES)
        batch = batch._replace(reward=3 * batch.reward)  # both parts of the Huber loss
        with torch.no_grad():
            outcome = dqn.update(state, batch, torch.zeros(0, dtype=FLOAT), RATE)
            state = outcome.state
            found = dict(zip(dqn.metrics, outcome.metrics.tolist(), strict=True))
            chosen = net(batch.next_obs) if settings.double else target(batch.next_obs)
            values = target(batch.next_obs)[torch.arange(SIZE), chosen.argmax(1)]
            y = batch.reward + batch.discount * values
        q = net(batch.obs)[torch.arange(SIZE), batch.action[:, 0]]
        losses = nn.functional.huber_loss(q, y, reduction="none")
        loss = (losses if batch.weight is None else batch.weight * losses).mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), settings.max_grad_norm)
        optimiser.step()
        if (index + 1) % settings.target_every == 0:
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
                    slow += settings.tau * (fast - slow)
        if type(dqn) is type(reference):
            assert found == pytest.approx({"loss": loss.item(), "q_value": q.mean().item()}, rel=1e-9)
            assert (outcome.td_errors is None) == (not weights)
            if outcome.td_errors is not None:
                torch.testing.assert_close(outcome.td_errors, (q - y).abs().detach())
    return farthest([(state.q, net.flat()), (state.target_q, target.flat())])


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_updates_equal_a_plain_implementation(double: bool, dueling: bool, tau: float, weights: bool) -> None:
    dqn = make(double=double, dueling=dueling, tau=tau)
    assert distance_to_plain(dqn, dqn, weights=weights) < 1e-10


@pytest.mark.parametrize(("hidden", "activation"), [((), "relu"), ((5, 3, 7), "silu")])
def test_updates_of_other_networks_equal_a_plain_implementation(hidden: tuple[int, ...], activation: str) -> None:
    dqn = make(hidden=hidden, activation=activation, layer_norm=True, dueling=True)
    assert distance_to_plain(dqn, dqn) < 1e-10


class TargetNotConstant(Dqn):
    """The stop-gradient of the target is missing."""

    def loss(self, q: Tensor, td_target: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        leak = self.q(q, batch.next_obs).amax(1)
        return super().loss(q, td_target + leak - leak.detach(), batch)


class WrongSignInTarget(Dqn):
    def td_target(self, q: Tensor, target_q: Tensor, batch: Batch) -> Tensor:
        return 2.0 * batch.reward - super().td_target(q, target_q, batch)


class IgnoresTermination(Dqn):
    def td_target(self, q: Tensor, target_q: Tensor, batch: Batch) -> Tensor:
        return super().td_target(q, target_q, batch._replace(discount=torch.full_like(batch.discount, 0.9)))


class DoubleTheWrongWay(Dqn):
    """The target network chooses, the network values."""

    def td_target(self, q: Tensor, target_q: Tensor, batch: Batch) -> Tensor:
        return super().td_target(target_q, q, batch)


class ValuesOfItself(Dqn):
    """No target network."""

    def td_target(self, q: Tensor, target_q: Tensor, batch: Batch) -> Tensor:
        return super().td_target(q, q, batch)


class SquaredLoss(Dqn):
    def loss(self, q: Tensor, td_target: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        values = self.q(q, batch.obs).gather(1, batch.action).squeeze(1)
        return 0.5 * (values - td_target).square().mean(), values


class MeanOfAllChoices(Dqn):
    """The loss sees every choice instead of the one that was taken."""

    def loss(self, q: Tensor, td_target: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        values = self.q(q, batch.obs).mean(1)
        return nn.functional.smooth_l1_loss(values, td_target), values


class NotClipped(Dqn):
    def __init__(self, settings: Any, spaces: EnvSpec) -> None:
        super().__init__(settings.model_copy(update={"max_grad_norm": 1e9}), spaces)


class TargetBeforeTheStep(Dqn):
    """The target network gets the network from before its step."""

    def update(self, state: DqnState, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str = WHOLE) -> Outcome:
        outcome = super().update(state, batch, noise, learning_rate, kind)
        moved = outcome.state.updates % self.settings.target_every == 0
        target = torch.where(moved, state.q, state.target_q)
        return outcome._replace(state=outcome.state._replace(target_q=target))


@pytest.mark.parametrize(
    "wrong",
    [
        *(TargetNotConstant, WrongSignInTarget, IgnoresTermination, DoubleTheWrongWay, ValuesOfItself, SquaredLoss),
        *(MeanOfAllChoices, NotClipped, TargetBeforeTheStep),
    ],
)
def test_mistakes_are_seen(wrong: type[Dqn]) -> None:
    assert distance_to_plain(make(wrong, double=True), make(double=True)) > 1e-5


@pytest.mark.parametrize("wrong", [{"double": False}, {"target_every": 4}, {"tau": 0.9}, {"max_grad_norm": 0.3}])
def test_wrong_constants_are_seen(wrong: dict[str, Any]) -> None:
    class Other(Dqn):
        pass

    assert distance_to_plain(make(Other, **{"double": True, **wrong}), make(double=True)) > 1e-5


def test_gradients_equal_finite_differences() -> None:
    dqn, batch = make(dueling=True), make_batch(choices=CHOICES, weights=True)
    state = dqn.init(generator(4), FLOAT)
    target = dqn.td_target(state.q, state.target_q, batch)
    slope, _, _ = gradient(dqn.loss, state.q, target, batch)
    for index in range(0, len(state.q), 17):
        shift = torch.zeros_like(state.q)
        shift[index] = 1e-6
        up, down = (dqn.loss(state.q + sign * shift, target, batch)[0] for sign in (1, -1))
        assert slope[index].item() == pytest.approx((up - down).item() / 2e-6, rel=1e-5, abs=1e-8)


def test_clipping_is_that_of_torch() -> None:
    for size in (0.1, 30.0):
        given = size * torch.randn(50, generator=generator(1), dtype=FLOAT)
        parameter = nn.Parameter(torch.zeros(50, dtype=FLOAT))
        parameter.grad = given.clone()
        nn.utils.clip_grad_norm_([parameter], 2.0)
        torch.testing.assert_close(clipped(given, 2.0), parameter.grad)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize(("discount_at_end", "value"), [(0.9, 10.0), (0.0, (1 - 0.9**10) / 0.1)])
def test_truncated_chain_has_the_value_of_an_endless_one(dueling: bool, discount_at_end: float, value: float) -> None:
    """A ring of 10 states, reward 1, gamma 0.9, learned from episodes of 10 steps; with a control."""
    dqn = made(Dqn, 10, 1, choices=(2,), hidden=(64,), target_every=5, max_grad_norm=100.0, dueling=dueling)
    state = dqn.init(generator(1))
    obs = torch.eye(10).repeat(10, 1)
    discount = torch.full((100,), 0.9)
    discount[9::10] = discount_at_end
    batch = Batch(obs, torch.zeros(100, 1, dtype=torch.int64), obs.roll(1, 1), torch.ones(100), discount)
    draw, rate = generator(2), torch.tensor(1e-2, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(1000):
            batch = batch._replace(action=torch.randint(2, (100, 1), generator=draw))
            state = dqn.update(state, batch, torch.zeros(0), rate).state
        assert dqn.q(state.q, obs[:1]).mean().item() == pytest.approx(value, abs=0.3)


def test_what_is_published_ranks_as_the_values_do() -> None:
    for dueling in (False, True):
        dqn = make(dueling=dueling)
        state = dqn.init(generator(1))
        obs = torch.randn(50, OBS, generator=generator(2))
        advantage = dqn.q.advantage(dqn.published(state), obs)
        assert torch.equal(advantage.argmax(1), dqn.q(state.q, obs).argmax(1))
        assert len(dqn.published(state)) == sum(torch.Size(shape).numel() for _, _, shape in dqn.policy().manifest)
        names = dqn.state_dict(state)
        first = "advantage" if dueling else "q"
        assert {f"{first}.0.weight", f"target.{first}.head.bias", f"adam.square.{first}.0.bias"} <= names.keys()
        assert sum(t.numel() for t in names.values()) == sum(t.numel() for t in state)


@pytest.mark.parametrize(
    ("spaces", "words"),
    [
        (EnvSpec.of_sizes(3, 2), r"the action_space Box of shape \(2,\); dqn needs one choice"),
        (EnvSpec.of_sizes(3, choices=(2, 3)), r"MultiDiscrete\(\[2, 3\]\); dqn needs one choice \(Discrete\)"),
    ],
)
def test_other_actions_are_refused(spaces: EnvSpec, words: str) -> None:
    with pytest.raises(EnvError, match=words):
        Dqn(Dqn.Settings(), spaces)
