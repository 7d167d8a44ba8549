"""Every policy passes one suite, and the suite catches what it is for."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlz
from rlz.acting import Rule, make_policy
from rlz.acting.rules import Deterministic, SquashedGaussian
from rlz.answers import PolicySpec
from rlz.envs.spaces import EnvSpec
from rlz.networks.spec import actor_manifest, normalized
from rlz.references import load
from support import user_networks as nets
from support.policy_contract import CHECKS, Case
from support.twin import torch_twin

DQN = Path(__file__).parents[2] / "examples" / "dqn.py"
EPSILON = {"start": 1.0, "end": 0.05, "over": 0.1, "spread": 0.0}
EXTRAS = (("log_prob", "f32", ()), ("value", "f32", ()))


def spaces(
    action_shape: tuple[int, ...] = (2,), high: tuple[float, ...] = (1.0, 1.0), dtype: str = "float32", **more: Any
) -> EnvSpec:
    values: dict[str, Any] = {"env_id": "Fake-v0", "obs_shape": (3,), "obs_dtype": "float32", "max_episode_steps": None}
    low = tuple(0.0 if dtype != "float32" else -1.0 for _ in high)
    action = {"action_shape": action_shape, "action_dtype": dtype, "action_low": low, "action_high": high}
    return EnvSpec(**{**values, **action, **more})


BOX = spaces()
DISCRETE = spaces((), (3,), "int64")
MULTI = spaces((2,), (1, 4), "int64")
PIXELS = spaces((), (3,), "int64", obs_shape=(2, 2, 1), obs_dtype="uint8")


def native(head: str, **more: Any) -> PolicySpec:
    arguments = {"obs_dim": 3, "action_dim": 2, "hidden": [8], "activation": "tanh", "layer_norm": True, "head": head}
    arguments |= more
    has = {"log_prob": head not in ("deterministic", "epsilon_greedy"), "value": "value" in more}
    extras = tuple(extra for extra in EXTRAS if has[extra[0]])
    return PolicySpec("native", arguments, tuple(actor_manifest(arguments)), extras)


CASES: dict[str, Case] = {
    "native squashed gaussian": Case(native("squashed_gaussian"), BOX),
    "native deterministic": Case(native("deterministic", exploration_noise=0.2), BOX),
    "native gaussian": Case(native("gaussian", value="separate"), BOX, bounded=False),
    "native categorical": Case(native("categorical", action_dim=1, choices=[4], value="shared"), DISCRETE),
    "native epsilon greedy": Case(native("epsilon_greedy", choices=[2, 5], epsilon=EPSILON), MULTI),
    "twin of gaussian": Case(torch_twin(native("gaussian", value="separate"), BOX), BOX, bounded=False),
    "twin of categorical": Case(torch_twin(native("categorical", choices=[2, 5], value="shared"), MULTI), MULTI),
    "native on normal observations": Case(normalized(native("squashed_gaussian"), 3), BOX),
    "torch on normal observations": Case(normalized(nets.greedy.policy(PIXELS), 4), PIXELS),
    "actions": Case(Rule(nets.Actions).policy(BOX), BOX, explores=False),
    "distribution": Case(Rule(nets.Distribution, EXTRAS).policy(BOX), BOX),
    "categorical": Case(Rule(nets.Distribution, EXTRAS).policy(DISCRETE), DISCRETE),
    "epsilon greedy": Case(nets.greedy.policy(DISCRETE), DISCRETE),
    "epsilon greedy, several": Case(rlz.EpsilonGreedy(partial(nets.Values, width=4)).policy(MULTI), MULTI),
    "epsilon greedy, pixels": Case(nets.greedy.policy(PIXELS), PIXELS),
    "squashed gaussian": Case(
        SquashedGaussian(partial(nets.Head, outputs=2), EXTRAS[:1]).policy(BOX),
        BOX,
    ),
    "deterministic": Case(Deterministic(nets.Head, exploration_noise=0.2).policy(BOX), BOX),
    "a user's rule": Case(nets.Softmax(nets.Values).policy(DISCRETE), DISCRETE),
    "the DQN example": Case(load(f"{DQN}:Dqn").acting.policy(DISCRETE), DISCRETE),
    "draws in forward": Case(nets.Softmax(nets.Noisy).policy(DISCRETE), DISCRETE),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_every_policy_keeps_the_contract(name: str, check: Callable[[Case], None]) -> None:
    check(CASES[name])


class Broken:
    """A policy with one thing wrong: everything else is the other's."""

    def __init__(self, spec: PolicySpec, seed: np.random.SeedSequence) -> None:
        self.sound = make_policy(spec, seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sound, name)

    @property
    def state(self) -> bytes:
        return self.sound.state

    @state.setter
    def state(self, value: bytes) -> None:
        self.sound.state = value


