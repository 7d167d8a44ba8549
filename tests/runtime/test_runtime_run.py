"""One real run through the command line, with every worker a process; many tests look at what it left."""

import csv
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlz
from rlz.config import read_config
from rlz.records.checkpoint import Checkpoint, newest_checkpoint

STEPS, STARTS, SAMPLERS, ENVS = 2500, 200, 2, 3
ARGS = f"""train sac --env Pendulum-v1 -n {STEPS} --learning-starts {STARTS} --samplers {SAMPLERS} --num-envs {ENVS}
--replay-ratio 0.5 --hidden 32,32 --batch-size 64 --buffer-size 5000 --no-compile --threads 1 --device cpu
--eval-every 1000 --eval-episodes 2 --log-every 0.3 --checkpoint-every 1 --name real"""


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run folder, and what was printed."""
    folder = tmp_path_factory.mktemp("runs")
    done = subprocess.run(
        [sys.executable, "-m", "rlz", *ARGS.split(), "--runs-dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "real", done.stdout


@pytest.fixture
def run(real: tuple[Path, str]) -> Path:
    return real[0]


@pytest.fixture
def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


@pytest.fixture
def checkpoint(run: Path) -> Checkpoint:
    return newest_checkpoint(run)


def evaluations(run: Path) -> list[dict[str, str]]:
    with (run / "evaluations.csv").open() as file:
        return list(csv.DictReader(file))


def updates_due(env_steps: int) -> float:
    return max(0, env_steps - STARTS) / 2


def test_steps_and_updates_are_exact(summary: dict[str, Any]) -> None:
    assert summary["status"] == "completed"
    assert summary["env_steps"] == STEPS
    assert summary["updates"] == updates_due(STEPS)
    assert summary["rows_lost"] == summary["restarts"] == 0
    assert summary["replay_ratio"] == pytest.approx(0.5)


def test_the_optimiser_counted_the_same_updates(checkpoint: Checkpoint) -> None:
    assert checkpoint.env_steps == STEPS
    assert checkpoint.updates == updates_due(STEPS)
    assert int(checkpoint.learner["updates"]) == updates_due(STEPS)


def test_the_replay_ratio_held_at_every_moment(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) > 2
    for line in lines:
        # The two counters are read one after the other, so a step and an update may fall between.
        assert abs(line["updates"] - updates_due(line["env_steps"])) <= ENVS + 2, line


def test_every_row_is_saved_and_the_first_ones_are_random(checkpoint: Checkpoint) -> None:
    assert checkpoint.replay is not None
    assert sum(checkpoint.replay.committed) == STEPS
    paths = [checkpoint.run_dir / file.path for files in checkpoint.replay.lanes for file in files]
    versions = [np.load(path, mmap_mode="r")["rlz.version"] for path in paths]
    assert sum(map(len, versions)) == STEPS
    assert int((np.concatenate(versions) == 0).sum()) == STARTS
    assert min(int(lane.max()) for lane in versions) > 10, "newer parameters were used"


def test_evaluations_are_at_their_multiples_and_the_final_one_ran(run: Path, summary: dict[str, Any]) -> None:
    rows = evaluations(run)
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps, seconds = [line["env_steps"] for line in log], [line["wall_s"] for line in log]
    for row in rows:  # the run's clock; the evaluation took time of its own
        before = max((at for done, at in zip(steps, seconds, strict=True) if done < int(row["env_steps"])), default=0)
        assert before <= float(row["published_s"]) + 0.3 < seconds[-1] + 1.0
        assert 0 < float(row["evaluation_s"]) < seconds[-1]
    steps = [int(float(row["env_steps"])) for row in rows]
    assert steps[-1] == STEPS
    assert len(steps) + summary["evaluations_skipped"] == 3
    for step, multiple in zip(steps[:-1], (1000, 2000), strict=False):
        assert multiple <= step < multiple + 1000
    assert summary["last_evaluation_return"] == pytest.approx(float(rows[-1]["return_mean"]))


def test_rlz_eval_gives_the_figures_of_the_evaluation_in_training(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlz.cli import main

    rows = evaluations(run)
    best = max(rows, key=lambda row: float(row["return_mean"]))
    assert main(["eval", str(run), "--episodes", "2", "--checkpoint", "best", "--seeds", "training"]) == 0
    expected = f"return  {float(best['return_mean']):.2f} +- {float(best['return_std']):.2f} over 2 episodes"
    assert expected in capsys.readouterr().out
    # The last evaluation scored the final parameters, which are the last checkpoint's.
    assert main(["eval", str(run), "--episodes", "2", "--checkpoint", "latest", "--seeds", "training"]) == 0
    assert f"return  {float(rows[-1]['return_mean']):.2f} +- " in capsys.readouterr().out


def test_the_run_folder_is_complete_and_private(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    expected = {"config.toml", "metrics.jsonl", "evaluations.csv", "summary.json", "logs", "checkpoints", "replay"}
    assert expected <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    logs = {path.name for path in (run / "logs").iterdir()}
    assert {"learner.log", "evaluator.log", "sampler-0.log", "sampler-1.log"} <= logs
    for path in [run, *run.rglob("*")]:
        if not path.is_symlink():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    config = read_config(run / "config.toml")
    assert (config.env, config.total_timesteps, config.num_envs) == ("Pendulum-v1", STEPS, ENVS)


def test_few_checkpoints_are_kept(run: Path) -> None:
    kept = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert 1 <= len(kept) <= 3
    assert (run / "checkpoints" / "latest").resolve().name == kept[-1]
    assert not list(run.rglob(".tmp-*"))


def test_samplers_and_evaluator_stay_small(summary: dict[str, Any]) -> None:
    for name in ("sampler-0", "sampler-1", "evaluator"):
        assert summary["memory_bytes"][name]["private_peak"] < 130e6, name


def test_sampling_starts_while_the_learner_still_loads(summary: dict[str, Any]) -> None:
    assert summary["first_env_step_s"] < summary["first_update_s"]


def test_the_policy_can_be_used(run: Path) -> None:
    policy = rlz.load(run)
    action = policy.predict(np.array([1.0, 0.0, 0.0], np.float32))
    assert action.shape == (1,)
    assert np.abs(action).max() <= 2.0
    assert policy.predict(np.zeros((5, 3))).shape == (5, 1)


def test_what_was_printed_says_where_the_run_is(real: tuple[Path, str]) -> None:
    run, text = real
    assert "completed: 2,500 env steps, 1,150 updates" in text
    assert str(run) in text.replace("\n", "")
