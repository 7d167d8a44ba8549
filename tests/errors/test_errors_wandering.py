"""Environments that change the working folder keep it to themselves; processes that they start end with the run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlz import envs
from rlz.config import run_config
from support.command_line import Rlz, serial

ENV = "support.wandering_env:Wandering-v0"


def kwargs(**values: object) -> list[str]:
    return [part for key, value in values.items() for part in ("--env-kwargs", f"{key}={value}")]


@pytest.mark.parametrize("temporary", [False, True])
@pytest.mark.parametrize("when", ["init", "reset", "step"])
def test_a_run_stays_where_it_was_started(rlz: Rlz, tmp_path: Path, when: str, temporary: bool) -> None:
    options = (*kwargs(when=when, temporary=temporary), "--num-envs", "2", "--eval-every", "30", "--no-compile")
    result = rlz(*serial(ENV, *options, "--runs-dir", "mine"))
    assert result.status == 0, result.err
    assert Path.cwd() == tmp_path
    assert (tmp_path / "mine/run/summary.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == ({"mine"} if temporary else {"mine", "own"})
    played = rlz("eval", "mine/run", "--episodes", "1", "--video", "run.gif")
    assert played.status == 0, played.err
    assert (tmp_path / "run.gif").exists()
    assert Path.cwd() == tmp_path


@pytest.mark.usefixtures("without_torch")
def test_workers_too(rlz: Rlz, tmp_path: Path) -> None:
    options = (*kwargs(when="step", temporary=True), "--num-envs", "2", "--eval-every", "30", "--mode", "async")
    result = rlz(*serial(ENV, *options, "--runs-dir", "mine"))
    assert result.status == 0, result.err
    assert (tmp_path / "mine/run/summary.json").exists()


def test_an_environment_of_a_policy_is_in_its_folder_and_its_user_in_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = envs.make(run_config(env=ENV))
    for folder in (tmp_path, Path(__file__).parent):
        os.chdir(folder)
        env.reset(seed=1)
        env.step(np_zeros())
        env.render()
        assert Path.cwd() == folder
    env.close()


def np_zeros() -> object:
    import numpy as np

    return np.zeros(1, np.float32)


def living(path: Path) -> list[int]:
    pids = map(int, path.read_text().split())
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def test_the_inspection_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pids = tmp_path / "pids"
    before = set(psutil.Process().children(recursive=True))
    envs.inspect_env(run_config(env=ENV, env_kwargs={"spawn": str(pids), "temporary": True}))
    assert len(pids.read_text().split()) == 3
    assert living(pids) == []
    assert set(psutil.Process().children(recursive=True)) == before


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_no_process_of_an_environment_outlives_the_run(rlz: Rlz, tmp_path: Path, mode: str) -> None:
    pids = tmp_path / "pids"
    options = (*kwargs(spawn=pids, temporary=True), "--mode", mode, "--eval-every", "60", "--eval-episodes", "1")
    assert rlz(*serial(ENV, *options)).status == 0
    assert len(pids.read_text().split()) == 9, "of inspection, sampler and evaluator"
    assert living(pids) == []
    assert rlz("eval", "runs/run", "--episodes", "1").status == 0
    assert len(pids.read_text().split()) == 12
    assert living(pids) == []


def test_a_pipe_is_not_held_open(tmp_path: Path) -> None:
    """What reads the output of `rlz` (`| tee`) comes to an end with it, also after an error."""
    options = (*kwargs(spawn=tmp_path / "pids"), "--wrapper", "support.wandering_env:NotThere")
    command = [sys.executable, "-m", "rlz", *serial(ENV, *options)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "has no 'NotThere'" in done.stderr
    assert living(tmp_path / "pids") == []


@pytest.mark.usefixtures("without_torch")
def test_what_a_killed_sampler_leaves_is_killed_before_it_is_restarted(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    options = (*kwargs(spawn=pids, temporary=True), "--mode", "async", "-n", "1000000", "--learning-starts", "900000")
    command = [sys.executable, "-m", "rlz", *serial(ENV, *options)]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        until = time.monotonic() + 60

        def started(count: int) -> list[int]:
            while not pids.exists() or len(pids.read_text().split()) < count:
                assert time.monotonic() < until
                time.sleep(0.02)
            return list(map(int, pids.read_text().split()))

        started(6)
        for worker in psutil.Process(process.pid).children():
            if any("rlz.workers.sampler" in part for part in worker.cmdline()):
                worker.kill()
        again = started(9)
        assert not set(living(pids)) & set(again[:6])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert living(pids) == []
