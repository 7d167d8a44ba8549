"""TD3 and DDPG against plain float64 implementations and brute force, and mistakes that must be seen."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from algorithm_tools import (
    ACTION,
    FLOAT,
    OBS,
    RATE,
    SIZE,
    Plain,
    farthest,
    flatten,
    generator,
    kinds,
    make_batch,
    noises,
)
from numpy.typing import NDArray
from torch import Tensor, nn

from rlz.algorithms.base import CRITIC, WHOLE, Batch, Outcome
from rlz.algorithms.ddpg import Ddpg
from rlz.algorithms.optim import adam, gradient, polyak
from rlz.algorithms.registry import DETERMINISTIC
from rlz.algorithms.td3 import Td3, Td3State
from rlz.networks import mlp


def make(
    kind: type[Td3] = Td3,
    *,
    members: int = 2,
    hidden: tuple[int, ...] = (8, 8),
    activation: str = "tanh",
    layer_norm: bool = False,
    **values: Any,
) -> Td3:
    sizes = OBS, ACTION, hidden, activation
    critic = mlp.critics(*sizes, layer_norm=layer_norm, members=members)
    actor = mlp.actor(*sizes, layer_norm=layer_norm, head=DETERMINISTIC)
    return kind(actor, critic, **{"tau": 0.1, **values})


class PlainTd3(Plain):
    """TD3 with modules, backward and torch.optim, as SB3's `train` does it."""

    def __init__(self, td3: Td3, state: Td3State) -> None:
        super().__init__(td3, state)
        self.td3 = td3
        self.count = 0

    def train(self, batch: Batch, noise: Tensor) -> dict[str, float]:
        td3 = self.td3
        self.count += 1
        with torch.no_grad():
            smoothing = (noise * td3.target_policy_noise).clip(-td3.target_noise_clip, td3.target_noise_clip)
            next_action = (torch.tanh(self.target_actor(batch.next_obs)) + smoothing).clip(-1, 1)
            next_q = torch.stack([self.q(target, batch.next_obs, next_action) for target in self.target_critics])
            y = batch.reward + batch.discount * next_q.min(0).values
        weight = 1.0 if batch.weight is None else batch.weight
        losses = [(weight * (self.q(c, batch.obs, batch.action) - y) ** 2).mean() for c in self.critics]
        self.step(self.critic_optimiser, sum(losses, torch.zeros((), dtype=FLOAT)))
        found = {"critic_loss": sum(loss.item() for loss in losses)}
        if self.count % td3.policy_delay == 0:
            actor_loss = -self.q(self.critics[0], batch.obs, torch.tanh(self.actor(batch.obs))).mean()
            self.step(self.actor_optimiser, actor_loss)
            self.follow(self.target_actor, self.actor, td3.tau)
            for critic, target in zip(self.critics, self.target_critics, strict=True):
                self.follow(target, critic, td3.tau)
            found["actor_loss"] = actor_loss.item()
        return found


class PlainDdpg(Plain):
    """DDPG straight from the paper's algorithm 1, with Adam."""

    def __init__(self, ddpg: Td3, state: Td3State) -> None:
        super().__init__(ddpg, state)
        self.tau = ddpg.tau

    def train(self, batch: Batch, noise: Tensor) -> dict[str, float]:
        (critic,), (target,) = self.critics, self.target_critics
        with torch.no_grad():
            y = batch.reward + batch.discount * self.q(target, batch.next_obs, self.target_actor(batch.next_obs).tanh())
        loss = nn.functional.mse_loss(self.q(critic, batch.obs, batch.action), y)
        self.step(self.critic_optimiser, loss)
        actor_loss = -self.q(critic, batch.obs, self.actor(batch.obs).tanh()).mean()
        self.step(self.actor_optimiser, actor_loss)
        self.follow(target, critic, self.tau)
        self.follow(self.target_actor, self.actor, self.tau)
        return {"critic_loss": loss.item(), "actor_loss": actor_loss.item()}


