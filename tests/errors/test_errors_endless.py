"""Episodes that never end: told, cut in evaluations, ended by --max-episode-steps; nobody waits for ever."""

import csv
from pathlib import Path

import pytest

from rlz.envs import limits
from support.command_line import Rlz, serial

ENV = "support.endless_env:Endless-v0"
pytestmark = pytest.mark.usefixtures("without_torch")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(limits, "UNLIMITED_EVALUATION", 70)
    return 70


def scored(run: Path) -> list[tuple[float, float]]:
    """Mean return and length of each evaluation."""
    with (run / "evaluations.csv").open() as file:
        return [(float(row["return_mean"]), float(row["length_mean"])) for row in csv.DictReader(file)]


def test_an_evaluation_of_an_endless_environment_ends(rlz: Rlz, tmp_path: Path, few: int) -> None:
    result = rlz(*serial(ENV, "--eval-every", "30", "--eval-episodes", "2"))
    assert result.status == 0, result.err
    assert f"{ENV} states no time limit." in result.out
    assert "To set a limit: --max-episode-steps 1000" in result.out
    assert result.out.count(f"2 of 2 evaluation episodes of {ENV} did not end and were cut after 70 env steps") == 1
    assert scored(tmp_path / "runs/run") == [(70.0, 70.0)] * 2
    played = rlz("eval", "runs/run", "--episodes", "1")
    assert played.status == 0
    assert "length  70.0" in played.out
    assert "1 of 1 evaluation episodes" in played.err
    played = rlz("eval", "runs/run", "--episodes", "1", "--max-episode-steps", "7")
    assert "length  7.0" in played.out
    assert played.err == ""


def test_a_limit_that_is_given_holds_in_training_evaluation_and_eval(rlz: Rlz, tmp_path: Path) -> None:
    result = rlz(*serial(ENV, "--eval-every", "30", "--eval-episodes", "1", "--max-episode-steps", "20"))
    assert result.status == 0, result.err
    assert "time limit" not in result.out
    assert "return 20" in result.out, "training episodes end too"
    assert scored(tmp_path / "runs/run") == [(20.0, 20.0)] * 2
    assert "length  20.0" in rlz("eval", "runs/run", "--episodes", "1").out
    refused = rlz("train", "--resume", "runs/run", "-n", "70", "--max-episode-steps", "30")
    assert refused.status == 1
    assert "--max-episode-steps 30: the run was trained with --max-episode-steps 20" in refused.err


def test_a_limit_replaces_that_of_the_environment(rlz: Rlz, tmp_path: Path) -> None:
    assert (
        rlz(*serial("Pendulum-v1", "--eval-every", "60", "--eval-episodes", "1", "--max-episode-steps", "9")).status
        == 0
    )
    assert scored(tmp_path / "runs/run")[0][1] == 9.0


def test_a_wrapper_that_hides_the_limit_does_not_make_it_endless(rlz: Rlz, tmp_path: Path, few: int) -> None:
    options = ("--eval-every", "60", "--eval-episodes", "1", "--wrapper", "support.endless_env:Forever")
    assert rlz(*serial("Pendulum-v1", *options)).status == 0
    assert scored(tmp_path / "runs/run")[0][1] == 200.0, "the limit that the environment states is longer"


def test_an_evaluator_that_hangs_at_the_end_is_not_waited_for(
    rlz: Rlz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlz.runtime import controller

    monkeypatch.setattr(controller, "QUIET_S", 1.0)
    options = ("--eval-every", "60", "--eval-episodes", "1", "--env-kwargs", "hang=70", "--mode", "async")
    result = rlz(*serial(ENV, *options))
    assert result.status == 0, result.err
    assert "evaluator made no env step for 1 s: the run ends without its last evaluation" in result.out
    assert scored(tmp_path / "runs/run") == []
