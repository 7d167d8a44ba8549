"""The code of the pages runs, with runs cut short; the files that the pages name exist."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import rlz
from rlz.api import train
from rlz.cli.app import main

ROOT = Path(__file__).parents[2]
SHORT = {"mode": "serial", "learning_starts": 60, "eval_every": 50, "eval_episodes": 1, "plan": "off", "compile": False}


def blocks(page: str, language: str = "python") -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found, page
    return found


@pytest.fixture
def cut_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def short(algorithm: Any, env: Any, **settings: Any) -> Any:
        own = {**settings, **SHORT, "total_timesteps": 120, "max_episode_steps": 20}
        return train(algorithm, env, **own)

    monkeypatch.setattr(rlz, "train", short, raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_tutorial_gives_an_algorithm_that_trains(
    cut_short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files: dict[str, str] = {}
    for block in blocks("own_algorithms"):
        name, _, code = block.partition("\n")
        files[name.removeprefix("# ")] = files.get(name.removeprefix("# "), "") + code
    assert files.keys() == {"my_dqn.py", "train.py", "my_net.py", "my_a2c.py"}
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(files["train.py"], "train.py", "exec"), {"__name__": "__main__"})
    assert "MyDqn__CartPole-v1" in capsys.readouterr().out
    assert rlz.train("sac", "Pendulum-v1", network="my_net.py:Net", runs_dir="runs").status == "completed"
    sys.modules.pop("my_dqn")


def test_the_on_policy_algorithm_of_the_tutorial_goes_on_exactly(tmp_path: Path) -> None:
    code = next(block for block in blocks("own_algorithms") if block.startswith("# my_a2c.py"))
    (tmp_path / "my_a2c.py").write_text(code)
    own = ["--num-envs", "4", "--n-steps", "16", "--n-epochs", "2", "--batch-size", "32", "--mode", "serial"]
    own += ["--eval-every", "0", "--runs-dir", str(tmp_path), "--learning-rate", "2e-3"]
    for name, steps in (("whole", 720), ("half", 360)):
        algorithm = f"{tmp_path / 'my_a2c.py'}:MyA2c"
        assert main(["train", algorithm, "--env", "CartPole-v1", *own, "-n", str(steps), "--name", name]) == 0
    assert main(["train", "--resume", str(tmp_path / "half"), "-n", "720"]) == 0
    whole, half = (
        load_file(tmp_path / name / "checkpoints" / "latest" / "learner.safetensors") for name in ("whole", "half")
    )
    assert whole["updates"] == 720 // 64 * 4
    assert whole.keys() == half.keys()
    assert all((tensor == half[name]).all() for name, tensor in whole.items())


def test_the_commands_of_the_tutorial_name_what_exists(tmp_path: Path) -> None:
    code = "".join(block for block in blocks("own_algorithms") if block.startswith("# my_dqn.py"))
    (tmp_path / "my_dqn.py").write_text(code)
    line = blocks("own_algorithms", "bash")[0].splitlines()[0].split()
    done = subprocess.run(
        [sys.executable, "-m", *line, "--print-config"],
        capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "double = true" in done.stdout


@pytest.mark.parametrize("number", range(2))
def test_the_code_of_the_python_page_runs(cut_short: None, number: int) -> None:
    exec(compile(blocks("python")[number], "docs/python.md", "exec"), {})


def test_the_pages_are_all_in_the_index() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages == set(re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
