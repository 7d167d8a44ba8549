"""Hints lead somewhere: wrappers with arguments, ids with their module, packages, ports, frames; a bug is a bug."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlz import envs
from rlz.cli import main
from rlz.config import RunConfig, resolve
from rlz.config.model import read_config
from rlz.errors import EnvError, UsageError
from support.command_line import Rlz, serial

ENV = "support.misbehaving_envs:Misbehaving-v0"


def message(**options: Any) -> str:
    with pytest.raises(EnvError) as caught:
        envs.inspect_env(RunConfig(**options))
    return str(caught.value)


def test_a_wrapper_takes_arguments() -> None:
    text = "gymnasium.wrappers:FrameStackObservation,stack_size=4,padding_type='zero'"
    other = "gymnasium.wrappers:RescaleAction,min_action=-2.0,max_action=2.0"
    config = resolve("sac", "Pendulum-v1", {"wrapper": [text, other]})
    assert read_config(config.to_toml()) == config
    spec = envs.inspect_env(config)
    assert spec.obs_shape == (4, 3)
    assert spec.action_high == (2.0,)


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        ("gymnasium.wrappers:FrameStackObservation", "needs stack_size. Give what is needed after the class: "),
        ("gymnasium.wrappers:FrameStackObservation", "gymnasium.wrappers:FrameStackObservation,stack_size=VALUE"),
        ("gymnasium.wrappers:TimeLimit,max_episode_step=3", "needs max_episode_steps"),
        ("gymnasium.wrappers:ClipAction,hard=True", "has no argument 'hard'. It has env."),
        ("gymnasium.wrappers:JaxToNumpy", "needs "),
        ("gymnasium.wrappers:JaxToNumpy", "not installed"),
        ("support.hints_env:Needs", "needs the package 'not_there_at_all', which is not installed"),
    ],
)
def test_a_wrapper_that_cannot_be_used_says_what_it_needs(wrapper: str, words: str) -> None:
    text = message(env="Pendulum-v1", wrapper=(wrapper,))
    assert wrapper.partition(",")[0] in text
    assert words in text


@pytest.mark.parametrize("text", ["a", "a:b,c", "a:b,c=1,", "a:b,1c=2", "a:b,c={1}"])
def test_a_wrapper_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--wrapper"):
        resolve("sac", "Pendulum-v1", {"wrapper": [text]})


def test_an_id_is_suggested_with_its_module() -> None:
    assert "Did you mean support.misbehaving_envs:Misbehaving-v0?" in message(
        env="support.misbehaving_envs:Misbehavin-v0"
    )
    assert "Did you mean Pendulum-v1" in message(env="support.misbehaving_envs:Pendulumm-v1")


def test_every_instance_has_its_own_index() -> None:
    kwargs = {"how": "{index}", "where": "sim-{10+index}", "when": [{"port": "{5000 + index}"}]}
    config = RunConfig(env=ENV, env_kwargs=kwargs)
    env: Any = envs.make(config, index=3).unwrapped
    assert (env.how, env.where, env.when) == (3, "sim-13", [{"port": 5003}])


def test_a_fixed_port_fails_with_the_way_out_and_an_index_is_it(rlz: Rlz, without_torch: None) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    result = rlz(*serial("support.hints_env:Listening-v0", "--env-kwargs", f"port={port}", "--num-envs", "2"))
    assert result.status == 1
    assert "one for each environment of its samplers and one for the evaluator" in result.err
    assert "--env-kwargs port={5000+index}" in result.err
    arguments = ("--env-kwargs", f"port={{{port}+index}}", "--num-envs", "2", "--eval-every", "60", "--name", "other")
    assert rlz(*serial("support.hints_env:Listening-v0", *arguments)).status == 0
    assert rlz("eval", "runs/other", "--episodes", "1").status == 0


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()])
def test_a_reward_of_one_number_is_that_number(rlz: Rlz, without_torch: None, shape: tuple[int, ...]) -> None:
    result = rlz(*serial("support.hints_env:ArrayReward-v0", "--env-kwargs", f"shape={shape}"))
    assert result.status == 0, result.err
    assert "return 15" in result.out


def test_a_video_of_an_environment_that_cannot_render_says_so(rlz: Rlz, without_torch: None) -> None:
    assert rlz(*serial("support.hints_env:ArrayReward-v0")).status == 0
    result = rlz("eval", "runs/run", "--video", "run.gif")
    assert result.status == 1
    assert 'render_mode="rgb_array", and of render modes it has none' in result.err
    assert "GL" not in result.err


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["eval", "--help"], ["train", "--n-énvs", "2"]])
def test_a_terminal_without_unicode(arguments: list[str], tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "rlz", *arguments], capture_output=True, env=variables, cwd=tmp_path, check=False
    )
    assert done.returncode == (0 if "--help" in arguments else 2)
    assert b"bug" not in done.stderr
    assert b"Unicode" not in done.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), "No space left on device."),
        (OSError(24, "Too many open files"), "ulimit -n"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "ulimit -u"),
        (FileNotFoundError(2, "No such file or directory"), "current folder does not exist any more"),
        (MemoryError(), "There is not enough memory."),
    ],
)
def test_what_the_system_refuses_is_no_bug(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def list_runs(_: Any) -> Any:
        raise error

    monkeypatch.delenv("RLZ_TRACEBACK", raising=False)
    monkeypatch.setattr("rlz.records.runs.list_runs", list_runs)
    assert main(["runs"]) == 1
    text = capsys.readouterr().err
    assert words in text
    assert "bug" not in text


@pytest.mark.parametrize("where", ["rlz", "user"])
def test_a_bug_is_told_from_an_error_of_other_code(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def raising() -> Callable[..., Any]:
        import rlz.records.runs as module

        file = module.__file__ if where == "rlz" else str(tmp_path / "mine.py")
        names: dict[str, Any] = {}
        exec(compile("def list_runs(folder):\n    raise KeyError('x')", file, "exec"), names)
        return names["list_runs"]  # type: ignore[no-any-return]

    monkeypatch.delenv("RLZ_TRACEBACK", raising=False)
    monkeypatch.setattr("rlz.records.runs.list_runs", raising())
    assert main(["runs"]) == 1
    text = capsys.readouterr().err
    assert ("This is a bug in rlz." in text) == (where == "rlz")
    assert ("mine.py, line 2, which is not rlz's" in text) == (where == "user")
