"""TD3 and DDPG in the plain way, and how far an update is from it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlz.algorithms.base import Batch
from rlz.algorithms.td3 import Td3, Td3State, TwinDelayed
from support.algorithms import made
from support.updates import ACTION, FLOAT, OBS, RATE, Plain, farthest, flatten, generator, kinds, make_batch, noises


def make(
    kind: type[TwinDelayed[Any]] = Td3,
    *,
    members: int = 2,
    hidden: tuple[int, ...] = (8, 8),
    activation: str = "tanh",
    **values: Any,
) -> Any:
    return made(kind, OBS, ACTION, hidden=hidden, activation=activation, n_critics=members, **{"tau": 0.1, **values})


class PlainTd3(Plain):
    """TD3 with modules, backward and torch.optim, as SB3's `train` does it."""

    def __init__(self, td3: Any, state: Td3State) -> None:
        super().__init__(td3, state)
        self.td3 = td3
        self.count = 0

    def train(self, batch: Batch, noise: Tensor) -> dict[str, float]:
        td3 = self.td3
        self.count += 1
        noise, rest = noise[: len(batch.obs)], noise[len(batch.obs) :].flatten().tolist()
        with torch.no_grad():
            smoothing = (noise * td3.target_policy_noise).clip(-td3.target_noise_clip, td3.target_noise_clip)
            next_action = (torch.tanh(self.target_actor(batch.next_obs)) + smoothing).clip(-1, 1)
            next_q = torch.stack([self.q(target, batch.next_obs, next_action) for target in self.target_critics])
            if rest:
                numbers = range(len(self.critics))
                next_q = next_q[sorted(numbers, key=lambda number: -rest[number])[: td3.target_critics]]
            y = batch.reward + batch.discount * next_q.min(0).values
        weight = 1.0 if batch.weight is None else batch.weight
        losses = [(weight * (self.q(c, batch.obs, batch.action) - y) ** 2).mean() for c in self.critics]
        self.step(self.critic_optimiser, sum(losses, torch.zeros((), dtype=FLOAT)))
        found = {"critic_loss": sum(loss.item() for loss in losses)}
        if self.count % td3.policy_delay == 0:
            actor_loss = -self.q(self.critics[0], batch.obs, torch.tanh(self.actor(batch.obs))).mean()
            self.step(self.actor_optimiser, actor_loss)
            self.follow(self.target_actor, self.actor, td3.settings.tau)
            for critic, target in zip(self.critics, self.target_critics, strict=True):
                self.follow(target, critic, td3.settings.tau)
            found["actor_loss"] = actor_loss.item()
        return found


class PlainDdpg(Plain):
    """DDPG straight from the paper's algorithm 1, with Adam."""

    def __init__(self, ddpg: Any, state: Td3State) -> None:
        super().__init__(ddpg, state)
        self.tau = ddpg.settings.tau

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
    algorithm: Any, reference: Any, plain: type[PlainTd3] | type[PlainDdpg] = PlainTd3, *, weights: bool = False
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
            found = dict(zip(algorithm.metrics, metrics.tolist(), strict=True))
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
