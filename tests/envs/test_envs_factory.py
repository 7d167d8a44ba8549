import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import registry

from rlz import envs
from rlz.config import run_config
from rlz.errors import EnvError

MODULE = """
import warnings
import gymnasium
import numpy as np

class Chain(gymnasium.Env):
    def __init__(self, length=5, fail=False, render_mode=None):
        if fail:
            raise RuntimeError("no chain today")
        if length == 13:
            warnings.warn("thirteen")
            warnings.warn("thirteen")
        self.length = length
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Box(-0.5, 2.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action):
        assert action.dtype == np.float64
        return np.ones(2), 1.0, False, False, {}

class Half(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 0.5 * reward

class NeedsArgument(gymnasium.Wrapper):
    def __init__(self, env, x):
        super().__init__(env)

def broken(env):
    raise RuntimeError("cannot wrap")

if "Chain-v0" not in gymnasium.registry:
    gymnasium.register("Chain-v0", Chain, max_episode_steps=10)
"""


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder, which is not on the path: as for the console script."""
    (tmp_path / "chain_env.py").write_text(MODULE)
    (tmp_path / "chain_broken.py").write_text("1 / 0\n")
    (tmp_path / "chain_needs.py").write_text("import not_there_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [item for item in sys.path if item])
    yield "chain_env:Chain-v0"
    for name in ("chain_env", "chain_broken", "chain_needs"):
        sys.modules.pop(name, None)
    registry.pop("Chain-v0", None)


def message(**options: Any) -> str:
    with pytest.raises(EnvError) as caught:
        envs.inspect_env(run_config(**options))
    return str(caught.value)


def test_module_prefix_kwargs_and_wrapper(chain: str) -> None:
    config = run_config(env=chain, env_kwargs={"length": 7}, wrapper=["chain_env:Half"])  # type: ignore[arg-type]
    spec = envs.inspect_env(config)
    assert (spec.env_id, spec.obs_dtype, spec.action_dtype, spec.max_episode_steps) == (chain, "float32", "float64", 10)
    env = envs.make(config, render_mode=None)
    assert env.unwrapped.length == 7  # type: ignore[attr-defined]
    env.reset(seed=1)
    steps = [env.step(envs.ActionMap.of(spec).to_env(np.zeros(1, np.float32))) for _ in range(10)]
    assert [step[1] for step in steps] == [0.5] * 10
    assert [step[3] for step in steps] == [False] * 9 + [True]  # Gymnasium's time limit is kept
    assert "PassiveEnvChecker" not in str(env)
    env.close()
    again = envs.make_env({"id": chain, "kwargs": {"length": 3}, "wrapper": ["chain_env:Half"]})
    assert again.unwrapped.length == 3  # type: ignore[attr-defined]


def test_arguments_arrive_as_they_were_written_in_training_and_from_a_policy(chain: str) -> None:
    from rlz.answers import PolicySpec
    from rlz.config import resolve
    from rlz.loaded_policy import describe

    config = resolve("sac", chain, {"env_kwargs": ["length=(None, 2)"]})
    spec = envs.inspect_env(config)
    description = json.loads(
        json.dumps(describe(config, spec, PolicySpec("native", {}, ()), version=1, env_steps=1)["env"])
    )
    for env in (envs.make(config), envs.make_env(description)):
        assert env.unwrapped.length == (None, 2)  # type: ignore[attr-defined]


def test_warnings_become_notes_said_once(chain: str, capfd: pytest.CaptureFixture[str]) -> None:
    notes: list[str] = []
    envs.make(run_config(env=chain, env_kwargs={"length": 13}), on_note=notes.append).close()
    assert notes == ["thirteen"]
    envs.make(run_config(env=chain, env_kwargs={"length": 13})).close()
    assert capfd.readouterr() == ("", "")


def test_gymnasiums_deprecation_is_one_short_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = envs.inspect_env(run_config(env="Ant-v4"))
    assert (spec.obs_shape, spec.obs_dtype, spec.action_dim) == ((27,), "float32", 8)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "note: Gymnasium has a newer Ant-v5; scores of the two differ.\n"


def test_mujoco_neither_prints_nor_writes_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    envs.make(run_config(env="HalfCheetah-v5")).close()
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("Antt-v4", ["There is no environment Antt-v4", "Did you mean Ant-v4 or Ant-v5"]),
        ("ant-v4", ["Did you mean Ant-v4"]),
        ("Ant-v9", ["Did you mean Ant-v5"]),
        ("Ant-v3", ["gymnasium-robotics", "Ant-v5"]),
        ("qqq", ["--env my_module:qqq"]),
        ("ALE/Pong-v5", ["registers ALE/...", "--env module:ALE/Pong-v5"]),
        ("no_such_module:X-v0", ["no module 'no_such_module'"]),
        ("FrozenLake-v1", ["observation_space", "Discrete(16)", "FlattenObservation"]),
        ("Blackjack-v1", ["observation_space Tuple"]),
        ("a:b:c", ["no module"]),
    ],
)
def test_environments_that_cannot_be_had(env: str, words: list[str]) -> None:
    text = message(env=env)
    assert all(word in text for word in words), text


def test_missing_version_takes_the_newest(capfd: pytest.CaptureFixture[str]) -> None:
    assert envs.inspect_env(run_config(env="Pendulum")).obs_shape == (3,)
    assert "Pendulum-v1" in capfd.readouterr().err


def test_errors_in_the_users_code_say_where(chain: str) -> None:
    text = message(env=chain, env_kwargs={"fail": True})
    assert all(word in text for word in ("no chain today", "RuntimeError", "chain_env.py, line 9"))
    assert "ZeroDivisionError" in message(env="chain_broken:X-v0")
    assert "'not_there_at_all'" in message(env="chain_needs:X-v0")


def test_wrong_arguments(chain: str) -> None:
    assert "no argument 'lenght' (--env-kwargs lenght=...). Did you mean length?" in message(
        env=chain, env_kwargs={"lenght": 3}
    )
    assert "It has length, fail, render_mode." in message(env=chain, env_kwargs={"zzz": 3})


def test_wrong_wrappers(chain: str) -> None:
    for wrapper, words in (
        ("chain_env:Halff", "has no 'Halff'. Did you mean Half"),
        ("no_such:Thing", "no module 'no_such'"),
        ("chain_env:broken", "cannot wrap"),
        ("chain_env:NeedsArgument", "needs x. Give what is needed after the class: chain_env:NeedsArgument,x=VALUE"),
        ("builtins:str", "is no gymnasium.Env"),
    ):
        assert words in message(env=chain, wrapper=[wrapper])


def test_the_package_needs_no_gymnasium() -> None:
    import subprocess

    code = "import sys, rlz.envs; print([m for m in ('torch', 'gymnasium', 'mujoco') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_registry_is_gymnasiums() -> None:
    assert isinstance(envs.make(run_config(env="Pendulum-v1")), gymnasium.wrappers.TimeLimit)
