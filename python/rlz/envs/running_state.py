"""Wrappers that cannot be used: what they give depends on what they saw in earlier episodes.

A running mean (`gymnasium.wrappers.NormalizeObservation`, `NormalizeReward`) is such a state. Every sampler, the
evaluator, `rlz eval` and `rlz.load` have an environment of their own, so each would have another mean: samplers would
write rows that do not belong together, and evaluations would score another policy than the one that was trained.

A wrapper is found by trying it. Copies of it are put around a made-up environment, see different episodes, and then the
same one: if they disagree about that, they remember the earlier ones. The environment itself is not stepped.
"""

import copy
import random
import warnings
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from rlz.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 8
"""Length of a made-up episode."""

_ONE, _OTHER, _PROBE = 1, 2, 3
"""Seeds of made-up episodes."""


def refuse_running_state(env: "gymnasium.Env[Any, Any]", env_id: str) -> None:
    """Raise EnvError when a wrapper around the environment has a state that outlives episodes, and gives it on."""
    for layer in _wrappers(env):
        if _remembers(layer):
            name = f"{type(layer).__module__}:{type(layer).__qualname__}"
            raise EnvError(
                f"{env_id} is wrapped in {name}, whose observations or rewards depend on what it saw in earlier "
                "episodes (a running mean, for instance). Every sampler, the evaluator and rlz eval have such a "
                "wrapper of their own: rows would not belong together, and scores would be wrong. Leave it out: "
                "--normalize-obs and --normalize-reward do it with one statistic, which the learner keeps. A wrapper "
                "with fixed numbers works too, such as gymnasium.wrappers:RescaleObservation"
            )


def _wrappers(env: Any) -> "Iterator[Any]":
    while isinstance(getattr(env, "env", None), gymnasium.Env):
        yield env
        env = env.env


def _remembers(layer: Any) -> bool:
    """Whether a wrapper gives something else for the same episode after other episodes."""
    python, legacy = random.getstate(), np.random.get_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one, again, other = (_probe(layer, seed) for seed in (_ONE, _ONE, _OTHER))
    except (Exception, SystemExit):
        # It needs more of its environment than was made up. What Gymnasium's own are made of tells it then.
        return any(type(value).__name__ == "RunningMeanStd" for value in vars(layer).values())
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
    # Noise that is drawn from anywhere else differs between equal episodes too, and is no memory.
    return one == again != other


def _probe(layer: Any, before: int) -> list[Any]:
    """What a copy of the wrapper gives in an episode of its own, after one from `before`."""
    made_up = _MadeUp(layer.env)
    shell = copy.copy(layer)
    shell.env = made_up
    kept = {id(item): item for item in (*_wrappers(layer.env), layer.env.unwrapped)}
    wrapper = copy.deepcopy(shell, kept)
    if not isinstance(wrapper.env, _MadeUp):
        raise TypeError("the copy made an environment of its own")
    _play(wrapper, before)
    return _play(wrapper, _PROBE)


def _play(wrapper: Any, seed: int) -> list[Any]:
    random.seed(seed)
    np.random.seed(seed)
    wrapper.env.episode = seed
    actions = copy.deepcopy(wrapper.action_space)
    actions.seed(seed)
    obs, _ = wrapper.reset(seed=seed)
    given = [_plain(obs)]
    for _ in range(STEPS):
        obs, reward, *_ = wrapper.step(actions.sample())
        given += [_plain(obs), _plain(reward)]
    return given


def _plain(value: Any) -> Any:
    """Comparable with ==."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


class _MadeUp(gymnasium.Env[Any, Any]):
    """Stands where a wrapper's environment was: the same spaces, observations and rewards by chance from `episode`."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.observation_space = copy.deepcopy(env.observation_space)
        self.action_space = copy.deepcopy(env.action_space)
        self.metadata, self.spec, self.render_mode = env.metadata, env.spec, env.render_mode
        self.episode = self._left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=self.episode)
        self.observation_space.seed(self.episode)
        self._rewards = np.random.default_rng(self.episode)
        self._left = STEPS
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return self.observation_space.sample(), float(self._rewards.normal()), self._left == 0, False, {}

    @property
    def unwrapped(self) -> Any:
        return self._env.unwrapped

    def __getattr__(self, name: str) -> Any:
        if name == "_env" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._env, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_MadeUp":
        return _MadeUp(self._env)
