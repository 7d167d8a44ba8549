"""A user's torch modules as the networks of the built-in algorithms (`--network`)."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlz
from rlz.acting import make_policy
from rlz.algorithms.ddpg import Ddpg
from rlz.algorithms.dqn import Dqn
from rlz.algorithms.sac import Sac
from rlz.algorithms.td3 import Td3
from rlz.answers import PolicySpec
from rlz.errors import ConfigError
from support.algorithms import made
from support.rollouts import made as make_ppo
from support.rollouts import make_rows
from support.updates import ACTION, FLOAT, HIDDEN, OBS, RATE, generator, kinds, make_batch, noises


class Plain(nn.Module):
    """The perceptron of rlz: the same tensors in the same order."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        sizes = [inputs, *HIDDEN, outputs]
        shapes = [shape for a, b in pairwise(sizes) for shape in ((a, b), (b,))]
        self.tensors = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])

    def forward(self, x: Tensor) -> Tensor:
        first, bias, second, bias2, head, bias3 = self.tensors
        return torch.relu(torch.relu(x @ first + bias) @ second + bias2) @ head + bias3


class Small(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


class Normalised(Small):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.layers.append(nn.BatchNorm1d(outputs))


class Random(Small):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.layers.insert(1, nn.Dropout())


class Wide(Small):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs + 1)


class Double(Small):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.double()


class Pair(Small):
    def forward(self, x: Tensor) -> Any:
        return x, x


def source(kind: type[nn.Module]) -> str:
    return f"{__file__}:{kind.__name__}"


@pytest.mark.parametrize("kind", [Sac, Td3, Ddpg])
def test_updates_are_those_of_the_same_network_by_rlz(kind: type[Any]) -> None:
    settings = {"hidden": HIDDEN, "n_critics": 3}
    plain, own = made(kind, OBS, ACTION, **settings), made(kind, OBS, ACTION, network=source(Plain), **settings)
    state = plain.init(generator(0), FLOAT)
    other = own.init(generator(1), FLOAT)
    assert {name: value.shape for name, value in other._asdict().items()} == {
        name: value.shape for name, value in state._asdict().items()
    }
    other = type(state)(*(value.clone() for value in state))
    for update, (noise, of) in enumerate(zip(noises(plain, 4), kinds(plain, 4), strict=True)):
        batch = make_batch(update)
        state = plain.update(state, batch, noise, RATE, of).state
        other = own.update(other, batch, noise, RATE, of).state
    for name, value in state._asdict().items():
        torch.testing.assert_close(getattr(other, name), value, rtol=1e-12, atol=1e-12, msg=name)
    assert plain.published(state).shape == (sum(int(np.prod(shape)) for _, _, shape in own.policy().manifest),)


@pytest.mark.parametrize("settings", [{}, {"dueling": True, "double": True}])
def test_updates_of_values_of_choices_are_those_of_the_same_network(settings: dict[str, Any]) -> None:
    choices: dict[str, Any] = {"choices": (4,), "hidden": HIDDEN}
    plain = made(Dqn, OBS, 1, **choices, **settings)
    own = made(Dqn, OBS, 1, network=source(Plain), **choices, **settings)
    state = other = plain.init(generator(0), FLOAT)
    for update in range(3):
        batch = make_batch(update, choices=4)
        state, other = (one.update(s, batch, RATE, RATE).state for one, s in ((plain, state), (own, other)))
    torch.testing.assert_close(other.q, state.q, rtol=1e-12, atol=1e-12)
    assert own.init(generator(1)).q.shape == state.q.shape
    same_actions(plain.policy(), own.policy(), plain.published(state), choices=4)


@pytest.mark.parametrize("choices", [(), (2, 4)])
@pytest.mark.parametrize("shared", [False, True])
def test_updates_of_policy_and_value_are_those_of_the_same_network(choices: tuple[int, ...], *, shared: bool) -> None:
    settings = {"choices": choices, "hidden": HIDDEN, "activation": "relu", "shared_network": shared}
    plain, own = make_ppo(**settings), make_ppo(network=source(Plain), **settings)
    state = other = plain.init(generator(0), FLOAT)
    for update in range(3):
        rows = make_rows(plain, seed=update)
        state, other = (one.update(s, rows, RATE, RATE).state for one, s in ((plain, state), (own, other)))
    torch.testing.assert_close(other.net, state.net, rtol=1e-12, atol=1e-12)
    assert own.init(generator(1)).net.shape == state.net.shape
    same_actions(plain.policy(), own.policy(), plain.published(state), choices=max(choices, default=0))


