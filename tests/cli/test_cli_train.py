import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rlz.cli import main
from rlz.config import RunConfig, run_config
from rlz.config.overrides import known_options
from rlz.options.names import flag
from rlz.options.option import metadata


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Configurations that `rlz.runtime.train` was called with; it returns 3."""
    seen: list[RunConfig] = []

    def train(config: RunConfig, **_: Any) -> int:
        seen.append(config)
        return 3

    # The module: the package has a function of the same name.
    monkeypatch.setattr(importlib.import_module("rlz.runtime.train"), "train", train)
    return seen


OWN: dict[str, dict[str, Any]] = {
    "sac": {"ent_coef": 0.2, "target_entropy": -3.0},
    "td3": {"exploration_noise": 0.3, "policy_delay": 3, "target_policy_noise": 0.4, "target_noise_clip": 0.6},
    "ddpg": {"exploration_noise": 0.3},
}


@pytest.mark.parametrize("algo", OWN)
def test_every_option_reaches_the_configuration(
    trained: list[RunConfig], algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_net.py").touch()
    given: dict[str, Any] = {
        "env": "my_pkg:MyEnv-v0",
        "obs_dtype": "native",
        "seed": 7,
        "total_timesteps": 123,
        "batch_size": 32,
        "buffer_size": 999,
        "learning_starts": 5,
        "learning_rate": "lin_1e-3",
        "scale_learning_rate": 4.0,
        "precision": "fp32",
        "gamma": 0.9,
        "tau": 0.1,
        "replay_ratio": 0.5,
        "ratio_slack": 9.0,
        "n_step_return": 2,
        "priority_alpha": 0.5,
        "priority_beta": 0.3,
        "priority_epsilon": 1e-3,
        "activation": "tanh",
        "n_critics": 3,
        "target_critics": 2,
        "max_episode_steps": 9,
        "mode": "serial",
        "graph": "my_pkg:graph",
        "plan": "off",
        "samplers": 2,
        "num_envs": 4,
        "inference": "central",
        "inference_device": "cuda:1",
        "env_groups": 2,
        "network": "my_net.py:Net",
        "threads": 2,
        "spin_count": 7,
        "updates_per_launch": 4,
        "replay_device": "host",
        "publish_every": 4,
        "eval_every": 77,
        "eval_episodes": 3,
        "runs_dir": "there",
        "name": "it",
        "checkpoint_every": 0.0,
        "log_every": 1.0,
        "wandb_project_name": "p",
        **OWN[algo],
    }
    # One of them alone can be given.
    place: dict[str, Any] = {"device": "cuda:1"}
    if algo != "sac":
        place = {"devices": "cuda:0,cuda:1", "exchange_every": 4, "max_staleness": 7}
    given |= place
    line = [part for name, value in given.items() for part in (flag(name), str(value))]
    line += [
        "--hidden",
        "64,32",
        "--wrapper",
        "a:B",
        "--wrapper",
        "c.d:E",
        "--env-kwargs",
        "x=1",
        "--env-kwargs",
        "y=no",
    ]
    line += ["--prioritized", "--normalize-obs", "--layer-norm", "--no-compile", "--no-save-replay", "--track", "--pin"]
    line += ["--tracker", "trackio"]
    line += ["--log-info", "fuel", "--log-info", "x_position"]
    assert main(["train", algo, *line]) == 3
    expected = run_config(
        algo=algo, **given, hidden=(64, 32), wrapper=("a:B", "c.d:E"), env_kwargs={"x": 1, "y": "no"},
        prioritized=True, normalize_obs=True, layer_norm=True, compile=False, save_replay=False, track=True,
        tracker="trackio", pin=True,
        log_info=("fuel", "x_position"),
    )  # fmt: skip
    assert trained == [expected]
    default = run_config(env="A", algo=algo)
    untouched = {name for name in expected.model_dump() if getattr(expected, name) == getattr(default, name)}
    # The last two are only for free runs, and for rows of single steps.
    of_devices = {"device", "devices", "exchange_every", "max_staleness"}
    assert untouched <= {"algo", *of_devices, "min_replay_ratio", "normalize_reward"} - set(place)


def test_short_form_and_flags(trained: list[RunConfig]) -> None:
    assert main(["train", "sac", "--env", "Ant-v4", "-n", "2e4", "--compile", "--save-replay", "--no-track"]) == 3
    assert trained[0].total_timesteps == 20_000
    assert trained[0].learning_starts == 10_000  # preset


def test_help_shows_every_option_with_its_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for name, field in known_options().items():
        if name == "algo":
            continue
        start = text.index(f" --[no-]{flag(name)[2:]} " if field.annotation is bool else f" {flag(name)} ")
        entry = text[start : start + 700]
        if name != "env":
            assert "[default: " in entry, name
        assert metadata(field)["panel"].split(" (")[0] in text
    assert "[default: 1000000]" in text
    assert "-n" in text
    assert "<bool>" not in text
    assert "; dqn: 1e-4]" in text
    assert "rlz train sac --env Ant-v4" in text


@pytest.mark.parametrize("words", [(), ("sac",), ("dqn",), ("ppo",)])
def test_help_names_options_whole_in_80_columns(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["train", *words, "--help"]) == 0
    text = capsys.readouterr().out
    assert "\u2026" not in text
    assert "--[no-]save-replay" in text


def test_help_of_an_algorithm_has_its_own_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["train", "dqn", "--help"]) == 0
    text = capsys.readouterr().out
    assert "[default: 1e-4]" in text
    assert "sac" not in text[text.index("--learning-rate") : text.index("--gamma")]


def test_a_plan_does_not_become_options_of_a_printed_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file plans anew; the algorithm of a file has the file as its origin."""
    monkeypatch.setenv("RLZ_PROFILES", str(tmp_path / "profiles"))
    assert main(["train", "sac", "--env", "Ant-v4", "--print-config"]) == 0
    text = capsys.readouterr().out
    assert "samplers" not in tomllib.loads(text)
    assert "# samplers = 1" in text
    assert "# plan without a profile" in text
    (tmp_path / "ant.toml").write_text(text)
    assert main(["train", "--config", str(tmp_path / "ant.toml"), "--print-config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('algo = "sac"')
    assert lines[0].endswith(f"# {tmp_path / 'ant.toml'}")
    assert any(line.startswith("# samplers = 1") for line in lines)


def test_a_file_of_a_users_algorithm_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "no.py:Algo", "--env", "Ant-v4"]) == 1
    assert capsys.readouterr().err == "error: no.py:Algo: there is no such file.\n"


