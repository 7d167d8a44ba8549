"""Wrappers that remember earlier episodes are refused; those that do not are left alone."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.spaces import Box

from rlz import envs
from rlz.config import run_config
from rlz.envs.running_state import refuse_running_state
from rlz.errors import EnvError


class Untouched(gymnasium.Env[Any, Any]):
    """Must not be reset or stepped by the check."""

    observation_space = Box(-1e5, 1e5, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)
    inner = 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise AssertionError("reset")

    def step(self, action: Any) -> Any:
        raise AssertionError("step")


class OwnMean(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A running mean as people write it."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.count, self.mean = 0, 0.0

    def observation(self, observation: Any) -> Any:
        self.count += 1
        self.mean = self.mean + (observation - self.mean) / self.count
        return (observation - self.mean).astype(np.float32)


class Largest(gymnasium.RewardWrapper[Any, Any]):
    """Rewards relative to the largest that was seen."""

    largest = 1e-6

    def reward(self, reward: Any) -> float:
        self.largest = max(self.largest, abs(float(reward)))
        return float(reward) / self.largest


class NeedsMore(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Cannot be tried, because of `info`; keeps Gymnasium's statistics."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        from gymnasium.wrappers.utils import RunningMeanStd

        super().__init__(env)
        self.statistics = RunningMeanStd(shape=(2,))

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs / info["scale"], reward, terminated, truncated, info


class Noise(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Adds noise of every origin."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.unseeded, self.seeded = np.random.default_rng(), np.random.default_rng(3)

    def observation(self, observation: Any) -> Any:
        drawn = self.unseeded.normal(), self.seeded.normal(), np.random.normal(), self.np_random.normal()
        return observation + np.float32(sum(drawn))


class Module:
    generator = np.random.default_rng()


class ModuleNoise(gymnasium.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return float(reward) + Module.generator.normal()


class Inner(gymnasium.RewardWrapper[Any, Any]):
    """Asks the environment for something that no made-up one has."""

    def reward(self, reward: Any) -> float:
        return float(reward) + self.unwrapped.inner + self.env.inner  # type: ignore[attr-defined]


class Steps(gymnasium.Wrapper[Any, Any, Any, Any]):
    """State of an episode."""

    def reset(self, **kwargs: Any) -> Any:
        self.count = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        self.count += 1
        return obs, float(reward) * self.count, *rest


class Frozen(wrappers.NormalizeObservation[Any, Any, Any]):
    """Statistics that were loaded and stay."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.obs_rms.update(np.ones((5, 2)))
        self.update_running_mean = False


@pytest.mark.parametrize(
    "wrapper", [wrappers.NormalizeObservation, wrappers.NormalizeReward, OwnMean, Largest, NeedsMore]
)
@pytest.mark.parametrize("outer", [lambda env: env, Steps, lambda env: wrappers.TimeLimit(env, 10)])
def test_a_running_state_is_refused_wherever_it_stands(wrapper: Any, outer: Any) -> None:
    with pytest.raises(
        EnvError, match=f"Mine-v0 is wrapped in .*:{wrapper.__name__}, whose .* earlier episodes.*--normalize-obs"
    ):
        refuse_running_state(outer(wrapper(Untouched())), "Mine-v0")


@pytest.mark.parametrize(
    "wrapper",
    [
        *(Noise, ModuleNoise, Inner, Steps, Frozen, wrappers.RecordEpisodeStatistics),
        lambda env: wrappers.TimeAwareObservation(wrappers.TimeLimit(env, 30)),
        lambda env: wrappers.FrameStackObservation(env, 3),
        lambda env: wrappers.DelayObservation(env, 2),
        lambda env: wrappers.TransformObservation(env, lambda obs: 2 * obs, env.observation_space),
        lambda env: wrappers.ClipReward(env, -1, 1),
        lambda env: wrappers.RescaleAction(env, np.float32(-2.0), np.float32(2.0)),
        lambda env: wrappers.StickyAction(env, 0.5),
        lambda env: wrappers.TimeLimit(env, 3),
    ],
)
def test_others_are_left_alone_and_nothing_is_stepped(wrapper: Any) -> None:
    np.random.seed(5)
    expected = np.random.RandomState(5).random()
    refuse_running_state(wrapper(Untouched()), "Mine-v0")
    assert np.random.random() == expected, "the generators of the process are as before"


@pytest.mark.parametrize("name", ["Pendulum-v1", "CartPole-v1", "Reacher-v5", "Ant-v5"])
def test_environments_of_gymnasium_are_left_alone(name: str) -> None:
    env = gymnasium.make(name)
    first = env.reset(seed=1)[0]
    refuse_running_state(env, name)
    assert (env.reset(seed=1)[0] == first).all()
    env.close()


def test_a_run_and_a_policy_with_such_a_wrapper_are_refused() -> None:
    path = "gymnasium.wrappers:NormalizeObservation"
    with pytest.raises(EnvError, match="NormalizeObservation"):
        envs.inspect_env(run_config(env="Pendulum-v1", wrapper=(path,)))
    description = {"id": "Pendulum-v1", "kwargs": {}, "wrapper": [path]}
    with pytest.raises(EnvError, match="NormalizeObservation"):
        envs.make_env(description)