def same_actions(native: PolicySpec, own: PolicySpec, published: Tensor, choices: int) -> None:
    """What acts is told the same parameters, and does the same by either runner."""
    assert (native.runner, own.runner) == ("native", "torch")
    assert native.extras == own.extras
    obs = np.random.default_rng(2).standard_normal((40, OBS)).astype(np.float32)
    columns = native.network["action_dim"]
    actions = np.zeros((2, 40, columns), np.int64 if choices else np.float32)
    for spec, into in zip((native, own), actions, strict=True):
        policy = make_policy(spec, np.random.SeedSequence(0))
        policy.load(published.float().numpy().view(np.uint8))
        policy.act(obs, into, deterministic=True)
    np.testing.assert_allclose(actions[0], actions[1], atol=1e-5)
    assert not (actions[0] == actions[0][0]).all()


def test_members_begin_as_their_class_makes_them_and_differ() -> None:
    own = made(Sac, OBS, ACTION, network=source(Small), n_critics=2)
    one, again, other = (own.init(generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(one.critic, again.critic)
    assert not torch.equal(one.critic, other.critic)
    weights = own.state_dict(one)["critic.layers.0.weight"]
    assert weights.shape == (2, 8, OBS + ACTION)
    assert not torch.equal(weights[0], weights[1])
    assert weights.abs().max() <= (OBS + ACTION) ** -0.5  # torch's own bound for nn.Linear


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Normalised, r"Normalised: layers\.3\.running_mean.*LayerNorm for BatchNorm"),
        (Random, "Random draws at random"),
        (Wide, r"Wide gave \[2, 5\] for inputs \[2, 3\], expected \[2, 4\]"),
        (Double, r"layers\.0\.weight is torch\.float64"),
        (Pair, "Pair gave a tuple"),
    ],
)
def test_what_does_not_fit_is_said(kind: type[nn.Module], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(Sac, OBS, ACTION, network=source(kind))


def test_a_class_that_wants_other_arguments_is_told_how_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("class Net:\n    def __init__(self, spaces): ...\n")
    with pytest.raises(ConfigError, match=r"Net\(3, 4\) raised TypeError.*inputs and outputs"):
        made(Sac, OBS, ACTION, network=f"{tmp_path / 'net.py'}:Net")


@pytest.mark.parametrize(("algo", "more"), [("dqn", {"learning_starts": 20}), ("ppo", {"n_steps": 16})])
def test_a_run_of_choices_acts_with_it(algo: str, more: dict[str, Any], tmp_path: Path) -> None:
    short: dict[str, Any] = {"mode": "serial", "batch_size": 8, "plan": "off", "compile": False, "eval_episodes": 1}
    result = rlz.train(
        *(algo, "CartPole-v1"), network=Small, runs_dir=str(tmp_path), total_timesteps=64, num_envs=1, **short, **more
    )
    assert result.status == "completed"
    assert result.policy.predict(np.zeros((2, 4))).shape == (2,)


def test_a_run_with_it_resumes_acts_and_is_loaded(tmp_path: Path) -> None:
    short: dict[str, Any] = {
        **{"mode": "serial", "learning_starts": 20, "batch_size": 8, "plan": "off", "compile": False},
        **{"eval_every": 40, "eval_episodes": 1, "max_episode_steps": 20, "seed": 1},
    }
    result = rlz.train("sac", "Pendulum-v1", network=Small, runs_dir=str(tmp_path), total_timesteps=80, **short)
    assert result.status == "completed"
    policy = rlz.load(result.path)
    assert policy.predict(np.zeros((2, 3))).shape == (2, 1)
    assert rlz.evaluate(result.path, episodes=1).returns
    assert "network = " in (result.path / "config.toml").read_text()