def test_print_config_is_a_file_for_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trained: list[RunConfig]
) -> None:
    assert main(["train", "sac", "--env", "Pendulum-v1", "--seed", "4", "--print-config"]) == 0
    text = capsys.readouterr().out
    assert tomllib.loads(text)["seed"] == 4
    assert 'preset sac.toml [env."Pendulum-v1"]' in text
    path = tmp_path / "pendulum.toml"
    path.write_text(text)
    assert main(["train", "--config", str(path), "--seed", "5"]) == 3
    assert (trained[0].env, trained[0].seed, trained[0].learning_rate) == ("Pendulum-v1", 5, 1e-3)
    assert main(["train", "--config", str(path), "--print-config"]) == 0
    assert f"# {path}" in capsys.readouterr().out


ANT = ["sac", "--env", "Ant-v4"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["Which algorithm?", "rlz train sac --env Ant-v4"]),
        (["sac"], ["Which environment? Give --env"]),
        (["sacc", "--env", "x"], ["Unknown algorithm 'sacc'. Did you mean sac?"]),
        (["Ant-v4"], ["The algorithm comes first: rlz train sac --env Ant-v4"]),
        (["sac", "Ant-v4"], ["unexpected extra argument", "rlz train sac --env Ant-v4"]),
        ([*ANT, "--n-envs", "4"], ["No such option --n-envs", "rlz calls it --num-envs", "See rlz train sac --help"]),
        (
            ["ppo", "--env", "x", "--replay-ratio", "2"],
            ["is an option of sac, td3", ", not of ppo", "rlz train ppo --help"],
        ),
        (["sac", "--env", "x", "--dueling"], ["--dueling is an option of dqn, not of sac"]),
        ([*ANT, "--hidden", ""], ["--hidden : expected widths from 1 to 65536 separated by commas", "or none"]),
        ([*ANT, "--hidden", "0,32"], ["--hidden 0,32: expected widths"]),
        ([*ANT, "--max-episode-steps", "0"], ["--max-episode-steps 0: expected an integer from 1"]),
        ([*ANT, "--network", "no.py:Net"], ["--network no.py:Net: there is no such file"]),
        ([*ANT, "--graph", "no.py:graph"], ["--graph no.py:graph: there is no such file"]),
        (["sac", "--env", "no.py:Env"], ["/no.py:Env: there is no such file"]),
        ([*ANT, "--max-staleness", "0"], ["--max-staleness has no effect without --devices"]),
        ([*ANT, "--exchange-every", "4"], ["--exchange-every has no effect without --devices"]),
        ([*ANT, "--priority-beta", "1"], ["--priority-beta has no effect without --prioritized"]),
        ([*ANT, "--tracker", "trackio"], ["--tracker has no effect without --track"]),
        ([*ANT, "--eval-every", "0", "--eval-episodes", "3"], ["--eval-episodes has no effect without --eval-every"]),
        (
            [*ANT, "--updates-per-launch", "8", "--ratio-slack", "2"],
            ["--updates-per-launch 8 is more than --ratio-slack 2"],
        ),
        ([*ANT, "--device", "cpu", "--precision", "tf32"], ["--precision tf32: the CPU has no tf32"]),
        ([*ANT, "--gradient-steps=1"], ["--replay-ratio", "gradient_steps"]),
        (["--algo", "sac"], ["The algorithm comes first"]),
        ([*ANT, "--batch_size", "3"], ["Write --batch-size: options have dashes"]),
        ([*ANT, "--bach-size", "3"], ["Did you mean --batch-size"]),
        ([*ANT, "--seed"], ["'--seed' requires an argument"]),
        ([*ANT, "--gamma", "1.5"], ["--gamma 1.5: expected a number from 0 to 1."]),
        ([*ANT, "-n", "1.5"], ["--total-timesteps 1.5: expected an integer from 1"]),
        ([*ANT, "--mode", "sync"], ["--mode sync: expected async or serial. Did you mean async?"]),
        ([*ANT, "--compile", "yes"], ["unexpected extra argument"]),
        ([*ANT, "--env-kwargs", "x"], ["--env-kwargs x: expected key=value"]),
        ([*ANT, "--samplers", "3", "--num-envs", "2"], ["--num-envs 2 is less than --samplers 3"]),
    ],
)
def test_usage_errors(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert all(word in captured.err for word in words), captured.err
    assert captured.out == ""


def test_errors_of_files_have_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text("n_envs = 2\nseed = 1\n")
    assert main(["train", *ANT, "--config", str(path)]) == 1
    assert capsys.readouterr().err == f"error: {path}: unknown key 'n_envs'. rlz calls it num_envs.\n"


def test_an_rlz_error_of_the_run_has_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlz.errors import EnvError

    def train(config: RunConfig, **_: Any) -> int:
        raise EnvError(f"{config.env} is closed today")

    # The module: the package has a function of the same name.
    monkeypatch.setattr(importlib.import_module("rlz.runtime.train"), "train", train)
    assert main(["train", *ANT]) == 1
    assert capsys.readouterr().err == "error: Ant-v4 is closed today\n"
