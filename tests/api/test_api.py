"""rlz from Python: results, callbacks, what cannot be."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rlz
from rlz.errors import ConfigError, RunFailedError, UsageError

SHORT: dict[str, Any] = {
    **{"mode": "serial", "learning_starts": 20, "hidden": (8,), "batch_size": 8, "plan": "off", "compile": False},
    **{"total_timesteps": 80, "eval_every": 40, "eval_episodes": 2, "max_episode_steps": 20, "log_every": 0.001},
}


def test_a_run_gives_metrics_evaluations_and_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = rlz.train("sac", "Pendulum-v1", runs_dir=str(tmp_path), **SHORT)
    assert result.status == "completed"
    assert result.path.parent == tmp_path
    assert result.metrics["env_steps"][-1] == 80
    assert {len(values) for values in result.metrics.values()} == {len(result.metrics["env_steps"])}
    assert result.evaluations["env_steps"].tolist() == [40, 80]
    assert result.best_return == result.evaluations["return_mean"].max()
    assert result.policy.predict(np.zeros((2, 3))).shape == (2, 1)
    assert [run.path for run in rlz.runs(tmp_path)] == [result.path]
    scored = rlz.evaluate(result.path, episodes=2, seeds="training")
    assert len(scored.returns) == 2
    assert capsys.readouterr() == ("", "")


def test_callbacks_see_what_happens_and_may_stop(tmp_path: Path) -> None:
    seen: dict[str, list[Any]] = {"metrics": [], "evaluation": [], "checkpoint": []}

    def stop(evaluation: Any) -> bool:
        seen["evaluation"].append(evaluation)
        return False

    result = rlz.train(
        *("sac", "Pendulum-v1"),
        runs_dir=str(tmp_path),
        on_metrics=seen["metrics"].append,
        on_evaluation=stop,
        on_checkpoint=seen["checkpoint"].append,
        **SHORT | {"total_timesteps": 5000},
    )
    assert result.status == "stopped"
    assert seen["evaluation"][0].env_steps == 40
    assert seen["metrics"][-1]["env_steps"] < 5000
    assert all(folder.parent == result.path / "checkpoints" for folder in seen["checkpoint"])
    assert seen["checkpoint"]


def test_an_exception_in_a_callback_ends_the_run_and_is_raised(tmp_path: Path) -> None:
    def fail(evaluation: Any) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        rlz.train("sac", "Pendulum-v1", runs_dir=str(tmp_path), on_evaluation=fail, **SHORT)


class Breaks(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        raise OSError("the cable is cut")


def make_breaking(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return Breaks(gymnasium.make("Pendulum-v1", **kwargs))


def test_a_run_that_fails_raises_with_its_text_and_folder(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"the cable is cut[\s\S]*logs"):
        rlz.train("sac", make_breaking, runs_dir=str(tmp_path), **SHORT)


def test_wrong_arguments_are_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--gamma 2"):
        rlz.train("sac", "Pendulum-v1", gamma=2.0, runs_dir=str(tmp_path))
    with pytest.raises(UsageError, match="Did you mean batch_size"):
        rlz.train("sac", "Pendulum-v1", batchsize=2, runs_dir=str(tmp_path))
    with pytest.raises(UsageError, match="Unknown algorithm 'sacc'"):
        rlz.train("sacc", "Pendulum-v1", runs_dir=str(tmp_path))
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            rlz.train("sac", "Pendulum-v1", runs_dir=str(tmp_path))
        except ConfigError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])
    assert not list(tmp_path.iterdir())


SCRIPT = """
import sys
import gymnasium
import rlz

def make_env(**kwargs):
    return gymnasium.make("Pendulum-v1", **kwargs)

result = rlz.train("sac", make_env, runs_dir=sys.argv[1], total_timesteps=120, learning_starts=100, eval_every=0,
                   hidden=(8,), batch_size=8, plan="off", compile=False, max_episode_steps=20)
print(result.status, len(list(result.path.parent.iterdir())), len(rlz.evaluate(result.path, episodes=1).returns))
"""


def test_a_script_without_a_main_guard_trains_once_and_scores(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["completed", "1", "1"], done.stderr


def test_a_file_that_trains_when_it_is_imported_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "rlz", "train", "sac", "--env", f"{script}:make_env", "--mode", "serial"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "if __name__ == '__main__'" in done.stderr
