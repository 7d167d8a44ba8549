import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from rlz.cli import main
from rlz.config import resolve, run_config
from support import machines


class Calls:
    """Takes the place of a function, and returns `answer`."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.seen.append((arguments, named))
        return self.answer


def test_eval_passes_on_and_returns_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(4)
    monkeypatch.setattr(importlib.import_module("rlz.runtime.evaluate"), "evaluate", calls)
    assert main(["eval", "runs/x"]) == 4
    line = ["eval", "runs/x", "--episodes", "3", "--checkpoint", "best", "--max-episode-steps", "9"]
    assert main([*line, "--seeds", "training", "--video", "a.mp4"]) == 4
    rest = {"max_episode_steps": None, "video": None}
    other = {"max_episode_steps": 9, "video": Path("a.mp4")}
    assert calls.seen == [
        (("runs/x",), {"episodes": 10, "checkpoint": None, "seeds": "held-out", **rest}),
        (("runs/x",), {"episodes": 3, "checkpoint": "best", "seeds": "training", **other}),
    ]


def test_bench_refuses_what_it_cannot_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sampling", "--peers", "none", "--env", "Nope-v1"]) == 1
    assert "error: There is no environment Nope-v1" in capsys.readouterr().err
    assert main(["bench", "replay", "--", "--samplers", "2"]) == 2
    assert "rlz bench replay takes no options of rlz train: leave out --samplers 2" in capsys.readouterr().err


def test_profile_prints_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A profile is measured once, kept, and shown from then on; --fresh measures again."""
    from rlz.system.detect import detect

    monkeypatch.setenv("RLZ_PROFILES", str(tmp_path / "profiles"))
    run = resolve("td3", "Pendulum-v1", {}, None)
    calls = Calls(machines.profile(detect(), run=run))
    monkeypatch.setattr(importlib.import_module("rlz.planning"), "profile", calls, raising=False)
    line = ["profile", "--env", "Pendulum-v1", "--algo", "td3", "--budget", "0.5m", "--json", "--explain"]
    output = tmp_path / "out.json"
    for arguments, times in ([*line, "--output", str(output)], 1), (line, 1), ([*line, "--fresh"], 2):
        assert main(arguments) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["workload"]["algo"] == "td3"
        assert shown["plan"]["basis"] == "profile"
        assert [given for given, _ in calls.seen] == [(run, 30.0)] * times
        assert shown == json.loads(output.read_text())
    assert main(["profile", "--env", "Pendulum-v1", "--algo", "td3", "--explain"]) == 0
    assert "one sampler makes" in capsys.readouterr().out
    calls.answer = calls.answer.model_copy(update={"updates": ()})
    assert main([*line, "--fresh"]) == 0
    shown, said = capsys.readouterr()
    assert json.loads(shown)["plan"]["basis"] == "defaults"
    assert "not kept for `rlz train`: there are too few figures" in said
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["basis"] == "profile"  # the one from before


