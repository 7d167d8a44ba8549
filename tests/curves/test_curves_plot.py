"""`rlz plot`: what runs of rlz and files of others become."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlz.cli import main
from rlz.curves import drawing, groups
from rlz.curves.reading import EVALUATION, TRAINING, Series, Source, read_sources
from rlz.tracking.sinks import TensorBoardFile
from support.watch_runs import make_run

RUNS = Path("runs")


def only(name: str | Path, runs_dir: Path = RUNS) -> Source:
    (source,) = read_sources([str(name)], runs_dir)
    return source


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def curve(value: float, steps: int = 11) -> Series:
    at = np.linspace(0.0, 100.0, steps)
    return Series(at, at / 10, np.full(steps, value))


def test_a_run_of_rlz_has_its_log_and_its_evaluations(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one", lines=40)
    source = only(run)
    assert (source.label, source.settings["env"], source.settings["run"]) == ("sac", "Pendulum-v1", "one")
    found = source.get(EVALUATION)
    assert found is not None
    assert found.steps.tolist() == [1000.0, 2000.0, 3000.0, 4000.0]
    assert found.seconds.tolist() == [50.0, 100.0, 150.0, 200.0], "an older file: the log says when"
    assert found.values.tolist() == [-190.5, -180.5, -170.5, -160.5]
    assert len(source.series["train/critic_loss"].steps) == 40
    text = (run / "evaluations.csv").read_text().replace("wall_s", "evaluation_s").splitlines()
    text = [f"{text[0]},published_s", *(f"{line},{index}.5" for index, line in enumerate(text[1:]))]
    (run / "evaluations.csv").write_text("\n".join(text) + "\n")
    assert only(run).series[EVALUATION].seconds.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert only("last", tmp_path).path == only("-1", tmp_path).path == run


def test_a_monitor_counts_steps_and_means_of_a_hundred_episodes(tmp_path: Path) -> None:
    rows = "".join(f"{float(number)},10,{number / 2}\n" for number in range(150))
    path = write(tmp_path / "monitor.csv", '#{"t_start": 1.7e9, "env_id": "Pendulum-v1"}\nr,l,t\n' + rows)
    source = only(path)
    assert source.label == "Stable-Baselines3"
    found = source.series[TRAINING]
    assert found.steps[[0, -1]].tolist() == [10.0, 1500.0]
    assert found.seconds[-1] == 74.5
    assert found.values[[0, 1, -1]].tolist() == [0.0, 0.5, 99.5]


@pytest.mark.parametrize(
    ("name", "text", "metric", "label"),
    [
        (
            "progress.csv",
            "time/total_timesteps,eval/mean_reward,time/time_elapsed,rollout/ep_rew_mean\n"
            "100,,1.0,-3\n200,5.0,2.0,-2\n300,6.0,3.0,-1\n",
            EVALUATION,
            "Stable-Baselines3",
        ),
        ("w.csv", "global_step,a__1 - charts/episodic_return\n200,5\n300,7\n", TRAINING, "CleanRL"),
        ("tb.csv", "Wall time,Step,Value\n1700000001,200,5\n1700000002,300,6\n", EVALUATION, "tb"),
        ("sb3.csv", "env_steps,mean,std,wall_s\n200,5,1,1.0\n300,6,1,2.0\n", EVALUATION, "sb3"),
    ],
)
def test_tables_of_others(tmp_path: Path, name: str, text: str, metric: str, label: str) -> None:
    source = only(write(tmp_path / name, text))
    found = source.get(metric)
    assert found is not None
    assert source.label == label
    assert (found.steps.tolist(), found.values.tolist()) == ([200.0, 300.0], [5.0, 6.0])
    if name != "w.csv":
        assert np.diff(found.seconds).tolist() == [1.0]
    assert only(f"mine={tmp_path / name}").label == "mine"


def test_tensorboard_files(tmp_path: Path) -> None:
    file = TensorBoardFile(tmp_path)
    for step in (100, 200):
        file.log(step, step / 10, step, {"charts/episodic_return": float(step), "losses/qf_loss": 0.5})
    file.close()
    source = only(tmp_path)
    assert source.label == "CleanRL"
    assert source.series[TRAINING].values.tolist() == [100.0, 150.0]
    assert source.series["losses/qf_loss"].steps.tolist() == [100.0, 200.0]
    assert only(next(tmp_path.glob("events*"))).series.keys() == source.series.keys()


def test_what_holds_no_curve_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.csv", "x,y\n1,2\n")
    run = make_run(tmp_path, "one", lines=20)
    output = str(tmp_path / "o.svg")
    for arguments, said in (
        ([str(path), "--output", output], "holds no curve: no column of env steps"),
        (["none", "--output", output], "none is no run"),
        ([str(run), "--output", output, "--metric", "eval/none"], "has no eval/none. --metric takes one that all"),
        ([str(run), "--output", output, "--group-by", "none"], "--group-by none: no run has such a setting"),
        ([str(run), "--output", str(tmp_path / "o.pdf")], "expected a name that ends in .svg or .png"),
        ([str(run), "--output", str(tmp_path / "none" / "o.svg")], "there is no folder"),
    ):
        assert main(["plot", *arguments]) in (1, 2), arguments
        assert said in " ".join(capsys.readouterr().err.split())


def test_matplotlib_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(Exception, match=r"pip install 'rlz\[plot\]'"):
        drawing.check_output(tmp_path / "a.svg")


def sources(count: int) -> list[Source]:
    return [Source("a", Path(str(one)), {EVALUATION: curve(float(one))}) for one in range(count)]


def test_a_group_of_a_few_has_a_mean_and_one_of_ten_an_interval() -> None:
    def of(count: int) -> Any:
        return groups.summary([source.series[EVALUATION] for source in sources(count)], "steps")

    assert of(1) is None
    assert (of(3).middle[0], of(3).low) == (1.0, None)
    many = of(12)
    assert many.middle[0] == 5.5
    assert 1.0 < many.low[0] < 5.5 < many.high[0] < 10.0
    short = [Series(one.steps[:4], one.seconds[:4], one.values[:4]) for one in (curve(1.0), curve(2.0))]
    assert groups.summary([*short, curve(9.0)], "time").x[-1] == 3.0  # type: ignore[union-attr]


def test_groups_are_told_apart_by_settings() -> None:
    runs = [
        Source("x", Path(name), {EVALUATION: curve(1.0)}, {"env": env, "ratio": ratio, "run": name})
        for name, env, ratio in (("a", "E", 1), ("b", "E", 2), ("c", "F", 1))
    ]
    assert list(groups.grouped([*runs[:2], *sources(1)])) == ["x", "a"]
    assert {name: len(found) for name, found in groups.grouped(runs).items()} == {"x, E": 2, "x, F": 1}
    assert list(groups.grouped(runs, ["ratio", "env"])) == ["ratio 1, env E", "ratio 2, env E", "ratio 1, env F"]


def test_training_returns_are_shown_where_one_has_no_evaluations(tmp_path: Path) -> None:
    trained = Source("b", Path("b"), {TRAINING: curve(1.0)})
    both = Source("c", Path("c"), {TRAINING: curve(1.0), EVALUATION: curve(2.0)})
    assert groups.common_metric([both], None) == EVALUATION
    assert groups.common_metric([both, trained], None) == TRAINING


@pytest.mark.parametrize("name", ["curves.svg", "curves.png"])
def test_the_command_draws_runs_beside_others(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        make_run(tmp_path / "runs", f"s{seed}", lines=40, seed=seed)
    peer = write(tmp_path / "sb3.csv", "env_steps,mean,wall_s\n1000,-200,1.0\n3000,-150,2.0\n")
    output = tmp_path / name
    line = ["plot", "s1", "-1", f"SB3={peer}", "--runs-dir", str(tmp_path / "runs"), "--output", str(output)]
    for axis in ("steps", "time"):
        assert main([*line, "--x", axis]) == 0
        assert "eval/return_mean of sac (2), SB3 (1)" in capsys.readouterr().out
    first = output.read_bytes()
    assert main([*line, "--x", "time"]) == 0
    assert output.read_bytes() == first
    assert first[:4] == (b"\x89PNG" if name.endswith("png") else b"<?xm")


def test_a_clock_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "w.csv", "global_step,charts/episodic_return\n200,5\n300,7\n")
    assert main(["plot", str(path), "--x", "time", "--output", str(tmp_path / "o.svg")]) == 1
    assert main(["plot", str(path), "--output", str(tmp_path / "o.svg")]) == 0
    assert json.dumps(only(path).series[TRAINING].values.tolist()) == "[5.0, 6.0]"