def distance_to_plain(
    algorithm: Td3, reference: Td3, plain: type[PlainTd3] | type[PlainDdpg] = PlainTd3, *, weights: bool = False
) -> float:
    """Largest difference of any parameter after six updates; `reference` has the constants of the plain form."""
    state = algorithm.init(generator(3), FLOAT)
    actor = 4.0 * state.actor  # some actions near the bounds
    state = state._replace(actor=actor, target_actor=actor.clone())
    other = plain(reference, state)
    for index, (noise, kind) in enumerate(zip(noises(algorithm, 6), kinds(algorithm, 6), strict=True)):
        # Noise three times as large as in training, so that both clips act.
        batch, noise = make_batch(seed=index, weights=weights), 3.0 * noise
        with torch.no_grad():
            state, metrics, *_ = algorithm.update(state, batch, noise, RATE, kind)
        expected = other.train(batch, noise)
        if type(algorithm) is type(reference):
            found = dict(zip(algorithm.metric_names, metrics.tolist(), strict=True))
            assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)
            assert math.isnan(found["actor_loss"]) == ("actor_loss" not in expected)
    return farthest(
        [
            (state.actor, flatten(other.actor)),
            (state.critic, flatten(*other.critics)),
            (state.target_actor, flatten(other.target_actor)),
            (state.target_critic, flatten(*other.target_critics)),
        ]
    )


