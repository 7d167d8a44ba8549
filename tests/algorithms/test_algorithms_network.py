"""A user's torch modules as actor and critics of the built-in algorithms (`--network`)."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlz
from rlz.algorithms.ddpg import Ddpg
from rlz.algorithms.sac import Sac
from rlz.algorithms.td3 import Td3
from rlz.errors import ConfigError
from support.algorithms import made
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
