"""Mistakes in TD3: each must move some parameter away from the plain implementation."""

import pytest
import torch
from torch import Tensor

from rlz.algorithms.base import CRITIC, WHOLE, Batch, Outcome
from rlz.algorithms.optim import adam, gradient, polyak
from rlz.algorithms.td3 import Td3, Td3State
from support.td3 import distance_to_plain, make


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
        action = (self.action(target_actor, batch.next_obs) + smoothing).clamp(-1.0, 1.0)
        return batch.reward + batch.discount * self.q_values(target_critic, batch.next_obs, action).amax(0)


class IgnoresTermination(Td3):
    def td_target(self, target_actor: Tensor, target_critic: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        batch = batch._replace(discount=torch.full_like(batch.discount, 0.9))
        return super().td_target(target_actor, target_critic, batch, noise)


class NoiseNotClipped(Td3):
    def td_target(self, target_actor: Tensor, target_critic: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        action = (self.action(target_actor, batch.next_obs) + self.target_policy_noise * noise).clamp(-1.0, 1.0)
        return batch.reward + batch.discount * self.q_values(target_critic, batch.next_obs, action).amin(0)


class ActionNotClipped(Td3):
    def td_target(self, target_actor: Tensor, target_critic: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        smoothing = (self.target_policy_noise * noise).clamp(-self.target_noise_clip, self.target_noise_clip)
        action = self.action(target_actor, batch.next_obs) + smoothing
        return batch.reward + batch.discount * self.q_values(target_critic, batch.next_obs, action).amin(0)


class NoSmoothing(Td3):
    def td_target(self, target_actor: Tensor, target_critic: Tensor, batch: Batch, noise: Tensor) -> Tensor:
        return super().td_target(target_actor, target_critic, batch, torch.zeros_like(noise))


class ActorOnMinimum(Td3):
    """SAC's form of the actor's loss."""

    def actor_loss(self, actor: Tensor, critic: Tensor, obs: Tensor) -> tuple[Tensor, Tensor]:
        q = self.q_values(critic, obs, self.action(actor, obs)).amin(0)
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
        return new._replace(target_critic=polyak(old.target_critic, new.critic, self.settings.tau))


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
