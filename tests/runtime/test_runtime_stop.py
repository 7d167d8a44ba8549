"""Stopping a run of either mode, wherever its main thread is: in time, with a checkpoint, and with nothing left."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlz.config import run_config
from rlz.errors import NotServedError
from rlz.records.checkpoint import newest_checkpoint
from rlz.runtime.live import Live
from rlz.runtime.resume import resume
from rlz.runtime.serial import SerialRun
from rlz.runtime.train import train
from rlz.transport.stats import Stat
from support.training import Training, wait_for

Start = Callable[..., Training]
FAKE = {"learner": "support.fake_learner:Learner"}
SERIAL = {"mode": "serial", "total_timesteps": 10_000_000}
HANGING = {**SERIAL, "env_kwargs": {"truncate_after": 20, "hang_at": 300}}


def wait_for_env_steps(training: Training, env_steps: int) -> None:
    """Look into the run, which can be done while an environment of serial mode hangs."""

    def reached() -> bool:
        try:
            with Live(training.run_dir) as live:
                return live.limiter.env_steps >= env_steps
        except NotServedError:
            return False

    wait_for(reached)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_environment_that_does_not_return_costs_serial_mode_no_checkpoint(start: Start, number: int) -> None:
    training = start(**HANGING)
    wait_for_env_steps(training, 299)
    began = time.monotonic()
    training.process.send_signal(number)
    wait_for(lambda: "writing a checkpoint and stopping; once more stops at once" in training.text(), timeout=2.0)
    assert training.wait() == 128 + number, training.text()
    assert time.monotonic() - began < 5
    assert "sampler-0 did not end in time: the run ends without it" in training.text()
    assert training.summary()["status"] == "stopped"
    checkpoint = newest_checkpoint(training.run_dir)
    assert (checkpoint.env_steps, checkpoint.updates, checkpoint.workers) == (299, 249, {})
    training.assert_nothing_is_left()


def test_a_learner_that_does_not_stop_costs_serial_mode_its_last_checkpoint_only(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLZ_FAKE_LEARNER", "deaf")
    training = start(**SERIAL)
    training.wait_for_steps(200)
    began = time.monotonic()
    training.process.send_signal(signal.SIGHUP)
    assert training.wait() == 129, training.text()
    assert time.monotonic() - began < 5.5
    assert "learner did not end in time: the run ends without it" in training.text()
    assert training.summary()["status"] == "stopped"
    assert newest_checkpoint(training.run_dir).updates == 10
    training.assert_nothing_is_left()


def test_an_evaluation_does_not_hold_up_serial_mode(start: Start) -> None:
    training = start(**SERIAL, env_kwargs={"truncate_after": 20, "sleep": 0.002}, eval_every=50, eval_episodes=1000)
    wait_for_env_steps(training, 50)
    time.sleep(0.3)  # 40 seconds of evaluation have begun
    training.process.send_signal(signal.SIGINT)
    assert training.wait() == 130, training.text()
    assert "did not end in time" not in training.text()
    assert newest_checkpoint(training.run_dir).workers, "it stopped between two rounds"
    training.assert_nothing_is_left()


def test_two_signals_stop_serial_mode_at_once(start: Start, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    training = start(**{**HANGING, "env_kwargs": {"hang_at": 300, "spawn": str(pids)}})
    wait_for_env_steps(training, 299)
    training.descendants()
    for folder in ("checkpoints", "replay"):
        (training.run_dir / folder / ".tmp-unfinished").mkdir()
    training.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert training.process.poll() is None
    began = time.monotonic()
    training.process.send_signal(signal.SIGTERM)
    assert training.wait() == 143, training.text()
    assert time.monotonic() - began < 1
    assert not [pid for pid in map(int, pids.read_text().split()) if psutil.pid_exists(pid)], "the simulator is left"
    training.assert_nothing_is_left()


def test_two_signals_stop_a_controller_that_is_held_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLZ_FAKE_TRACKER", "stuck")
    training = start(total_timesteps=10_000_000)
    training.wait_for_steps(100)
    training.process.send_signal(signal.SIGINT)
    wait_for(lambda: not training.descendants())
    time.sleep(0.5)
    assert training.process.poll() is None
    began = time.monotonic()
    training.process.send_signal(signal.SIGINT)
    assert training.wait() == 130, training.text()
    assert time.monotonic() - began < 1
    training.assert_nothing_is_left()


def test_whatever_is_being_written_at_the_end_leaves_nothing_unfinished(tmp_path: Path) -> None:
    program = f"""
import threading, time
from pathlib import Path
from rlz.runtime.at_once import exit_now
from rlz.system.files import new_folder, point_to, replace_file, write_file

run = Path({str(tmp_path)!r})
def write(number):
    for turn in range(10**9):
        path = run / "checkpoints" / f"{{number}}-{{turn}}"
        with new_folder(path) as folder:
            for name in "abc":
                write_file(folder / name, b"x" * 100_000)
        point_to(run / "latest", path.name)
        replace_file(run / f"starts-{{number}}", b"1")