@pytest.mark.parametrize("members", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("delay", [1, 2, 3])
def test_updates_equal_a_plain_implementation(members: int, delay: int) -> None:
    td3 = make(members=members, policy_delay=delay)
    assert distance_to_plain(td3, td3) < 1e-10


@pytest.mark.parametrize("activation", ["relu", "silu", "elu"])
@pytest.mark.parametrize("hidden", [(), (7,), (9, 4, 6)])
def test_updates_of_other_networks_equal_a_plain_implementation(activation: str, hidden: tuple[int, ...]) -> None:
    td3 = make(activation=activation, hidden=hidden, layer_norm=True)
    assert distance_to_plain(td3, td3) < 1e-10


def test_weighted_updates_equal_a_plain_implementation() -> None:
    td3 = make()
    assert distance_to_plain(td3, td3, weights=True) < 1e-10


def test_ddpg_equals_the_algorithm_of_the_paper() -> None:
    ddpg = make(Ddpg, members=1)
    assert ddpg.cycle == (WHOLE,)
    assert distance_to_plain(ddpg, ddpg, PlainDdpg) < 1e-10
    assert distance_to_plain(make(members=1), ddpg, PlainDdpg) > 1e-5, "TD3 with one critic is another algorithm"


# -- mistakes: each must move some parameter away from the plain implementation ------------------------------------


class TargetNotConstant(Td3):
    """The stop-gradient of the target is missing: it is differentiated through a shared network."""

    def critic_loss(self, critic: Tensor, td_target: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        leak = self.q_values(critic, batch.next_obs, batch.action).amin(0)
        return super().critic_loss(critic, td_target + leak - leak.detach(), batch)


class WrongSignInTarget(Td3):
    def td_target(self, target_actor: Tensor, target_critic: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        return 2.0 * batch.reward - super().td_target(target_actor, target_critic, batch, noise)


class WrongSignOfActor(Td3):
    def actor_loss(self, actor: Tensor, critic: Tensor, obs: Tensor) -> tuple[Tensor, Tensor]:
        loss, q = super().actor_loss(actor, critic, obs)
        return -loss, q


class MaximumOfCritics(Td3):
    def td_target(self, target_actor: Tensor, target_critic: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        smoothing = (self.target_policy_noise * noise).clamp(-self.target_noise_clip, self.target_noise_clip)
        action = (self.policy(target_actor, batch.next_obs) + smoothing).clamp(-1.0, 1.0)
        return batch.reward + batch.discount * self.q_values(target_critic, batch.next_obs, action).amax(0)


class IgnoresTermination(Td3):
    def td_target(self, target_actor: Tensor, target_critic: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        batch = batch._replace(discount=torch.full_like(batch.discount, 0.9))
        return super().td_target(target_actor, target_critic, batch, noise)


class NoiseNotClipped(Td3):
    def td_target(self, target_actor: Tensor, target_critic: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        action = (self.policy(target_actor, batch.next_obs) + self.target_policy_noise * noise).clamp(-1.0, 1.0)
        return batch.reward + batch.discount * self.q_values(target_critic, batch.next_obs, action).amin(0)


class ActionNotClipped(Td3):
    def td_target(self, target_actor: Tensor, target_critic: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        smoothing = (self.target_policy_noise * noise).clamp(-self.target_noise_clip, self.target_noise_clip)
        action = self.policy(target_actor, batch.next_obs) + smoothing
        return batch.reward + batch.discount * self.q_values(target_critic, batch.next_obs, action).amin(0)


class NoSmoothing(Td3):
    def td_target(self, target_actor: Tensor, target_critic: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        return super().td_target(target_actor, target_critic, batch, torch.zeros_like(noise))


class ActorOnMinimum(Td3):
    """SAC's form of the actor's loss."""

    def actor_loss(self, actor: Tensor, critic: Tensor, obs: Tensor) -> tuple[Tensor, Tensor]:
        q = self.q_values(critic, obs, self.policy(actor, obs)).amin(0)
        return -q.mean(), q


class Mutated(Td3):
    """Changes what `update` gives."""

    def update(self, state: Td3State, batch: Batch, noise: Tensor, learning_rate: Tensor, kind: str = WHOLE) -> Outcome:
        outcome = super().update(state, batch, noise, learning_rate, kind)
        return outcome._replace(state=self.mutate(state, outcome.state, batch, learning_rate, kind))

    def mutate(self, old: Td3State, new: Td3State, batch: Batch, rate: Tensor, kind: str) -> Td3State:
        raise NotImplementedError


class TargetsInEveryUpdate(Mutated):
    def mutate(self, old: Td3State, new: Td3State, batch: Batch, rate: Tensor, kind: str) -> Td3State:
        return new._replace(target_critic=polyak(old.target_critic, new.critic, self.tau))


class OnlineTargets(Mutated):
    """No target networks."""

    def mutate(self, old: Td3State, new: Td3State, batch: Batch, rate: Tensor, kind: str) -> Td3State:
        return new._replace(target_critic=new.critic, target_actor=new.actor)


class ActorBeforeCritic(Mutated):
    """The actor's loss sees the critics from before their step."""

    def mutate(self, old: Td3State, new: Td3State, batch: Batch, rate: Tensor, kind: str) -> Td3State:
        if kind == CRITIC:
            return new
        slope, _, _ = gradient(self.actor_loss, old.actor, old.critic, batch.obs)
        actor = adam(old.actor, old.actor_mean, old.actor_square, slope, new.actor_updates, rate)
        return new._replace(actor=actor.parameters, actor_mean=actor.mean, actor_square=actor.square)


class ActorCountsCriticSteps(Mutated):
    """Adam's bias correction of the actor uses the count of the critics' steps."""

    def mutate(self, old: Td3State, new: Td3State, batch: Batch, rate: Tensor, kind: str) -> Td3State:
        if kind == CRITIC:
            return new
        slope, _, _ = gradient(self.actor_loss, old.actor, new.critic, batch.obs)
        actor = adam(old.actor, old.actor_mean, old.actor_square, slope, new.updates, rate)
        return new._replace(actor=actor.parameters)


class CriticFollowsActor(Mutated):
    """The actor's loss reaches the critics: the stop-gradient is missing."""

    def mutate(self, old: Td3State, new: Td3State, batch: Batch, rate: Tensor, kind: str) -> Td3State:
        if kind == CRITIC:
            return new
        slope, _, _ = gradient(lambda critic: self.actor_loss(old.actor, critic, batch.obs), new.critic)
        return new._replace(critic=new.critic - 1e-3 * slope)


@pytest.mark.parametrize(
    "wrong",
    [
        *(TargetNotConstant, WrongSignInTarget, WrongSignOfActor, MaximumOfCritics, IgnoresTermination),
        *(NoiseNotClipped, ActionNotClipped, NoSmoothing, ActorOnMinimum, TargetsInEveryUpdate, OnlineTargets),
        *(ActorBeforeCritic, ActorCountsCriticSteps, CriticFollowsActor),
    ],
)
def test_mistakes_are_seen(wrong: type[Td3]) -> None:
    assert distance_to_plain(make(wrong), make()) > 1e-5


@pytest.mark.parametrize("wrong", [{"policy_delay": 1}, {"tau": 0.11}, {"target_noise_clip": 0.4}])
def test_wrong_constants_are_seen(wrong: dict[str, float]) -> None:
    class Other(Td3):
        pass

    assert distance_to_plain(make(Other, **wrong), make()) > 1e-5


# -- brute force -----------------------------------------------------------------------------------------------------


def forward(named: dict[str, Tensor], member: int | None, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """One row through one network, number by number."""
    arrays = [(tensor if member is None else tensor[member]).numpy() for tensor in named.values()]
    for layer, (weight, bias) in enumerate(zip(arrays[::2], arrays[1::2], strict=True)):
        y = [bias[o] + sum(x[i] * weight[i, o] for i in range(len(x))) for o in range(len(bias))]
        x = np.array(y) if layer == len(arrays) // 2 - 1 else np.tanh(y)
    return x


def brute_critic_loss(td3: Td3, state: Td3State, critic: Tensor, batch: Batch, noise: Tensor) -> float:
    total = 0.0
    for row in range(SIZE):
        next_obs = batch.next_obs[row].numpy()
        raw = forward(td3.actor.named(state.target_actor), None, next_obs)
        action = [
            min(1.0, max(-1.0, math.tanh(raw[k]) + min(0.5, max(-0.5, 0.2 * float(noise[row, k])))))
            for k in range(ACTION)
        ]
        named = td3.critic.named(state.target_critic)
        next_q = min(forward(named, m, np.concatenate([next_obs, action]))[0] for m in range(2))
        y = float(batch.reward[row]) + float(batch.discount[row]) * next_q
        x = torch.cat([batch.obs[row], batch.action[row]]).numpy()
        errors = [forward(td3.critic.named(critic), m, x)[0] - y for m in range(2)]
        total += sum(error**2 for error in errors) / SIZE
    return total


def brute_actor_loss(td3: Td3, critic: Tensor, actor: Tensor, batch: Batch) -> float:
    total = 0.0
    for row in range(SIZE):
        obs = batch.obs[row].numpy()
        action = np.tanh(forward(td3.actor.named(actor), None, obs))
        total -= forward(td3.critic.named(critic), 0, np.concatenate([obs, action]))[0] / SIZE
    return total


def test_losses_and_gradients_equal_brute_force() -> None:
    td3, batch = make(hidden=(4,)), make_batch()
    state = td3.init(generator(4), FLOAT)
    state = state._replace(target_critic=state.critic * 1.3, target_actor=state.actor * 3.0)
    noise = 3.0 * noises(td3, 1)[0]
    target = td3.td_target(state.target_actor, state.target_critic, batch, noise)
    losses: list[tuple[Tensor, tuple[Tensor, Tensor, Any], Callable[[Tensor], float]]] = [
        (
            state.critic,
            gradient(td3.critic_loss, state.critic, target, batch),
            lambda critic: brute_critic_loss(td3, state, critic, batch, noise),
        ),
        (
            state.actor,
            gradient(td3.actor_loss, state.actor, state.critic, batch.obs),
            lambda actor: brute_actor_loss(td3, state.critic, actor, batch),
        ),
    ]
    for parameters, (slope, loss, _), brute in losses:
        assert loss.item() == pytest.approx(brute(parameters), rel=1e-12)
        for index in range(0, len(parameters), 5):
            shift = torch.zeros_like(parameters)
            shift[index] = 1e-5
            found = (brute(parameters + shift) - brute(parameters - shift)) / 2e-5
            assert slope[index].item() == pytest.approx(found, rel=1e-5, abs=1e-8)


# -- the parts -------------------------------------------------------------------------------------------------------


def test_only_termination_stops_the_bootstrap() -> None:
    td3, batch = make(), make_batch()
    state = td3.init(generator(5), FLOAT)
    (noise,) = noises(td3, 1)
    ended = batch._replace(discount=torch.zeros(SIZE, dtype=FLOAT))
    cut = batch._replace(discount=torch.full((SIZE,), 0.9, dtype=FLOAT))
    torch.testing.assert_close(td3.td_target(state.target_actor, state.target_critic, ended, noise), batch.reward)
    with_bootstrap = td3.td_target(state.target_actor, state.target_critic, cut, noise)
    assert ((with_bootstrap - batch.reward).abs() > 1e-4).all()


def test_smoothed_actions_stay_within_the_bounds() -> None:
    seen: list[Tensor] = []

    class Spy(Td3):
        def q_values(self, critic: Tensor, obs: Tensor, action: Tensor, *, first: int | None = None) -> Tensor:
            seen.append(action)
            return super().q_values(critic, obs, action, first=first)

    td3, batch = make(Spy), make_batch()
    state = td3.init(generator(5), FLOAT)
    saturated = state.target_actor * 50.0
    noise = torch.full((SIZE, ACTION), 100.0, dtype=FLOAT)
    noise[::2] *= -1.0
    td3.td_target(saturated, state.target_critic, batch, noise)
    (action,) = seen
    assert action.min() >= -1.0
    assert action.max() == 1.0
    moved = action - torch.tanh(td3.actor(saturated, batch.next_obs))
    assert moved.abs().max() == pytest.approx(0.5)


def test_an_update_of_the_critics_alone_does_no_work_for_the_actor() -> None:
    class NoActor(Td3):
        def actor_loss(self, actor: Tensor, critic: Tensor, obs: Tensor) -> tuple[Tensor, Tensor]:
            raise AssertionError("the actor's loss was computed")

    td3 = make(NoActor, policy_delay=3)
    assert td3.cycle == (CRITIC, CRITIC, WHOLE)
    state = td3.init(generator(5), FLOAT)
    (noise,) = noises(td3, 1)
    new = td3.update(state, make_batch(), noise, RATE, CRITIC).state
    same = {name for name in Td3State._fields if getattr(new, name) is getattr(state, name)}
    assert same == {"actor", "target_actor", "target_critic", "actor_mean", "actor_square", "actor_updates"}
    with pytest.raises(AssertionError, match="was computed"):
        td3.update(state, make_batch(), noise, RATE, WHOLE)


def test_targets_move_by_tau_with_the_actor() -> None:
    td3 = make()
    state = td3.init(generator(6), FLOAT)
    assert torch.equal(state.target_critic, state.critic)
    assert torch.equal(state.target_actor, state.actor)
    for noise, kind in zip(noises(td3, 4), kinds(td3, 4), strict=True):
        new = td3.update(state, make_batch(), noise, RATE, kind).state
        tau = 0.1 if kind == WHOLE else 0.0
        torch.testing.assert_close(new.target_critic, polyak(state.target_critic, new.critic, tau))
        torch.testing.assert_close(new.target_actor, polyak(state.target_actor, new.actor, tau))
        state = new
    assert (state.updates.item(), state.actor_updates.item()) == (4, 2)