def test_profile_of_the_machine_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is measured, within the budget and each time; what needs an environment is refused."""
    parts = ("workload", "sampling", "transport")
    calls = Calls(machines.profile(machines.hardware(2)).model_copy(update=dict.fromkeys(parts)))
    monkeypatch.setattr(importlib.import_module("rlz.planning"), "profile", calls, raising=False)
    assert main(["profile", "--budget", "30s"]) == 0
    shown = capsys.readouterr().out
    assert "usable" in shown
    assert "10.0 GB/s with 1 thread" in shown
    assert [given for given, _ in calls.seen] == [(None, 30.0)]
    for option in (["--algo", "td3"], ["--fresh"], ["--explain"]):
        assert main(["profile", *option]) == 2
        assert f"{option[0]} needs an environment: give --env" in capsys.readouterr().err
    assert main(["profile", "--env", "CartPole-v1", "--algo", "ppo"]) == 2
    assert "ppo learns from rollouts, whose plan follows from the number of cores" in capsys.readouterr().err
    assert len(calls.seen) == 1


def test_a_profile_of_what_cannot_run_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("RLZ_PROFILES", str(tmp_path))
    calls = Calls()
    monkeypatch.setattr(importlib.import_module("rlz.planning"), "profile", calls, raising=False)
    for env, algo, words in (
        ("Nope-v1", "sac", "There is no environment Nope-v1."),
        ("Pendulum-v1", "dqn", "dqn needs one choice (Discrete)"),
    ):
        assert main(["profile", "--env", env, "--algo", algo]) == 1
        assert words in " ".join(capsys.readouterr().err.split())
    assert calls.seen == []


def test_a_profile_that_cannot_be_written_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    calls = Calls()
    monkeypatch.setattr(importlib.import_module("rlz.planning"), "profile", calls, raising=False)
    monkeypatch.setattr("os.access", lambda path, _: Path(path).name != "locked")
    (tmp_path / "locked").mkdir()
    for path, reason in (
        (tmp_path / "none" / "p.json", "there is no folder"),
        (tmp_path, f"it is a folder. Give a file, such as {tmp_path}/profile.json"),
        (tmp_path / "locked" / "p.json", "permissions"),
    ):
        assert main(["profile", "--output", str(path)]) == 1
        assert f"{path} cannot be written: " in (said := " ".join(capsys.readouterr().err.split()))
        assert reason in said
    assert calls.seen == []


def test_the_plan_of_a_profile_keeps_what_a_file_gives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As `rlz train --config FILE` would."""
    monkeypatch.setenv("RLZ_PROFILES", str(tmp_path / "profiles"))
    file = tmp_path / "run.toml"
    file.write_text('algo = "sac"\nenv = "Pendulum-v1"\nsamplers = 2\nnum_envs = 2\nthreads = "1"\n')
    found = machines.profile(machines.hardware(4), run=resolve(None, None, {}, file))
    monkeypatch.setattr(importlib.import_module("rlz.planning"), "profile", Calls(found), raising=False)
    assert main(["profile", "--config", str(file), "--fresh", "--explain", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert set(plan["given"]) == {"samplers", "num_envs", "threads"}
    assert not set(plan["given"]) & set(plan["choices"])


def test_runs_show_explains_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text('algo = "sac"\nenv = "Ant-v4"\n')
    assert main(["runs", "show", str(tmp_path)]) == 0
    assert ": died" in capsys.readouterr().out
    assert main(["runs", "show", str(tmp_path / "none")]) == 1
    assert "is no run" in capsys.readouterr().err


def test_runs_is_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["runs", "--runs-dir", str(tmp_path / "none")]) == 1
    assert f"--runs-dir {tmp_path / 'none'}: there is no such folder" in capsys.readouterr().err
    assert main(["runs", "--runs-dir", str(tmp_path)]) == 0
    assert "rlz train sac --env Ant-v4" in capsys.readouterr().out
    assert main(["top", "--runs-dir", str(tmp_path)]) == 1
    assert f"there is no run in {tmp_path} yet" in capsys.readouterr().err
    for name, seed in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(run_config(env="Ant-v4", seed=seed).to_toml())
    (tmp_path / "one" / "summary.json").write_text(
        json.dumps({"status": "completed", "env_steps": 1234567, "env_steps_per_s": 98.7, "wall_s": 5.0})
    )
    (tmp_path / "odd [red]").mkdir()
    (tmp_path / "odd [red]" / "config.toml").write_text("a: 1")
    assert main(["runs", "--runs-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "status", "steps", "of", "steps/s", "last", "best", "held-out", "started"]
    one = next(line for line in lines if line.startswith("one"))
    assert one.split()[1:5] == ["completed", "1,234,567", "1,000,000", "99"]
    assert any(line.startswith("odd [red]") and "broken" in line for line in lines)
    assert any(line.startswith("odd [red] is broken: config.toml is not TOML: ") for line in lines)
    assert main(["runs", "diff", str(tmp_path / "one"), str(tmp_path / "odd [red]")]) == 1
    assert "odd [red] is broken: config.toml is not TOML" in capsys.readouterr().err