for number in range(4):
    threading.Thread(target=write, args=(number,), daemon=True).start()
time.sleep(0.3)
exit_now(run, None, 3)
"""
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 3
        assert any((tmp_path / "checkpoints").iterdir())
        assert not list(tmp_path.rglob(".tmp-*"))


@pytest.mark.parametrize("mode", ["raise", "bug"])
def test_the_rows_outlive_a_learner_of_serial_mode_that_raises(
    start: Start, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("RLZ_FAKE_LEARNER", mode)
    training = start(**SERIAL)
    assert training.wait() == 1
    expected = {
        "raise": "learner: critic_loss is not finite",
        "bug": "learner: ZeroDivisionError: a bug in the learner",
    }
    assert f"error: {expected[mode]}" in training.text()
    assert "rows of the replay buffer are saved for a resumed run" in training.text()
    assert newest_checkpoint(training.run_dir).updates == 10
    training.assert_nothing_is_left()
    monkeypatch.delenv("RLZ_FAKE_LEARNER")
    assert resume(training.run_dir, {"total_timesteps": 200}, quiet=True, workers=FAKE) == 0
    resumed = newest_checkpoint(training.run_dir)
    assert (resumed.env_steps, resumed.updates) == (200, 150)
    assert resumed.replay is not None
    assert sum(resumed.replay.committed) == 200


def test_the_learner_of_serial_mode_saves_its_work_when_an_environment_raises(start: Start) -> None:
    training = start(**SERIAL, env_kwargs={"fail_at": 300})
    assert training.wait() == 1
    assert "error: sampler-0: environment support.fake_envs:Counting-v0" in training.text()
    assert training.summary()["status"] == "failed"
    checkpoint = newest_checkpoint(training.run_dir)
    assert (checkpoint.env_steps, checkpoint.updates, checkpoint.workers) == (299, 249, {})
    training.assert_nothing_is_left()


def test_a_serial_run_that_is_stopped_and_resumed_has_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {
        **{"env": "Pendulum-v1", "mode": "serial", "device": "cpu", "compile": False, "total_timesteps": 260},
        **{"learning_starts": 60, "batch_size": 16, "buffer_size": 1000, "hidden": (16,), "eval_every": 0},
        "runs_dir": str(tmp_path),
    }
    assert train(run_config(**config, name="whole"), quiet=True) == 0
    looks = 0
    look = SerialRun._look

    def interrupted(self: SerialRun, *arguments: Any) -> None:
        nonlocal looks
        looks += 1
        if looks == 150:
            signal.raise_signal(signal.SIGINT)
        look(self, *arguments)

    monkeypatch.setattr(SerialRun, "_look", interrupted)
    assert train(run_config(**config, name="stopped"), quiet=True) == 130
    assert 149 <= newest_checkpoint(tmp_path / "stopped").env_steps < 260
    assert resume(tmp_path / "stopped", quiet=True) == 0
    whole, stopped = (newest_checkpoint(tmp_path / name).learner for name in ("whole", "stopped"))
    assert {name: tensor.tobytes() for name, tensor in whole.items()} == {
        name: tensor.tobytes() for name, tensor in stopped.items()
    }


def test_a_resume_removes_what_a_killed_controller_left(tmp_path: Path) -> None:
    config = run_config({
        **{"env": "support.fake_envs:Counting-v0", "env_kwargs": {"truncate_after": 20}, "total_timesteps": 100},
        **{"learning_starts": 10, "buffer_size": 500, "hidden": (8,), "eval_every": 0},
        **{"runs_dir": str(tmp_path), "name": "run"},
    })  # fmt: skip
    assert train(config, quiet=True, workers=FAKE) == 0
    run = tmp_path / "run"
    before = {path.name for path in run.rglob(".*")}
    for folder in (run, run / "checkpoints", run / "replay", run / "logs"):
        (folder / ".tmp-file").touch()
        (folder / ".tmp-folder").mkdir()
        (folder / ".tmp-folder" / "state.json").touch()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(run / ".live.sock"))
    metrics = (run / "metrics.jsonl").read_text()
    assert resume(run, {"total_timesteps": 150}, quiet=True, workers=FAKE) == 0
    assert {path.name for path in run.rglob(".*")} == before
    assert (run / "metrics.jsonl").read_text().startswith(metrics)
    assert json.loads((run / "summary.json").read_text())["env_steps"] == 150


@pytest.mark.parametrize("mode", ["async", "serial"])
def test_a_checkpoint_that_is_asked_for_reaches_the_sink_and_the_run_goes_on(start: Start, mode: str) -> None:
    training = start(total_timesteps=10_000_000, mode=mode)
    wait_for_env_steps(training, 100)
    training.process.send_signal(signal.SIGUSR2)

    def asked() -> bool:
        with Live(training.run_dir) as live:
            return bool(live.stats.read()[:, Stat.CHECKPOINTS_ASKED].sum() == 1)

    wait_for(asked)
    wait_for(lambda: "a checkpoint was asked for" in training.text())
    training.process.send_signal(signal.SIGINT)
    assert training.wait() == 130, training.text()
