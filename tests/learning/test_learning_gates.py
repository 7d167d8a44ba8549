"""Learning gates: SAC on Pendulum-v1, 20,000 steps, three seeds (`make learn`), and a short smoke form for every run.

The gate: mean return over 100 fixed reset seeds at least -180 (the zoo of Stable-Baselines3 reports -157 +- 89 between
episodes). A wrong sign in the target must fail it. Truncation treated as termination is caught where it shows, in the
chain with known values (tests/learner); what it does to Pendulum is printed here.
"""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlz
from rlz.workers.environment import Environment
from rlz.workers.evaluation import evaluation_seeds, play

GATE = -180.0
HERE = Path(__file__).parent


def train(folder: Path, name: str, *options: str, program: tuple[str, ...] = ("-m", "rlz")) -> Path:
    command = [
        sys.executable,
        *program,
        "train",
        "sac",
        "--env",
        "Pendulum-v1",
        "--runs-dir",
        str(folder),
        "--name",
        name,
    ]
    done = subprocess.run([*command, *options], cwd=HERE, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / name


def score(run: Path, episodes: int = 100) -> float:
    policy = rlz.load(run, "latest")
    env = Environment(policy.make_env(), policy.spec, "gate")
    try:
        result = play(env, policy.native, policy.spec, evaluation_seeds(episodes))
    finally:
        env.close()
    assert result is not None
    return result.mean


@pytest.mark.timeout(300)
def test_smoke_sac_gets_far_better_than_random_in_3000_steps(tmp_path):
    run = train(tmp_path, "smoke", "-n", "3000", "--hidden", "64,64", "--eval-every", "0", "--no-compile")
    assert score(run, 10) > -900.0


@pytest.mark.learn
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sac_meets_the_gate(tmp_path, seed):
    run = train(tmp_path, f"s{seed}", "--seed", str(seed), "--eval-episodes", "20")
    with (run / "evaluations.csv").open() as file:
        curve = [float(row["return_mean"]) for row in csv.DictReader(file)]
    mean = score(run)
    print(f"\nseed {seed}: {mean:.1f} over 100 episodes; curve {np.round(curve, 0).tolist()}")
    assert mean >= GATE


@pytest.mark.learn
def test_a_wrong_sign_in_the_target_fails_the_gate(tmp_path):
    run = train(
        tmp_path,
        "wrong_sign",
        *("-n", "8000", "--mode", "serial", "--no-compile", "--eval-every", "0"),
        program=("wrong_sign.py",),
    )
    mean = score(run)
    print(f"\nwrong sign in the target: {mean:.1f}")
    assert mean < GATE


@pytest.mark.learn
def test_what_truncation_as_termination_does(tmp_path):
    run = train(tmp_path, "cut", "--wrapper", "truncation_as_termination:TruncationAsTermination", "--eval-every", "0")
    print(f"\ntruncation treated as termination: {score(run):.1f} (no gate: see the chain test)")
