"""TD3 and DDPG against plain float64 implementations and brute force; mistakes have a file of their own."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlz.algorithms.base import CRITIC, WHOLE, Batch
from rlz.algorithms.ddpg import Ddpg
from rlz.algorithms.optim import gradient, polyak
from rlz.algorithms.td3 import Td3, Td3State
from support.td3 import PlainDdpg, distance_to_plain, make
from support.updates import ACTION, FLOAT, RATE, SIZE, generator, kinds, make_batch, noises


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


@pytest.mark.parametrize(("members", "drawn"), [(5, 2), (2, 1)])
def test_targets_of_drawn_critics_equal_a_plain_implementation(members: int, drawn: int) -> None:
    td3 = make(members=members, target_critics=drawn)
    assert distance_to_plain(td3, td3) < 1e-10


def test_ddpg_equals_the_algorithm_of_the_paper() -> None:
    ddpg = make(Ddpg, members=1)
    assert ddpg.cycle == (WHOLE,)
    assert distance_to_plain(ddpg, ddpg, PlainDdpg) < 1e-10
    assert distance_to_plain(make(members=1), ddpg, PlainDdpg) > 1e-5, "TD3 with one critic is another algorithm"


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
