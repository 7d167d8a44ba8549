"""Policies of torch modules in files: `rlz.load`, `predict`, `rlz eval`, for every kind of action."""

import base64
import json
import pickle
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import rlz
from rlz.acting.flat import pack
from rlz.config import RunConfig
from rlz.envs import inspect_env
from rlz.envs.spaces import EnvSpec
from rlz.errors import CheckpointError, EnvError
from rlz.loaded_policy import describe, split_parameters
from rlz.records.policy_files import PolicyFiles
from rlz.runtime.evaluate import evaluate

NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self, spaces):
        super().__init__()
        self.first = nn.Linear(spaces.obs_dim, 7)
        self.norm = nn.BatchNorm1d(7)
        self.last = nn.Linear(7, sum(spaces.action_choices))
    def forward(self, obs):
        return self.last(self.norm(self.first(obs.flatten(1))).relu())
"""


class Several(gymnasium.Env[Any, Any]):
    """MultiDiscrete actions, counted from 5 and from 0."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2, 2), np.float32)
        self.action_space = gymnasium.spaces.MultiDiscrete([2, 3], start=[5, 0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 5
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.left -= 1
        return self.observation(), float(action[0]), self.left == 0, False, {}

    def observation(self) -> Any:
        return self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)


gymnasium.register("Several-v0", entry_point=Several)


def write(folder: Path, env: str, rule: rlz.acting.Rule) -> tuple[EnvSpec, nn.Module]:
    """A policy as a checkpoint has it, of random parameters."""
    config = RunConfig(env=env)
    env_spec = inspect_env(config)
    torch.manual_seed(3)
    module = rule.network(env_spec)
    spec = rule.policy(env_spec)
    tensors = split_parameters(spec.manifest, pack(module))
    folder.mkdir(parents=True)
    PolicyFiles(describe(config, env_spec, spec, version=2, env_steps=30), tensors).write(folder)
    return env_spec, module.eval()


@pytest.mark.parametrize(("env", "shape"), [("CartPole-v1", ()), ("Several-v0", (2,))])
def test_predict_and_eval_give_the_environments_own_actions(
    tmp_path: Path, env: str, shape: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    from rlz.references import load

    (tmp_path / "net.py").write_text(NET)
    folder = tmp_path / "policy"
    env_spec, module = write(folder, env, rlz.EpsilonGreedy(load(f"{tmp_path / 'net.py'}:Net")))
    policy = rlz.load(folder, seed=1)
    assert (policy.version, policy.env_steps) == (2, 30)
    made = policy.make_env()
    obs = np.stack([made.observation_space.sample() for _ in range(6)]).clip(-5, 5)
    actions = policy.predict(obs)
    assert (actions.shape, actions.dtype) == ((6, *shape), np.int64)
    one = policy.predict(obs[0])
    assert made.action_space.contains(one)
    assert np.array_equal(one, actions[0])
    with torch.no_grad():
        values = module(torch.from_numpy(obs.astype(np.float32)))
    greedy = [part.argmax(1).numpy() for part in values.split(env_spec.action_choices, 1)]
    first = np.array(env_spec.action_low, np.int64)
    assert np.array_equal(actions.reshape(6, -1), np.stack(greedy, 1) + first)
    assert evaluate(folder, episodes=2) == 0
    assert f"{env}: version 2" in capsys.readouterr().out


def test_a_file_that_moved_is_named_and_can_be_given(tmp_path: Path) -> None:
    from rlz.references import load

    file = tmp_path / "net.py"
    file.write_text(NET)
    net = load(f"{file}:Net")
    write(tmp_path / "policy", "CartPole-v1", rlz.EpsilonGreedy(net))
    obs = np.ones((3, 4), np.float32)
    before = rlz.load(tmp_path / "policy").predict(obs)
    text = (tmp_path / "policy" / "policy.json").read_text().replace("net.py", "moved.py")
    (tmp_path / "policy" / "policy.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"moved.py: there is no such file.*rlz.load\(.*acting=Net\)"):
        rlz.load(tmp_path / "policy")
    after = rlz.load(tmp_path / "policy", acting=rlz.EpsilonGreedy(net)).predict(obs)
    assert np.array_equal(before, after)


def test_policy_json_holds_no_code_and_none_is_run_from_it(tmp_path: Path) -> None:
    class Local(nn.Module):
        def __init__(self, spaces: EnvSpec) -> None:
            super().__init__()
            self.last = nn.Linear(spaces.obs_dim, 2)

        def forward(self, obs: torch.Tensor) -> Any:
            return self.last(obs)

    rule = rlz.EpsilonGreedy(Local)
    write(tmp_path / "policy", "CartPole-v1", rule)
    path = tmp_path / "policy" / "policy.json"
    description = json.loads(path.read_text())
    assert re.fullmatch("pickle:#[0-9a-f]{16}", description["policy"]["network"]["module"])
    here = rlz.load(tmp_path / "policy").predict(np.ones(4))  # the process that made the class knows it again

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.write_text, (tmp_path / "run", "code"))

    evil = "pickle:" + base64.b64encode(pickle.dumps(Evil())).decode()
    description["env"]["id"] = evil
    path.write_text(json.dumps(description))
    with pytest.raises(EnvError, match="defined in a notebook"):
        rlz.load(tmp_path / "policy").make_env()
    description["policy"]["network"]["module"] = evil
    path.write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match=r"defined in a notebook or inside a function.*acting=Net"):
        rlz.load(tmp_path / "policy")
    assert not (tmp_path / "run").exists()
    assert rlz.load(tmp_path / "policy", acting=rule).predict(np.ones(4)) == here
