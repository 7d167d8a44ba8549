"""A word where people expect one: runs without an update, bounds that are none, success, numbers of info."""

import csv
import json
from pathlib import Path

import pytest

from rlz import envs
from rlz.config.model import run_config
from rlz.errors import EnvError
from support.command_line import Rlz, serial

ENV = "support.success_env:Succeeding-v0"
pytestmark = pytest.mark.usefixtures("without_torch")


def last_line(run: Path) -> dict[str, float]:
    line: dict[str, float] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return line


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "evaluations.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_success_and_numbers_of_info_are_logged(rlz: Rlz, tmp_path: Path, mode: str) -> None:
    keys = (
        "--log-info",
        "fuel",
        "--log-info",
        "name",
        "--log-info",
        "camera",
        "--log-info",
        "no",
        "--log-info",
        "gone",
    )
    options = ("--eval-every", "30", "--eval-episodes", "4", "--mode", mode, *keys)
    result = rlz(*serial(ENV, *options))
    assert result.status == 0, result.err
    line = last_line(tmp_path / "runs/run")
    assert line["rollout/success_rate"] == 0.5
    assert line["rollout/info/fuel"] == 2.5
    assert not {f"rollout/info/{key}" for key in ("name", "camera", "no", "gone")} & line.keys()
    for row in rows(tmp_path / "runs/run"):
        assert (float(row["success_rate"]), float(row["info/fuel"]), row["info/name"]) == (0.5, 2.5, "")
    assert "success 50 %" in result.out
    assert "success 50 % of the episodes" in rlz("eval", "runs/run", "--episodes", "4").out


def test_a_resumed_run_goes_on_with_them(rlz: Rlz, tmp_path: Path) -> None:
    options = ("--eval-every", "30", "--eval-episodes", "4", "--log-info", "fuel")
    assert rlz(*serial(ENV, *options)).status == 0
    resumed = rlz("train", "--resume", "runs/run", "-n", "62")
    assert resumed.status == 0, resumed.err
    assert last_line(tmp_path / "runs/run")["rollout/success_rate"] == 0.5, "the mean of the episodes before goes on"
    assert [row["info/fuel"] for row in rows(tmp_path / "runs/run")] == ["2.5"] * 3
    refused = rlz("train", "--resume", "runs/run", "-n", "70", "--log-info", "x")
    assert "cannot change that" in refused.err


def test_an_environment_that_tells_nothing_has_no_rate(rlz: Rlz, tmp_path: Path) -> None:
    result = rlz(*serial(ENV, "--env-kwargs", "tells=False", "--eval-every", "60", "--eval-episodes", "1"))
    assert "success" not in result.out.replace("success_env", "").replace("Succeeding", "")
    assert "rollout/success_rate" not in last_line(tmp_path / "runs/run")
    assert rows(tmp_path / "runs/run")[0]["success_rate"] == ""


@pytest.mark.parametrize(
    "options", [("--learning-starts", "60"), ("--learning-starts", "58", "--replay-ratio", "0.25")]
)
def test_a_run_without_an_update_says_so(rlz: Rlz, options: tuple[str, ...]) -> None:
    result = rlz(*serial("Pendulum-v1", *options))
    assert result.status == 0
    assert "NOTHING WILL BE LEARNED: updates begin after --learning-starts" in result.out
    assert "0 updates" in result.out
    assert "NOTHING WAS LEARNED: no update was made" in result.out


def test_a_run_with_updates_does_not(rlz: Rlz) -> None:
    assert "LEARNED" not in rlz(*serial("Pendulum-v1")).out


@pytest.mark.parametrize("bound", [3.4e38, 1e20, 2e15])
def test_bounds_that_are_none_are_refused(bound: float) -> None:
    with pytest.raises(EnvError, match=r"component 0 goes from .* which is as good as no bound"):
        envs.inspect_env(run_config(env=ENV, env_kwargs={"bound": bound}))


@pytest.mark.parametrize("bound", [1e-3, 1e6, 1e12])
def test_bounds_that_are_large_are_bounds(bound: float) -> None:
    assert envs.inspect_env(run_config(env=ENV, env_kwargs={"bound": bound})).action_high == pytest.approx((bound,))