class LastRowMissing(Broken):
    def act(self, obs: Any, actions: Any, **more: Any) -> None:
        last = actions[-1].copy()
        self.sound.act(obs, actions, **more)
        actions[-1] = last


class SeesTheFirstRow(Broken):
    def act(self, obs: Any, actions: Any, **more: Any) -> None:
        self.sound.act(np.ascontiguousarray(obs - obs[0]), actions, **more)


class Blind(Broken):
    def act(self, obs: Any, actions: Any, **more: Any) -> None:
        self.sound.act(np.zeros_like(obs), actions, **more)


class ExploresInEvaluation(Broken):
    def act(self, obs: Any, actions: Any, *, deterministic: bool = False, **more: Any) -> None:
        self.sound.act(obs, actions, **more)


class NeverExplores(Broken):
    def act(self, obs: Any, actions: Any, *, deterministic: bool = False, **more: Any) -> None:
        self.sound.act(obs, actions, deterministic=True, **more)


class ForgetsItsState(Broken):
    @property
    def state(self) -> bytes:
        return self.sound.state

    @state.setter
    def state(self, value: bytes) -> None:
        pass


class DrawsFromTheProcess(Broken):
    def uniform(self, actions: Any) -> None:
        actions[:] = np.random.uniform(-1, 1, actions.shape)


class Narrow(Broken):
    def uniform(self, actions: Any) -> None:
        self.sound.uniform(actions)
        actions *= 0.5


class KeepsOldParameters(Broken):
    def load(self, parameters: Any) -> None:
        if not hasattr(self, "loaded") or len(parameters) != self.sound.nbytes:
            self.sound.load(parameters)
        self.loaded = True


class TakesAnySize(Broken):
    def load(self, parameters: Any) -> None:
        size = self.sound.nbytes
        self.sound.load(np.resize(parameters, size))


class RefreshesOnce(Broken):
    def refresh(self, subscriber: Any) -> int:
        return self.sound.version or self.sound.refresh(subscriber)


class SaysTheNextVersion(Broken):
    def refresh(self, subscriber: Any) -> int:
        self.sound.refresh(subscriber)
        return self.sound.version + 1


class ChangesObservations(Broken):
    def act(self, obs: Any, actions: Any, **more: Any) -> None:
        self.sound.act(obs, actions, **more)
        obs += 1


class NoExtras(Broken):
    def act(self, obs: Any, actions: Any, *, extras: Any = None, **more: Any) -> None:
        self.sound.act(obs, actions, **more)


class LessExploredWithExtras(Broken):
    def act(self, obs: Any, actions: Any, *, extras: Any = None, deterministic: bool = False, **more: Any) -> None:
        self.sound.act(obs, actions, extras=extras, deterministic=deterministic or extras is not None, **more)


@pytest.mark.parametrize(
    ("broken", "by"),
    [
        (LastRowMissing, "gives_actions"),
        (SeesTheFirstRow, "rows_do_not_see_each_other"),
        (Blind, "rows_do_not_see_each_other"),
        (ExploresInEvaluation, "deterministic_draws_nothing"),
        (NeverExplores, "draws_follow_seed_and_state"),
        (ForgetsItsState, "draws_follow_seed_and_state"),
        (DrawsFromTheProcess, "leaves_others_alone"),
        (Narrow, "uniform_is_uniform"),
        (KeepsOldParameters, "parameters_decide"),
        (TakesAnySize, "parameters_decide"),
        (RefreshesOnce, "refresh_follows_the_newest_version"),
        (SaysTheNextVersion, "refresh_follows_the_newest_version"),
        (ChangesObservations, "leaves_others_alone"),
        (NoExtras, "gives_the_extras_it_promises"),
        (LessExploredWithExtras, "gives_the_extras_it_promises"),
    ],
)
@pytest.mark.parametrize("name", ["native squashed gaussian", "distribution"])
def test_the_suite_catches(name: str, broken: type[Broken], by: str) -> None:
    make: Any = broken
    case = Case(CASES[name].spec, BOX, make)
    check = next(check for check in CHECKS if check.__name__ == by)
    with pytest.raises((AssertionError, ValueError)):
        check(case)
